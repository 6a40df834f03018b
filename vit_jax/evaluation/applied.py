"""A function of a model's parameters and a batch, applied batch by batch."""

import collections
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
import math
from typing import Any

import jax
import numpy as np

from vit_jax import config as config_lib
from vit_jax.parallel import memory
from vit_jax.parallel import mesh as mesh_lib


class Applied:
  """A function on as many devices as divide the batch."""

  def __init__(
    self,
    function: Callable[[Any, Mapping[str, jax.Array]], Any],
    params: Any,
    batch_size: int,
  ):
    """Brings the parameters to the devices; compiles nothing yet.

    Args:
      function: (parameters, batch) -> a tree of arrays [B, ...].
      params: Of the model.
      batch_size: B, of all batches.
    """
    mesh_config = config_lib.default().mesh
    mesh_config.data = math.gcd(batch_size, jax.device_count())
    self._mesh = mesh_lib.make_mesh(mesh_config)
    replicated = mesh_lib.replicated(self._mesh)
    self._params = jax.device_put(params, replicated)
    self._function: Callable[..., Any] = jax.jit(function)

  def __call__(
    self, batches: Iterator[tuple[Any, Mapping[str, np.ndarray]]]
  ) -> Iterator[tuple[Any, Any]]:
    """Applies the function in order; the device has the next one meanwhile.

    Args:
      batches: Pairs of anything and a batch, arrays [B, ...] by name.

    Yields:
      The same thing with the function's result, as NumPy arrays.

    Raises:
      UserError: The device has too little memory.
    """
    waiting: collections.deque[tuple[Any, Any]] = collections.deque()
    for key, batch in batches:
      with memory.explained(memory.BATCHES):
        on_device = mesh_lib.global_batch(batch, self._mesh)
        waiting.append((key, self._function(self._params, on_device)))
      if len(waiting) > 1:
        yield _fetch(*waiting.popleft())
    while waiting:
      yield _fetch(*waiting.popleft())


def _fetch(key: Any, result: Any) -> tuple[Any, Any]:
  with memory.explained(memory.BATCHES):
    return key, jax.device_get(result)
