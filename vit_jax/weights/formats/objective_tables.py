"""Files that hold more than a trunk: also a decoder, or the heads of a method.

The authors of a method publish the parameters that its objective has beside the
trunk under names of their own. An objective describes these by a table, which
works in both directions: see `table`.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from typing import Any

import numpy as np

from vit_jax.weights.formats import tables


@dataclasses.dataclass(frozen=True)
class ObjectiveTable:
  """How a format stores the parameters of an objective beside its trunk."""

  # The table. Paths lead to the objective's parameters, as
  # 'decoder/norm/scale'; names are as the format's own rules have them, without
  # a prefix that its `prepare` removes.
  rules: Sequence[tables.Rule]
  # Name in a table, the trunk's included -> name in such a file.
  stored: Callable[[str], str] = str
  # Arrays of such a file that are no parameters, as fixed positions, by their
  # names in the file. They are written, and not read.
  constants: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
  # Entries of the config.json beside such a file, in place of the trunk's
  # entries.
  config: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def table(objective: Any, format_name: str) -> ObjectiveTable | None:
  """Returns how a format stores what an objective has beside its trunk.

  The method `foreign` of an objective says it; None: files of the format have
  only the trunk.
  """
  if not hasattr(objective, 'foreign'):
    return None
  foreign_table: ObjectiveTable | None = objective.foreign(format_name)
  return foreign_table
