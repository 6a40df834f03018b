"""The image towers of AIMv2 (arXiv:2411.14402), in timm."""

import re

from vit_jax.models.zoo import Keys
from vit_jax.models.zoo import vit

_SIZES: dict[str, Keys] = {
  'large': vit.size(1024, 2816, 8, 24),
  'huge': vit.size(1536, 4096, 12, 24),
  '1b': vit.size(2048, 5632, 16, 24),
  '3b': vit.size(3072, 8192, 24, 24),
}


def _timm(match: re.Match[str]) -> Keys | None:
  return vit.sized(
    match,
    _SIZES,
    patches='normed',
    attention='attention(qkv_bias=False, out_bias=False)',
    mlp='swiglu(bias=False)',
    norm='rms_norm',
    pool='mean',
    layer_norm_epsilon=1e-5,
  )


PATTERNS = {rf'aimv2_(?P<size>{"|".join(_SIZES)})_patch{vit.PATCH}_\d+': _timm}
