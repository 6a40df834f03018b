"""MLP-Mixer (arXiv:2105.01601)."""

import re

from vit_jax.models import mixer
from vit_jax.models.zoo import Keys
from vit_jax.models.zoo import vit

MODULE = mixer.Mixer
# Hidden size, the two MLPs' sizes, layers: Table 1 of the paper.
SIZES: dict[str, Keys] = {
  'S': {'hidden_size': 512, 'tokens_mlp_dim': 256, 'mlp_dim': 2048, 'depth': 8},
  'B': {
    'hidden_size': 768,
    'tokens_mlp_dim': 384,
    'mlp_dim': 3072,
    'depth': 12,
  },
  'L': {
    'hidden_size': 1024,
    'tokens_mlp_dim': 512,
    'mlp_dim': 4096,
    'depth': 24,
  },
}
NAMES = (
  *('Mixer-S/16', 'Mixer-S/32', 'Mixer-B/16', 'Mixer-B/32', 'Mixer-L/16'),
)


def _published(match: re.Match[str]) -> Keys | None:
  return vit.sized(match, SIZES)


def _timm(match: re.Match[str]) -> Keys | None:
  sizes = {name.lower(): size for name, size in SIZES.items()}
  return vit.sized(match, sizes, **vit.EXACT)


PATTERNS = {
  rf'Mixer-(?P<size>[A-Za-z]+)/{vit.PATCH}': _published,
  rf'mixer_(?P<size>[sbl]){vit.PATCH}{vit.END}': _timm,
}
