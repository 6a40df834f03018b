"""DINOv3 (arXiv:2508.10104)."""

import re

from vit_jax.models.zoo import Keys
from vit_jax.models.zoo import vit

_GATED = {'mlp': 'swiglu'}
_S_PLUS = {**vit.SIZES['S'], **_GATED}
_H_PLUS = {**vit.SIZES['H'], 'num_heads': 20, **_GATED}
_7B = vit.size(4096, 8192, 32, 40, **_GATED)
_TIMM: dict[str, Keys] = {
  'small': vit.SIZES['S'],
  'small_plus': _S_PLUS,
  'base': vit.SIZES['B'],
  'large': vit.SIZES['L'],
  'huge_plus': _H_PLUS,
  '7b': _7B,
}
_HUGGINGFACE: dict[str, Keys] = {
  's16': vit.SIZES['S'],
  's16plus': _S_PLUS,
  'b16': vit.SIZES['B'],
  'l16': vit.SIZES['L'],
  'h16plus': _H_PLUS,
  '7b16': _7B | vit.NO_BIAS,
}
_SHARED = {
  **vit.EXACT,
  'patch_size': 16,
  'class_token': True,
  'registers': 4,
  'positions': 'rope',
  'attention': 'attention(key_bias=False)',
  'layer_norm_epsilon': 1e-5,
}


def _timm(match: re.Match[str]) -> Keys:
  # Biases of published models are zeros; names without `qkvb` have none.
  biases = {} if match['biases'] else vit.NO_BIAS
  block = {'block': 'block(layer_scale=1e-05)', 'pool': 'mean'}
  return {**_SHARED, **_TIMM[match['size']], **biases, **block}


def _huggingface(match: re.Match[str]) -> Keys:
  block = {'block': 'block(layer_scale=1.0)', 'mask_token': True}
  return {**_SHARED, **_HUGGINGFACE[match['size']], **block}


PATTERNS = {
  rf'vit_(?P<size>{"|".join(_TIMM)})_patch16_dinov3(?P<biases>_qkvb)?': _timm,
  rf'{vit.OWNER}dinov3-vit(?P<size>{"|".join(_HUGGINGFACE)})-pretrain-\w+': (
    _huggingface
  ),
}
