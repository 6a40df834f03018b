"""Connects the processes of a run, lets them agree, and ends them together.

Process 0 also hosts JAX's coordination service. Its key-value store needs no
collectives, which would time out when a process is late. `processes` is the
door to this module for what also runs in a single process.

When one process is lost, the others end as well:

- If a process or its machine was killed, its heartbeats stop, and JAX aborts
  all others within a minute, or at once if it was process 0. `initialize` makes
  each of them print one line and end with status 1.
- If a process hangs, `processes.Watch` ends every process after
  `train.stall_timeout`.
- If a process fails, it prints its error and calls `processes.exit_process`.
  For the others, that is as if it had been killed.

jax is imported in the functions and not by the module, since commands parse
their flags before they import jax.
"""

from collections.abc import Callable
import contextlib
import ctypes
import itertools
import json
import re
import signal
import sys
import threading
from typing import Any
from typing import TypeVar

from absl import flags
from absl import logging

from vit_jax import config as config_lib
from vit_jax.parallel import clusters
from vit_jax.parallel import processes

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
# Exit statuses when all processes end: done, or stopped after saving.
_COMMON_STATUSES = (0, 128 + signal.SIGINT, 128 + signal.SIGTERM)

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
  devices. Returns a text for the log, 'process 1 of 4 (SLURM)'; None for a
  single process.

  Args:
    flag_values: Parsed flags.
    meeting_s: Seconds within which all processes must connect; a failure may
      take a few seconds more.
    heartbeat_s: Seconds without a heartbeat after which a process is lost.
  """
  global _abort_line  # noqa: PLW0603
  cluster = clusters.find(flag_values)
  if cluster is None or cluster.arguments.get('num_processes') == 1:
    return None
  import jax

  address = cluster.arguments.get('coordinator_address', 'the first host')
  _abort_line = (
    f'the processes of this run did not meet at {address} within'
    f' {meeting_s} s ({cluster.name}): start all of them at the same time, and'
    ' see that process 0 can be reached there'
  )
  logging.info('meeting the other processes at %s', address)
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
      f'cannot meet the other processes at {address} ({cluster.name}):'
      f' {config_lib.one_line(e)}'
      + ('' if cluster.name == 'flags' else clusters.OR_FLAGS)
    ) from e
  _abort_line = (
    'another process of this run was lost, or JAX could not go on here: the'
    f' lines above say more (this is {this_process()}); {processes.RESUME}'
  )
  count = call_on_first(lambda: _state().num_processes)
  if _state().num_processes != count:
    raise config_lib.UserError(
      f'this is {this_process()}, but process 0 was started as one of {count}'
    )
  if jax.default_backend() == 'cpu':
    # A program from the cache starts its collectives in any order, so different
    # processes do not match: seen with jax 0.10 and 0.12.
    jax.config.update('jax_enable_compilation_cache', False)
  return f'{this_process()} ({cluster.name})'


def _state() -> Any:
  # Private API, as in `processes.is_up`.
  from jax._src import distributed

  return distributed.global_state


def this_process() -> str:
  """Returns the number of this process as text."""
  return f'process {_state().process_id} of {_state().num_processes}'


def process_id() -> int:
  """Returns the number of this process."""
  return int(_state().process_id)


def call_on_first(fn: Callable[[], _T]) -> _T:
  """As `processes.call_on_first`, with several processes."""
  client, key = _state().client, f'vit_jax/first/{next(_calls)}'
  if process_id():
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
  """As `processes.gather`, with several processes."""
  client, key = _state().client, f'vit_jax/all/{next(_calls)}'
  client.key_value_set(f'{key}/{_state().process_id}', json.dumps(value))
  texts = [
    client.blocking_key_value_get(f'{key}/{i}', _FIRST_S * 1000)
    for i in range(_state().num_processes)
  ]
  return [json.loads(text) for text in texts]


def call_on_all(fn: Callable[[], _T]) -> _T:
  """As `processes.call_on_all`, with several processes."""
  client, key = _state().client, f'vit_jax/all/{next(_calls)}'
  problem = ''
  try:
    result = fn()
  except (config_lib.UserError, OSError) as e:
    problem = config_lib.one_line(e)
    if process_id():
      problem = f'process {_state().process_id}: {problem}'
  client.key_value_set(f'{key}/{_state().process_id:06}', problem)
  client.wait_at_barrier(key, _FIRST_S * 1000)
  problems = [text for _, text in sorted(client.key_value_dir_get(key)) if text]
  if problems:
    raise config_lib.UserError(problem or problems[0])
  return result


def loss(error: BaseException) -> str:
  """Returns the message of an error by which a process was lost, or ''."""
  cause: BaseException | None = error
  while cause is not None:
    if _LOST.match(str(cause)):
      return (
        'another process of this run was lost, or does not answer'
        f' ({config_lib.one_line(error)[:200]}); this is {this_process()};'
        f' {processes.RESUME}'
      )
    cause = cause.__cause__ or cause.__context__
  return ''


def leave(status: int) -> None:
  """Ends this process, or returns if Python may end it as usual.

  At exit JAX would wait for minutes for processes that in turn wait for this
  one, and then abort. The status is that of `processes.exit_process`.
  """
  is_done = status in _COMMON_STATUSES
  if not is_done:
    # The error is printed. An abort must print nothing.
    processes.last_words.acquire()
  if not _meet('leave', _MEETING_S if is_done else _FAILED_S):
    processes.end_now(status)


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
  processes.end(_abort_line)


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


def meeting() -> Callable[..., None]:
  """Returns the barrier of the writing threads of all processes.

  A thread that failed to write does not wait for the others: its process
  reports the error and ends.
  """
  import orbax.checkpoint as ocp

  wait = ocp.multihost.get_barrier_sync_fn()

  def meet(*, key: str, timeout_ms: int) -> None:
    if sys.exception() is None:  # else Orbax raises the exception next
      wait(key=key, timeout_ms=timeout_ms)

  return meet
