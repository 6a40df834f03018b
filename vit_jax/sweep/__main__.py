r"""Runs a config many times, and ranks the values of its keys.

  python -m vit_jax.sweep --config=configs/digits.py \
      --sweep=configs/sweeps/lr_wd.py --workdir=runs/lr_wd --jobs=2

The sweep file defines the keys to vary and their values, the seeds, the number
of trials and the metric; --config.KEY=VALUE applies to all runs. Each trial is
a run of `python -m vit_jax.main` for each seed, in WORKDIR/trials/NNNN/seedN.

The same command resumes a sweep, however it was stopped; --trials may then be
larger than before. On several machines with the same --workdir, it shares the
trials among them; each command ends when all trials have ended.

  leaderboard.csv  each trial's values, mean and 95% interval over the seeds
                   (Student's t), state and error, the best first
  sweep.png        the same as a picture

Both are rewritten as trials end. At the end the leaderboard is printed to
stdout, as a table, or with --format=json as one array of objects with the same
fields.

With --slurm each run is a separate job (with --local, without SLURM, to try it
out); --jobs is then the number of jobs that are queued or running at once.
"""

from collections.abc import Sequence
import dataclasses
import json
import math
import os
import pathlib
import time
from typing import TYPE_CHECKING

from absl import flags
from absl import logging
from ml_collections import config_flags

from vit_jax import cli
from vit_jax import tables
from vit_jax.config import check_package
from vit_jax.config import counted
from vit_jax.config import find
from vit_jax.config import UserError
from vit_jax.parallel import slurm
from vit_jax.sweep import space as space_lib

if TYPE_CHECKING:
  from vit_jax.sweep import study as study_lib

USAGE = 'sweep --config=FILE.py --sweep=FILE.py [--config.KEY=VALUE ...]'
FLAGS = flags.FlagValues()  # its own: other commands have flags of these names
cli.define_config(FLAGS)
_SWEEP = flags.DEFINE_string(
  'sweep',
  None,
  'Sweep file. Text after a colon is the argument of its get_sweep().',
  flag_values=FLAGS,
)
_WORKDIR = cli.define_path(
  'workdir',
  None,
  'Folder of the sweep. Default: runs/<sweep>-<time>.',
  flag_values=FLAGS,
)
_TRIALS = flags.DEFINE_integer(
  'trials',
  None,
  "Number of trials. Default: the sweep file's.",
  lower_bound=1,
  flag_values=FLAGS,
)
_JOBS = flags.DEFINE_integer(
  'jobs', 1, 'Number of runs at once.', lower_bound=1, flag_values=FLAGS
)
_GPUS = flags.DEFINE_string(
  'gpus',
  None,
  'GPUs to share out among the --jobs, such as 0,1,2,3. Default: each run uses'
  ' all GPUs.',
  flag_values=FLAGS,
)
_SLURM = flags.DEFINE_bool(
  'slurm', False, 'Start each run as a job of SLURM.', flag_values=FLAGS
)
_FORMAT = cli.define_format(FLAGS)
_SWEEP_FLAGS = frozenset(FLAGS)
slurm.define_flags(FLAGS)

_POLL_S = 1.0
_DRAW_S = 20.0  # between two pictures, as drawing one takes a second


def main(
  argv: list[str],
  program: Sequence[str] = slurm.TRAIN,
  poll_s: float = _POLL_S,
) -> int:
  """Runs the sweep by `program`, asked each `poll_s` s; returns a status."""
  sweep, all_runs = _check_flags(argv)
  config = space_lib.check(sweep, all_runs)
  for package in ('optuna', 'matplotlib'):
    check_package('a sweep', package, 'sweep')
  from vit_jax.sweep import board  # after the flags, since they import Optuna
  from vit_jax.sweep import jobs
  from vit_jax.sweep import loop
  from vit_jax.sweep import picture
  from vit_jax.sweep import runs
  from vit_jax.sweep import study as study_lib

  launcher: runs.Launcher
  if _SLURM.value:
    launcher = jobs.Jobs(FLAGS, program)
  else:
    launcher = runs.Processes(program, _shares(_GPUS.value, _JOBS.value))
  study = study_lib.Study(_workdir(), sweep, config)
  logging.info(
    'sweep of %s in %s', counted(study.total, 'trial'), study.workdir
  )
  last_drawn = -math.inf

  def publish(rows: 'Sequence[study_lib.Row]', draw: bool = False) -> None:
    """Writes the trials, and draws them now and then, or if it is asked to."""
    nonlocal last_drawn
    board.write_csv(rows, sweep, study.workdir)
    if draw or time.monotonic() - last_drawn > _DRAW_S:
      picture.draw(rows, sweep, study.workdir / 'sweep.png')
      last_drawn = time.monotonic()

  status = loop.run(study, launcher, all_runs, _JOBS.value, poll_s, publish)
  with study.lock:
    rows = board.ranked(study.rows(), sweep)
    publish(rows, True)
  if _FORMAT.value == 'json':
    entries = [board.entry(row, sweep, study.workdir) for row in rows]
    print(json.dumps(entries))
  else:
    print(board.table(rows, sweep).text(tables.room()))
  logging.info('see %s', study.workdir)
  if not status and all(row.state != 'complete' for row in rows):
    errors = [row.error for row in rows if row.error] or ['all were pruned']
    raise UserError(f'no trial was completed; of the last: {errors[-1]}')
  return status


def _check_flags(argv: list[str]) -> tuple[space_lib.Sweep, list[str]]:
  cli.refuse_arguments(argv)
  if not FLAGS['config'].present:
    raise cli.missing('config', 'a config file', 'configs/digits.py')
  if not _SWEEP.value:
    raise cli.missing('sweep', 'a sweep file', 'configs/sweeps/lr_wd.py')
  for name in FLAGS if not _SLURM.value else ():
    if name not in _SWEEP_FLAGS and FLAGS[name].present and '.' not in name:
      raise UserError(f'--{name} is for jobs: add --slurm')
  if _SLURM.value and _GPUS.value:
    raise UserError('--gpus is for runs here: --slurm takes --gpus_per_node')
  sweep = space_lib.load(_SWEEP.value)
  if _TRIALS.value is not None:
    sweep = dataclasses.replace(sweep, trials=_TRIALS.value)
  path = find(config_flags.get_config_filename(FLAGS['config']))
  file, colon, argument = path.partition(':')  # it may be an address
  overrides = config_flags.get_override_values(FLAGS['config'])
  return sweep, [
    f'--config={os.path.abspath(file)}{colon}{argument}',
    *space_lib.point_flags(overrides),
  ]


def _shares(gpus: str | None, jobs: int) -> list[str]:
  """Returns the GPUs of each job, as ['0,1', '2,3']."""
  if gpus is None:
    return []
  names = [name.strip() for name in gpus.split(',') if name.strip()]
  if not names or len(names) % jobs:
    raise UserError(
      f'--gpus={gpus}: name as many for each of the --jobs={jobs}, as'
      f' {",".join(map(str, range(jobs)))}'
    )
  size = len(names) // jobs
  return [','.join(names[i : i + size]) for i in range(0, len(names), size)]


def _workdir() -> pathlib.Path:
  if _WORKDIR.value:
    return pathlib.Path(_WORKDIR.value).absolute()
  name = pathlib.Path(str(_SWEEP.value).split(':', 1)[0]).stem
  stamp = time.strftime('%Y%m%d-%H%M%S')
  return pathlib.Path('runs', f'{name}-{stamp}').absolute()


if __name__ == '__main__':
  cli.run(main, __doc__, FLAGS, USAGE, computes=False)
