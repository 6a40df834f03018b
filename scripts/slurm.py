r"""Trains on SLURM: requeued when it is preempted or out of time, until done.

  pip install -e '.[slurm]'
  python scripts/slurm.py --partition=gpu --nodes=4 --gpus_per_node=8 \
      --cpus_per_task=96 --timeout_min=1440 -- \
      --config=configs/x.py --workdir=/shared/runs/x

What follows the lone -- are the flags of `python -m vit_jax.main`, which runs
once on each node, with all of its GPUs; --workdir must be on a file system that
all nodes share. Logs are in WORKDIR/slurm. A job that SLURM preempts or that
comes near its time limit saves and is queued again; one that fails or that is
cancelled is not, and the same command goes on where it stopped.

--local runs the tasks here instead, without SLURM, and waits for them:

  python scripts/slurm.py --local --tasks_per_node=2 -- \
      --config=configs/digits.py --workdir=runs/digits
"""

from collections.abc import Sequence
import pathlib
import signal
import subprocess
import sys
from types import FrameType
from typing import TYPE_CHECKING

from absl import flags

from vit_jax import cli
from vit_jax.config import UserError
import vit_jax.main  # noqa: F401  it defines the training flags

if TYPE_CHECKING:
  import submitit

FLAGS = flags.FlagValues()  # apart from the training command's
_LOCAL = flags.DEFINE_bool(
  'local', False, 'Run here, without SLURM, and wait.', flag_values=FLAGS
)
_PARTITION = flags.DEFINE_string(
  'partition', None, 'Where to queue; None: as SLURM does.', flag_values=FLAGS
)
_NODES = flags.DEFINE_integer(
  'nodes', 1, 'Number of nodes.', lower_bound=1, flag_values=FLAGS
)
_TASKS_PER_NODE = flags.DEFINE_integer(
  'tasks_per_node',
  1,
  'Processes on each node, which share its GPUs.',
  lower_bound=1,
  flag_values=FLAGS,
)
_GPUS_PER_NODE = flags.DEFINE_integer(
  'gpus_per_node', 0, 'GPUs of each node.', lower_bound=0, flag_values=FLAGS
)
_CPUS_PER_TASK = flags.DEFINE_integer(
  'cpus_per_task',
  None,
  'CPU cores of each process; reading and decoding images takes many.',
  lower_bound=1,
  flag_values=FLAGS,
)
_TIMEOUT_MIN = flags.DEFINE_integer(
  'timeout_min',
  60,
  'Minutes until the job is stopped, and queued again.',
  lower_bound=1,
  flag_values=FLAGS,
)
_GRACE_S = flags.DEFINE_integer(
  'grace_s',
  120,
  'Seconds that the run gets to save before its time is over.',
  lower_bound=1,
  flag_values=FLAGS,
)
_MAX_REQUEUES = flags.DEFINE_integer(
  'max_requeues',
  1000,
  'How often it may run out of time (--local: 5 at most).',
  lower_bound=0,
  flag_values=FLAGS,
)
_SBATCH = flags.DEFINE_multi_string(
  'sbatch',
  [],
  'KEY=VALUE: any other option of sbatch, as --sbatch=account=vision.',
  flag_values=FLAGS,
)

_STOPPED = 128 + signal.SIGTERM  # the status of a run that saved and ended


class Training:
  """The training command as one task of a job; submitit calls it."""

  def __init__(self, training_flags: Sequence[str]):
    self._flags = list(training_flags)

  def __call__(self) -> None:
    """Runs until the run is done, or stopped; then the job is requeued.

    Raises:
      RuntimeError: The run failed.
    """
    import submitit

    env = submitit.JobEnvironment()
    stop_signals = [signal.SIGTERM, signal.SIGINT, env._usr_sig()]
    command = [sys.executable, '-m', 'vit_jax.main', *self._flags]
    command += distributed_flags(env)
    status, received = run(command, stop_signals)
    if status == 0:
      return
    if not received and status != _STOPPED:
      raise RuntimeError(f'the run ended with status {status}')
    if env.global_rank == 0 and requeues(env, received):
      signal.raise_signal(env._usr_sig())  # submitit requeues, and exits
    sys.exit(0 if env.global_rank else status)

  def checkpoint(self) -> 'submitit.helpers.DelayedSubmission':
    """Returns what a requeued job runs."""
    import submitit

    return submitit.helpers.DelayedSubmission(self)


def distributed_flags(env: 'submitit.JobEnvironment') -> list[str]:
  """Returns the flags that make the tasks of a job one run."""
  # A job alone on its node needs no name that resolves.
  host = env.hostnames[0] if env.num_nodes > 1 else 'localhost'
  # Above the ports that the kernel hands out, and apart from other jobs'.
  port = 61440 + int(env.raw_job_id) % 4096
  return [
    f'--coordinator={host}:{port}',
    f'--process_id={env.global_rank}',
    f'--num_processes={env.num_tasks}',
  ]


