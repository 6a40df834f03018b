"""The program `vit-jax`: the commands of `python -m vit_jax.*` by their verbs.

vit-jax train --config=digits --workdir=runs/digits
vit-jax predict --from=runs/digits images/val
vit-jax VERB --help
"""

import importlib.metadata
import runpy
import sys

# Verb: module, and what it does.
_VERBS = {
  'train': ('main', 'trains a model, or resumes its training'),
  'evaluate': ('evaluate', 'metrics of a model over a split'),
  'predict': ('predict', 'the classes of images'),
  'embed': ('embed', 'the features of images, as a table or an array'),
  'search': ('search', 'the images of a folder that fit a text or an image'),
  'explore': ('explore', 'pictures of what a model does: a report, or a page'),
  'data': ('data', 'checks the data of a config'),
  'convert': ('convert', 'writes a model in the format of another program'),
  'export': ('export', 'writes a model as ONNX or StableHLO'),
  'summary': ('summary', 'sizes, and what a step needs on other hardware'),
  'compare': ('compare', 'two runs or more, side by side'),
  'sweep': ('sweep', 'runs over many values of keys'),
  'benchmark': ('benchmark', 'measures speed'),
}


def run() -> None:
  """Runs the verb that is the first argument, and exits.

  Only the module of that verb is imported.
  """
  verb = sys.argv[1] if sys.argv[1:] else '--help'
  if verb in ('--help', '-h', '-help', '--helpfull', 'help'):
    print(_help())
    sys.exit(0)
  if verb == '--version':
    print(importlib.metadata.version('vit_jax'))
    sys.exit(0)
  if verb not in _VERBS:
    sys.exit(
      f'error: {verb!r} is no verb: choose one of {", ".join(_VERBS)}, as in'
      ' vit-jax train --config=digits'
    )
  del sys.argv[1]
  module, _ = _VERBS[verb]
  runpy.run_module(f'vit_jax.{module}', run_name='__main__', alter_sys=True)


def _help() -> str:
  """Returns the text of --help: every verb with what it does."""
  width = max(map(len, _VERBS))
  rows = [f'  {verb:{width}}  {text}' for verb, (_, text) in _VERBS.items()]
  return '\n'.join([(__doc__ or '').strip(), '', *rows])
