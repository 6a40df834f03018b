"""DeiT (arXiv:2012.12877) and DeiT III (arXiv:2204.07118)."""

import re

from vit_jax.models.zoo import Keys
from vit_jax.models.zoo import vit

MEDIUM = {'hidden_size': 512, 'mlp_dim': 2048, 'num_heads': 8, 'depth': 12}


def _deit(match: re.Match[str]) -> Keys | None:
  token = {'distillation_token': True} if match['distilled'] else {}
  return vit.sized(match, **token, **vit.EXACT)


def _deit3(match: re.Match[str]) -> Keys | None:
  return vit.sized(
    match,
    vit.WORDS | {'medium': MEDIUM},
    positions="learned(tokens='patches')",
    block='block(layer_scale=1e-06)',
    **vit.EXACT,
  )


def _huggingface(match: re.Match[str]) -> Keys | None:
  keys = _deit(match)
  return keys and keys | vit.HUGGINGFACE


PATTERNS = {
  rf'deit_{vit.SIZE}_(?P<distilled>distilled_)?patch{vit.PATCH}{vit.END}': (
    _deit
  ),
  rf'deit3_(?P<size>medium|{"|".join(vit.WORDS)})_patch{vit.PATCH}{vit.END}': (
    _deit3
  ),
  rf'{vit.OWNER}deit-{vit.SIZE}-(?P<distilled>distilled-)?patch{vit.PATCH}'
  r'-\d+': _huggingface,
}
