"""The ViT (arXiv:2010.11929) of the paper, of AugReg and of DINO."""

from collections.abc import Mapping
import re

from vit_jax.models.zoo import Keys

# Hidden size, MLP size, heads, layers: Table 1 of the paper; Ti and S of DeiT
# (arXiv:2012.12877); g of Scaling Vision Transformers (arXiv:2106.04560).
SIZES: dict[str, Keys] = {
  'Ti': {'hidden_size': 192, 'mlp_dim': 768, 'num_heads': 3, 'depth': 12},
  'S': {'hidden_size': 384, 'mlp_dim': 1536, 'num_heads': 6, 'depth': 12},
  'B': {'hidden_size': 768, 'mlp_dim': 3072, 'num_heads': 12, 'depth': 12},
  'L': {'hidden_size': 1024, 'mlp_dim': 4096, 'num_heads': 16, 'depth': 24},
  'H': {'hidden_size': 1280, 'mlp_dim': 5120, 'num_heads': 16, 'depth': 32},
  'g': {'hidden_size': 1408, 'mlp_dim': 6144, 'num_heads': 16, 'depth': 40},
}
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
  """Returns keys with those of the size and the patch that a name has.

  Args:
    match: With the groups `size` and `patch`.
    sizes: Keys by size; of one that is not there, the result is None.
    **keys: Further keys.
  """
  if match['size'] not in sizes:
    return None
  return {**sizes[match['size']], 'patch_size': int(match['patch']), **keys}


def _published(match: re.Match[str]) -> Keys | None:
  return sized(match, SIZES)


def _timm(match: re.Match[str]) -> Keys | None:
  # MIIL's models were trained without these biases.
  biases = NO_BIAS if match[0].endswith('_miil') else {}
  return sized(match, **EXACT, **biases)


def _huggingface(match: re.Match[str]) -> Keys | None:
  return sized(match, **HUGGINGFACE)


def _dino(match: re.Match[str]) -> Keys | None:
  sizes = {'s': SIZES['S'], 'b': SIZES['B']}
  return sized(match, sizes, **HUGGINGFACE)


PATTERNS = {
  rf'ViT-(?P<size>[A-Za-z]+)/{PATCH}': _published,
  rf'vit_{SIZE}_patch{PATCH}{END}': _timm,
  rf'{OWNER}vit-{SIZE}-patch{PATCH}-\d+(-in21k)?': _huggingface,
  rf'{OWNER}dino-vit(?P<size>[sb]){PATCH}': _dino,
}
