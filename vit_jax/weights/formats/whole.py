"""Files that hold more than a trunk: also a decoder, or the heads of a method.

The authors of a method publish the parameters that its objective has beside the
trunk under names of their own. An objective describes these by a table,
`objectives.Objective.foreign`, which works in both directions.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from typing import Any
from typing import Protocol

from flax import traverse_util
import jax
import numpy as np

from vit_jax import models
from vit_jax.config import UserError
from vit_jax.weights.formats import tables


@dataclasses.dataclass(frozen=True)
class Whole:
  """How a format stores the parameters of an objective beside its trunk.

  Attributes:
    rules: The table. Paths are those of the objective's parameters, as
      'decoder/norm/scale'; names are as the format's own rules have them,
      without a prefix that its `prepare` removes.
    stored: Name in a table, the trunk's included -> name in such a file.
    constants: Arrays of such a file that are no parameters, as fixed positions,
      by their names in the file. They are written, and not read.
    config: Entries of the config.json beside such a file, in place of those of
      the trunk alone.
  """

  rules: Sequence[tables.Rule]
  stored: Callable[[str], str] = str
  constants: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
  config: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class Objective(Protocol):
  """What is needed here of an objective (`objectives.Objective`)."""

  def init(self, key: jax.Array) -> Any:
    """Returns fresh parameters."""

  def trunk(self, params: Any) -> tuple[models.Model, Any]:
    """Returns the trunk and its parameters, a subtree of `params`."""

  def foreign(self, format_name: str) -> Whole | None:
    """Returns how a format stores what is beside the trunk."""


def trunk_path(objective: Objective) -> str:
  """Returns the path of the trunk's parameters in the objective's parameters.

  '' if the objective has no others, else keys such as 'student/backbone'.

  Raises:
    UserError: Its method `trunk` returns no subtree of its parameters.
  """
  paths: list[str] = []

  def search(key: jax.Array) -> None:
    params = objective.init(key)
    _, trunk = objective.trunk(params)
    waiting: list[tuple[tuple[str, ...], Any]] = [((), params)]
    while waiting:
      keys, tree = waiting.pop()
      if tree is trunk:
        paths.append('/'.join(keys))
      elif isinstance(tree, Mapping):
        waiting += [((*keys, key), x) for key, x in tree.items()]

  jax.eval_shape(search, jax.random.key(0))  # `trunk` may compute with arrays
  if paths:
    return paths[0]
  raise UserError(
    f'{type(objective).__name__}.trunk returns other parameters than it is'
    ' given: it must return the model, and one of the subtrees of params as it'
    " is, as params['trunk']"
  )


def at(tree: Any, path: str) -> Any:
  """Returns the subtree at a path such as 'student/backbone'; '': the tree."""
  for key in filter(None, path.split('/')):
    tree = tree[key]
  return tree


def beside(tree: Any, path: str) -> dict[str, Any]:
  """Returns what a tree has beside the subtree at a path; {} where it is ''."""
  if not path:
    return {}
  flat = traverse_util.flatten_dict(tree, sep='/')
  rest = {k: x for k, x in flat.items() if not k.startswith(f'{path}/')}
  return traverse_util.unflatten_dict(rest, sep='/')


def joined(trunk: Any, path: str, rest: Any) -> Any:
  """Returns a tree with a subtree at a path, and what is beside it."""
  for key in reversed([key for key in path.split('/') if key]):
    trunk = {key: trunk}
  flat = traverse_util.flatten_dict(trunk, sep='/')
  flat |= traverse_util.flatten_dict(rest, sep='/')
  return traverse_util.unflatten_dict(flat, sep='/')
