"""Vision Transformers in JAX and Flax Linen.

The names below are imported on first use, so that commands parse their flags
before they import jax.
"""

import importlib
from typing import Any
from typing import TYPE_CHECKING

if TYPE_CHECKING:
  from vit_jax import config as config
  from vit_jax import explore as explore
  from vit_jax import train as train
  from vit_jax.data.sources import open_source as open_source
  from vit_jax.models.listing import list_parts as list_parts
  from vit_jax.objectives.trained import load as load
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
  'load': 'vit_jax.objectives.trained',
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
