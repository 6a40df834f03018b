"""The image towers of SigLIP (arXiv:2303.15343)."""

import re

from vit_jax.models.zoo import Keys
from vit_jax.models.zoo import vit

NAMES = ()
SO400M = {'hidden_size': 1152, 'mlp_dim': 4304, 'num_heads': 16, 'depth': 27}
_SIZES = {'base': vit.SIZES['B'], 'large': vit.SIZES['L'], 'so400m': SO400M}


def _timm(match: re.Match[str]) -> Keys:
  size, patch = match['size'], int(match['patch'])
  is_tanh = (size, patch) in (('so400m', 16), ('base', 32)) or (
    size == 'large' and match[0].endswith('512')
  )
  options = '' if is_tanh else "(gelu='exact')"
  return {
    **_SIZES[size],
    'patch_size': patch,
    'mlp': f'mlp{options}',
    'pool': 'mean' if match['gap'] else f'map{options}',
  }


PATTERNS = {
  rf'vit_(?P<size>{"|".join(_SIZES)})_patch{vit.PATCH}_siglip_(?P<gap>gap_)?'
  r'\d+': _timm,
}
