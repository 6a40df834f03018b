"""The image towers of SigLIP (arXiv:2303.15343)."""

import re

from vit_jax.models.zoo import Keys
from vit_jax.models.zoo import vit

SIZES: dict[str, Keys] = {
  'base': vit.SIZES['B'],
  'large': vit.SIZES['L'],
  'so400m': vit.size(1152, 4304, 16, 27),
}


def _timm(match: re.Match[str]) -> Keys | None:
  size, is_large = match['size'], match[0].endswith('512')
  is_tanh = (size, match['patch']) in (('so400m', '16'), ('base', '32'))
  is_tanh |= size == 'large' and is_large
  options = '' if is_tanh else "(gelu='exact')"
  pool = 'mean' if match['gap'] else f'map{options}'
  return vit.sized(match, SIZES, mlp=f'mlp{options}', pool=pool)


PATTERNS = {
  rf'vit_(?P<size>{"|".join(SIZES)})_patch{vit.PATCH}_siglip_(?P<gap>gap_)?'
  r'\d+': _timm,
}
