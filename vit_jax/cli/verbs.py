"""The program `vit-jax`: every command of the package as a verb."""

import difflib
import importlib.metadata
import runpy
import sys

_HELP = """usage: vit-jax VERB [--FLAG=VALUE ...]

Trains, evaluates and explains Vision Transformers.

  vit-jax train --config=digits --workdir=runs/digits
  vit-jax predict --from=runs/digits images/val

Verbs:
{}

`vit-jax VERB --help` lists the flags of a verb."""

# Verb: module, and what it does.
VERBS = {
  'train': ('main', 'train a model, or resume its training'),
  'evaluate': ('evaluate', 'measure a model on a split'),
  'predict': ('predict', 'name the classes of images'),
  'embed': ('embed', 'write the features of images as a table or an array'),
  'search': (
    'search',
    'find the images of a folder that fit a text or an image',
  ),
  'serve': ('serve', 'answer images over HTTP with names or embeddings'),
  'explore': ('explore', 'draw what a model does, as a report or a live page'),
  'data': ('data', 'check a folder of images or the data of a config'),
  'convert': ('convert', 'write a model in the format of another program'),
  'export': ('export', 'write a model as ONNX or StableHLO'),
  'summary': (
    'summary',
    'print sizes, config keys, and plans for other hardware',
  ),
  'compare': ('compare', 'compare the configs, results and curves of runs'),
  'sweep': ('sweep', 'run a config with many values of its keys'),
}


def run() -> None:
  """Runs the verb that is the first argument, and exits.

  Only the module of that verb is imported.
  """
  verb = sys.argv[1] if sys.argv[1:] else '--help'
  if verb in ('--help', '-h', '-help', '--helpfull', 'help'):
    width = max(map(len, VERBS))
    rows = [f'  {verb:{width}}  {text}' for verb, (_, text) in VERBS.items()]
    print(_HELP.format('\n'.join(rows)))
    sys.exit(0)
  if verb == '--version':
    print(importlib.metadata.version('vit_jax'))
    sys.exit(0)
  if verb not in VERBS:
    matches = difflib.get_close_matches(verb, VERBS, n=1)
    hint = f'did you mean {matches[0]}?' if matches else 'see vit-jax --help'
    sys.exit(f'error: {verb!r} is no verb: {hint}')
  del sys.argv[1]
  module, _ = VERBS[verb]
  if not sys.flags.safe_path:  # as `python -m` finds modules of the user's
    sys.path.append('')  # last, so that it hides no installed module
  runpy.run_module(f'vit_jax.{module}', run_name='__main__', alter_sys=True)
