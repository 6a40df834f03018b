"""The ViT (arXiv:2010.11929) of the paper, of AugReg and of DINO."""

from collections.abc import Mapping
import re

from vit_jax.models.zoo import Keys


def size(
  hidden_size: int, mlp_dim: int, num_heads: int, depth: int, **keys: object
) -> Keys:
  """Returns the keys of a size, and further ones."""
  numbers = {'num_heads': num_heads, 'depth': depth}
  return {'hidden_size': hidden_size, 'mlp_dim': mlp_dim, **numbers, **keys}


# Table 1 of the paper; Ti and S of DeiT (arXiv:2012.12877); g of Scaling Vision
# Transformers (arXiv:2106.04560).
SIZES: dict[str, Keys] = {
  'Ti': size(192, 768, 3, 12),
  'S': size(384, 1536, 6, 12),
  'B': size(768, 3072, 12, 12),
  'L': size(1024, 4096, 16, 24),
  'H': size(1280, 5120, 16, 32),
  'g': size(1408, 6144, 16, 40),
}
_DINO = {'s': SIZES['S'], 'b': SIZES['B']}
# As other libraries write them.
_WORDS = ('tiny', 'small', 'base', 'large', 'huge', 'giant')
WORDS = dict(zip(_WORDS, SIZES.values(), strict=True))
NAMES = (
  *('ViT-Ti/16', 'ViT-S/16', 'ViT-S/32', 'ViT-B/8', 'ViT-B/16', 'ViT-B/32'),
  *('ViT-L/16', 'ViT-L/32', 'ViT-H/14', 'ViT-g/14'),
)

# Of the patterns of all families.
SIZE = f'(?P<size>{"|".join(WORDS)})'
PATCH = r'(?P<patch>[1-9]\d*)'
END = r'_\d+(_in21k|_in21ft1k|_miil)?'  # image size; tags before timm 0.8
OWNER = r'[\w.-]+/'

EXACT = {'mlp': "mlp(gelu='exact')"}
NO_BIAS = {'attention': 'attention(qkv_bias=False)'}
# transformers' ViT and DeiT, by default.
HUGGINGFACE = {**EXACT, 'layer_norm_epsilon': 1e-12}


def sized(
  match: re.Match[str], sizes: Mapping[str, Keys] = WORDS, /, **keys: object
) -> Keys | None:
  """Returns keys, with the size and the patch that a name has.

  The match has the groups `size` and `patch`; of a size that is not among
  `sizes`, the result is None.
  """
  if match['size'] not in sizes:
    return None
  return {**sizes[match['size']], 'patch_size': int(match['patch']), **keys}


def _timm(match: re.Match[str]) -> Keys | None:
  # MIIL's models were trained without these biases.
  biases = NO_BIAS if match[0].endswith('_miil') else {}
  return sized(match, **EXACT, **biases)


PATTERNS = {
  rf'ViT-(?P<size>[A-Za-z]+)/{PATCH}': lambda match: sized(match, SIZES),
  rf'vit_{SIZE}_patch{PATCH}{END}': _timm,
  rf'{OWNER}vit-{SIZE}-patch{PATCH}-\d+(-in21k)?': (
    lambda match: sized(match, **HUGGINGFACE)
  ),
  rf'{OWNER}dino-vit(?P<size>[sb]){PATCH}': (
    lambda match: sized(match, _DINO, **HUGGINGFACE)
  ),
}
