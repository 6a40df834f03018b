"""Connects the processes of a run, lets them agree, and ends them together.

All processes run the same command, each on its own devices, and are numbered
from 0; process 0 also hosts JAX's coordination service. With a single process,
the functions here return at once.

When one process is lost, the others end as well:

- If a process or its machine was killed, its heartbeats stop, and JAX aborts
  all others within a minute, or at once if it was process 0. `initialize` makes
  each of them print one line and end with status 1.
- If a process hangs, `watch.Watch` ends every process after
  `train.stall_timeout`.
- If a process fails, it prints its error and calls `exit_process`. For the
  others, that is as if it had been killed.

jax is imported in the functions and not by the module, since commands parse
their flags before they import jax.
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
import re
import signal
import sys
import threading
from typing import Any
from typing import NoReturn
from typing import TypeVar

from absl import flags
from absl import logging

from vit_jax import config as config_lib
from vit_jax.parallel import clusters

_T = TypeVar('_T')

# Seconds that processes wait for each other at the start and at the end.
_MEETING_S = 100
# Seconds without a heartbeat after which JAX counts a process as lost.
_HEARTBEAT_S = 60
# Seconds that the other processes wait for `call_on_first`.
_FIRST_S = 3600
# Seconds that process 0 waits for the others to read its error.
_TOLD_S = 60
# Seconds that a failed process waits for others that may have failed, too. They
# cannot print their errors once process 0 has ended.
_FAILED_S = 5
# Largest number of seconds to flush output when a process ends.
_LAST_WORDS_S = 10

RESUME = 'run the same command again to resume'
# Exit statuses when all processes end: done, or stopped after saving.
_TOGETHER = (0, 128 + signal.SIGINT, 128 + signal.SIGTERM)

# Texts of JAX's errors when a process is lost. They begin with a status such as
# UNKNOWN, and come from collectives on CPUs (Gloo) and GPUs (NCCL), from the
# coordination service and from RPCs to it. Most are a JaxRuntimeError, some a
# ValueError.
_LOST = re.compile(
  r'(UNAVAILABLE|DEADLINE_EXCEEDED): '
  r'|[A-Z_]+: .*((?i:gloo|nccl|coordination ?service|heartbeat|barrier'
  r'|socket closed|connection (closed|reset|refused)|broken pipe))',
  re.DOTALL,
)

_calls = itertools.count()  # has the same value in all processes
_last_words = threading.Lock()  # held by the thread that ends the process
_abort_line = ''  # printed when C++ aborts the process


def initialize(
  flag_values: flags.FlagValues = flags.FLAGS,
  *,
  meeting_s: int = _MEETING_S,
  heartbeat_s: int = _HEARTBEAT_S,
) -> str | None:
  """Connects to the other processes of this run, if there are any.

  The address comes from flags (`clusters.define_flags`), or from the cluster
  that started this process (`clusters.detect`). Call this before JAX looks for
  devices.

  Args:
    flag_values: Parsed flags.
    meeting_s: Seconds within which all processes must connect; a failure may
      take a few seconds more.
    heartbeat_s: Seconds without a heartbeat after which a process is lost.

  Returns:
    A text for the log, 'process 1 of 4 (SLURM)'; None for a single process.

  Raises:
    UserError: The flags are inconsistent, or the others cannot be reached.
  """
  global _abort_line  # noqa: PLW0603
  cluster = clusters.find(flag_values)
  if cluster is None or cluster.arguments.get('num_processes') == 1:
    return None
  import jax

  _connect(cluster, meeting_s, heartbeat_s)
  _abort_line = (
    'another process of this run was lost, or JAX could not go on here: the'
    f' lines above say more (this is {this_process()}); {RESUME}'
  )
  _check_count()
  if jax.default_backend() == 'cpu':
    # A program from the cache starts its collectives in any order, so those of
    # different processes do not match: seen with jax 0.10 and 0.12.
    jax.config.update('jax_enable_compilation_cache', False)
  return f'{this_process()} ({cluster.name})'


def _check_count() -> None:
  """Raises a UserError if processes were started with different counts."""
  count = call_on_first(lambda: _state().num_processes)
  if _state().num_processes != count:
    raise config_lib.UserError(
      f'this is {this_process()}, but process 0 was started as one of {count}'
    )


def _connect(
  cluster: clusters.Cluster, meeting_s: int, heartbeat_s: int
) -> None:
  """Initializes JAX for several processes; arguments as for `initialize`."""
  global _abort_line  # noqa: PLW0603
  import jax

  where = cluster.arguments.get('coordinator_address', 'the first host')
  _abort_line = (
    f'the processes of this run did not meet at {where} within'
    f' {meeting_s} s ({cluster.name}): start all of them at the same time, and'
    ' see that process 0 can be reached there'
  )
  logging.info('meeting the other processes at %s', where)
  _explain_aborts()
  # This service would handle SIGTERM itself, even before our handler is set.
  jax.config.update('jax_enable_preemption_service', False)
  try:
    jax.distributed.initialize(
      **cluster.arguments,
      initialization_timeout=meeting_s,
      heartbeat_timeout_seconds=heartbeat_s,
    )
  except Exception as e:  # the cluster's interfaces may raise any type
    raise config_lib.UserError(
      f'cannot meet the other processes at {where} ({cluster.name}):'
      f' {config_lib.one_line(e)}'
      + ('' if cluster.name == 'flags' else clusters.OR_FLAGS)
    ) from e


def _state() -> Any:
  # Private API, but Orbax and many others use it. Unlike jax.process_index() it
  # does not initialize devices. Its key-value store needs no collectives, which
  # would time out when a process is late.
  from jax._src import distributed

  return distributed.global_state


def is_up() -> bool:
  """Whether this process belongs to a run of several."""
  return 'jax' in sys.modules and _state().client is not None


def this_process() -> str:
  """Returns the number of this process as text."""
  return f'process {_state().process_id} of {_state().num_processes}'


def first() -> bool:
  """Whether this is process 0, the only one that writes files."""
  return not is_up() or _state().process_id == 0


def call_on_first(fn: Callable[[], _T]) -> _T:
  """Calls a function in process 0, and returns its result in all processes.

  All processes must make the same calls in the same order; they wait for
  process 0.

  Args:
    fn: Function that only process 0 calls. With several processes its result is
      sent as JSON, so that tuples become lists in all of them.

  Raises:
    UserError: `fn` raised a UserError or an OSError in process 0; all processes
      raise it with the same text.
  """
  if not is_up() or _state().num_processes == 1:
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
    if not expected:  # a bug: process 0 shows its traceback
      message = f'process 0 failed: {type(e).__name__}: {message}'
    client.key_value_set(key, json.dumps({'error': message}))
    # The others must read the error before process 0 ends.
    _meet(key, _TOLD_S)
    if not expected:
      raise
    raise config_lib.UserError(message) from e
  client.key_value_set(key, text)
  return json.loads(text)['value']


def gather(value: Any) -> list[Any]:
  """Returns the values that all processes pass, in order of the processes.

  All processes must make the same calls in the same order. This uses no
  devices, since a collective could mix with those of the running computation.

  Args:
    value: The value of this process; sent as JSON if there are several.
  """
  if not is_up() or _state().num_processes == 1:
    return [value]
  client, key = _state().client, f'vit_jax/all/{next(_calls)}'
  client.key_value_set(f'{key}/{_state().process_id}', json.dumps(value))
  texts = [
    client.blocking_key_value_get(f'{key}/{i}', _FIRST_S * 1000)
    for i in range(_state().num_processes)
  ]
  return [json.loads(text) for text in texts]


def call_on_all(fn: Callable[[], _T]) -> _T:
  """Calls a function in every process; if it fails in one, all fail.

  All processes must make the same calls in the same order; they wait for the
  last one.

  Args:
    fn: Function whose result in this process is returned.

  Raises:
    UserError: `fn` raised a UserError or an OSError in some process.
  """
  if not is_up() or _state().num_processes == 1:
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
  """Turns errors that mean that a process was lost into a UserError.

  Raises:
    UserError: The body raised an error for which `is_lost_peer` is true.
  """
  try:
    yield
  except Exception as e:
    if not is_lost_peer(e):
      raise
    raise config_lib.UserError(
      'another process of this run was lost, or does not answer'
      f' ({config_lib.one_line(e)[:200]}); this is {this_process()}; {RESUME}'
    ) from e


def is_lost_peer(error: BaseException) -> bool:
  """Whether an error means that another process was lost or does not answer."""
  if not is_up():
    return False
  seen: BaseException | None = error
  while seen is not None:
    if _LOST.match(str(seen)):
      return True
    seen = seen.__cause__ or seen.__context__
  return False


def exit_process(status: int) -> NoReturn:
  """Ends this process without a long wait for the others.

  At exit JAX would wait for minutes for processes that in turn wait for this
  one, and then abort.

  Args:
    status: The exit status. 0, or the status of a signal, means that all
      processes end now; any other means that this process failed, and the
      others may still be running.
  """
  if not is_up():
    sys.exit(status)
  done = status in _TOGETHER
  if not done:
    _last_words.acquire()  # the error is printed; an abort must print nothing
  if _meet('leave', _MEETING_S if done else _FAILED_S):
    sys.exit(status)
  _end_now(status)


def _meet(name: str, seconds: float) -> bool:
  """Waits at a barrier; returns whether all processes reached it."""
  met = threading.Event()

  def wait() -> None:
    import jax

    with contextlib.suppress(jax.errors.JaxRuntimeError):
      _state().client.wait_at_barrier(f'vit_jax/{name}', int(seconds * 1000))
      met.set()

  # In a thread, since the wait does not return if process 0 does not answer.
  thread = threading.Thread(target=wait, daemon=True)
  thread.start()
  thread.join(seconds + 1)
  return met.is_set()


_Handler = ctypes.CFUNCTYPE(None, ctypes.c_int)


@_Handler
def _on_abort(_: int) -> None:
  end(_abort_line)


def _explain_aborts() -> None:
  """Turns an abort in C++ into one clear line and status 1.

  JAX's coordination service calls abort() in its own thread when a process is
  lost. Python's signal handlers no longer run then, so this handler is
  installed through C.
  """
  libc = ctypes.CDLL(None)
  libc.signal.argtypes = (ctypes.c_int, _Handler)
  libc.signal.restype = ctypes.c_void_p
  libc.signal(signal.SIGABRT, _on_abort)


def end(line: str) -> NoReturn:
  """Ends this process with an error, from any of its threads."""
  if not _last_words.acquire(timeout=1):  # another thread has printed why
    os._exit(1)
  # A single write, so that lines of several processes do not mix.
  os.write(2, f'error: {line}\n'.encode())
  _end_now(1)


def _end_now(status: int) -> NoReturn:
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
