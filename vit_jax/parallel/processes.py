"""Several processes that are one run: they meet, agree, and end together.

All of them run the same command, each on its own devices, and are numbered from
0; process 0 also serves JAX's coordination service. Where there is one process,
none of this does anything.

What ends the others when one is lost:

- It was killed, or its machine was: it misses its heartbeats, and JAX aborts
  all others within a minute; at once where it was process 0. `initialize`
  sees to it that they say so in one line, and end with status 1.
- It hangs: `Watch` ends each of them after the time that the config gives.
- It failed: it says why, `leave`s, and is then missed as if killed.

jax is imported by the functions here, not by the module, since commands parse
their flags before.
"""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import ctypes
import faulthandler
import itertools
import json
import logging as python_logging
import multiprocessing
import os
import pathlib
import re
import signal
import sys
import threading
from types import TracebackType
from typing import Any
from typing import NoReturn
from typing import TypeVar

from absl import flags
from absl import logging

from vit_jax import config as config_lib
from vit_jax.parallel import clusters

_T = TypeVar('_T')

# How long the processes wait for each other at the start and at the end.
_MEETING_S = 100
# After how long without a sign of life JAX takes a process for lost.
_HEARTBEAT_S = 60
# How long process 0 may take for what the others wait for in `from_first`.
_FIRST_S = 3600
# How long an error of process 0 waits for the others to hear of it.
_TOLD_S = 60
# How long a process that failed waits for others that may have failed, too:
# without process 0 they could no longer say why.
_FAILED_S = 5
# How long the last words of a process may take.
_LAST_WORDS_S = 10

_RESUME = 'run the same command again to resume'
# All processes end together: done, or stopped after saving.
_TOGETHER = (0, 128 + signal.SIGINT, 128 + signal.SIGTERM)

# What JAX's errors say where a process is lost, after a status as UNKNOWN: the
# collectives on CPUs (Gloo) and GPUs (NCCL), the coordination service, and RPCs
# to it. Most are a JaxRuntimeError, some a ValueError.
_LOST = re.compile(
  r'(UNAVAILABLE|DEADLINE_EXCEEDED): '
  r'|[A-Z_]+: .*((?i:gloo|nccl|coordination ?service|heartbeat|barrier'
  r'|socket closed|connection (closed|reset|refused)|broken pipe))',
  re.DOTALL,
)

_calls = itertools.count()  # the same in all processes
_last_words = threading.Lock()  # held by who has them: one thread in a process
_abort_line = ''  # what an abort in C++ means at this moment


def initialize(
  flag_values: flags.FlagValues = flags.FLAGS,
  *,
  meeting_s: int = _MEETING_S,
  heartbeat_s: int = _HEARTBEAT_S,
) -> str | None:
  """Meets the other processes of this run, if there are any.

  Their flags say where (`clusters.define_flags`), or else a cluster that is
  there (`clusters.detect`). To be called before JAX looks for devices.

  Args:
    flag_values: Parsed.
    meeting_s: Seconds until all processes must have come; it may take some
      seconds more.
    heartbeat_s: Seconds without a sign of life after which a process is lost.

  Returns:
    For the log, as 'process 1 of 4 (SLURM)'; None where there is only one.

  Raises:
    UserError: The flags do not fit together, or the others cannot be met.
  """
  global _abort_line  # noqa: PLW0603
  cluster = clusters.find(flag_values)
  if cluster is None or cluster.arguments.get('num_processes') == 1:
    return None
  import jax

  where = cluster.arguments.get('coordinator_address', 'the first host')
  _abort_line = (
    f'the processes of this run did not meet at {where} within'
    f' {meeting_s} s ({cluster.name}): start all of them at the same time, and'
    ' see that process 0 can be reached there'
  )
  logging.info('meeting the other processes at %s', where)
  _explain_aborts()
  # It would take SIGTERM for itself, also where our own handler is not set yet.
  jax.config.update('jax_enable_preemption_service', False)
  try:
    jax.distributed.initialize(
      **cluster.arguments,
      initialization_timeout=meeting_s,
      heartbeat_timeout_seconds=heartbeat_s,
    )
  except Exception as e:  # whatever the cluster's own interfaces raise
    raise config_lib.UserError(
      f'cannot meet the other processes at {where} ({cluster.name}):'
      f' {config_lib.one_line(e)}'
      + ('' if cluster.name == 'flags' else clusters.OR_FLAGS)
    ) from e
  _abort_line = (
    'another process of this run was lost, or JAX could not go on here: the'
    f' lines above say more (this is {_this_process()}); {_RESUME}'
  )
  count = from_first(lambda: _state().num_processes)
  if _state().num_processes != count:
    raise config_lib.UserError(
      f'this is {_this_process()}, but process 0 was started as one of {count}'
    )
  if jax.default_backend() == 'cpu':
    # A program from the cache starts its collectives in any order, and those of
    # different processes mix: seen with jax 0.10 and 0.12.
    jax.config.update('jax_enable_compilation_cache', False)
  return f'{_this_process()} ({cluster.name})'


