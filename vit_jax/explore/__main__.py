"""Looks inside: pictures of data and models.

  python -m vit_jax.explore data --config=configs/digits.py

  data   what the model is fed at a step of training

`python -m vit_jax.explore VERB --help` shows the flags of one.
"""

import importlib
import sys

from vit_jax import cli
from vit_jax.config import UserError

# Modules with main, FLAGS and the text of --help.
_VERBS = {'data': 'vit_jax.explore.fed'}


def run() -> None:
  """Runs the verb that is the first argument, and exits."""
  verb = sys.argv[1] if sys.argv[1:] else ''
  if verb in _VERBS:
    command = importlib.import_module(_VERBS[verb])
    # As if that module were run: by this name absl finds its flags.
    sys.argv[:2] = [command.__name__]
    cli.run(command.main, command.__doc__ or '', command.FLAGS)
  if not verb.startswith(('-h', '--h')):
    del sys.argv[1:]  # flags of whatever it was to be
  cli.run(lambda _: _refuse(verb), __doc__)


def _refuse(verb: str) -> None:
  found = f'{verb!r} is no verb' if verb else 'the verb is missing'
  raise UserError(
    f'{found}: choose one of {", ".join(_VERBS)}, as in python -m'
    ' vit_jax.explore data --config=configs/digits.py'
  )


if __name__ == '__main__':
  run()
