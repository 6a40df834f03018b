"""DeiT (arXiv:2012.12877) and DeiT III (arXiv:2204.07118)."""

import re

from vit_jax.models.zoo import Keys
from vit_jax.models.zoo import vit

MEDIUM = vit.size(512, 2048, 8, 12)


def _token(match: re.Match[str]) -> Keys:
  return {'distillation_token': True} if match['distilled'] else {}


def _deit3(match: re.Match[str]) -> Keys | None:
  return vit.sized(
    match,
    vit.WORDS | {'medium': MEDIUM},
    positions="learned(tokens='patches')",
    block='block(layer_scale=1e-06)',
    **vit.EXACT,
  )


PATTERNS = {
  rf'deit_{vit.SIZE}_(?P<distilled>distilled_)?patch{vit.PATCH}{vit.END}': (
    lambda match: vit.sized(match, **_token(match), **vit.EXACT)
  ),
  rf'deit3_(?P<size>medium|{"|".join(vit.WORDS)})_patch{vit.PATCH}{vit.END}': (
    _deit3
  ),
  rf'{vit.OWNER}deit-{vit.SIZE}-(?P<distilled>distilled-)?patch{vit.PATCH}'
  r'-\d+': (lambda match: vit.sized(match, **_token(match), **vit.HUGGINGFACE)),
}
