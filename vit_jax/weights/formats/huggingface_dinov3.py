"""DINOv3 in the format of Hugging Face transformers (arXiv:2508.10104).

Patches have rotary positions, keys no bias, and there is no classifier.
"""

from typing import Any

from vit_jax import data
from vit_jax.config import UserError
from vit_jax.models import flat
from vit_jax.weights import preprocessing
from vit_jax.weights.files import typed
from vit_jax.weights.formats import base
from vit_jax.weights.formats import huggingface_clip as clip
from vit_jax.weights.formats import tables
from vit_jax.weights.formats import uncommon
from vit_jax.weights.formats.tables import rule
from vit_jax.weights.formats.tables import torch_dense as _dense
from vit_jax.weights.formats.tables import torch_norm as _norm

KIND = 'dinov3_vit'
ARCHITECTURE = 'DINOv3ViTModel'
# Fields of config.json that only this kind has.
KNOWN = dict.fromkeys(
  """
  key_bias mlp_bias proj_bias query_bias rope_theta use_gated_mlp value_bias

  attention_dropout pos_embed_jitter pos_embed_rescale pos_embed_shift
  """.split()
)

_LAYER = 'layer.{}'
_QKV, _NO_KEY = ('q_proj', 'k_proj', 'v_proj'), ('q_proj', 'v_proj')
_PATCH = 'embeddings.patch_embeddings'
_COMMON = [
  rule('patch_embedding/kernel', f'{_PATCH}.weight', tables.CONV),
  rule('patch_embedding/bias', f'{_PATCH}.bias'),
  rule('class_token', 'embeddings.cls_token'),
  rule('register_tokens', 'embeddings.register_tokens'),
  rule('mask_token', 'embeddings.mask_token'),
  *_norm('blocks_{}/norm1', f'{_LAYER}.norm1'),
  rule(
    'blocks_{}/attention/qkv/kernel',
    [f'{_LAYER}.attention.{name}.weight' for name in _QKV],
    tables.split(3, 1, tables.linear()),
  ),
  *_dense('blocks_{}/attention/out', f'{_LAYER}.attention.o_proj', 2),
  rule('blocks_{}/layer_scale1', f'{_LAYER}.layer_scale1.lambda1'),
  *_norm('blocks_{}/norm2', f'{_LAYER}.norm2'),
  *_dense('blocks_{}/mlp/down', f'{_LAYER}.mlp.down_proj'),
  rule('blocks_{}/layer_scale2', f'{_LAYER}.layer_scale2.lambda1'),
  *_norm('norm', 'norm'),
]
_GATED = tables.torch_halves(
  'blocks_{}/mlp/up', [f'{_LAYER}.mlp.gate_proj', f'{_LAYER}.mlp.up_proj']
)


def rules(model: flat.ViT) -> list[tables.Rule]:
  """Returns the table for a model."""
  biased = _QKV if model.key_bias else _NO_KEY
  bias = rule(
    'blocks_{}/attention/qkv/bias',
    [f'{_LAYER}.attention.{name}.bias' for name in biased],
    tables.split(len(biased), 0, tables.FLAT),
  )
  up = _dense('blocks_{}/mlp/up', f'{_LAYER}.mlp.up_proj')
  return [*_COMMON, bias, *(_GATED if model.gated_mlp else up)]


def describe(
  shapes: base.Shapes, hints: base.Hints, gelu: str
) -> base.Description:
  """Infers the architecture from the arrays' shapes and config.json.

  Raises:
    UserError: The file has a part that is not computed.
  """
  config = hints.config
  hidden, channels, *patch = shapes.get(f'{_PATCH}.weight', 4)
  gated = config.get('use_gated_mlp', typed.TRUTH, False)
  fields: dict[str, Any] = {
    'num_classes': 0,
    'patch_size': tuple(patch),
    'hidden_size': hidden,
    'mlp_dim': shapes.get(f'{_LAYER}.mlp.down_proj.weight', 2)[1],
    'depth': shapes.count(f'{_LAYER}.'),
    'pool': 'token',
    'registers': shapes.size('embeddings.register_tokens', 1),
    'mask_token': 'embeddings.mask_token' in shapes
    and config.get('use_mask_token', typed.TRUTH, True),
    'position_embedding': 'none',
    'rotary': 'dinov3',
    'rotary_base': float(config.get('rope_theta', typed.POSITIVE, 100.0)),
    'layer_norm_epsilon': config.get('layer_norm_eps', typed.POSITIVE, 1e-5),
    'layer_scale': config.get('layerscale_value', typed.POSITIVE, 1.0),
    'gated_mlp': gated,
    'gelu': gelu,
    **_biases(config),
  }
  heads = config.get('num_attention_heads', typed.COUNT)
  fields['num_heads'] = base.num_heads(hints, heads, fields)
  if gated:
    config.get('hidden_act', typed.one_of('silu'))
  model = base.build(flat.ViT, fields, hints)
  stated = config.get('image_size', typed.SIZE)
  default = preprocessing.pair(stated) if stated else None
  size = base.image_size(None, patch, hints, default)
  preprocess, silent = preprocessing.of_transformers(
    hints.preprocessor, KIND, size, channels
  )
  return base.Description(
    model, size, {'classes': (), **preprocess}, 'bicubic_antialias', silent
  )