def run(
  command: Sequence[str], stop_signals: Sequence[int]
) -> tuple[int, list[int]]:
  """Runs a command, and sends it SIGTERM at the first of some signals.

  Only at the first, since a second SIGTERM would end it before it has saved.

  Returns:
    Its exit status, and which of these signals came.
  """
  received: list[int] = []
  process: subprocess.Popen[bytes] | None = None
  told = False

  def tell() -> None:
    nonlocal told
    if process is not None and not told:
      told = True
      process.terminate()

  def note(number: int, _: FrameType | None) -> None:
    received.append(number)
    tell()

  previous = {number: signal.signal(number, note) for number in stop_signals}
  try:
    process = subprocess.Popen(command)
    if received:  # before there was a process
      tell()
    return process.wait(), received
  finally:
    for number, handler in previous.items():
      signal.signal(number, handler)


def requeues(env: 'submitit.JobEnvironment', received: Sequence[int]) -> bool:
  """Whether we are to requeue a job that was stopped.

  Args:
    env: Of the job.
    received: The signals that came.
  """
  if signal.SIGINT in received:
    return False
  if env.cluster != 'slurm' or env._usr_sig() in received:
    return True
  # SIGTERM comes when a job is cancelled, too, and that is to be its end. A
  # job that SLURM itself is ending, to cancel or to requeue, is not RUNNING.
  state = subprocess.run(
    ['squeue', '--noheader', '--format=%T', f'--jobs={env.job_id}'],
    capture_output=True,
    check=False,
    text=True,
  )
  return state.stdout.strip() == 'RUNNING'


def main(argv: list[str]) -> int:
  """Submits the job, or runs it here; returns the exit status."""
  training_flags = argv[1:]
  cli.parse_flags(['vit_jax.main', *training_flags])  # before the job is queued
  for name in ('config', 'workdir'):
    if not flags.FLAGS[name].value:
      raise UserError(
        f'--{name} is missing: name it after a lone --, as in'
        ' -- --config=configs/digits.py --workdir=runs/digits'
      )
  workdir = pathlib.Path(str(flags.FLAGS['workdir'].value)).absolute()
  executor = make_executor(workdir / 'slurm')
  job = executor.submit(Training(training_flags))
  print(f'job {job.job_id}; its logs: {workdir}/slurm/{job.job_id}_*_log.*')
  if not _LOCAL.value:
    return 0
  job.wait()
  if not (workdir / 'DONE').exists():
    raise UserError(
      f'the run ended before it was done: see {job.paths.stderr}; the same'
      ' command goes on where it stopped'
    )
  return 0


def make_executor(folder: pathlib.Path) -> 'submitit.AutoExecutor':
  """Returns what submits a job as the flags say; logs go to `folder`.

  Raises:
    UserError: submitit or SLURM is missing, or the flags do not fit.
  """
  try:
    import submitit
  except ImportError:
    raise UserError(
      "submitit is missing: run pip install -e '.[slurm]'"
    ) from None
  cluster = 'local' if _LOCAL.value else 'slurm'
  if _LOCAL.value and _GPUS_PER_NODE.value and _TASKS_PER_NODE.value > 1:
    raise UserError(
      '--tasks_per_node: with --local, one process drives all GPUs'
    )
  if _LOCAL.value and _NODES.value > 1:
    raise UserError('--nodes: --local has one; set --tasks_per_node instead')
  try:
    executor = submitit.AutoExecutor(
      folder,
      cluster=cluster,
      local_max_num_timeout=_MAX_REQUEUES.value,
      slurm_max_num_timeout=_MAX_REQUEUES.value,
    )
  except RuntimeError:
    raise UserError(
      'srun is not here: run this where jobs are submitted from, or add --local'
    ) from None
  executor.update_parameters(
    name='vit_jax',
    timeout_min=_TIMEOUT_MIN.value,
    nodes=_NODES.value,
    tasks_per_node=_TASKS_PER_NODE.value,
    gpus_per_node=_GPUS_PER_NODE.value or None,
    cpus_per_task=_CPUS_PER_TASK.value,
    slurm_partition=_PARTITION.value,
    slurm_signal_delay_s=_GRACE_S.value,
    slurm_srun_args=_srun_args(),
    slurm_additional_parameters=_sbatch_options(),
  )
  return executor


def _srun_args() -> list[str]:
  # Since SLURM 22.05 srun does not take this over from sbatch.
  cpus = _CPUS_PER_TASK.value
  return [f'--cpus-per-task={cpus}'] if cpus else []


def _sbatch_options() -> dict[str, str | bool]:
  options: dict[str, str | bool] = {'requeue': True}
  for text in _SBATCH.value:
    key, has_value, value = text.partition('=')
    if not key or not has_value:
      raise UserError(f'--sbatch={text}: write KEY=VALUE, as account=vision')
    options[key] = value
  return options


if __name__ == '__main__':
  cli.run(main, __doc__, FLAGS)
