"""AIMv2 in the format of Hugging Face transformers (arXiv:2411.14402).

Norms only scale, one follows the patch embedding, and MLPs are gated. Attention
pooling, if there is any, neither projects its query nor has an MLP. Of a file
of both towers the image tower is read.
"""

from collections.abc import Iterable
import dataclasses
import re
from typing import Any

from vit_jax import data
from vit_jax.config import UserError
from vit_jax.models import embedding
from vit_jax.models import flat
from vit_jax.weights import preprocessing
from vit_jax.weights.files import containers
from vit_jax.weights.files import typed
from vit_jax.weights.formats import base
from vit_jax.weights.formats import tables
from vit_jax.weights.formats import uncommon
from vit_jax.weights.formats.tables import rule
from vit_jax.weights.formats.tables import torch_dense as _dense
from vit_jax.weights.formats.tables import torch_norm as _norm

KIND, BOTH = 'aimv2_vision_model', 'aimv2'
ARCHITECTURE = 'Aimv2VisionModel'
# Arrays outside the image tower.
IGNORED = r'text_model\..*|(text|visual)_projection\..*|logit_scale'

_TOWER = 'vision_model.'
_PATCH, _POSITIONS = 'embeddings.patch_embed', 'embeddings.position_embedding'
_LAYER = 'encoder.layers.{}'
_SIGN = f'{_PATCH}.weight'
_GATE = 'silu'
# `model_type` is read by `huggingface`; others have no effect on a prediction.
_KNOWN: dict[str, typed.Kind | None] = {
  **dict.fromkeys(
    """
    attention_dropout hidden_size image_size initializer_range
    intermediate_size is_native mlp_bias num_attention_heads num_channels
    num_hidden_layers patch_size qkv_bias rms_norm_eps use_head

    _name_or_path architectures auto_map dtype model_type torch_dtype
    transformers_version
    """.split()
  ),
  'hidden_act': typed.one_of(_GATE),
}


RULES = [
  rule('patch_embedding/kernel', _SIGN, tables.CONV),
  rule('patch_embedding/bias', f'{_PATCH}.bias'),
  *_norm('patch_norm', 'embeddings.rms_norm'),
  rule('position_embedding', f'{_POSITIONS}.weight', tables.squeezed(0)),
  *_norm('blocks_{}/norm1', f'{_LAYER}.rms_norm1'),
  *tables.torch_parts(
    'blocks_{}/attention/qkv', [f'{_LAYER}.attention.{x}_proj' for x in 'qkv']
  ),
  *_dense('blocks_{}/attention/out', f'{_LAYER}.attention.out_proj', 2),
  *_norm('blocks_{}/norm2', f'{_LAYER}.rms_norm2'),
  *tables.torch_halves(
    'blocks_{}/mlp/up', [f'{_LAYER}.ffn.gate_proj', f'{_LAYER}.ffn.up_proj']
  ),
  *_dense('blocks_{}/mlp/down', f'{_LAYER}.ffn.down_proj'),
  *_norm('norm', 'rms_norm'),
  rule('map_head/probe', 'head.cls_token'),
  *tables.torch_parts('map_head/key_value', [f'head.{x}_proj' for x in 'kv']),
  *_dense('map_head/out', 'head.output_proj', 2),
]


def recognises(names: Iterable[str]) -> bool:
  """Whether a file with these arrays has such a tower."""
  return any(name.removeprefix(_TOWER) == _SIGN for name in names)


def prepare(arrays: containers.Arrays) -> base.Renamed:
  """Returns the arrays under the names that the rules use."""
  prefix = '' if _SIGN in arrays.shapes else _TOWER
  return base.Renamed(
    arrays, lambda x: re.sub(f'^{prefix}', '', x), lambda x: prefix + x
  )


def is_kind(model: flat.ViT) -> bool:
  """Whether only this kind can hold a model."""
  return model.patch_norm


