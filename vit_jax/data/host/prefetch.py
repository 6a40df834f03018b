"""Makes batches in the background, on threads or in worker processes."""

from collections.abc import Callable
from collections.abc import Iterator
import gc
from typing import TYPE_CHECKING

import numpy as np

from vit_jax.config import wing

if TYPE_CHECKING:  # imported where it is used: prediction does not need it
  import grain

Batch = dict[str, np.ndarray]


class Batches(Iterator[Batch]):
  """Batches that are made in the background, until `close` or the end."""

  def __init__(
    self,
    maker: Callable[[int], Batch],
    steps: range,
    options: 'grain.ReadOptions',
    num_workers: int,
    batch_bytes: int = 0,
  ):
    """Starts to make the batches of steps.

    `options` has the number of threads, and of batches to make in advance.
    Without workers, threads of this process make them. `batch_bytes` is the
    size of a batch's images.
    """
    import grain

    # The dataset's elements are whole batches, so workers keep their order.
    dataset = (
      grain.MapDataset.range(steps.start, steps.stop)
      .map(maker)
      .to_iter_dataset(options)
    )
    if num_workers:
      in_processes = wing('vit_jax.data.host.workers:in_processes')
      dataset = in_processes(dataset, num_workers, batch_bytes)
    self._has_workers = num_workers > 0
    self._iterator: grain.DatasetIterator[Batch] | None = iter(dataset)

  def __next__(self) -> Batch:
    if self._iterator is None:
      raise StopIteration
    try:
      batch = next(self._iterator)
    except Exception as e:  # an error, or StopIteration
      self.close()
      if self._has_workers:
        wing('vit_jax.data.host.workers:explain')(e)
      raise
    if self._has_workers:  # a copy, which frees the worker's shared memory
      batch = {key: np.array(x, subok=False) for key, x in batch.items()}
    return batch

  def close(self) -> None:
    """Stops the threads and processes, and ends the iterator."""
    if self._iterator is None:
      return
    self._iterator.close()
    self._iterator = None
    if self._has_workers:
      gc.collect()  # Grain keeps shared memory in cycles of references
