"""Waits for signals and for child processes to end."""

import os
import select
import signal

_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
  """Records signals to stop, and ends `wait` when one arrives.

  Attributes:
    stop: Number of the first signal, or 0. A second one ends the process.
  """

  def __init__(self) -> None:
    self.stop = 0

  def __enter__(self) -> 'Signals':
    self._read, self._write = os.pipe()
    os.set_blocking(self._read, False)
    os.set_blocking(self._write, False)
    self._wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
    self._previous = {x: signal.signal(x, self._note) for x in _STOPS}
    # A handler is needed to be woken when a child ends; SIGCHLD is ignored by
    # default.
    self._previous[signal.SIGCHLD] = signal.signal(
      signal.SIGCHLD, lambda *_: None
    )
    return self

  def __exit__(self, *_: object) -> None:
    for number, handler in self._previous.items():
      signal.signal(number, handler)
    signal.set_wakeup_fd(self._wakeup)
    os.close(self._read)
    os.close(self._write)

  def wait(self, seconds: float) -> None:
    """Returns after `seconds`, or when a signal arrives or a child ends."""
    select.select([self._read], [], [], seconds)
    try:
      os.read(self._read, 4096)
    except BlockingIOError:  # no signal
      pass

  def _note(self, number: int, _: object) -> None:
    self.stop = self.stop or number
    for each in _STOPS:
      signal.signal(each, signal.SIG_DFL)
