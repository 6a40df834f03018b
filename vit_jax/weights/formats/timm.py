"""State dicts of timm (PyTorch Image Models): ViT, Eva, hybrids, Mixer, BiT.

DeiT, MAE, BEiT and MoCo v3 publish ViTs under these names, and DINO, DINOv2,
DINOv3 and EVA-02 under similar ones (`originals`).
"""

from collections.abc import Iterable
import re

from vit_jax.weights.files import containers
from vit_jax.weights.formats import base
from vit_jax.weights.formats import dino_head
from vit_jax.weights.formats import format as format_lib
from vit_jax.weights.formats import moco
from vit_jax.weights.formats import originals
from vit_jax.weights.formats import timm_beit
from vit_jax.weights.formats import timm_bit
from vit_jax.weights.formats import timm_clip
from vit_jax.weights.formats import timm_eva
from vit_jax.weights.formats import timm_mixer
from vit_jax.weights.formats import timm_naflex
from vit_jax.weights.formats import timm_names
from vit_jax.weights.formats import timm_parallel
from vit_jax.weights.formats import timm_relpos
from vit_jax.weights.formats import timm_vit
from vit_jax.weights.formats.format import Format

NAME = 'timm'
# In the order in which a model is written under one of them. A file is of the
# last that matches.
KINDS: tuple[Format, ...] = (
  timm_vit.VIT,
  timm_eva.EVA,
  timm_beit.BEIT,
  timm_relpos.RELPOS,
  timm_naflex.NAFLEX,
  timm_mixer.MIXER,
  timm_bit.BIT,
)
# Arrays outside the model, which MAE, DINO and BEiT leave in their files.
IGNORED = (
  r'mask_token|decoder_.*|fc_norm\.unused'
  r'|(momentum_encoder|predictor|head\.\d+)\..*'  # MoCo v3
  rf'|{timm_beit.IGNORED}|{originals.IGNORED}|{dino_head.IGNORED}'
  rf'|{timm_clip.IGNORED}'
)
_SIGNS = (
  'patch_embed.proj.weight',
  'embeds.proj.weight',
  'stem.proj.weight',
  'stem.conv.weight',
  'pos_embed',
)


def recognises(names: Iterable[str]) -> bool:
  """Whether a file with these arrays has this format."""
  names = {dino_head.as_timms(moco.as_timms(name)) for name in names}
  return (
    timm_clip.recognises(names)
    or any(sign in names for sign in _SIGNS)
    or any(re.match(r'blocks\.\d+\.(attn|mlp)', name) for name in names)
  )


def prepare(arrays: containers.Arrays) -> base.Renamed:
  """Returns the arrays under the names that the rules use."""
  if any('base_encoder.' in name for name in arrays.shapes):
    return base.Renamed(arrays, moco.as_timms, moco.stored)
  if timm_parallel.has_signs(arrays.shapes):
    return timm_parallel.as_vit(arrays)
  if timm_clip.recognises(arrays.shapes):
    return timm_clip.as_timm(arrays)
  if any(map(dino_head.is_whole, arrays.shapes)):
    arrays = base.Renamed(arrays, dino_head.as_timms)
  return originals.as_timm(arrays)


def describe(arrays: base.Renamed, hints: base.Hints) -> base.Description:
  """Infers the architecture from the arrays' shapes."""
  timm_names.check_arrays(arrays.shapes)
  return format_lib.describe(KINDS[::-1], arrays, hints)