def _state() -> Any:
  # Private, as in Orbax and many more. Unlike jax.process_index() it does not
  # look for devices; and its key-value store needs no collectives of them, for
  # which nobody may be long in coming.
  from jax._src import distributed

  return distributed.global_state


def _is_up() -> bool:
  return 'jax' in sys.modules and _state().client is not None


def _this_process() -> str:
  return f'process {_state().process_id} of {_state().num_processes}'


def first() -> bool:
  """Whether this is process 0: the one that writes, where only one may."""
  return not _is_up() or _state().process_id == 0


def from_first(fn: Callable[[], _T]) -> _T:
  """Lets process 0 call a function, and returns the result in all of them.

  All processes must come here, and in the same order; they wait for process 0.

  Args:
    fn: Called in process 0 alone. Where there are several processes its result
      goes through JSON, so that all get the same: lists for tuples.

  Raises:
    UserError: In process 0, `fn` raised one, or an OSError; it is raised in
      all, with the same text.
  """
  if not _is_up() or _state().num_processes == 1:
    return fn()
  client, key = _state().client, f'vit_jax/first/{next(_calls)}'
  if not first():
    answer = json.loads(client.blocking_key_value_get(key, _FIRST_S * 1000))
    if 'error' not in answer:
      return answer['value']
    _meet(key, _TOLD_S)
    raise config_lib.UserError(answer['error'])
  try:
    text = json.dumps({'value': fn()})
  except Exception as e:
    expected = isinstance(e, (config_lib.UserError, OSError))
    message = config_lib.one_line(e)
    if not expected:  # a bug: its traceback is to be seen here
      message = f'process 0 failed: {type(e).__name__}: {message}'
    client.key_value_set(key, json.dumps({'error': message}))
    # Without process 0, which is about to end, they could not read it.
    _meet(key, _TOLD_S)
    if not expected:
      raise
    raise config_lib.UserError(message) from e
  client.key_value_set(key, text)
  return json.loads(text)['value']


def from_all(value: Any) -> list[Any]:
  """Returns a value of each process, in order of their numbers.

  All processes must come here, and in the same order. The devices have no part
  in it: a collective of theirs would mix with what they are computing.

  Args:
    value: Of this process; goes through JSON where there are several.
  """
  if not _is_up() or _state().num_processes == 1:
    return [value]
  client, key = _state().client, f'vit_jax/all/{next(_calls)}'
  client.key_value_set(f'{key}/{_state().process_id}', json.dumps(value))
  texts = [
    client.blocking_key_value_get(f'{key}/{i}', _FIRST_S * 1000)
    for i in range(_state().num_processes)
  ]
  return [json.loads(text) for text in texts]


def on_all(fn: Callable[[], _T]) -> _T:
  """Calls a function in every process; where it fails in one, all fail.

  All processes must come here, and in the same order; they wait for the last.

  Args:
    fn: Its result is that of this process.

  Raises:
    UserError: In some process `fn` raised one, or an OSError.
  """
  if not _is_up() or _state().num_processes == 1:
    return fn()
  client, key = _state().client, f'vit_jax/all/{next(_calls)}'
  problem = ''
  try:
    result = fn()
  except (config_lib.UserError, OSError) as e:
    problem = config_lib.one_line(e)
    if not first():
      problem = f'process {_state().process_id}: {problem}'
  client.key_value_set(f'{key}/{_state().process_id:06}', problem)
  client.wait_at_barrier(key, _FIRST_S * 1000)
  problems = [text for _, text in sorted(client.key_value_dir_get(key)) if text]
  if problems:
    raise config_lib.UserError(problem or problems[0])
  return result


@contextlib.contextmanager
def together() -> Iterator[None]:
  """Around what processes do together: explains that one of them was lost.

  Raises:
    UserError: In place of the errors of which `is_lost_peer` is true.
  """
  try:
    yield
  except Exception as e:
    if not is_lost_peer(e):
      raise
    raise config_lib.UserError(
      'another process of this run was lost, or does not answer'
      f' ({config_lib.one_line(e)[:200]}); this is {_this_process()}; {_RESUME}'
    ) from e


