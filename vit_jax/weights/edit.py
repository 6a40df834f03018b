"""Changes a checkpoint's parameters and records each change."""

from collections.abc import Mapping
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


@dataclasses.dataclass(frozen=True)
class Change:
  """A change to one array.

  Attributes:
    path: Path of the parameter, as 'head/kernel'.
    old: Its shape in the checkpoint; None if it was not there.
    new: Its shape now; None if it was dropped.
    action: Description of the change, in a few words.
    is_fresh: Whether its values are new, not the checkpoint's.
  """

  path: str
  old: tuple[int, ...] | None
  new: tuple[int, ...] | None
  action: str
  is_fresh: bool = False


class Edit:
  """Parameters that are adapted one by one.

  Attributes:
    params: Arrays by path, NumPy or JAX.
    changes: Changes that were made, in order.
  """

  def __init__(self, params: Mapping[str, Any]):
    """Holds the parameters, NumPy or JAX arrays by path."""
    self.params = dict(params)
    self.changes: list[Change] = []
    self._is_jax = any(isinstance(x, jax.Array) for x in params.values())

  def host(self, path: str) -> np.ndarray:
    """Returns a parameter as a NumPy array."""
    return np.asarray(self.params[path])

  def put(
    self, path: str, value: np.ndarray, action: str, is_fresh: bool = False
  ) -> None:
    """Sets a parameter, as float32, and records the change."""
    old = self.params.get(path)
    value = np.asarray(value, np.float32)
    self.params[path] = jnp.asarray(value) if self._is_jax else value
    shape = None if old is None else old.shape
    self.note(path, shape, value.shape, action, is_fresh)

  def drop(self, path: str, action: str) -> None:
    """Removes a parameter and records the change."""
    old = self.params.pop(path)
    self.note(path, old.shape, None, action)

  def below(self, name: str) -> list[str]:
    """Returns the paths of the parameters of a module."""
    return [path for path in self.params if path.startswith(name + '/')]

  def note(
    self,
    path: str,
    old: tuple[int, ...] | None,
    new: tuple[int, ...] | None,
    action: str,
    is_fresh: bool = False,
  ) -> None:
    """Records a change."""
    self.changes.append(Change(path, old, new, action, is_fresh))
