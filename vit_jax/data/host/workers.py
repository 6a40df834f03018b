"""Worker processes that make batches: `config.data.num_workers`."""

import multiprocessing
import os
import re
import signal
import sys
import threading
from typing import TYPE_CHECKING

from absl import flags
from absl import logging

from vit_jax.config import UserError

if TYPE_CHECKING:  # imported where it is used
  import grain

_MIN_SHARED_BYTES = 2**20  # smaller arrays go through a pipe
_SHARED = '/dev/shm'
# Batches of a worker in shared memory: one waits, one is made and one is read.
_IN_FLIGHT = 3
_MORE_ROOM = (
  'give it more, as with --shm-size=8g of docker run, or set'
  ' config.data.num_workers=0, which uses threads'
)
_ENDED = re.compile(r'terminated unexpectedly with exit code -(\d+)')


def in_processes(
  dataset: 'grain.IterDataset', num_workers: int, batch_bytes: int
) -> 'grain.IterDataset':
  """Lets worker processes make the elements of a dataset, which are batches.

  `batch_bytes` is the size of the images of a batch.
  """
  import grain

  if not flags.FLAGS.is_parsed():  # in a notebook; Grain reads its flags
    flags.FLAGS.mark_as_parsed()
  return grain.experimental.WithOptionsIterDataset(
    dataset.mp_prefetch(
      grain.MultiprocessingOptions(num_workers), _end_with_parent
    ),
    grain.experimental.DatasetOptions(
      min_shm_size=_least_shared_bytes(num_workers * batch_bytes)
    ),
  )


def explain(error: Exception) -> None:
  """Raises a UserError if a signal has ended a worker."""
  if match := _ENDED.search(str(error)):
    raise UserError(_reason(int(match[1]))) from None


def _least_shared_bytes(batches_bytes: int) -> int:
  """Returns the size of the smallest arrays that go through shared memory.

  A worker that writes where its file system is full is killed. So all arrays go
  through pipes, which are slower, where there may be too little room for one
  batch of each worker.
  """
  if not sys.platform.startswith('linux'):
    return _MIN_SHARED_BYTES
  try:
    status = os.statvfs(_SHARED)
    free = status.f_bavail * status.f_frsize
  except OSError:
    free = 0
  # Evaluations and other runs have batches of their own.
  needed = 2 * _IN_FLIGHT * batches_bytes
  if needed <= free:
    return _MIN_SHARED_BYTES
  logging.warning(
    'warning: %s has %.0f MB free, and batches of config.data.num_workers need'
    ' %.0f MB: they go through pipes, which takes longer; %s',
    *(_SHARED, free / 1e6, needed / 1e6, _MORE_ROOM),
  )
  return sys.maxsize


def _reason(number: int) -> str:
  """Returns a line about a worker that a signal has ended."""
  try:
    name = signal.Signals(number).name
  except ValueError:
    name = f'signal {number}'
  line = f'{name} has ended a process of config.data.num_workers'
  if number == signal.SIGBUS:
    return f'{line}, as {_SHARED} is full: {_MORE_ROOM}'
  if number == signal.SIGKILL:
    return (
      f'{line}, as where memory is used up: set config.data.num_workers to'
      ' less, or to 0, which uses threads'
    )
  return f'{line}: set it to 0, which uses threads'


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
