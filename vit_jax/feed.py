"""Brings batches to the devices, ahead of the steps that use them."""

import collections
from collections.abc import Iterator
from collections.abc import Mapping
import concurrent.futures
import signal
from types import TracebackType

import jax
import numpy as np

from vit_jax import data
from vit_jax import sharding
from vit_jax.config import UserError

Batch = dict[str, jax.Array]


class Feed(Iterator[Batch]):
  """Global batches, two of which are on their way to the devices.

  With several processes each brings its own rows, and all must take as many
  batches. So one that cannot be made does not end the iteration: a blank one
  stands for it and for all that follow, and `error` says why.

  Attributes:
    error: Why there are blank batches; None: there are none.
  """

  def __init__(
    self,
    batches: data.Batches,
    mesh: jax.sharding.Mesh,
    shapes: Mapping[str, jax.ShapeDtypeStruct],
    count: int,
  ):
    """Starts to bring batches.

    Args:
      batches: This process's rows of each; closed at the end.
      mesh: Of devices.
      shapes: Of a global batch.
      count: How many there are.
    """
    self.error: UserError | None = None
    self._batches = batches
    self._left = count
    self._mesh = mesh
    _, parts = sharding.host_part(mesh)
    self._blank = {
      name: np.zeros((x.shape[0] // parts, *x.shape[1:]), x.dtype)
      for name, x in shapes.items()
    }
    self._thread = concurrent.futures.ThreadPoolExecutor(
      1, initializer=_block_signals
    )
    self._queue = collections.deque(self._submit() for _ in range(2))

  def __enter__(self) -> 'Feed':
    return self

  def __exit__(
    self,
    kind: type[BaseException] | None,
    error: BaseException | None,
    traceback: TracebackType | None,
  ) -> None:
    self.close()

  def __next__(self) -> Batch:
    if not self._left:
      raise StopIteration
    self._left -= 1
    if self.error is None:
      try:
        batch = self._queue.popleft().result()
      except UserError as e:
        self.error = e
      else:
        self._queue.append(self._submit())
        return batch
    return sharding.global_batch(self._blank, self._mesh)

  def is_ready(self) -> bool:
    """Whether the next batch is there already."""
    return not self._left or self.error is not None or self._queue[0].done()

  def close(self) -> None:
    """Stops the thread, and what makes the batches."""
    self._thread.shutdown(cancel_futures=True)
    self._batches.close()

  def _submit(self) -> concurrent.futures.Future[Batch]:
    return self._thread.submit(self._fetch)

  def _fetch(self) -> Batch:
    batch = next(self._batches, {})  # {}: they are at their end
    return sharding.global_batch(batch, self._mesh)


def _block_signals() -> None:
  """Keeps this thread, and the processes it starts, from being interrupted.

  A terminal sends Ctrl-C to all processes; whether to stop is the main thread's
  decision, and until then it needs its batches.
  """
  signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
