"""The image towers of CLIP (arXiv:2103.00020) and of open_clip, in timm."""

import re

from vit_jax.models.zoo import deit
from vit_jax.models.zoo import Keys
from vit_jax.models.zoo import rope_vit
from vit_jax.models.zoo import vit

_SIZES: dict[str, Keys] = {
  'xsmall': {'hidden_size': 256, 'mlp_dim': 1024, 'num_heads': 4, 'depth': 10},
  'medium': deit.MEDIUM,
  'betwixt': rope_vit.BETWIXT,
  **{size: vit.WORDS[size] for size in ('base', 'large', 'huge', 'giant')},
  'gigantic': {
    'hidden_size': 1664,
    'mlp_dim': 8192,
    'num_heads': 16,
    'depth': 48,
  },
}
_PLUS = {'hidden_size': 896, 'mlp_dim': 3584, 'num_heads': 14, 'depth': 12}


def _timm(match: re.Match[str]) -> Keys | None:
  gelu = 'sigmoid' if match['quick'] else 'exact'
  return vit.sized(
    match,
    {'base': _PLUS} if match['plus'] else _SIZES,
    patches='patches(bias=False)',
    mlp=f'mlp(gelu={gelu!r})',
    pre_norm=True,
    layer_norm_epsilon=1e-5,
  )


PATTERNS = {
  rf'vit_(?P<size>{"|".join(_SIZES)})_patch{vit.PATCH}_(?P<plus>plus_)?clip_'
  r'(?P<quick>quickgelu_)?\d+': _timm,
}
