"""The image towers of AIMv2 (arXiv:2411.14402), in timm."""

import re

from vit_jax.models.zoo import Keys
from vit_jax.models.zoo import vit

_SIZES: dict[str, Keys] = {
  'large': {'hidden_size': 1024, 'mlp_dim': 2816, 'num_heads': 8},
  'huge': {'hidden_size': 1536, 'mlp_dim': 4096, 'num_heads': 12},
  '1b': {'hidden_size': 2048, 'mlp_dim': 5632, 'num_heads': 16},
  '3b': {'hidden_size': 3072, 'mlp_dim': 8192, 'num_heads': 24},
}


def _timm(match: re.Match[str]) -> Keys | None:
  return vit.sized(
    match,
    _SIZES,
    depth=24,
    patches='normed',
    attention='attention(qkv_bias=False, out_bias=False)',
    mlp='swiglu(bias=False)',
    norm='rms_norm',
    pool='mean',
    layer_norm_epsilon=1e-5,
  )


PATTERNS = {rf'aimv2_(?P<size>{"|".join(_SIZES)})_patch{vit.PATCH}_\d+': _timm}
