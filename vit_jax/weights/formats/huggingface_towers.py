"""Image towers of CLIP, SigLIP and SigLIP 2 in the format of transformers.

A trunk is read from a file of the tower alone or of both towers, whose other
arrays are ignored; it is written as a file of the tower alone. The layer that
projects CLIP's features to an embedding is not part of the trunk.
"""

from collections.abc import Sequence
import dataclasses
import math
from typing import Any

import numpy as np

from vit_jax.config import UserError
from vit_jax.weights.files import containers
from vit_jax.weights.files import typed
from vit_jax.weights.formats import base
from vit_jax.weights.formats import fields
from vit_jax.weights.formats import huggingface_fields as common
from vit_jax.weights.formats import tables
from vit_jax.weights.formats.base import FileFacts
from vit_jax.weights.formats.base import Size
from vit_jax.weights.formats.format import Format

# Of files with both towers.
OF_BOTH = ('clip', 'siglip', 'siglip2', 'aimv2')
# Arrays outside the trunk.
IGNORED = (
  r'text_model\..*|(text|visual)_projection\..*|logit_(scale|bias)'
  r'|.*\.position_ids'
)
TOWER, _RGB = 'vision_model.', 3
L = f'{TOWER}encoder.layers.#'
PATCH = f'{TOWER}embeddings.patch_embedding.weight'
_HEAD = f'{TOWER}head'
# PyTorch's attention has queries, keys and values in one array, [3 D, D].
_PACKED = f'{_HEAD}.attention.in_proj_'


def layers(tower: str) -> list[tables.Rule]:
  """Returns the rules of a tower's layers, of images or of texts."""
  layer = f'{tower}encoder.layers.#'
  return tables.arrays(f"""
position_embedding      {tower}embeddings.position_embedding.weight  row
blocks_#/norm1          {layer}.layer_norm1                   norm*
blocks_#/norm2          {layer}.layer_norm2                   norm*
blocks_#/attention/qkv  {layer}.self_attn.{{q,k,v}}_proj        parts*
blocks_#/attention/out  {layer}.self_attn.out_proj            dense2*
blocks_#/mlp/up         {layer}.mlp.fc1                       dense*
blocks_#/mlp/down       {layer}.mlp.fc2                       dense*
""")


ARRAYS = [
  *layers(TOWER),
  *tables.arrays(f"""
class_token             {TOWER}embeddings.class_embedding  flat
patch_embedding         {TOWER}embeddings.patch_embedding  conv*
norm_before             {TOWER}pre_layrnorm                norm*
norm                    {TOWER}post_layernorm              norm*
map_head/probe          {_HEAD}.probe
map_head/query/kernel      {_PACKED}weight@0               dense
map_head/query/bias        {_PACKED}bias@0                 flat
map_head/key_value/kernel  {_PACKED}weight@{{1,2}}           kernels
map_head/key_value/bias    {_PACKED}bias@{{1,2}}             two
map_head/out            {_HEAD}.attention.out_proj         dense2*
map_head/norm           {_HEAD}.layernorm                  norm*
map_head/mlp/up         {_HEAD}.mlp.fc1                    dense*
map_head/mlp/down       {_HEAD}.mlp.fc2                    dense*
"""),
]


def _convolved(arrays: containers.Arrays) -> containers.Arrays:
  """Returns SigLIP 2's projection of cut patches as a convolution's kernel.

  Patches of RGB images are assumed, of which its array is [D, p * p * 3].
  """
  d, *sizes = arrays.shapes.get(PATCH, (0,))
  side = math.isqrt(sizes[0] // _RGB) if len(sizes) == 1 else 0
  if not side or [_RGB * side**2] != sizes:
    return arrays

  def convolve(kernel: np.ndarray) -> np.ndarray:
    return kernel.reshape(d, side, side, _RGB).transpose(0, 3, 1, 2)

  return base.derived(arrays, {PATCH: ([PATCH], convolve)})


def prepare(arrays: containers.Arrays) -> base.Renamed:
  """Returns the arrays under the names that the rules use."""
  if not any(name.startswith(TOWER) for name in arrays.shapes):
    arrays = base.Renamed(arrays, lambda name: TOWER + name)
  return base.Renamed(_convolved(arrays))


def _no_classes(file: FileFacts) -> int:
  if file.has('classifier.weight'):
    raise UserError(
      'it has a classifier of the mean over its tokens, which is not computed'
      ' here: towers alone, or beside one of texts, can be read'
    )
  return 0


def preprocess(
  file: FileFacts, size: Size, channels: int
) -> tuple[dict[str, Any], str]:
  """Returns the preprocessing, of images of one size.

  SigLIP 2's resizes each image to a number of patches.
  """
  processor = file.preprocessor
  if _is_any_grid(file) and processor.content:
    unused = ('max_num_patches', 'patch_size')
    content = {
      'resample': 2,
      **{k: x for k, x in processor.content.items() if k not in unused},
      'image_processor_type': 'SiglipImageProcessor',
      'size': {'height': size[0], 'width': size[1]},
    }
    processor = dataclasses.replace(processor, content=content)
    file = dataclasses.replace(file, preprocessor=processor)
  return common.preprocess(file, size, channels)


def _is_any_grid(file: FileFacts) -> bool:
  """Whether a tower takes images of any grid, as SigLIP 2's."""
  return common.is_type(file, ['siglip2_vision_model'])


def _format(
  types: Sequence[str], title: str, gelu: str, epsilon: str, text: str
) -> Format:
  """Returns the format of a tower; the first of its types is written."""
  return common.class_format(
    types,
    title,
    ARRAYS,
    fields.table(
      f"""
positions.learned  =True
num_classes        no_classes()
{text}
""",
      changes=common.sizes(
        PATCH,
        L,
        'mlp.fc1.weight[0]',
        epsilon=epsilon,
        num_heads='12',
        gelu=gelu,
      ),
      no_classes=_no_classes,
    ),
    resize=lambda file: 'linear_antialias' if _is_any_grid(file) else 'bicubic',
    preprocess=preprocess,
    header=lambda values: common.header(types[0], f'{title}VisionModel'),
  )


def tower_config(config: typed.Json) -> typed.Json:
  """Returns the config of the image tower, that of both towers or its own."""
  kind = config.get('model_type', typed.TEXT, '')
  if kind not in OF_BOTH:
    return config
  content = config.get('vision_config', typed.OBJECT, {})
  content = {**content, 'model_type': f'{kind}_vision_model'}
  return dataclasses.replace(config, content=content)


_SIGLIPS = ('siglip_vision_model', 'siglip2_vision_model')
TYPES = ('clip_vision_model', *_SIGLIPS)
CLIP = _format(
  TYPES[:1],
  'CLIP',
  'sigmoid',
  '1e-5',
  """
class_token   =True
pool          =token
pre_norm      =True
patches.bias  =False
""",
)
SIGLIP = _format(
  _SIGLIPS,
  'Siglip',
  'tanh',
  '1e-6',
  """
class_token  =False
pool         =map
pool.gelu    @mlp.gelu
""",
)
KINDS = (CLIP, SIGLIP)
