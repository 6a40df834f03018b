"""MLP-Mixer (arXiv:2105.01601)."""

from vit_jax.models import mixer
from vit_jax.models.zoo import Keys
from vit_jax.models.zoo import vit

MODULE = mixer.Mixer
# Hidden size, the two MLPs' sizes, layers: Table 1 of the paper.
_KEYS = ('hidden_size', 'tokens_mlp_dim', 'mlp_dim', 'depth')
SIZES: dict[str, Keys] = {
  'S': dict(zip(_KEYS, (512, 256, 2048, 8), strict=True)),
  'B': dict(zip(_KEYS, (768, 384, 3072, 12), strict=True)),
  'L': dict(zip(_KEYS, (1024, 512, 4096, 24), strict=True)),
}
_LOWER = {name.lower(): keys for name, keys in SIZES.items()}
NAMES = tuple(f'Mixer-{x}' for x in ('S/16', 'S/32', 'B/16', 'B/32', 'L/16'))


PATTERNS = {
  rf'Mixer-(?P<size>[A-Za-z]+)/{vit.PATCH}': (
    lambda match: vit.sized(match, SIZES)
  ),
  rf'mixer_(?P<size>[sbl]){vit.PATCH}{vit.END}': (
    lambda match: vit.sized(match, _LOWER, **vit.EXACT)
  ),
}
