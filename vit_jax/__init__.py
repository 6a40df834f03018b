"""Vision Transformers in JAX and Flax Linen.

The names below are imported when they are first used, so that commands can
parse their flags before jax is there.
"""

import importlib
from typing import Any
from typing import TYPE_CHECKING

if TYPE_CHECKING:
  from vit_jax.models import create_model as create_model
  from vit_jax.models import list_models as list_models
  from vit_jax.weights import load as load

_MODULES = {
  'create_model': 'vit_jax.models',
  'list_models': 'vit_jax.models',
  'load': 'vit_jax.weights',
}

__all__ = ['create_model', 'list_models', 'load']


def __getattr__(name: str) -> Any:
  if name not in _MODULES:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  return getattr(importlib.import_module(_MODULES[name]), name)
