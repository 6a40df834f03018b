"""Runs `vit_jax.main` as submitit jobs, on SLURM or, for trial, locally."""

from collections.abc import Sequence
import dataclasses
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
    self._flags, self._program = flag_values, program
    slurm.make_executor(pathlib.Path('unused'), flag_values)

  def start(self, flags: Sequence[str], workdir: pathlib.Path) -> runs.Run:
    """Submits a run, or finds the current job of its work directory."""
    import submitit

    folder = workdir.with_name(f'{workdir.name}.jobs')
    stop = workdir.with_name(f'{workdir.name}.stop')
    submitted = sorted(
      folder.glob('*_submitted.pkl'), key=lambda path: path.stat().st_mtime
    )
    # The process of a local job is not ours: a new one waits for its lock.
    if submitted and not self._flags.local:
      number = submitted[-1].name.removesuffix('_submitted.pkl')
      old_job = submitit.SlurmJob[None](folder, number)
      if not old_job.done(force_check=True):
        return _Job(old_job, workdir, stop, local=False)
    stop.unlink(missing_ok=True)
    lock = workdir.with_name(f'.{workdir.name}.lock')
    argv = [*flags, f'--workdir={workdir}']
    executor = slurm.make_executor(folder, self._flags)
    task = _Training(argv, self._program, lock, stop)
    job = slurm.submit(executor, task)
    return _Job(job, workdir, stop, bool(self._flags.local))


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
    self._lock, self._stop = lock, stop

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


@dataclasses.dataclass
class _Job:
  """A job that was submitted."""

  job: 'submitit.Job[None]'
  workdir: pathlib.Path
  stop_file: pathlib.Path
  local: bool
  checked: float = dataclasses.field(default_factory=time.monotonic)

  def poll(self) -> runs.Ended | None:
    if (self.workdir / 'DONE').exists():
      return runs.Ended(0)
    now = time.monotonic()
    ask = now - self.checked > _RECHECK_S
    if ask:
      self.checked = now
    if not self.job.done(force_check=ask):
      return None
    log = self.job.paths.stderr
    error = runs.last_error(log) if log.exists() else 'it wrote no log'
    return runs.Ended(1, f'job {self.job.job_id}: {error}')

  def stop(self) -> None:
    if self.stop_file.exists():
      return
    self.stop_file.touch()
    if self.local:  # cancel() of a local job kills it before it saves
      os.kill(int(self.job.job_id), signal.SIGTERM)
    else:
      self.job.cancel(check=False)
