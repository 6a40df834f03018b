"""The ViT paper's hybrids, whose patches are cells of a ResNet's output."""

import re

from vit_jax.models.zoo import Keys
from vit_jax.models.zoo import vit

NAMES = (
  *('R+ViT-Ti/16', 'R26+ViT-S/32', 'R26+ViT-B/32'),
  *('R50+ViT-B/16', 'R50+ViT-L/32'),
)
# By the name and the patch size after the slash: the ResNet, and the patch size
# in its output grid. R+ViT-Ti/16 has patches of 32 pixels; it is named after
# the ViT of the same cost.
_STEMS: dict[tuple[str, str], Keys] = {
  ('R', '16'): {'patches': 'hybrid', 'patch_size': 8},
  ('R26', '32'): {'patches': 'hybrid(stages=(2, 2, 2, 2))', 'patch_size': 1},
  ('R50', '16'): {'patches': 'hybrid(stages=(3, 4, 9))', 'patch_size': 1},
  ('R50', '32'): {'patches': 'hybrid(stages=(3, 4, 6, 3))', 'patch_size': 1},
}


def _published(match: re.Match[str]) -> Keys | None:
  stem = _STEMS.get((match['stem'].upper(), match['patch']))
  size = (vit.SIZES | vit.WORDS).get(match['size'])
  return {**size, **stem} if stem and size else None


def _timm(match: re.Match[str]) -> Keys | None:
  keys = _published(match)
  return keys and keys | vit.EXACT


PATTERNS = {
  rf'(?P<stem>R\d*)\+ViT-(?P<size>[A-Zg]i?)/{vit.PATCH}': _published,
  rf'vit_{vit.SIZE}_(?P<stem>r\d*)_s{vit.PATCH}(_p8)?{vit.END}': _timm,
}
