"""timm's ViTs with rotary positions, and RoPE-ViT (arXiv:2403.13298)."""

import re

from vit_jax.models.zoo import deit
from vit_jax.models.zoo import eva
from vit_jax.models.zoo import Keys
from vit_jax.models.zoo import vit

BETWIXT = vit.size(640, 2560, 10, 12)
_SIZES: dict[str, Keys] = {
  'medium': deit.MEDIUM,
  'mediumd': {**deit.MEDIUM, 'depth': 20, **vit.NO_BIAS},
  'betwixt': BETWIXT,
  'base': vit.SIZES['B'],
}


def _timm(match: re.Match[str]) -> Keys:
  return {
    **eva.SHARED,
    **_SIZES[match['size']],
    'patch_size': 16,
    'class_token': False,
    'registers': int(match['registers']),
    'positions': eva.ROPE,
    'block': 'block(layer_scale=1e-05)',
  }


def _rope_vit(match: re.Match[str]) -> Keys:
  rope = "rope(kind='rope_vit')"
  return {
    **vit.WORDS[match['size']],
    **vit.EXACT,
    'patch_size': 16,
    'positions': f"learned(tokens='patches') + {rope}"
    if match['learned']
    else rope,
    'block': 'block(layer_scale=1e-05)',
  }


PATTERNS = {
  rf'vit_(?P<size>{"|".join(_SIZES)})_patch16_rope_reg(?P<registers>\d)'
  r'_gap_\d+': _timm,
  r'vit_(?P<size>small|base|large)_patch16_rope_(?P<learned>ape_)?\d+': (
    _rope_vit
  ),
}