def _biases(config: typed.Json) -> dict[str, bool]:
  """Returns which of queries, keys and values have biases.

  Raises:
    UserError: That combination is not computed.
  """
  for key in ('proj_bias', 'mlp_bias'):
    config.get(key, typed.one_of(True))
  query, key, value = (
    config.get(f'{name}_bias', typed.TRUTH, name != 'key')
    for name in ('query', 'key', 'value')
  )
  if query != value or (key and not query):
    raise UserError(
      f'its config.json says query_bias {query}, key_bias {key} and value_bias'
      f' {value}: biases of all, of none, or of queries and values are computed'
    )
  return {'qkv_bias': query, 'key_bias': key or not query}


def is_kind(model: flat.ViT) -> bool:
  """Whether only this kind can hold a model."""
  return model.rotary == 'dinov3'


def unsupported(model: flat.ViT) -> str | None:
  """Returns which part of a model the format cannot store; None: no part."""
  wrong: dict[str, Any] = uncommon.parts(model)
  for part in (uncommon.NO_KEY_BIAS, uncommon.ROTARY, uncommon.MASK_TOKEN):
    del wrong[part]
  beside = 'beside rotary embeddings'
  wrong |= {
    f'a classifier {beside}': model.num_classes,
    f'the pool {model.pool!r} {beside}': model.pool != 'token',
    f'position embeddings {beside}': model.position_embedding != 'none',
    f'a distillation token {beside}': model.distillation_token,
    f'a ResNet stem {beside}': model.resnet_stages is not None,
    f'normalised queries and keys {beside}': model.qk_norm,
    f'layers without LayerScale {beside}': model.layer_scale is None,
    f'a layer before the head {beside}': model.pre_logits,
  }
  return base.first_of(wrong)


def unused(model: flat.ViT) -> dict[str, tuple[int, ...]]:
  """Returns shapes of arrays that transformers expects, of no use here."""
  d = model.hidden_size
  found: dict[str, tuple[int, ...]] = {}
  if not model.mask_token:
    found['embeddings.mask_token'] = (1, 1, d)
  if not model.registers:
    found['embeddings.register_tokens'] = (1, 0, d)
  return found


def config(
  model: flat.ViT, preprocess: data.Preprocess, image_size: tuple[int, int]
) -> dict[str, Any]:
  """Returns the content of config.json."""
  height, width = image_size
  patch = model.patch_size
  return {
    'model_type': KIND,
    'architectures': [ARCHITECTURE],
    'hidden_size': model.hidden_size,
    'intermediate_size': model.mlp_dim,
    'num_hidden_layers': model.depth,
    'num_attention_heads': model.num_heads,
    'num_register_tokens': model.registers,
    'num_channels': preprocess.channels,
    'image_size': height if height == width else [height, width],
    'patch_size': patch[0] if patch[0] == patch[1] else list(patch),
    'hidden_act': 'silu' if model.gated_mlp else clip.ACTIVATIONS[model.gelu],
    'use_gated_mlp': model.gated_mlp,
    'layer_norm_eps': model.layer_norm_epsilon,
    'layerscale_value': model.layer_scale,
    'use_mask_token': model.mask_token,  # for this package
    'rope_theta': model.rotary_base,
    'query_bias': model.qkv_bias,
    'key_bias': model.qkv_bias and model.key_bias,
    'value_bias': model.qkv_bias,
    'attention_dropout': model.attention_dropout_rate,
    'drop_path_rate': model.stochastic_depth,
    'dtype': 'float32',
    'torch_dtype': 'float32',  # the key in older versions
  }
