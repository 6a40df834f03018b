"""Directories of Hugging Face transformers: ViT, DeiT, MAE, BEiT, DINOv2, ...

config.json has what arrays do not show: heads, activation, epsilon, labels.
"""

from collections.abc import Iterable
import dataclasses
import re
from typing import Any

from vit_jax import data
from vit_jax.config import UserError
from vit_jax.weights import preprocessing
from vit_jax.weights.files import containers
from vit_jax.weights.files import typed
from vit_jax.weights.formats import base
from vit_jax.weights.formats import format as format_lib
from vit_jax.weights.formats import huggingface_beit as beit
from vit_jax.weights.formats import huggingface_towers as towers
from vit_jax.weights.formats import huggingface_vit as vit
from vit_jax.weights.formats import imagegpt
from vit_jax.weights.formats.base import FileFacts
from vit_jax.weights.formats.base import Values
from vit_jax.weights.formats.format import Format

NAME, SUFFIX = 'huggingface', ''
_MODULES = vit, beit, towers, imagegpt
TYPES = tuple(name for module in _MODULES for name in module.TYPES)
KINDS = (
  imagegpt.IGPT,
  vit.BIT,
  *towers.KINDS,
  vit.AIMV2,
  vit.DINOV3,
  beit.BEIT,
  vit.DINOV2,
  vit.VIT,
)
# Arrays for pre-training only, and ViTModel's pooler, unused with a classifier.
IGNORED = (
  r'embeddings\.(mask_token|position_ids)|pooler\..*|decoder\..*'
  rf'|{beit.IGNORED}|{imagegpt.IGNORED}|{towers.IGNORED}'
)
# Layers of MAE's decoder, as transformers 5 writes them; published files have
# the second name, and transformers reads both.
_MAE_LAYERS = 'decoder.decoder_encoder.layer.'
_MAE_LAYERS_BEFORE = 'decoder.decoder_layers.'
# Names without a prefix; and the prefixes that `TYPES` does not have.
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


def describe(file: FileFacts) -> base.Description:
  """Returns the model that a file holds, by its config.json."""
  if not file.config.content:
    raise UserError(
      'there is no config.json beside it, which a Hugging Face model needs'
    )
  config = towers.tower_config(file.config)
  kind = config.get('model_type', typed.TEXT)
  if kind not in TYPES:
    raise UserError(
      f'its config.json says model_type {kind!r}: those that can be read are'
      f' {", ".join([*TYPES, *towers.OF_BOTH])}'
    )
  if kind in imagegpt.TYPES:
    return imagegpt.describe(file)
  return format_lib.describe(KINDS, dataclasses.replace(file, config=config))


def companions(
  kind: Format, values: Values, preprocess: data.Preprocess, params: Any
) -> dict[str, dict[str, Any]]:
  """Returns the files from which transformers rebuilds a model."""
  if kind is imagegpt.IGPT:
    return imagegpt.companions(values, preprocess, params)
  classes, names = values['num_classes'], [*preprocess.classes]
  names += [f'LABEL_{i}' for i in range(len(names), classes)]
  labels = {
    'id2label': {str(i): name for i, name in enumerate(names)},
    'label2id': {name: i for i, name in enumerate(names)},
  }
  return {
    'config.json': {**kind.config(values), **(labels if classes else {})},
    'preprocessor_config.json': _preprocessor_config(preprocess),
  }


def _preprocessor_config(preprocess: data.Preprocess) -> dict[str, Any]:
  height, width = preprocess.image_size
  resize: Any = preprocess.resize
  if resize is None:  # the image just fills the crop
    resize = height if height == width else (height, width)
  channels = preprocess.channels
  resample = {name: i for i, name in preprocessing.RESAMPLE.items()}
  config: dict[str, Any] = {
    'do_resize': True,
    'resample': resample[preprocess.interpolation],
    'do_convert_rgb': channels == 3,
    'do_rescale': True,
    'rescale_factor': 1 / 255,
    'do_normalize': True,
    'image_mean': base.per_channel(preprocess.mean, channels),
    'image_std': base.per_channel(preprocess.std, channels),
  }
  crop = {'height': height, 'width': width}
  if resize == preprocess.image_size:
    kind = {'image_processor_type': 'ViTImageProcessor', 'size': crop}
    return {**kind, **config}
  size = {'shortest_edge': resize}
  if isinstance(resize, tuple):
    size = {'height': resize[0], 'width': resize[1]}
  return {
    'image_processor_type': 'BitImageProcessor',
    'size': size,
    'do_center_crop': True,
    'crop_size': crop,
    **config,
  }


def notes(kind: Format, values: Values) -> list[str]:
  """Returns notes on where transformers computes something else."""
  if kind is imagegpt.IGPT:
    return [imagegpt.NOTE]
  if values['num_classes']:
    return []
  if values.get('pool') == 'mean' and not values['pool.norm_after']:
    return [
      'transformers has the mean in its classifier alone: of this model without'
      ' a head, average last_hidden_state over the patches'
    ]
  if kind is vit.VIT and not values['head.pre_logits']:
    return [
      'transformers puts a pooler of random numbers after a model without a'
      ' head: read its last_hidden_state, not its pooler_output'
    ]
  return []


def usage(
  kind: Format, values: Values, directory: str, file: str
) -> tuple[str, str]:
  """Returns the name of a program, and Python code that loads the model."""
  del file
  purpose = 'ForImageClassification' if values['num_classes'] else ''
  auto = f'AutoModel{purpose}'
  if kind is imagegpt.IGPT:
    auto = imagegpt.ARCHITECTURE
  return 'transformers', (
    f'from transformers import AutoImageProcessor, {auto}\n'
    f"model = {auto}.from_pretrained('{directory}')\n"
    f"processor = AutoImageProcessor.from_pretrained('{directory}')"
  )
