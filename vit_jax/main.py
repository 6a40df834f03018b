"""Trains a model, or resumes its training.

  python -m vit_jax.main --config=configs/digits.py --workdir=runs/digits

Everything is in the config; any key of it can be set on the command line:

  python -m vit_jax.main --config=configs/digits.py --config.seed=1

The same command on the same work directory resumes an interrupted run.
"""

import os
import sys
import time

from absl import flags

from vit_jax import cli

_CONFIG = cli.define_config()
_WORKDIR = flags.DEFINE_string(
  'workdir', None, 'Where the run is kept. Default: runs/<config>-<time>.'
)
_DRY_RUN = flags.DEFINE_bool(
  'dry_run', False, 'Check, compile, print sizes and stop; write nothing.'
)


def main(argv: list[str]) -> int:
  """Trains, and returns the exit status."""
  from vit_jax import config as config_lib  # quick: no jax

  path = cli.config_path(sys.argv)
  if len(argv) > 1:
    hint = f': did you mean --config={argv[1]}?' if '.py' in argv[1] else ''
    raise config_lib.UserError(f'unexpected argument {argv[1]!r}{hint}')
  if path is None:
    raise config_lib.UserError(
      '--config is missing: name a config file, as in'
      ' --config=configs/digits.py'
    )
  name = os.path.splitext(os.path.basename(path.split(':', 1)[0]))[0]
  workdir = _WORKDIR.value or f'runs/{name}-{time.strftime("%Y%m%d-%H%M%S")}'
  from vit_jax import train  # after the flags, since it imports jax

  return train.run(_CONFIG.value, os.path.abspath(workdir), _DRY_RUN.value)


if __name__ == '__main__':
  cli.run(main, __doc__)
