"""Makes batches in the background, on threads or in worker processes."""

from collections.abc import Callable
from collections.abc import Iterator
import gc
import multiprocessing
import os
import signal
import threading
from typing import TYPE_CHECKING

from absl import flags
import numpy as np

if TYPE_CHECKING:  # imported where it is used: prediction does not need it
  import grain

Batch = dict[str, np.ndarray]

_MIN_SHARED_BYTES = 2**20  # smaller arrays go through a pipe


class Batches(Iterator[Batch]):
  """Batches that are made in the background, until `close` or the end."""

  def __init__(
    self,
    maker: Callable[[int], Batch],
    steps: range,
    options: 'grain.ReadOptions',
    num_workers: int,
  ):
    """Starts to make batches.

    Args:
      maker: Makes the batch of a step.
      steps: Steps whose batches are made, in order.
      options: Number of threads, and of batches to make in advance.
      num_workers: Processes that make batches; 0: threads of this one.
    """
    import grain

    # The dataset's elements are whole batches, so workers keep their order.
    dataset = (
      grain.MapDataset.range(steps.start, steps.stop)
      .map(maker)
      .to_iter_dataset(options)
    )
    if num_workers:
      if not flags.FLAGS.is_parsed():  # in a notebook; Grain reads its flags
        flags.FLAGS.mark_as_parsed()
      dataset = grain.experimental.WithOptionsIterDataset(
        dataset.mp_prefetch(
          grain.MultiprocessingOptions(num_workers), _end_with_parent
        ),
        grain.experimental.DatasetOptions(min_shm_size=_MIN_SHARED_BYTES),
      )
    self._has_workers = num_workers > 0
    self._iterator: grain.DatasetIterator[Batch] | None = iter(dataset)

  def __next__(self) -> Batch:
    if self._iterator is None:
      raise StopIteration
    try:
      batch = next(self._iterator)
    except Exception:  # an error, or StopIteration
      self.close()
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


def _end_with_parent(*_: int) -> None:
  """Ends a worker when its parent ends, and not before."""
  # Terminals and launchers send these signals to all processes. The parent
  # handles them: it may need more batches before it closes its workers.
  for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
  parent = multiprocessing.parent_process()
  assert parent is not None

  def wait() -> None:
    parent.join()
    os._exit(1)  # other threads wait forever for a queue that nobody reads

  threading.Thread(target=wait, daemon=True).start()
