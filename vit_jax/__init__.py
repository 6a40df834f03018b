"""Vision Transformers in JAX and Flax Linen.

The names below are imported on first use, so that commands parse their flags
before they import jax.
"""

import importlib
import pathlib
import re
import sys
from typing import Any
from typing import TYPE_CHECKING

if TYPE_CHECKING:
  from vit_jax import config as config
  from vit_jax import explore as explore
  from vit_jax import train as train
  from vit_jax.data.sources import open_source as open_source
  from vit_jax.models.listing import list_parts as list_parts
  from vit_jax.objectives.loading import load as load
  from vit_jax.weights.features import embeddings as embeddings
  from vit_jax.weights.features import features as features
  from vit_jax.weights.model_fields import create_model as create_model
  from vit_jax.weights.published import list_models as list_models

_MODULES = {
  'create_model': 'vit_jax.weights.model_fields',
  'embeddings': 'vit_jax.weights.features',
  'features': 'vit_jax.weights.features',
  'list_models': 'vit_jax.weights.published',
  'list_parts': 'vit_jax.models.listing',
  'load': 'vit_jax.objectives.loading',
  'open_source': 'vit_jax.data.sources',
}

_PACKAGES = ('config', 'explore', 'train')

__all__ = [
  'config',
  'create_model',
  'embeddings',
  'explore',
  'features',
  'list_models',
  'list_parts',
  'load',
  'open_source',
  'train',
]


def __getattr__(name: str) -> Any:
  if name in _PACKAGES:
    return importlib.import_module(f'vit_jax.{name}')
  if name not in _MODULES:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
  return sorted({*globals(), *__all__})


_COMMANDS = (
  'main',
  'evaluate',
  'predict',
  'embed',
  'search',
  'explore',
  'data',
  'convert',
  'export',
  'summary',
  'compare',
  'sweep',
)
# The command that a user probably meant by a name that is no command; 'main'
# for all other names.
_COMMAND_FOR = {
  'checkpoint': 'convert',
  'comparison': 'compare',
  'evals': 'evaluate',
  'evaluation': 'evaluate',
  'features': 'embed',
  'models': 'summary',
  'serve': 'explore serve',
  'weights': 'convert',
}


def _refuse_other_modules() -> None:
  """Exits with an error in `python -m vit_jax.MODULE` if it is no command.

  Otherwise Python would import the module and end with status 0, as if it had
  trained. sys.argv[0] is '-m' while Python imports this package to find the
  module; in any other process this function does nothing.
  """
  if sys.argv[:1] != ['-m']:
    return
  argument = sys.orig_argv[-len(sys.argv)]  # 'NAME' or '-mNAME'
  match = re.search(r'(?:^|m)(vit_jax((?:\.\w+)*))$', argument)
  if match is None:  # the command of a package that imports this one
    return
  parts = match[2].split('.')[1:]
  path = pathlib.Path(__file__).parent.joinpath(*parts)
  if (path / '__main__.py').exists():
    return
  file = path.with_suffix('.py')
  if parts and file.exists() and "__name__ == '__main__'" in file.read_text():
    return
  name = (parts or ['main'])[0]
  command = name if name in _COMMANDS else _COMMAND_FOR.get(name, 'main')
  sys.exit(
    f'error: {match[1]} is no command: run python -m vit_jax.{command}. The'
    f' commands are {", ".join(_COMMANDS)}; main trains'
  )


_refuse_other_modules()
