r"""Trains on SLURM; the job is requeued until the run is done.

  pip install -e '.[slurm]'
  python scripts/slurm.py --partition=gpu --nodes=4 --gpus_per_node=8 \
      --cpus_per_task=96 --timeout_min=1440 -- \
      --config=configs/x.py --workdir=/shared/runs/x

Flags after the lone -- are for `python -m vit_jax.main`, which runs once on
each node, with all of its GPUs; --workdir must be on a file system that all
nodes share. Logs are in WORKDIR/slurm. A job that is preempted, or close to its
time limit, saves and is requeued. A job that fails or is cancelled is not
requeued; the same command resumes it.

--local runs the tasks here instead, without SLURM, and waits for them:

  python scripts/slurm.py --local --tasks_per_node=2 -- \
      --config=configs/digits.py --workdir=runs/digits
"""

import pathlib

from absl import flags

from vit_jax import cli
from vit_jax.config import UserError
import vit_jax.main  # noqa: F401  it defines the training flags
from vit_jax.parallel import slurm

FLAGS = flags.FlagValues()  # separate from the training command's
slurm.define_flags(FLAGS)


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
  executor = slurm.make_executor(workdir / 'slurm', FLAGS)
  job = slurm.submit(executor, slurm.Training(training_flags))
  print(f'job {job.job_id}; its logs: {workdir}/slurm/{job.job_id}_*_log.*')
  if not FLAGS.local:
    return 0
  job.wait()
  if not (workdir / 'DONE').exists():
    raise UserError(
      f'the run ended before it was done: see {job.paths.stderr}; the same'
      ' command goes on where it stopped'
    )
  return 0


if __name__ == '__main__':
  cli.run(main, __doc__, FLAGS)
