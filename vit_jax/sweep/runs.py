"""Runs of `vit_jax.main` as processes of this machine."""

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
from vit_jax.runs import locks
from vit_jax.runs import safe_io

_TAIL = 1 << 16  # bytes at the end of a log that its error is looked for in
_LONGEST = 400  # letters of an error


@dataclasses.dataclass(frozen=True)
class Ended:
  """The outcome of a run.

  Attributes:
    status: The exit status, negative for a signal; None where nobody knows:
      then it is to be started again, unless it is done.
    error: Why it failed, in one line; '' where it did not, or said nothing.
  """

  status: int | None
  error: str = ''


class Run(Protocol):
  """A run that was started."""

  def poll(self) -> Ended | None:
    """Returns how the run ended; None where it has not."""
    ...

  def stop(self) -> None:
    """Asks the run to save and end."""
    ...


class Launcher(Protocol):
  """Starts runs."""

  def start(self, flags: Sequence[str], workdir: pathlib.Path) -> Run:
    """Starts a run, or finds the one that goes on in its work directory.

    Args:
      flags: Flags of `vit_jax.main`, except `--workdir`.
      workdir: Its work directory. Its output goes to a file beside it.
    """
    ...


_DEVICES = 'CUDA_VISIBLE_DEVICES'


class Here:
  """Starts runs as processes of this machine.

  A run holds the lock `.NAME.lock` beside its work directory NAME as long as it
  lives. If the sweep that started it was killed, the run is found by that.
  """

  def __init__(
    self, program: Sequence[str] = slurm.TRAIN, gpus: Sequence[str] = ()
  ):
    """Begins without runs.

    Args:
      program: The command that trains; another one takes the same flags, writes
        metrics.jsonl and DONE as that does, and saves and ends with status 143
        at SIGTERM.
      gpus: CUDA_VISIBLE_DEVICES for each of the concurrent runs, as '0';
        (): as it is here, for all.
    """
    self._program = list(program)
    self._gpus = list(gpus)

  def start(self, flags: Sequence[str], workdir: pathlib.Path) -> Run:
    """Starts a run, or finds the one that goes on in its work directory."""
    lock = locks.Lock(workdir.with_name(f'.{workdir.name}.lock'))
    if not lock.acquire(wait=False):
      return _Found(lock, self._gpus)
    gpus = self._gpus.pop(0) if self._gpus else None
    log = workdir.with_name(f'{workdir.name}.log')
    with log.open('ab') as file:
      start = file.tell()
      process = subprocess.Popen(
        [*self._program, *flags, f'--workdir={workdir}'],
        stdin=subprocess.DEVNULL,
        stdout=file,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C is for the sweep, which tells the run
        pass_fds=[lock.fileno()],
        env=None if gpus is None else os.environ | {_DEVICES: gpus},
      )
    holder = {'pid': process.pid, 'host': socket.gethostname(), 'gpus': gpus}
    lock.write(json.dumps(holder))
    lock.release()  # the process has it
    return _Child(process, log, start, gpus, self._gpus)


class _Child:
  """A process that we started."""

  def __init__(
    self,
    process: subprocess.Popen[bytes],
    log: pathlib.Path,
    start: int,
    gpus: str | None,
    free: list[str],
  ):
    self._process = process
    self._log, self._start = log, start
    self._gpus, self._free = gpus, free
    self._told = False

  def poll(self) -> Ended | None:
    status = self._process.poll()
    if status is None:
      return None
    if self._gpus is not None:
      self._free.append(self._gpus)
      self._gpus = None
    return Ended(status, explain(status, self._log, self._start))

  def stop(self) -> None:
    if not self._told:  # a second SIGTERM would end it before it has saved
      self._told = True
      self._process.terminate()


class _Found:
  """A process that a sweep started which was killed."""

  def __init__(self, lock: locks.Lock, free: list[str]):
    self._lock = lock
    self._free = free
    self._told = False
    self._gpus = self._holder().get('gpus')
    if self._gpus in free:
      free.remove(self._gpus)
    else:
      self._gpus = free.pop(0) if free else None

  def _holder(self) -> Mapping[str, Any]:
    try:
      holder = safe_io.parse_json(safe_io.read_text(self._lock.path))
    except (OSError, ValueError):
      return {}
    return holder if isinstance(holder, dict) else {}

  def poll(self) -> Ended | None:
    if not self._lock.acquire(wait=False):
      return None
    self._lock.release()
    if self._gpus is not None:
      self._free.append(self._gpus)
      self._gpus = None
    return Ended(None)

  def stop(self) -> None:
    holder = self._holder()
    # While the lock is held, its holder lives, and the number is its own.
    here = holder.get('host') == socket.gethostname()
    if here and not self._told and self.poll() is None:
      self._told = True
      os.kill(int(holder['pid']), signal.SIGTERM)


def explain(status: int, log: pathlib.Path, start: int = 0) -> str:
  """Returns why a run failed, in one line; '' where it did not.

  Args:
    status: Its exit status, negative for a signal.
    log: The file with its output.
    start: Offset in the log at which it began, in bytes.
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
  """Returns the last `error:` line of a log, else the last line of all."""
  with safe_io.open_regular(log) as file:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(start, size - _TAIL))
    text = file.read().decode(errors='replace')
  # A progress bar ends its line with a carriage return.
  lines = [x.strip() for x in re.split(r'[\r\n]+', text) if x.strip()]
  errors = [x for x in lines if x.startswith('error: ')]
  line = (errors or lines or ['it printed nothing'])[-1]
  return line.removeprefix('error: ')[:_LONGEST]
