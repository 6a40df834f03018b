"""A thread that ends a process which makes no progress."""

import faulthandler
import os
import pathlib
import threading
from typing import NoReturn

from vit_jax.parallel import processes


class Watch:
  """Ends this process if it makes no progress.

  Without this, all processes would wait for ever for one that hangs.
  """

  def __init__(self, timeout: float, log: pathlib.Path | None = None):
    """Stores the timeout; entering the context starts the thread.

    Args:
      timeout: Seconds without a call of `alive`; 0: no limit.
      log: File to which the stacks of all threads are appended; None: stderr.
    """
    self._timeout = timeout
    self._log = log
    self._step = 0
    # Ticks of the thread since the last progress. Clock time would include time
    # in which the whole process is suspended.
    self._ticks = 0
    self._done = threading.Event()
    self._thread = threading.Thread(target=self._run, daemon=True)

  def __enter__(self) -> 'Watch':
    if self._timeout > 0:
      self._thread.start()
    return self

  def __exit__(self, *_: object) -> None:
    self._done.set()

  def alive(self, step: int | None = None) -> None:
    """Reports progress.

    Args:
      step: Number of completed updates, if it has changed.
    """
    self._ticks = 0
    if step is not None:
      self._step = step

  def _run(self) -> None:
    num_ticks = 20
    while not self._done.wait(self._timeout / num_ticks):
      self._ticks += 1
      if self._ticks >= num_ticks:
        self._stalled()

  def _stalled(self) -> NoReturn:
    line = f'no progress for {self._timeout:g} s after step {self._step}: '
    if processes.is_up():
      line += (
        'a process of this run hangs, or was lost (this is'
        f' {processes.this_process()}); {processes.RESUME}'
      )
    else:
      line += f'the run hangs; {processes.RESUME}'
    try:
      with open(self._log or os.dup(2), 'a', encoding='utf-8') as file:
        print(f'error: {line}' if self._log else '', file=file, flush=True)
        faulthandler.dump_traceback(file)
    finally:  # even if the disk is full
      processes.end(line)
