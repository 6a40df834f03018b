"""SLURM jobs that run the training command and are requeued until it is done.

Needs submitit, which is in the extra [slurm].
"""

from collections.abc import Sequence
import logging
import pathlib
import signal
import subprocess
import sys
from types import FrameType
from typing import TYPE_CHECKING

from absl import flags

from vit_jax.config import import_package
from vit_jax.config import UserError

if TYPE_CHECKING:
  import submitit

TRAIN = (sys.executable, '-m', 'vit_jax.main')

_STOPPED = 128 + signal.SIGTERM  # the status of a run that saved and ended


def define_flags(flag_values: flags.FlagValues) -> None:
  """Defines the flags for the resources of a job."""
  flags.DEFINE_bool(
    'local', False, 'Try --slurm on this machine, without SLURM.', flag_values
  )
  flags.DEFINE_string(
    'partition', None, "SLURM's partition. Default: SLURM's own.", flag_values
  )
  meanings = {
    'nodes': 'Number of nodes.',
    'tasks_per_node': 'Processes on each node, which share its GPUs.',
    'gpus_per_node': 'GPUs of each node.',
    'cpus_per_task': 'CPU cores of each process. Decoding images needs many.',
    'timeout_min': 'Minutes until the job is stopped, and queued again.',
    'grace_s': 'Seconds that the run gets to save before its time is over.',
    'max_requeues': 'How often the job is queued again when its time is over.'
    ' With --local, 5 at most.',
  }
  defaults = {'nodes': 1, 'tasks_per_node': 1, 'gpus_per_node': 0}
  defaults |= {'timeout_min': 60, 'grace_s': 120, 'max_requeues': 1000}
  for name, meaning in meanings.items():
    flags.DEFINE_integer(
      name,
      defaults.get(name),
      meaning,
      lower_bound=0 if name in ('gpus_per_node', 'max_requeues') else 1,
      flag_values=flag_values,
    )
  flags.DEFINE_multi_string(
    'sbatch',
    [],
    'Another option of sbatch, such as --sbatch=account=vision.',
    flag_values=flag_values,
  )


class Training:
  """The training command as one task of a job; submitit calls it."""

  def __init__(
    self, training_flags: Sequence[str], program: Sequence[str] = TRAIN
  ):
    self._command = [*program, *training_flags]

  def __call__(self) -> None:
    """Trains until the run is done, or is stopped and the job requeued.

    If the run fails, the task exits with its status: the error is in the log,
    and submitit would write a traceback behind it.
    """
    import submitit

    env = submitit.JobEnvironment()
    stop_signals = [signal.SIGTERM, signal.SIGINT, env._usr_sig()]
    command = [*self._command, *distributed_flags(env)]
    status, received = run(command, stop_signals)
    if status == 0:
      return
    if not received and status != _STOPPED:
      print(f'the run ended with status {status}', file=sys.stderr)
      sys.exit(status)
    if env.global_rank == 0 and self.requeues(env, received):
      signal.raise_signal(env._usr_sig())  # submitit requeues, and exits
    sys.exit(0 if env.global_rank else status)

  def requeues(
    self, env: 'submitit.JobEnvironment', received: Sequence[int]
  ) -> bool:
    """Whether to requeue the job, which these signals stopped."""
    if signal.SIGINT in received:
      return False
    if env.cluster != 'slurm' or env._usr_sig() in received:
      return True
    # SLURM also sends SIGTERM to a job that is cancelled, and this job must not
    # be requeued. A job that SLURM is cancelling or requeuing is not RUNNING.
    state = subprocess.run(
      ['squeue', '--noheader', '--format=%T', f'--jobs={env.job_id}'],
      capture_output=True,
      check=False,
      text=True,
    )
    return state.stdout.strip() == 'RUNNING'

  def checkpoint(self) -> 'submitit.helpers.DelayedSubmission':
    """Returns the task of the requeued job: submitit asks for it."""
    import submitit

    return submitit.helpers.DelayedSubmission(self)


def submit(
  executor: 'submitit.AutoExecutor', task: Training
) -> 'submitit.Job[None]':
  """Submits a job; a UserError says why SLURM refuses it."""
  import submitit

  try:
    return executor.submit(task)
  except submitit.core.utils.FailedJobError as error:
    lines = str(error).splitlines()
    reasons = [x for x in lines if x.startswith('sbatch: error: ')] or lines
    reason = reasons[0].removeprefix('sbatch: error: ')
    raise UserError(f'SLURM refuses the job: {reason}') from None