def describe(arrays: base.Renamed, hints: base.Hints) -> base.Description:
  """Infers the architecture from the arrays' shapes and config.json.

  Raises:
    UserError: The file has a part that is not computed.
  """
  shapes, config = base.Shapes(arrays), hints.config
  kind = config.get('model_type', typed.TEXT)
  if kind == BOTH:
    content = config.get('vision_config', typed.OBJECT, {})
    config = dataclasses.replace(config, content=dict(content))
  elif kind != KIND:
    raise UserError(
      f'its config.json says model_type {kind!r}: of these arrays {KIND!r} and'
      f' {BOTH!r} can be read'
    )
  config.check_known(_KNOWN)
  hidden, channels, *patch = shapes.get(_SIGN, 4)
  default = preprocessing.pair(config.get('image_size', typed.SIZE, 224))
  learned = f'{_POSITIONS}.weight' in shapes
  count = shapes.get(f'{_POSITIONS}.weight', 2)[0] if learned else None
  fields: dict[str, Any] = {
    'num_classes': 0,
    'patch_size': tuple(patch),
    'hidden_size': hidden,
    'mlp_dim': shapes.get(f'{_LAYER}.ffn.down_proj.weight', 2)[1],
    'depth': shapes.count(f'{_LAYER}.'),
    'num_heads': config.get('num_attention_heads', typed.COUNT, 8),
    'position_embedding': 'learned' if learned else 'sincos2d_mae',
    'norm': 'rms',
    'layer_norm_epsilon': config.get('rms_norm_eps', typed.POSITIVE, 1e-5),
    'patch_norm': True,
    'gated_mlp': True,
    'gelu': 'exact',
    'qkv_bias': shapes.count(f'{_LAYER}.attention.q_proj.bias') > 0,
    'dense_bias': shapes.count(f'{_LAYER}.ffn.down_proj.bias') > 0,
    **_pooling(shapes),
  }
  model = base.build(flat.ViT, fields, hints)
  size = base.image_size(count, patch, hints, default)
  preprocess, silent = preprocessing.of_transformers(
    hints.preprocessor, KIND, size, channels
  )
  return base.Description(
    model, size, {'classes': (), **preprocess}, 'bicubic_antialias', silent
  )


def _pooling(shapes: base.Shapes) -> dict[str, Any]:
  if 'head.cls_token' not in shapes:
    return {'pool': 'gap'}
  return {
    'pool': 'map',
    'map_query': False,
    'map_bias': 'head.k_proj.bias' in shapes,
    'map_mlp_dim': 0,
  }


def unsupported(model: flat.ViT, image_size: tuple[int, int]) -> str | None:
  """Returns which part of a model the format cannot store; None: no part."""
  rare: dict[str, Any] = uncommon.parts(model)
  for part in (
    uncommon.RMS,
    uncommon.PATCH_NORM,
    uncommon.NO_DENSE_BIAS,
    uncommon.MAP_QUERY,
  ):
    del rare[part]
  if model.map_mlp_dim == 0:
    del rare[uncommon.MAP_SIZE]
  beside = f'beside {uncommon.PATCH_NORM}'
  is_map = model.pool == 'map'
  native = model.position_embedding == 'sincos2d_mae'
  return base.first_of(
    {
      f'a classifier {beside}': model.num_classes,
      f'the pool {model.pool!r} {beside}': model.pool not in ('gap', 'map'),
      f'the tokens {", ".join(model.prefix)} {beside}': model.prefix,
      f'norms that also shift {beside}': model.norm != 'rms',
      f'an MLP without a gate {beside}': not model.gated_mlp,
      f'biases of some dense layers alone {beside}': (
        model.qkv_bias != model.dense_bias or not model.key_bias
      ),
      f'attention pooling with an MLP or a projected query {beside}': is_map
      and (model.map_query or model.map_mlp_dim != 0),
      f'attention pooling with biases unlike those of the layers {beside}': (
        is_map and model.map_bias != model.qkv_bias
      ),
      f'attention pooling with other heads {beside}': is_map
      and model.map_heads not in (None, model.num_heads),
      f'a norm after the pool {beside}': model.norm_after_pool,
      f'normalised queries and keys {beside}': model.qk_norm,
      f'LayerScale {beside}': model.layer_scale is not None,
      f'a layer before the head {beside}': model.pre_logits,
      f'a ResNet stem {beside}': model.resnet_stages is not None,
      f'the positions {model.position_embedding!r} {beside}': not native
      and model.position_embedding != 'learned',
      f'patches or images that are not square {beside}': (
        model.patch_size[0] != model.patch_size[1]
        or image_size[0] != image_size[1]
      ),
      **rare,
    }
  )


def config(
  model: flat.ViT, preprocess: data.Preprocess, image_size: tuple[int, int]
) -> dict[str, Any]:
  """Returns the content of config.json."""
  return {
    'model_type': KIND,
    'architectures': [ARCHITECTURE],
    'hidden_size': model.hidden_size,
    'intermediate_size': model.mlp_dim,
    'num_hidden_layers': model.depth,
    'num_attention_heads': model.num_heads,
    'num_channels': preprocess.channels,
    'image_size': image_size[0],
    'patch_size': model.patch_size[0],
    'hidden_act': _GATE,
    'rms_norm_eps': model.layer_norm_epsilon,
    'qkv_bias': model.qkv_bias,
    'mlp_bias': model.dense_bias,
    'use_head': model.pool == 'map',
    'is_native': model.position_embedding in embedding.SINCOS,
    'attention_dropout': model.attention_dropout_rate,
    'dtype': 'float32',
    'torch_dtype': 'float32',  # the key in older versions
  }
