"""Looking inside: pictures of data and models, and reports.

The functions below are imported when they are first used, so that commands can
parse their flags before jax is there. Most take a model that `vit_jax.load`
returned:

  vit = vit_jax.load('runs/digits')
  maps = vit_jax.explore.attention_rollout(vit, ['photo.jpg'])  # [B, h, w]

The modules have the functions of arrays below these, for several pictures of
one pass (`vit_jax.weights.features.looked`).
"""

import importlib
from typing import Any
from typing import TYPE_CHECKING

if TYPE_CHECKING:
  from vit_jax.evaluation.report import calibration_error as calibration_error
  from vit_jax.evaluation.report import confusion as confusion
  from vit_jax.explore.answers import class_probabilities as class_probabilities
  from vit_jax.explore.answers import confident_mistakes as confident_mistakes
  from vit_jax.explore.answers import embedding_map as embedding_map
  from vit_jax.explore.answers import reliability_bins as reliability_bins
  from vit_jax.explore.attention import attention_distance as attention_distance
  from vit_jax.explore.attention import attention_entropy as attention_entropy
  from vit_jax.explore.attention import attention_maps as attention_maps
  from vit_jax.explore.attention import attention_rollout as attention_rollout
  from vit_jax.explore.attention import entropy as entropy
  from vit_jax.explore.attention import mean_distance as mean_distance
  from vit_jax.explore.attention import rollout as rollout
  from vit_jax.explore.gradients import (
    attention_gradients as attention_gradients,
  )
  from vit_jax.explore.gradients import class_relevance as class_relevance
  from vit_jax.explore.gradients import relevance as relevance
  from vit_jax.explore.positions import embedding_filters as embedding_filters
  from vit_jax.explore.positions import (
    position_similarity as position_similarity,
  )
  from vit_jax.explore.positions import stem_filters as stem_filters
  from vit_jax.explore.sequence import image_patches as image_patches
  from vit_jax.explore.similarity import cka as cka
  from vit_jax.explore.similarity import layer_cka as layer_cka
  from vit_jax.explore.similarity import (
    layer_decodability as layer_decodability,
  )
  from vit_jax.explore.tokens import patch_similarity as patch_similarity
  from vit_jax.explore.tokens import token_norms as token_norms
  from vit_jax.explore.tokens import token_pca as token_pca

_MODULES = {
  'attention_distance': 'vit_jax.explore.attention',
  'attention_entropy': 'vit_jax.explore.attention',
  'attention_gradients': 'vit_jax.explore.gradients',
  'attention_maps': 'vit_jax.explore.attention',
  'attention_rollout': 'vit_jax.explore.attention',
  'calibration_error': 'vit_jax.evaluation.report',
  'cka': 'vit_jax.explore.similarity',
  'class_probabilities': 'vit_jax.explore.answers',
  'class_relevance': 'vit_jax.explore.gradients',
  'confident_mistakes': 'vit_jax.explore.answers',
  'confusion': 'vit_jax.evaluation.report',
  'embedding_filters': 'vit_jax.explore.positions',
  'embedding_map': 'vit_jax.explore.answers',
  'entropy': 'vit_jax.explore.attention',
  'image_patches': 'vit_jax.explore.sequence',
  'layer_cka': 'vit_jax.explore.similarity',
  'layer_decodability': 'vit_jax.explore.similarity',
  'mean_distance': 'vit_jax.explore.attention',
  'patch_similarity': 'vit_jax.explore.tokens',
  'position_similarity': 'vit_jax.explore.positions',
  'relevance': 'vit_jax.explore.gradients',
  'reliability_bins': 'vit_jax.explore.answers',
  'rollout': 'vit_jax.explore.attention',
  'stem_filters': 'vit_jax.explore.positions',
  'token_norms': 'vit_jax.explore.tokens',
  'token_pca': 'vit_jax.explore.tokens',
}

__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
  if name not in _MODULES:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
  return sorted({*globals(), *__all__})
