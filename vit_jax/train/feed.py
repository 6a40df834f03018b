"""Copies batches to the devices before the steps that use them."""

import collections
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import concurrent.futures

import jax
import numpy as np

from vit_jax import data
from vit_jax.config import UserError
from vit_jax.data import base as data_base
from vit_jax.parallel import mesh as mesh_lib
from vit_jax.parallel import processes

Batch = dict[str, jax.Array]


class Feed(Iterator[Batch]):
  """Global batches for each call; two are prefetched to the devices.

  A call of several steps gets one stacked batch: arrays [steps, B, ...].

  Each process provides its own rows, and all processes must take the same
  number of batches. So if a batch cannot be made, the iteration does not end:
  this batch and all later ones are blank, and `error` says why.

  Attributes:
    error: Why batches are blank; None: they are not.
  """

  def __init__(
    self,
    batches: data.Batches,
    mesh: jax.sharding.Mesh,
    shapes: Mapping[str, jax.ShapeDtypeStruct],
    lengths: Iterable[int],
    finish: Callable[[Batch], Batch] | None = None,
    advice: Callable[[], str] = str,
  ):
    """Starts to prefetch.

    Args:
      batches: This process's rows of each batch; closed at the end.
      mesh: Mesh of devices.
      shapes: Shapes of a global batch.
      lengths: Number of steps in each call.
      finish: Maps the global arrays to the final batch; None: no change.
      advice: Returns the end of the error of an image that is damaged.
    """
    self.error: UserError | None = None
    self._batches = batches
    self._mesh = mesh
    self._lengths = iter(lengths)
    self._finish = finish
    self._advice = advice
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

  def __exit__(self, *_: object) -> None:
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
        is_damaged = isinstance(e, data_base.DamagedError)
        self.error = UserError(f'{e}{self._advice() if is_damaged else ""}')
    return self._place([self._blank] * length)

  def is_ready(self) -> bool:
    """Whether the next batch can be taken without waiting."""
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
    # After an error the iterator has ended: blank batches follow.
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
