"""Image GPT (Chen et al., 2020, Generative Pretraining from Pixels)."""

from vit_jax.models import igpt
from vit_jax.models.zoo import Keys
from vit_jax.models.zoo import vit

MODULE = igpt.IGPT
# Section 3.1 of the paper; the heads as in the authors' code.
SIZES: dict[str, Keys] = {
  'S': vit.size(512, 2048, 8, 24),
  'M': vit.size(1024, 4096, 8, 36),
  'L': vit.size(1536, 6144, 16, 48),
}
NAMES = tuple(f'iGPT-{size}' for size in SIZES)
PATTERNS = {r'iGPT-(?P<size>\w+)': lambda match: SIZES.get(match['size'])}
