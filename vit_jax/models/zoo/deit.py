"""DeiT (arXiv:2012.12877) and DeiT III (arXiv:2204.07118)."""

import re

from vit_jax.models.zoo import Keys
from vit_jax.models.zoo import vit

NAMES = ()
MEDIUM = {'hidden_size': 512, 'mlp_dim': 2048, 'num_heads': 8, 'depth': 12}


def _deit(match: re.Match[str]) -> Keys:
  return vit.sized(match, distillation_token=bool(match['distilled']))


def _deit3(match: re.Match[str]) -> Keys:
  size = (
    MEDIUM if match['of'] == 'medium' else vit.SIZES[vit.WORDS[match['of']]]
  )
  return {
    **size,
    **vit.EXACT,
    'patch_size': int(match['patch']),
    'positions': "learned(tokens='patches')",
    'block': 'block(layer_scale=1e-06)',
  }


def _huggingface(match: re.Match[str]) -> Keys:
  return _deit(match) | vit.HUGGINGFACE


PATTERNS = {
  rf'deit_{vit.SIZE}_(?P<distilled>distilled_)?patch{vit.PATCH}{vit.END}': (
    _deit
  ),
  rf'deit3_(?P<of>medium|{vit.SIZE})_patch{vit.PATCH}{vit.END}': _deit3,
  rf'{vit.OWNER}deit-{vit.SIZE}-(?P<distilled>distilled-)?patch{vit.PATCH}'
  r'-\d+': _huggingface,
}
