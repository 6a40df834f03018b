"""What the processes of a run do together.

All processes run the same command, each on its own devices, and are numbered
from 0. All must make the same calls of this module in the same order. Only runs
of several processes import the module `peers`, which connects them, lets them
agree, and ends them together. With a single process, the functions here return
at once.

jax is not imported here, since commands parse their flags before they import
it.
"""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import faulthandler
import logging as python_logging
import multiprocessing
import os
import pathlib
import signal
import sys
import threading
from typing import Any
from typing import cast
from typing import NoReturn
from typing import TypeVar

from vit_jax import config as config_lib

_T = TypeVar('_T')

RESUME = 'run the same command again to resume'
# Largest number of seconds to flush output when a process ends.
_LAST_WORDS_S = 10

# Held by the thread that ends the process.
last_words = threading.Lock()


def is_up() -> bool:
  """Whether this process is connected to others of a run."""
  # Private API, but Orbax and many others use it. Unlike jax.process_index() it
  # does not initialize devices.
  distributed = sys.modules.get('jax._src.distributed')
  if distributed is None:
    return False
  state = distributed.global_state
  return state.client is not None and state.num_processes > 1


def _peers() -> Any:
  return config_lib.wing('vit_jax.parallel.peers')


def first() -> bool:
  """Whether this is process 0, the only one that writes files."""
  return not is_up() or _peers().process_id() == 0


def call_on_first(fn: Callable[[], _T]) -> _T:
  """Calls a function in process 0, and returns its result in all processes.

  With several processes its result is sent as JSON, so that tuples become lists
  in all of them. If it raises a UserError or an OSError, all processes raise a
  UserError with the same text.
  """
  return cast(_T, _peers().call_on_first(fn)) if is_up() else fn()


def call_on_all(fn: Callable[[], _T]) -> _T:
  """Calls a function in every process; returns its result in this one.

  If it raises a UserError or an OSError in one, all raise a UserError.
  """
  return cast(_T, _peers().call_on_all(fn)) if is_up() else fn()


def gather(value: Any) -> list[Any]:
  """Returns the values that all processes pass, in order of the processes.

  They are sent as JSON if there are several.
  """
  return cast(list[Any], _peers().gather(value)) if is_up() else [value]


@contextlib.contextmanager
def lost_peers_explained() -> Iterator[None]:
  """Turns errors that mean that a process was lost into a UserError."""
  try:
    yield
  except Exception as e:
    problem = _peers().loss(e) if is_up() else ''
    if not problem:
      raise
    raise config_lib.UserError(problem) from e


def exit_process(status: int) -> NoReturn:
  """Ends this process, without a long wait for the others.

  The exit status 0, or that of a signal, means that all processes end now; any
  other means that this process failed, and the others may still be running.
  """
  if is_up():
    _peers().leave(status)
  sys.exit(status)


def end(line: str) -> NoReturn:
  """Ends this process with an error, from any of its threads."""
  if not last_words.acquire(timeout=1):  # another thread has printed why
    os._exit(1)
  # A single write, so that lines of several processes do not mix.
  os.write(2, f'error: {line}\n'.encode())
  end_now(1)


def end_now(status: int) -> NoReturn:
  """Ends this process without the handlers that Python runs at exit."""
  # If a hanging thread holds a lock that flushing needs, this ends the process.
  faulthandler.dump_traceback_later(_LAST_WORDS_S, exit=True, file=2)
  try:
    sys.stdout.flush()
    sys.stderr.flush()
    python_logging.shutdown()
    for child in multiprocessing.active_children():  # they would go on running
      child.kill()
  finally:
    os._exit(status)


def block_signals() -> None:
  """Blocks SIGINT and SIGTERM in this thread and the processes that it starts.

  A terminal sends Ctrl-C to all processes. Only the main thread decides when to
  stop, and until then it needs batches from its threads and workers.
  """
  signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))


class Watch:
  """A thread that ends this process if it makes no progress.

  Without this, all processes would wait for ever for one that hangs. It imports
  nothing when it ends the process, since an import may hang, too.
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
    self._cause = 'the run hangs'
    if is_up():
      self._cause = (
        'a process of this run hangs, or was lost (this is'
        f' {_peers().this_process()})'
      )
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
    """Reports progress, and the number of completed updates if it changed."""
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
    line = (
      f'no progress for {self._timeout:g} s after step {self._step}:'
      f' {self._cause}; {RESUME}'
    )
    try:
      with open(self._log or os.dup(2), 'a', encoding='utf-8') as file:
        print(f'error: {line}' if self._log else '', file=file, flush=True)
        faulthandler.dump_traceback(file)
    finally:  # even if the disk is full
      end(line)
