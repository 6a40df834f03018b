"""Looks inside: pictures of data and models.

  python -m vit_jax.explore --from=runs/digits --images=photos --out=inside
  python -m vit_jax.explore serve --from=runs/digits
  python -m vit_jax.explore data --config=configs/digits.py

  pictures   a report on a model and images, as files and one page; the default
  serve      attention and predictions for one image at a time, in a browser
  data       the images of a training step, as the model gets them

`python -m vit_jax.explore VERB --help` shows the flags of one.
"""

import importlib
import sys

from absl import flags

from vit_jax import cli
from vit_jax.config import UserError

USAGE = 'explore [VERB]'

# Modules with main, FLAGS and the text of --help.
_VERBS = {
  'pictures': 'vit_jax.explore.pictures',
  'serve': 'vit_jax.explore.serve',
  'data': 'vit_jax.explore.inputs',
}
_DEFAULT = 'pictures'


def run() -> None:
  """Runs the verb given as the first argument, and exits."""
  verb = sys.argv[1] if sys.argv[1:] else ''
  if verb.startswith(('-h', '--h')):
    cli.run(_refuse, __doc__, flags.FlagValues(), USAGE)
  if not verb or verb.startswith('-'):
    verb = _DEFAULT
    sys.argv.insert(1, verb)
  if verb not in _VERBS:
    del sys.argv[2:]  # the flags of an unknown verb
    cli.run(_refuse, __doc__, flags.FlagValues(), USAGE)
  command = importlib.import_module(_VERBS[verb])
  sys.argv[:2] = [command.__name__]
  cli.run(command.main, command.__doc__ or '', command.FLAGS, command.USAGE)


def _refuse(argv: list[str]) -> None:
  raise UserError(
    f'{argv[1]!r} is no verb: choose one of {", ".join(_VERBS)}, as in python'
    ' -m vit_jax.explore data --config=configs/digits.py'
  )


if __name__ == '__main__':
  run()
