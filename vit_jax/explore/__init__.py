"""Pictures of data and of the inside of models, and reports.

The functions below are imported on first use, so that commands parse their
flags before they import jax. Most take a model from `vit_jax.load`:

  vit = vit_jax.load('runs/digits')
  maps = vit_jax.explore.attention_rollout(vit, ['photo.jpg'])  # [B, h, w]

The modules also have functions that take arrays, so that several pictures share
one forward pass (`vit_jax.weights.features.reduced`).
"""

import importlib
from typing import Any
from typing import TYPE_CHECKING

if TYPE_CHECKING:
  from vit_jax.evaluation.calibration import (
    calibration_error as calibration_error,
  )
  from vit_jax.evaluation.calibration import (
    reliability_bins as reliability_bins,
  )
  from vit_jax.evaluation.metrics import confusion as confusion
  from vit_jax.explore.attention import attention_distance as attention_distance
  from vit_jax.explore.attention import attention_entropy as attention_entropy
  from vit_jax.explore.attention import (
    attention_gradients as attention_gradients,
  )
  from vit_jax.explore.attention import attention_maps as attention_maps
  from vit_jax.explore.attention import attention_rollout as attention_rollout
  from vit_jax.explore.attention import attention_segments as attention_segments
  from vit_jax.explore.attention import class_relevance as class_relevance
  from vit_jax.explore.attention import entropy as entropy
  from vit_jax.explore.attention import mean_distance as mean_distance
  from vit_jax.explore.attention import relevance as relevance
  from vit_jax.explore.attention import rollout as rollout
  from vit_jax.explore.positions import embedding_filters as embedding_filters
  from vit_jax.explore.positions import (
    position_similarity as position_similarity,
  )
  from vit_jax.explore.positions import stem_filters as stem_filters
  from vit_jax.explore.predictions import (
    class_probabilities as class_probabilities,
  )
  from vit_jax.explore.predictions import (
    confident_mistakes as confident_mistakes,
  )
  from vit_jax.explore.predictions import embedding_map as embedding_map
  from vit_jax.explore.similarity import cka as cka
  from vit_jax.explore.similarity import layer_cka as layer_cka
  from vit_jax.explore.similarity import (
    layer_decodability as layer_decodability,
  )
  from vit_jax.explore.similarity import nearest_images as nearest_images
  from vit_jax.explore.tokens import image_patches as image_patches
  from vit_jax.explore.tokens import patch_foreground as patch_foreground
  from vit_jax.explore.tokens import patch_similarity as patch_similarity
  from vit_jax.explore.tokens import token_norms as token_norms
  from vit_jax.explore.tokens import token_pca as token_pca

_NAMES = {
  'vit_jax.evaluation.calibration': 'calibration_error reliability_bins',
  'vit_jax.evaluation.metrics': 'confusion',
  'vit_jax.explore.attention': 'attention_distance attention_entropy'
  ' attention_gradients attention_maps attention_rollout attention_segments'
  ' class_relevance entropy mean_distance relevance rollout',
  'vit_jax.explore.positions': 'embedding_filters position_similarity'
  ' stem_filters',
  'vit_jax.explore.predictions': 'class_probabilities confident_mistakes'
  ' embedding_map',
  'vit_jax.explore.similarity': 'cka layer_cka layer_decodability'
  ' nearest_images',
  'vit_jax.explore.tokens': 'image_patches patch_foreground patch_similarity'
  ' token_norms token_pca',
}
_MODULES = {
  name: module for module, names in _NAMES.items() for name in names.split()
}

__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
  if name not in _MODULES:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
  return sorted({*globals(), *__all__})
