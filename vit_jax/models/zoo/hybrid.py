"""The ViT paper's hybrids, whose patches are cells of a ResNet's output."""

import re

from vit_jax.models.zoo import Keys
from vit_jax.models.zoo import vit

SIZES = vit.SIZES
# By the name and the patch size after the slash: the units in each stage of the
# ResNet, and the patch size in its output grid. R+ViT-Ti/16 has patches of 32
# pixels; it is named after the ViT of the same cost.
_STEMS: dict[tuple[str, int], tuple[tuple[int, ...], int]] = {
  ('R', 16): ((), 8),
  ('R26', 32): ((2, 2, 2, 2), 1),
  ('R50', 16): ((3, 4, 9), 1),
  ('R50', 32): ((3, 4, 6, 3), 1),
}
NAMES = (
  'R+ViT-Ti/16',
  'R26+ViT-S/32',
  'R26+ViT-B/32',
  'R50+ViT-B/16',
  'R50+ViT-L/32',
)


def _keys(stem: str, size: str, patch: int) -> Keys | None:
  if size not in SIZES or (stem, patch) not in _STEMS:
    return None
  stages, cells = _STEMS[stem, patch]
  text = f'hybrid(stages={stages})' if stages else 'hybrid'
  return {**SIZES[size], 'patch_size': cells, 'patches': text}


def _ours(match: re.Match[str]) -> Keys | None:
  return _keys(match['stem'], match['size'], int(match['patch']))


def _timm(match: re.Match[str]) -> Keys | None:
  stem, size = match['stem'].upper(), vit.WORDS[match['size']]
  keys = _keys(stem, size, int(match['patch']))
  return keys and keys | vit.EXACT


PATTERNS = {
  rf'(?P<stem>R\d*)\+ViT-(?P<size>[A-Za-z]+)/{vit.PATCH}': _ours,
  rf'vit_{vit.SIZE}_(?P<stem>r\d*)_s{vit.PATCH}(_p8)?{vit.END}': _timm,
}
