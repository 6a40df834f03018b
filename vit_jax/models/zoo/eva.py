"""EVA (arXiv:2211.07636) and EVA-02 (arXiv:2303.11331)."""

import re

from vit_jax.models.zoo import Keys
from vit_jax.models.zoo import vit

_EVA02_MLP = {'tiny': 512, 'small': 1024, 'base': 2048, 'large': 2730}
ROPE = "rope(kind='eva02', base=10000.0, grid=(16, 16))"
SHARED = {
  **vit.EXACT,
  'patch_size': 14,
  'attention': 'attention(key_bias=False)',
  'pool': 'mean(norm_after=True)',
  'class_token': True,
}


def _eva02(match: re.Match[str]) -> Keys:
  size = match['size']
  norm = '(hidden_norm=True)' if size in ('base', 'large') else ''
  return {
    **vit.WORDS[size],
    **SHARED,
    'mlp_dim': _EVA02_MLP[size],
    'mlp': f'swiglu{norm}',
    'positions': f'learned + {ROPE}',
  }


def _eva02_clip(match: re.Match[str]) -> Keys:
  keys = {'patch_size': int(match['patch']), 'pool': 'token'}
  attention = 'attention(key_bias=False, out_norm=True)'
  return {**_eva02(match), **keys, 'attention': attention}


PATTERNS = {
  r'eva_giant_patch14_\d+': lambda _: {**vit.SIZES['g'], **SHARED},
  rf'eva02_(?P<size>{"|".join(_EVA02_MLP)})_patch14_\d+': _eva02,
  rf'eva02_(?P<size>base|large)_patch{vit.PATCH}_clip_\d+': _eva02_clip,
}
