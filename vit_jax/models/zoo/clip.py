"""The image towers of CLIP (arXiv:2103.00020) and of open_clip, in timm."""

import re

from vit_jax.models.zoo import deit
from vit_jax.models.zoo import Keys
from vit_jax.models.zoo import rope_vit
from vit_jax.models.zoo import vit

_SIZES: dict[str, Keys] = {
  'xsmall': vit.size(256, 1024, 4, 10),
  'medium': deit.MEDIUM,
  'betwixt': rope_vit.BETWIXT,
  **{size: vit.WORDS[size] for size in ('base', 'large', 'huge', 'giant')},
  'gigantic': vit.size(1664, 8192, 16, 48),
}
_PLUS = vit.size(896, 3584, 14, 12)


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
