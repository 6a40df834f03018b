"""Brings batches to the devices, ahead of the steps that use them."""

import collections
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import concurrent.futures
from types import TracebackType

import jax
import numpy as np

from vit_jax import data
from vit_jax.config import UserError
from vit_jax.parallel import mesh as mesh_lib
from vit_jax.parallel import processes

Batch = dict[str, jax.Array]


class Feed(Iterator[Batch]):
  """Global batches for each call, two of which are on their way to the devices.

  A call of several steps gets theirs as one: arrays [steps, B, ...].

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
    lengths: Iterable[int],
    finish: Callable[[Batch], Batch] | None = None,
  ):
    """Starts to bring batches.

    Args:
      batches: This process's rows of each; closed at the end.
      mesh: Mesh of devices.
      shapes: Shapes of such a batch, as global arrays.
      lengths: Number of steps in each call.
      finish: Maps those global arrays to the batch; None: they are it.
    """
    self.error: UserError | None = None
    self._batches = batches
    self._mesh = mesh
    self._lengths = iter(lengths)
    self._finish = finish
    _, parts = mesh_lib.host_part(mesh)
    self._blank = {
      name: np.zeros((x.shape[0] // parts, *x.shape[1:]), x.dtype)
      for name, x in shapes.items()
    }
    self._thread = concurrent.futures.ThreadPoolExecutor(
      1, initializer=processes.block_signals
    )
    self._queue: collections.deque[
      tuple[int, concurrent.futures.Future[Batch]]
    ] = collections.deque()
    for _ in range(2):
      self._submit()

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
    if not self._queue:
      raise StopIteration
    length, coming = self._queue.popleft()
    self._submit()
    if self.error is None:
      try:
        return coming.result()
      except UserError as e:
        self.error = e
    return self._place([self._blank] * length)

  def is_ready(self) -> bool:
    """Whether the next batch is there already."""
    return not self._queue or self.error is not None or self._queue[0][1].done()

  def close(self) -> None:
    """Stops the thread and the source of the batches."""
    self._thread.shutdown(cancel_futures=True)
    self._batches.close()

  def _submit(self) -> None:
    length = next(self._lengths, None)
    if length is not None:
      self._queue.append((length, self._thread.submit(self._fetch, length)))

  def _fetch(self, length: int) -> Batch:
    # After an error they are at their end.
    return self._place(
      [next(self._batches, self._blank) for _ in range(length)]
    )

  def _place(self, batches: Sequence[data.Batch]) -> Batch:
    if len(batches) == 1:
      batch = mesh_lib.global_batch(batches[0], self._mesh)
    else:
      stacked = {
        name: np.stack([batch[name] for batch in batches])
        for name in batches[0]
      }
      batch = mesh_lib.global_batch(stacked, self._mesh, stacked=True)
    return self._finish(batch) if self._finish else batch
