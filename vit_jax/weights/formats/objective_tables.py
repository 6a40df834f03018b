"""Files that hold more than a trunk: also a decoder, or the heads of a method.

The authors of a method publish the parameters that its objective has beside the
trunk under names of their own. An objective describes these by a table, which
works in both directions: see `Published`.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from typing import Any
from typing import Protocol
from typing import runtime_checkable

import numpy as np

from vit_jax.weights.formats import tables


@dataclasses.dataclass(frozen=True)
class ObjectiveTable:
  """How a format stores the parameters of an objective beside its trunk."""

  # The table. Paths are those of the objective's parameters, as
  # 'decoder/norm/scale'; names are as the format's own rules have them, without
  # a prefix that its `prepare` removes.
  rules: Sequence[tables.Rule]
  # Name in a table, the trunk's included -> name in such a file.
  stored: Callable[[str], str] = str
  # Arrays of such a file that are no parameters, as fixed positions, by their
  # names in the file. They are written, and not read.
  constants: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
  # Entries of the config.json beside such a file, in place of those of the
  # trunk alone.
  config: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@runtime_checkable
class Published(Protocol):
  """An objective whose authors' files have more than its trunk."""

  def foreign(self, format_name: str) -> ObjectiveTable | None:
    """Returns how files of a format store what is beside the trunk.

    None: such files have only the trunk.
    """


def table(objective: Any, format_name: str) -> ObjectiveTable | None:
  """Returns how a format stores what an objective has beside its trunk."""
  if not isinstance(objective, Published):
    return None
  return objective.foreign(format_name)
