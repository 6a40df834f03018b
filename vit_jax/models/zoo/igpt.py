"""Image GPT (Chen et al., 2020, Generative Pretraining from Pixels)."""

import re

from vit_jax.models import igpt
from vit_jax.models.zoo import Keys

MODULE = igpt.IGPT
# Section 3.1 of the paper; the heads are those of the authors' code.
SIZES: dict[str, Keys] = {
  'S': {'hidden_size': 512, 'mlp_dim': 2048, 'num_heads': 8, 'depth': 24},
  'M': {'hidden_size': 1024, 'mlp_dim': 4096, 'num_heads': 8, 'depth': 36},
  'L': {'hidden_size': 1536, 'mlp_dim': 6144, 'num_heads': 16, 'depth': 48},
}
NAMES = tuple(f'iGPT-{size}' for size in SIZES)


def _keys(match: re.Match[str]) -> Keys | None:
  return SIZES.get(match['size'])


PATTERNS = {r'iGPT-(?P<size>\w+)': _keys}
