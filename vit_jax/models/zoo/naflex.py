"""timm's ViTs for images of any shape (NaFlex), RADIO's (2412.07679) too."""

import re

from vit_jax.models.zoo import Keys
from vit_jax.models.zoo import siglip
from vit_jax.models.zoo import vit

_SIZES: dict[str, Keys] = {
  **{size: vit.WORDS[size] for size in ('base', 'large', 'huge')},
  'so150m2': vit.size(832, 2176, 13, 21, **vit.NO_BIAS),
  'so400m': siglip.SIZES['so400m'],
  'giant': vit.size(1536, 6144, 24, 40),
}
_SCALE = {'block': 'block(layer_scale=1e-05)'}
_POSITIONS = {
  '': "learned(tokens='patches', resize='bicubic')",
  'par_': "learned(tokens='patches', resize='bicubic', keep_aspect=True)",
  'parfac_': 'factorized(keep_aspect=True, grid=(16, 16))',
  'v3': "learned(tokens='patches', resize='corner', keep_aspect=True)",
  'v4': "learned(tokens='patches', resize='plain', keep_aspect=True)",
}
_POOLS: dict[str, Keys] = {
  'gap': {'pool': 'mean(norm_after=True)', 'registers': 4, **_SCALE},
  'map': {'pool': "map(gelu='exact')", 'registers': 1, **_SCALE},
  'siglip': {'pool': "map(gelu='exact')"},
}


def _pooled(match: re.Match[str]) -> Keys | None:
  positions = _POSITIONS[match['positions'] or '']
  pool = _POOLS[match['pool']]
  keys: Keys = {**vit.EXACT, 'positions': positions, **pool}
  if match['registers']:
    keys['registers'] = int(match['registers'])
  return vit.sized(match, _SIZES, **keys)


def _radio(match: re.Match[str]) -> Keys | None:
  version, size = match['version'], match['size']
  return vit.sized(
    match,
    _SIZES,
    positions=_POSITIONS[version],
    class_token=True,
    registers=7 if version == 'v3' else 9,
    last_norm=False,
    **vit.EXACT,
    **_SCALE if size in ('base', 'large') else {},
  )


_START = rf'naflexvit_(?P<size>{"|".join(_SIZES)})_patch{vit.PATCH}_'
PATTERNS = {
  rf'{_START}(reg(?P<registers>\d)_)?(?P<positions>par_|parfac_)?'
  r'(?P<pool>gap|map|siglip)': _pooled,
  rf'{_START}radio_(?P<version>v3|v4)': _radio,
}
