"""DINOv2 (arXiv:2304.07193), with registers (arXiv:2309.16588) or without."""

import re

from vit_jax.models.zoo import Keys
from vit_jax.models.zoo import vit

_GIANT = vit.size(1536, 4096, 24, 40, mlp='swiglu')


def _keys(match: re.Match[str], **keys: object) -> Keys:
  is_giant = match['size'] == 'giant'
  size = _GIANT if is_giant else vit.WORDS[match['size']] | vit.EXACT
  registers = {'registers': 4} if match['registers'] else {}
  return {**size, **registers, 'patch_size': 14, **keys}


def _timm(match: re.Match[str]) -> Keys:
  return _keys(
    match,
    patch_size=int(match['patch']),
    positions="learned(tokens='patches')" if match['registers'] else 'learned',
    block='block(layer_scale=1e-05)',
  )


def _huggingface(match: re.Match[str]) -> Keys:
  return _keys(
    match,
    positions="learned(tokens='class')",
    block='block(layer_scale=1.0)',
    pool='token_and_mean',
  )


PATTERNS = {
  rf'vit_{vit.SIZE}_patch{vit.PATCH}_(?P<registers>reg4_)?dinov2': _timm,
  rf'{vit.OWNER}dinov2-(?P<registers>with-registers-)?{vit.SIZE}'
  r'(-imagenet1k-1-layer)?': _huggingface,
}
