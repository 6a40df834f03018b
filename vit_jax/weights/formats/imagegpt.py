"""Directories of Hugging Face transformers: ImageGPT.

config.json has the heads and the activation, preprocessor_config.json the
clusters of colours. Without the latter, the model takes ids of colours alone.
"""

from collections.abc import Mapping
import dataclasses
import math
from typing import Any

from absl import logging
import jax.numpy as jnp
import numpy as np

from vit_jax import data
from vit_jax.models import igpt
from vit_jax.weights import preprocessing
from vit_jax.weights.files import typed
from vit_jax.weights.formats import base
from vit_jax.weights.formats import fields
from vit_jax.weights.formats import huggingface_fields as common
from vit_jax.weights.formats import tables
from vit_jax.weights.formats.base import FileFacts
from vit_jax.weights.formats.base import Values

TYPES = (KIND := 'imagegpt',)
ARCHITECTURE = 'ImageGPTForCausalImageModeling'
# Masks that older versions of transformers stored.
IGNORED = r'h\.\d+\.attn\.(bias|masked_bias)'
NOTE = (
  "transformers' image processor takes images of three channels: of others,"
  ' give the model the ids of colours'
)

_PREFIX, _CLUSTERS = 'transformer.', 'clusters'
_OUTPUT = 'lm_head.weight'  # named without the prefix
B = 'blocks_#'
# Weights are [in, out]. The clusters are in preprocessor_config.json.
ARRAYS = tables.arrays(f"""
token_embedding            wte.weight
position_embedding         wpe.weight                row
{B}/norm1/scale            h.#.ln_1.weight
{B}/attention/qkv/kernel   h.#.attn.c_attn.weight    flat_outputs
{B}/attention/qkv/bias     h.#.attn.c_attn.bias      flat
{B}/attention/out/kernel   h.#.attn.c_proj.weight    flat_inputs
{B}/attention/out/bias     h.#.attn.c_proj.bias
{B}/norm2/scale            h.#.ln_2.weight
{B}/mlp/up/kernel          h.#.mlp.c_fc.weight
{B}/mlp/up/bias            h.#.mlp.c_fc.bias
{B}/mlp/down/kernel        h.#.mlp.c_proj.weight
{B}/mlp/down/bias          h.#.mlp.c_proj.bias
norm/scale                 ln_f.weight
output/kernel              {_OUTPUT}                 dense
clusters                   {_CLUSTERS}
""")


def clusters(file: FileFacts) -> np.ndarray | None:
  """Returns the clusters of a preprocessor_config.json, float32 [K, C]."""
  table = file.preprocessor.get(_CLUSTERS, typed.COLOURS)
  if table is None:
    return None
  array, colours = np.asarray(table, np.float32), file.values['colours']
  if len(array) != colours or array.shape[1] not in (1, 3, 4):
    raise file.preprocessor.error(
      _CLUSTERS,
      f'of shape {array.shape}',
      f'the model has {colours} colours, each of 1, 3 or 4 numbers',
    )
  return array


FIELDS = fields.table(
  """
hidden_size         wte.weight[1]            n_embd   axes=2
mlp_dim             h.#.mlp.c_fc.weight[1]   n_inner  axes=2
depth               h.#.[#]                  n_layer
num_heads           -                        n_head  COUNT default=heads()
colours             colours()
>                   vocab_size               words()
has_clusters        has_clusters()
mlp.gelu            -  activation_function!  GELUS default=sigmoid
layer_norm_epsilon  -  layer_norm_epsilon!   POSITIVE default=1e-5
attention.qkv_bias  h.#.attn.c_attn.bias?    -  read_only
>                   n_positions              positions()
num_classes         =0
feature_layer       -  -  noted
""",
  heads=lambda file: base.num_heads(file.values),
  has_clusters=lambda file: file.has(_CLUSTERS) or clusters(file) is not None,
  colours=lambda file: file.size('wte.weight', 0) - 1,
  words=lambda values: values['colours'] + 1,
  positions=lambda values: math.prod(values['image_size']),
  GELUS=common.GELUS,
)


def image_size(file: FileFacts) -> tuple[int, int]:
  """Returns (height, width) that the positions are for."""
  size = file.preprocessor.get('size', preprocessing.IMAGE_SIZE)
  default = preprocessing.pair(size) if size else None
  tokens = file.size('wpe.weight', 0)
  return base.image_size(tokens, (1, 1), file, default)


def channels(file: FileFacts) -> int:
  """Returns the number of channels of the colours."""
  table = clusters(file)
  return 3 if table is None else table.shape[1]


IGPT = common.class_format(
  TYPES,
  'ImageGPT',
  ARRAYS,
  FIELDS,
  family=igpt.IGPT,
  image_size=image_size,
  channels=channels,
  preprocess=lambda file, size, channels: (
    {
      'channels': channels,
      'image_size': size,
      'resize': size,
      'mean': (0.5,),
      'std': (0.5,),
      'interpolation': 'bilinear',
      'resize_like': 'transformers',
      'classes': (),
    },
    '',
  ),
  resize='corner',
  unread_keys=fields.unread_keys(
    'attn_pdrop embd_pdrop n_ctx reorder_and_upcast_attn resid_pdrop'
    ' add_cross_attention=False scale_attn_by_inverse_layer_idx=False'
    ' scale_attn_weights=True tie_word_embeddings=False'
  ),
  header=lambda values: {
    **common.header(KIND, ARCHITECTURE),
    'scale_attn_weights': True,
    'scale_attn_by_inverse_layer_idx': False,
    'tie_word_embeddings': False,
  },
  stored=lambda values, name: {_OUTPUT: _OUTPUT, _CLUSTERS: ''}.get(
    name, _PREFIX + name
  ),
)


def describe(file: FileFacts) -> base.Description:
  """Returns the model that a file holds, and the clusters beside it."""
  description = IGPT.describe(file)
  table = clusters(file)
  if table is None:
    logging.warning(
      'warning: no preprocessor_config.json with clusters of colours is beside'
      ' its weights: the model takes ids of colours, and no images'
    )
    return description
  arrays_beside = {_CLUSTERS: jnp.asarray(table)}
  return dataclasses.replace(description, extra_params=arrays_beside)


def companions(
  values: Values, preprocess: data.Preprocess, params: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
  """Returns the content of the JSON files, by file name."""
  height, width = values['image_size']
  processor: dict[str, Any] = {
    'image_processor_type': 'ImageGPTImageProcessor',
    'do_resize': True,
    'size': {'height': height, 'width': width},
    'resample': 2,
    'do_normalize': True,
  }
  if _CLUSTERS in params:
    table = np.asarray(params[_CLUSTERS])
    mean, std = np.asarray(preprocess.mean), np.asarray(preprocess.std)
    if (mean != 0.5).any() or (std != 0.5).any():  # theirs are in [-1, 1]
      table = 2 * (table * std + mean) - 1
    processor['do_color_quantize'] = True
    processor[_CLUSTERS] = table.tolist()
  return {
    'config.json': IGPT.config(values),
    'preprocessor_config.json': processor,
  }
