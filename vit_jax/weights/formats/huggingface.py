"""Directories of Hugging Face transformers: ViT, DeiT, MAE, BEiT, DINOv2, ...

config.json has what arrays do not show: heads, activation, epsilon, labels.
"""

from collections.abc import Iterable
import dataclasses
import re

from vit_jax.config import UserError
from vit_jax.weights.files import containers
from vit_jax.weights.files import typed
from vit_jax.weights.formats import base
from vit_jax.weights.formats import format as format_lib
from vit_jax.weights.formats import huggingface_aimv2 as aimv2
from vit_jax.weights.formats import huggingface_beit as beit
from vit_jax.weights.formats import huggingface_bit as bit
from vit_jax.weights.formats import huggingface_dinov3 as dinov3
from vit_jax.weights.formats import huggingface_towers as towers
from vit_jax.weights.formats import huggingface_vit as vit
from vit_jax.weights.formats import imagegpt

NAME = 'huggingface'
_MODULES = vit, beit, dinov3, aimv2, towers, bit, imagegpt
TYPES = tuple(name for module in _MODULES for name in module.TYPES)
KINDS = (
  imagegpt.IGPT,
  bit.BIT,
  *towers.KINDS,
  aimv2.AIMV2,
  dinov3.DINOV3,
  beit.BEIT,
  vit.DINOV2,
  vit.VIT,
)
# Arrays for pre-training only, and ViTModel's pooler, unused with a classifier.
IGNORED = (
  r'embeddings\.(mask_token|position_ids)|pooler\..*|decoder\..*'
  rf'|{beit.IGNORED}|{imagegpt.IGNORED}|{towers.IGNORED}|{aimv2.IGNORED}'
)
# Layers of MAE's decoder, as transformers 5 writes them; published files have
# the second name, and transformers reads both.
_MAE_LAYERS = 'decoder.decoder_encoder.layer.'
_MAE_LAYERS_BEFORE = 'decoder.decoder_layers.'
# Names without a prefix; and the prefixes beside those of `TYPES`.
_ALONE = r'(cls_|distillation_)?classifier\.|lm_head\.'
_PREFIXES = ('vision_model', 'transformer')
_TOWER = r'(.*\.)?embeddings\.patch_embedding\.weight'
_SIGNS = (
  _TOWER,
  r'(.*\.)?embeddings\.(cls_token|patch_embeddings).*',
  r'(.*\.)?h\.\d+\.attn\.c_attn.*',
  r'(vision_model\.)?embeddings\.patch_embed\.weight',
  r'(bit\.)?embedder\.convolution\.weight',
)


def recognises(names: Iterable[str]) -> bool:
  """Whether a file with these arrays has this format."""
  signs = re.compile('|'.join(_SIGNS))
  return any(map(signs.fullmatch, names))


def prepare(arrays: containers.Arrays) -> base.Renamed:
  """Returns the arrays under the names that the rules use."""
  if any(re.fullmatch(_TOWER, name) for name in arrays.shapes):
    return towers.prepare(arrays)
  names = (name.replace('-', '_') for name in TYPES)
  prefix = rf'({"|".join([*names, *_PREFIXES])})\.'
  matches = (re.match(prefix, name) for name in arrays.shapes)
  first = next(filter(None, matches), None)

  def restore(name: str) -> str:
    return name if not first or re.match(_ALONE, name) else first[0] + name

  def rename(name: str) -> str:
    if name.startswith(_MAE_LAYERS_BEFORE):
      return _MAE_LAYERS + name.removeprefix(_MAE_LAYERS_BEFORE)
    return re.sub(f'^{prefix}', '', name)

  return base.Renamed(arrays, rename, restore)


def describe(arrays: base.Renamed, hints: base.Hints) -> base.Description:
  """Returns the model that a file holds."""
  if not hints.config.content:
    raise UserError(
      'there is no config.json beside it, which a Hugging Face model needs'
    )
  config = towers.tower_config(hints.config)
  kind = config.get('model_type', typed.TEXT)
  if kind not in TYPES:
    raise UserError(
      f'its config.json says model_type {kind!r}: those that can be read are'
      f' {", ".join([*TYPES, *towers.OF_BOTH])}'
    )
  if kind in imagegpt.TYPES:
    return imagegpt.describe(arrays, hints)
  hints = dataclasses.replace(hints, config=config)
  return format_lib.describe(KINDS, arrays, hints)