def is_lost_peer(error: BaseException) -> bool:
  """Whether an error comes from a process that was lost, or does not answer."""
  if not _is_up():
    return False
  seen: BaseException | None = error
  while seen is not None:
    if _LOST.match(str(seen)):
      return True
    seen = seen.__cause__ or seen.__context__
  return False


def leave(status: int) -> NoReturn:
  """Ends this process, without waiting in vain for others.

  JAX would wait for minutes at its exit for processes that in turn wait for
  this one, and then abort.

  Args:
    status: 0, or that of a signal: all processes end now. Else it failed; the
      others may, or may not.
  """
  if not _is_up():
    sys.exit(status)
  done = status in _TOGETHER
  if not done:
    _last_words.acquire()  # it has said why; no abort needs to explain itself
  if _meet('leave', _MEETING_S if done else _FAILED_S):
    sys.exit(status)
  _end_now(status)


def _meet(name: str, seconds: float) -> bool:
  """Waits for all processes to come here; returns whether they did."""
  met = threading.Event()

  def wait() -> None:
    import jax

    with contextlib.suppress(jax.errors.JaxRuntimeError):
      _state().client.wait_at_barrier(f'vit_jax/{name}', int(seconds * 1000))
      met.set()

  # In a thread, since it does not return where process 0 does not answer.
  thread = threading.Thread(target=wait, daemon=True)
  thread.start()
  thread.join(seconds + 1)
  return met.is_set()


_Handler = ctypes.CFUNCTYPE(None, ctypes.c_int)


@_Handler
def _on_abort(_: int) -> None:
  _end(_abort_line)


def _explain_aborts() -> None:
  """Turns an abort in C++ into one clear line and status 1.

  When JAX's coordination service misses a process it calls abort(), from a
  thread of its own. Python's signal handlers would not run any more, so this is
  one of C's.
  """
  libc = ctypes.CDLL(None)
  libc.signal.argtypes = (ctypes.c_int, _Handler)
  libc.signal.restype = ctypes.c_void_p
  libc.signal(signal.SIGABRT, _on_abort)


def _end(line: str) -> NoReturn:
  """Ends this process with an error, from any of its threads."""
  if not _last_words.acquire(timeout=1):  # another thread has said why
    os._exit(1)
  # One write: those of several processes do not mix.
  os.write(2, f'error: {line}\n'.encode())
  _end_now(1)


def _end_now(status: int) -> NoReturn:
  # Should a thread that hangs hold what is to be flushed: this needs no lock.
  faulthandler.dump_traceback_later(_LAST_WORDS_S, exit=True, file=2)
  try:
    sys.stdout.flush()
    sys.stderr.flush()
    python_logging.shutdown()
    for child in multiprocessing.active_children():  # they would stay for ever
      child.kill()
  finally:
    os._exit(status)


def block_signals() -> None:
  """Keeps this thread, and the processes it starts, from being interrupted.

  A terminal sends Ctrl-C to all processes; whether to stop is the main thread's
  decision, and until then it needs what its threads make.
  """
  signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))


class Watch:
  """Ends this process where it makes no progress.

  One process that hangs makes all others wait for it, for ever.
  """

  def __init__(self, timeout: float, log: pathlib.Path | None = None):
    """Prepares it.

    Args:
      timeout: Seconds without `alive`; 0: never ends anything.
      log: File to which the stacks of all threads are appended; None: stderr.
    """
    self._timeout = timeout
    self._log = log
    self._step = 0
    # Ticks of the thread since the last progress. Not the clock's time: while
    # all of the process was stopped or suspended, nothing hung.
    self._ticks = 0
    self._done = threading.Event()
    self._thread = threading.Thread(target=self._run, daemon=True)

  def __enter__(self) -> 'Watch':
    if self._timeout > 0:
      self._thread.start()
    return self

  def __exit__(
    self,
    kind: type[BaseException] | None,
    error: BaseException | None,
    traceback: TracebackType | None,
  ) -> None:
    self._done.set()

  def alive(self, step: int | None = None) -> None:
    """Tells that there is progress.

    Args:
      step: Number of completed updates, where it is another than before.
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
    if _is_up():
      line += (
        'a process of this run hangs, or was lost (this is'
        f' {_this_process()}); {_RESUME}'
      )
    else:
      line += f'the run hangs; {_RESUME}'
    try:
      with open(self._log or os.dup(2), 'a', encoding='utf-8') as file:
        print(f'error: {line}' if self._log else '', file=file, flush=True)
        faulthandler.dump_traceback(file)
    finally:  # a full disk must not keep it from ending
      _end(line)
