"""Runs `vit_jax.main` as submitit jobs, on SLURM or, for trial, locally."""

from collections.abc import Sequence
import os
import pathlib
import signal
import time
from typing import TYPE_CHECKING

from absl import flags

from vit_jax.parallel import slurm
from vit_jax.runs import safe_io
from vit_jax.sweep import runs

if TYPE_CHECKING:
  import submitit

_RECHECK_S = 60.0  # between two queries to SLURM about the same job


class Jobs:
  """Submits runs as jobs, which outlive the sweep that submitted them.

  For a work directory NAME, submitit writes to NAME.jobs in the same folder;
  the newest job there is the current one. A job waits for the lock `.NAME.lock`
  before it starts, and a file NAME.stop keeps it from being requeued.
  """

  def __init__(
    self, flag_values: flags.FlagValues, program: Sequence[str] = slurm.TRAIN
  ):
    """Submits no jobs yet.

    Args:
      flag_values: Parsed flags, with those of `slurm.define_flags`.
      program: As for `runs.Processes`.

    Raises:
      UserError: submitit or SLURM is missing, or the flags do not fit.
    """
    self._flags = flag_values
    self._program = program
    slurm.make_executor(pathlib.Path('unused'), flag_values)

  def start(self, flags: Sequence[str], workdir: pathlib.Path) -> runs.Run:
    """Submits a run, or finds the current job of its work directory."""
    folder = workdir.with_name(f'{workdir.name}.jobs')
    stop = workdir.with_name(f'{workdir.name}.stop')
    if (job := self._unfinished(folder)) is None:
      stop.unlink(missing_ok=True)
      executor = slurm.make_executor(folder, self._flags)
      lock = workdir.with_name(f'.{workdir.name}.lock')
      argv = [*flags, f'--workdir={workdir}']
      job = executor.submit(_Training(argv, self._program, lock, stop))
    return _Job(job, workdir, stop, bool(self._flags.local))

  def _unfinished(self, folder: pathlib.Path) -> 'submitit.Job[None] | None':
    """Returns the newest job of a run, unless it has ended."""
    import submitit

    submitted = sorted(
      folder.glob('*_submitted.pkl'), key=lambda path: path.stat().st_mtime
    )
    if not submitted:
      return None
    number = submitted[-1].name.removesuffix('_submitted.pkl')
    if self._flags.local:
      return None  # its process is not ours: a new job waits for its lock
    job = submitit.SlurmJob[None](folder, number)
    return None if job.done(force_check=True) else job


class _Training(slurm.Training):
  """The training command, after it gets the lock of its work directory."""

  def __init__(
    self,
    training_flags: Sequence[str],
    program: Sequence[str],
    lock: pathlib.Path,
    stop: pathlib.Path,
  ):
    super().__init__(training_flags, program)
    self._lock = lock
    self._stop = stop

  def __call__(self) -> None:
    import submitit

    if submitit.JobEnvironment().global_rank:
      super().__call__()
      return
    with safe_io.Lock(self._lock):
      super().__call__()

  def requeues(
    self, env: 'submitit.JobEnvironment', received: Sequence[int]
  ) -> bool:
    return not self._stop.exists() and super().requeues(env, received)


class _Job:
  """A job that was submitted."""

  def __init__(
    self,
    job: 'submitit.Job[None]',
    workdir: pathlib.Path,
    stop: pathlib.Path,
    local: bool,
  ):
    self._job = job
    self._workdir = workdir
    self._stop = stop
    self._local = local
    self._checked = time.monotonic()

  def poll(self) -> runs.Ended | None:
    if (self._workdir / 'DONE').exists():
      return runs.Ended(0)
    now = time.monotonic()
    ask = now - self._checked > _RECHECK_S
    if ask:
      self._checked = now
    if not self._job.done(force_check=ask):
      return None
    log = self._job.paths.stderr
    error = runs.last_error(log) if log.exists() else 'it wrote no log'
    return runs.Ended(1, f'job {self._job.job_id}: {error}')

  def stop(self) -> None:
    if self._stop.exists():
      return
    self._stop.touch()
    if self._local:  # cancel() of a local job kills it before it saves
      os.kill(int(self._job.job_id), signal.SIGTERM)
    else:
      self._job.cancel(check=False)
