r"""Trains a model, or resumes its training.

  python -m vit_jax.main --config=configs/digits.py --workdir=runs/digits

Everything is in the config; any key of it can be set on the command line:

  python -m vit_jax.main --config=configs/digits.py --config.seed=1

The same command on the same work directory resumes an interrupted run.

To train again with the config of a run:

  python -m vit_jax.main --reproduce=runs/digits

It first lists the changes since then (versions, code, devices, data), and at
the end says whether the results are equal.

To use several hosts, start the same command once on each host of a SLURM step,
an Open MPI job, a TPU pod or an indexed job of Kubernetes: the processes then
form one run on all devices. Elsewhere, flags say which processes belong
together:

  python -m vit_jax.main --config=configs/digits.py --workdir=runs/digits \
      --coordinator=node1:8476 --num_processes=2 --process_id=0
"""

import os
import sys
import time

from absl import flags
from absl import logging

from vit_jax import cli
from vit_jax import config as config_lib
from vit_jax.parallel import clusters
from vit_jax.parallel import peers
from vit_jax.parallel import processes as processes_lib

USAGE = 'train --config=FILE.py [--workdir=PATH] [--config.KEY=VALUE ...]'
_CONFIG = cli.define_config()
_WORKDIR = cli.define_workdir(
  'Folder of the run, or its address in an object store (gs://, s3://).'
  ' Default: runs/<config>-<time>.'
)
_DRY_RUN = flags.DEFINE_bool(
  'dry_run', False, 'Check, compile and print the sizes, but write nothing.'
)
_VERBOSE = flags.DEFINE_bool(
  'verbose', False, 'Show tables of all parameters before the first step.'
)
_REPLAY = flags.DEFINE_integer(
  'replay',
  None,
  'Repeat this step of the run in --workdir, and say where its numbers stop'
  ' being finite. The run does not change.',
  lower_bound=1,
)
_REPRODUCE = cli.define_path(
  'reproduce',
  None,
  'Train again in --workdir with the config of this run, and compare the'
  ' results. Takes the place of --config.',
)
cli.define_compile_cache()
clusters.define_flags()


def main(argv: list[str]) -> int:
  """Trains, and returns the exit status."""
  path = cli.config_path(sys.argv)
  if len(argv) > 1:
    hint = "a value with spaces needs quotes, as --KEY='10 epochs'"
    if '.py' in argv[1]:
      hint = f'did you mean --config={argv[1]}?'
    raise config_lib.UserError(f'unexpected argument {argv[1]!r}: {hint}')
  original = _REPRODUCE.value
  if original is None:
    if path is None:
      raise cli.missing('config', 'a config file', 'configs/digits.py')
    name = config_lib.file_name(path)
  else:
    if path is not None or _REPLAY.value is not None:
      flag = '--replay' if path is None else '--config'
      raise config_lib.UserError(
        f'--reproduce trains with the config of the run: leave {flag} out'
      )
    name = f'{os.path.basename(os.path.abspath(original))}-reproduced'
  if processes := peers.initialize():
    logging.info('%s', processes)
    if not processes_lib.first():  # one log is enough
      logging.set_verbosity(logging.ERROR)
  workdir = _WORKDIR.value
  if _REPLAY.value is not None:
    if not workdir:
      raise config_lib.UserError(
        '--replay needs --workdir: name the run, as in --workdir=runs/digits'
      )
    config_lib.check_local(workdir, '--workdir')
    from vit_jax.rerun import replay  # after the flags: imports jax

    return replay.run(_CONFIG.value, os.path.abspath(workdir), _REPLAY.value)
  workdir = workdir or processes_lib.call_on_first(
    lambda: f'runs/{name}-{time.strftime("%Y%m%d-%H%M%S")}'
  )
  if original is not None:
    config_lib.check_local(workdir, '--workdir')
    from vit_jax.rerun import reproduce  # after the flags: imports jax

    return reproduce.run(original, os.path.abspath(workdir), _DRY_RUN.value)
  from vit_jax.train import loop  # after the flags: imports jax

  results = loop.run(_CONFIG.value, workdir, _DRY_RUN.value, _VERBOSE.value)
  return results.status


if __name__ == '__main__':
  cli.run(main, __doc__, usage=USAGE)
