"""Runs `vit_jax.main` as processes of this machine."""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
from typing import Any
from typing import Protocol

from vit_jax.parallel import slurm
from vit_jax.runs import safe_io

_TAIL = 1 << 16  # bytes at the end of a log to search for an error
_LONGEST = 400  # maximum letters of an error


@dataclasses.dataclass(frozen=True)
class Ended:
  """The outcome of a run."""

  # The exit status, negative for a signal; None: unknown. Such a run is
  # started again, unless it is done.
  status: int | None
  # Why it failed, in one line; '' if it did not fail or gave no reason.
  error: str = ''


class Run(Protocol):
  """A run that was started."""

  def poll(self) -> Ended | None:
    """Returns how the run ended; None if it is still running."""
    ...

  def stop(self) -> None:
    """Asks the run to save and end."""
    ...


class Launcher(Protocol):
  """Starts runs."""

  def start(self, flags: Sequence[str], workdir: pathlib.Path) -> Run:
    """Starts a run, or finds the one that already has its work directory.

    `flags` are for `vit_jax.main`, without `--workdir`. The output goes to a
    log file next to the work directory.
    """
    ...


_DEVICES = 'CUDA_VISIBLE_DEVICES'


class Processes:
  """Starts runs as processes of this machine.

  For a work directory NAME, a run holds the lock `.NAME.lock` in the same
  folder while it lives. If the sweep is killed, a new sweep finds the run by
  its lock.
  """

  def __init__(
    self, program: Sequence[str] = slurm.TRAIN, gpus: Sequence[str] = ()
  ):
    """Starts no runs yet.

    A program that replaces the training command must take the same flags, write
    metrics.jsonl and DONE in the same way, and on SIGTERM save and exit with
    status 143. `gpus` are CUDA_VISIBLE_DEVICES of each concurrent run, as '0';
    (): all runs inherit the current value.
    """
    self._program = list(program)
    self._gpus = list(gpus)

  def start(self, flags: Sequence[str], workdir: pathlib.Path) -> Run:
    """Starts a run, or finds the one that already has its work directory."""
    lock = safe_io.Lock(workdir.with_name(f'.{workdir.name}.lock'))
    log = workdir.with_name(f'{workdir.name}.log')
    if not lock.acquire(wait=False):
      return _Process(lock, log, self._gpus)
    gpus = self._gpus.pop(0) if self._gpus else None
    with log.open('ab') as file:
      start = file.tell()
      process = subprocess.Popen(
        [*self._program, *flags, f'--workdir={workdir}'],
        stdin=subprocess.DEVNULL,
        stdout=file,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C reaches the sweep, which stops the run
        pass_fds=[lock.fileno()],
        env=None if gpus is None else os.environ | {_DEVICES: gpus},
      )
    holder = {'pid': process.pid, 'host': socket.gethostname(), 'gpus': gpus}
    lock.write(json.dumps(holder))
    lock.release()  # the process holds it now
    return _Process(lock, log, self._gpus, process, start, gpus)


class _Process:
  """A process that this sweep started, or another sweep, which was killed.

  While the lock is held, its holder lives, so that the process id is valid.
  """

  def __init__(
    self,
    lock: safe_io.Lock,
    log: pathlib.Path,
    free_gpus: list[str],
    process: 'subprocess.Popen[bytes] | None' = None,
    start: int = 0,
    gpus: str | None = None,
  ):
    self._lock, self._log, self._free_gpus = lock, log, free_gpus
    self._process = process  # None: it is another sweep's
    self._start = start  # of its output in the log
    if process is None:
      gpus = self._holder().get('gpus')
      if gpus in free_gpus:
        free_gpus.remove(gpus)
      else:
        gpus = free_gpus.pop(0) if free_gpus else None
    self._gpus = gpus
    # A second SIGTERM would end the run before it saves.
    self._is_stopping = False

  def _holder(self) -> Mapping[str, Any]:
    try:
      holder = safe_io.parse_json(safe_io.read_text(self._lock.path))
    except (OSError, ValueError):
      return {}
    return holder if isinstance(holder, dict) else {}

  def poll(self) -> Ended | None:
    status = None
    if self._process is not None:
      status = self._process.poll()
      if status is None:
        return None
    elif not self._lock.acquire(wait=False):
      return None
    else:
      self._lock.release()
    if self._gpus is not None:  # they are free again
      self._free_gpus.append(self._gpus)
      self._gpus = None
    error = '' if status is None else explain(status, self._log, self._start)
    return Ended(status, error)

  def stop(self) -> None:
    holder = self._holder()
    if self._is_stopping or self.poll() is not None:
      return
    if self._process is not None:
      self._process.terminate()
    elif holder.get('host') == socket.gethostname():
      os.kill(int(holder['pid']), signal.SIGTERM)
    self._is_stopping = True


def explain(status: int, log: pathlib.Path, start: int = 0) -> str:
  """Returns why a run failed, in one line; '' if it did not.

  A negative status is a signal. The run's output begins at `start` in the log,
  in bytes.
  """
  if status == 0:
    return ''
  if status == -signal.SIGKILL:
    return 'killed by SIGKILL: the machine may be out of memory'
  if status < 0:
    return f'killed by {signal.Signals(-status).name}'
  if status in (128 + signal.SIGTERM, 128 + signal.SIGINT):
    return f'stopped from outside (status {status})'
  return f'{last_error(log, start)} (status {status})'


def last_error(log: pathlib.Path, start: int = 0) -> str:
  """Returns the last `error:` line of a log, or else its last line."""
  with safe_io.open_regular(log) as file:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(start, size - _TAIL))
    text = file.read().decode(errors='replace')
  # A progress bar ends its line with a carriage return.
  lines = [x.strip() for x in re.split(r'[\r\n]+', text) if x.strip()]
  errors = [x for x in lines if x.startswith('error: ')]
  line = (errors or lines or ['it printed nothing'])[-1]
  return line.removeprefix('error: ')[:_LONGEST]
