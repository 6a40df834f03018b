"""BEiT (arXiv:2106.08254), BEiT v2 (2208.06366) and BEiT-3 (2208.10442)."""

import re

from vit_jax.models.zoo import Keys
from vit_jax.models.zoo import vit

_SHARED = {**vit.EXACT, 'pool': 'mean(norm_after=True)', 'class_token': True}


def _beit(match: re.Match[str]) -> Keys | None:
  is_first = (match['version'], match['size']) == (None, 'base')
  return vit.sized(
    match,
    positions='relative_bias(shared=False)',
    block=f'block(layer_scale={0.1 if is_first else 1e-05})',
    attention='attention(key_bias=False)',
    **_SHARED,
  )


def _beit3(match: re.Match[str]) -> Keys | None:
  norms = {
    'attention': 'attention(out_norm=True)',
    'mlp': "mlp(gelu='exact', hidden_norm=True)",
    'layer_norm_epsilon': 1e-5,
  }
  return vit.sized(match, **_SHARED | norms)


PATTERNS = {
  rf'beit(?P<version>v2)?_(?P<size>base|large)_patch{vit.PATCH}_\d+': _beit,
  rf'beit3_(?P<size>base|large|giant)_patch{vit.PATCH}_\d+': _beit3,
}