def distributed_flags(env: 'submitit.JobEnvironment') -> list[str]:
  """Returns the flags that join the tasks of a job into one run."""
  # With a single node, its host name may not resolve.
  host = env.hostnames[0] if env.num_nodes > 1 else 'localhost'
  # Above Linux's ephemeral ports. Jobs on one node get different ports, since
  # their ids differ.
  port = 61440 + int(env.raw_job_id) % 4096
  return [
    f'--coordinator={host}:{port}',
    f'--process_id={env.global_rank}',
    f'--num_processes={env.num_tasks}',
  ]


def run(
  command: Sequence[str], stop_signals: Sequence[int]
) -> tuple[int, list[int]]:
  """Runs a command, and sends it one SIGTERM when a stop signal arrives.

  A second SIGTERM would end it before it has saved. Returns its exit status,
  and the stop signals that arrived.
  """
  received: list[int] = []
  process: subprocess.Popen[bytes] | None = None
  terminated = False

  def terminate() -> None:
    nonlocal terminated
    if process is not None and not terminated:
      terminated = True
      process.terminate()

  def note(number: int, _: FrameType | None) -> None:
    received.append(number)
    terminate()

  # SLURM sends its warning to every process of a job. The command does not know
  # this signal, and would end before it has saved, so it inherits to ignore it.
  warnings = set(stop_signals) - {signal.SIGTERM, signal.SIGINT}
  previous = {
    number: signal.signal(
      number, signal.SIG_IGN if number in warnings else note
    )
    for number in stop_signals
  }
  try:
    process = subprocess.Popen(command)
    for number in warnings:
      signal.signal(number, note)
    if received:  # before the process was started
      terminate()
    return process.wait(), received
  finally:
    for number, handler in previous.items():
      signal.signal(number, handler)


def make_executor(
  folder: pathlib.Path, flag_values: flags.FlagValues
) -> 'submitit.AutoExecutor':
  """Returns submitit's executor, set up by the flags of `define_flags`.

  Logs are in the folder, which all nodes share.
  """
  if flag_values.local:
    if flag_values.gpus_per_node and flag_values.tasks_per_node > 1:
      raise UserError(
        '--tasks_per_node: with --local, one process drives all GPUs'
      )
    if flag_values.nodes > 1:
      raise UserError('--nodes: --local has one; set --tasks_per_node instead')
  submitit = import_package('SLURM', 'submitit', 'slurm')
  logger = logging.getLogger('submitit')
  for handler in logger.handlers[:]:
    if handler.name == 'submitit_out':  # stdout is for a command's results
      logger.removeHandler(handler)
  try:
    executor = submitit.AutoExecutor(
      folder,
      cluster='local' if flag_values.local else 'slurm',
      local_max_num_timeout=flag_values.max_requeues,
      slurm_max_num_timeout=flag_values.max_requeues,
    )
  except RuntimeError:
    raise UserError(
      'srun is not here: run this where jobs are submitted from, or add --local'
    ) from None
  options: dict[str, str | bool] = {'requeue': True}
  for text in flag_values.sbatch:
    key, has_value, value = text.partition('=')
    if not key or not has_value:
      raise UserError(f'--sbatch={text}: write KEY=VALUE, as account=vision')
    options[key] = value
  cpus = flag_values.cpus_per_task
  executor.update_parameters(
    name='vit_jax',
    timeout_min=flag_values.timeout_min,
    nodes=flag_values.nodes,
    tasks_per_node=flag_values.tasks_per_node,
    gpus_per_node=flag_values.gpus_per_node or None,
    cpus_per_task=cpus,
    slurm_partition=flag_values.partition,
    slurm_signal_delay_s=flag_values.grace_s,
    slurm_srun_args=[
      '--open-mode=append',  # else a requeued job's log loses its earlier part
      # Since SLURM 22.05 srun does not inherit this from sbatch.
      *([f'--cpus-per-task={cpus}'] if cpus else []),
    ],
    slurm_additional_parameters=options,
  )
  return executor
