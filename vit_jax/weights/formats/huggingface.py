"""Directories of Hugging Face transformers: ViT, DeiT, MAE, BEiT, DINOv2, ...

config.json has what arrays do not show: heads, activation, epsilon, labels.
"""

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import re
from typing import Any

from absl import logging

from vit_jax import models
from vit_jax.config import UserError
from vit_jax.models import flat
from vit_jax.models import igpt
from vit_jax.models import resnet
from vit_jax.weights import preprocessing
from vit_jax.weights.files import containers
from vit_jax.weights.files import typed
from vit_jax.weights.formats import base
from vit_jax.weights.formats import huggingface_aimv2 as aimv2
from vit_jax.weights.formats import huggingface_beit as beit
from vit_jax.weights.formats import huggingface_bit as bit
from vit_jax.weights.formats import huggingface_dinov3 as dinov3
from vit_jax.weights.formats import huggingface_kinds as kinds
from vit_jax.weights.formats import huggingface_towers as towers
from vit_jax.weights.formats import imagegpt
from vit_jax.weights.formats import tables
from vit_jax.weights.formats.tables import rule
from vit_jax.weights.formats.tables import torch_dense as _dense
from vit_jax.weights.formats.tables import torch_norm as _norm

NAME = 'huggingface'
# Arrays for pre-training only, and ViTModel's pooler, unused with a classifier.
IGNORED = (
  r'embeddings\.(mask_token|position_ids)|pooler\..*|decoder\..*'
  rf'|{beit.IGNORED}|{imagegpt.IGNORED}|{towers.IGNORED}|{aimv2.IGNORED}'
)

# model_type in config.json -> class of the classifier.
ARCHITECTURES = {
  'vit': 'ViTForImageClassification',
  'deit': 'DeiTForImageClassification',
  'dinov2': 'Dinov2ForImageClassification',
  'dinov2_with_registers': 'Dinov2WithRegistersForImageClassification',
  'ijepa': 'IJepaForImageClassification',  # the mean, without a class token
  'vit_mae': 'ViTMAEForPreTraining',
  beit.KIND: 'BeitForImageClassification',
  dinov3.KIND: dinov3.ARCHITECTURE,
  bit.KIND: bit.ARCHITECTURE,
}
# model_type of the same classes under other names, and their other defaults.
_ALIASES: Mapping[str, tuple[str, dict[str, Any]]] = {
  'vit_msn': ('vit', {'layer_norm_eps': 1e-6}),
  beit.BARE: (beit.KIND, {}),
}
# Layers of MAE's decoder, as transformers 5 writes them; published files have
# the second name, and transformers reads both.
MAE_LAYERS = 'decoder.decoder_encoder.layer.'
_MAE_LAYERS_BEFORE = 'decoder.decoder_layers.'
_HEADS = r'(cls_|distillation_)?classifier\.'  # named without a prefix
_GELUS = {
  'gelu': 'exact',
  'gelu_new': 'tanh',
  'gelu_pytorch_tanh': 'tanh',
  'gelu_fast': 'tanh',
}


# Fields of config.json that arrays show, that are read below, or that do not
# affect the logits of a trained model (for generation, training, ...).
_KNOWN = (
  dinov3.KNOWN
  | dict.fromkeys(
    """
  hidden_act hidden_size id2label image_size intermediate_size label2id
  layer_norm_eps layerscale_value mlp_ratio model_type num_attention_heads
  num_channels num_hidden_layers num_register_tokens patch_size pooler_act
  pooler_output_size qkv_bias use_swiglu_ffn

  apply_layernorm attention_probs_dropout_prob chunk_size_feed_forward
  drop_path_rate encoder_stride finetuning_task gradient_checkpointing
  hidden_dropout_prob initializer_range interpolate_antialias
  interpolate_offset num_labels out_features out_indices problem_type
  reshape_hidden_states stage_names task_specific_params use_mask_token

  decoder_hidden_size decoder_intermediate_size decoder_num_attention_heads
  decoder_num_hidden_layers mask_ratio norm_pix_loss

  _attn_implementation_autoset _commit_hash _name_or_path architectures
  attn_implementation auto_map dtype output_attentions output_hidden_states
  return_dict tf_legacy_loss torch_dtype torchscript transformers_version
  use_bfloat16 use_cache use_return_dict

  bad_words_ids begin_suppress_tokens bos_token_id decoder_start_token_id
  diversity_penalty do_sample early_stopping encoder_no_repeat_ngram_size
  eos_token_id exponential_decay_length_penalty forced_bos_token_id
  forced_eos_token_id length_penalty max_length min_length no_repeat_ngram_size
  num_beam_groups num_beams num_return_sequences output_scores pad_token_id
  prefix remove_invalid_values repetition_penalty return_dict_in_generate
  sep_token_id suppress_tokens temperature tie_encoder_decoder
  tie_word_embeddings tokenizer_class top_k top_p typical_p
  """.split()
  )
  | beit.KNOWN
  | bit.KNOWN
)

_LAYER = 'encoder.layer.{}'
_QKV = [
  f'{_LAYER}.attention.attention.{name}' for name in ('query', 'key', 'value')
]
_COMMON = [
  rule(
    'patch_embedding/kernel',
    'embeddings.patch_embeddings.projection.weight',
    tables.CONV,
  ),
  rule('patch_embedding/bias', 'embeddings.patch_embeddings.projection.bias'),
  rule('class_token', 'embeddings.cls_token'),
  rule('distillation_token', 'embeddings.distillation_token'),
  rule('register_tokens', 'embeddings.register_tokens'),
  rule('position_embedding', 'embeddings.position_embeddings'),
  *tables.torch_parts('blocks_{}/attention/qkv', _QKV),
  *_dense('blocks_{}/attention/out', f'{_LAYER}.attention.output.dense', 2),
]
_NORM = _norm('norm', 'layernorm')
VIT = [
  *_COMMON,
  *_norm('blocks_{}/norm1', f'{_LAYER}.layernorm_before'),
  *_norm('blocks_{}/norm2', f'{_LAYER}.layernorm_after'),
  *_dense('blocks_{}/mlp/up', f'{_LAYER}.intermediate.dense'),
  *_dense('blocks_{}/mlp/down', f'{_LAYER}.output.dense'),
  *_dense('pre_logits', 'pooler.dense'),
]
_HEAD = _dense('head', 'classifier')
_TWO_HEADS = [
  *_dense('head', 'cls_classifier'),
  *_dense('head_distillation', 'distillation_classifier'),
]
_DINO = [
  *_COMMON,
  *_NORM,
  rule('mask_token', 'embeddings.mask_token', tables.squeezed(0)),
  *_norm('blocks_{}/norm1', f'{_LAYER}.norm1'),
  *_norm('blocks_{}/norm2', f'{_LAYER}.norm2'),
  rule('blocks_{}/layer_scale1', f'{_LAYER}.layer_scale1.lambda1'),
  rule('blocks_{}/layer_scale2', f'{_LAYER}.layer_scale2.lambda1'),
  *_HEAD,
]


def recognises(names: Iterable[str]) -> bool:
  """Whether a file with these arrays has this format."""
  names = list(names)
  alone = imagegpt, towers, aimv2, bit
  return any(x.recognises(names) for x in alone) or any(
    re.search(r'(^|\.)embeddings\.(cls_token|patch_embeddings)', name)
    for name in names
  )


def prepare(arrays: containers.Arrays) -> base.Renamed:
  """Returns the arrays under the names that the rules use."""
  for kind in (imagegpt, towers, aimv2, bit):
    if kind.recognises(arrays.shapes):
      return kind.prepare(arrays)
  prefix = rf'^({"|".join([*ARCHITECTURES, "data2vec_vision"])})\.'
  found = next(filter(None, (re.match(prefix, x) for x in arrays.shapes)), None)

  def restore(name: str) -> str:
    return name if not found or re.match(_HEADS, name) else found[0] + name

  def rename(name: str) -> str:
    if name.startswith(_MAE_LAYERS_BEFORE):
      return MAE_LAYERS + name.removeprefix(_MAE_LAYERS_BEFORE)
    return re.sub(prefix, '', name)

  return base.Renamed(arrays, rename, restore)


def rules(model: models.Flat) -> Sequence[tables.Rule]:
  """Returns the table for a model."""
  if isinstance(model, igpt.IGPT):
    return imagegpt.RULES
  if isinstance(model, resnet.BiT):
    return bit.RULES
  assert isinstance(model, flat.ViT)
  if aimv2.is_kind(model):
    return aimv2.RULES
  if dinov3.is_kind(model):
    return dinov3.rules(model)
  if towers.kind_of(model):
    return towers.rules(model)
  if kinds.model_type(model).startswith('dinov2'):
    mlp = ('weights_in', 'weights_out') if model.gated_mlp else ('fc1', 'fc2')
    return [
      *_dense('blocks_{}/mlp/up', f'{_LAYER}.mlp.{mlp[0]}'),
      *_dense('blocks_{}/mlp/down', f'{_LAYER}.mlp.{mlp[1]}'),
      *_DINO,
    ]
  if beit.is_kind(model):
    return [*beit.norm(model), *beit.RULES, *VIT, *_HEAD]
  heads = model.distillation_token and model.distillation_head
  return [*_NORM, *VIT, *(_TWO_HEADS if heads else _HEAD)]


def stored_name(model: models.Flat, name: str) -> str:
  """Returns the name in a file for a name in the rules."""
  if isinstance(model, igpt.IGPT):
    return imagegpt.stored_name(name)
  if re.match(_HEADS, name) or not getattr(model, 'num_classes', 0):
    return name
  return f'{kinds.model_type(model)}.{name}'


def describe(arrays: base.Renamed, hints: base.Hints) -> base.Description:
  """Infers the architecture from the arrays' shapes and config.json."""
  shapes, config = base.Shapes(arrays), hints.config
  kind = config.get('model_type', typed.TEXT)
  if kind == imagegpt.MODEL_TYPE:
    return imagegpt.describe(arrays, hints)
  for tower in (towers, aimv2):
    if tower.recognises(arrays.shapes):
      return tower.describe(arrays, hints)
  if alias := _ALIASES.get(kind or ''):
    kind, defaults = alias
    config = dataclasses.replace(config, content={**defaults, **config.content})
    hints = dataclasses.replace(hints, config=config)
  if kind not in ARCHITECTURES:
    raise UserError(
      f'its config.json says model_type {kind!r}: those that can be read are'
      f' {", ".join([*ARCHITECTURES, *_ALIASES, imagegpt.MODEL_TYPE])}'
      if kind
      else 'there is no config.json beside it, which a Hugging Face model needs'
    )
  config.check_known(_KNOWN)
  if kind == dinov3.KIND:
    return dinov3.describe(shapes, hints, _gelu(config))
  if kind == bit.KIND:
    return bit.describe(shapes, hints)
  projection = 'embeddings.patch_embeddings.projection.weight'
  hidden, channels, *patch = shapes.get(projection, 4)
  fields: dict[str, Any] = {'patch_size': tuple(patch), 'hidden_size': hidden}
  fields |= _fields(shapes, config, kind)
  heads = config.get('num_attention_heads', typed.COUNT)
  fields['num_heads'] = base.num_heads(hints, heads, fields)
  model = base.build(flat.ViT, fields, hints)
  assert isinstance(model, flat.ViT)
  size = _image_size(shapes, patch, hints, model)
  preprocess, silent = preprocessing.of_transformers(
    hints.preprocessor, kind, size, channels
  )
  return base.Description(
    model,
    size,
    {'classes': _labels(config, fields['num_classes']), **preprocess},
    _resize(model, kind),
    silent,
  )


def _resize(model: flat.ViT, kind: str) -> str:
  """Returns how transformers' class resizes positions."""
  if kind == beit.KIND:
    return beit.resize(model)
  return 'bicubic_antialias' if kind == 'dinov2_with_registers' else 'bicubic'


def _fields(
  shapes: base.Shapes, config: typed.Json, kind: str
) -> dict[str, Any]:
  """Returns the model's fields, except those of patch embedding and heads."""
  is_dino = kind.startswith('dinov2')
  gated = config.get('use_swiglu_ffn', typed.TRUTH, False)
  fields: dict[str, Any] = {
    'depth': shapes.count(_LAYER + '.'),
    'gelu': _gelu(config),
    'layer_norm_epsilon': config.get(
      'layer_norm_eps', typed.POSITIVE, 1e-6 if is_dino else 1e-12
    ),
    'qkv_bias': shapes.count(f'{_QKV[0]}.bias') > 0,
    'registers': shapes.size('embeddings.register_tokens', 1),
    'position_tokens': 'class' if is_dino else 'all',
  }
  if is_dino:
    down = 'weights_out' if gated else 'fc2'
    fields |= {
      'pool': 'token+gap',
      'gated_mlp': gated,
      'mask_token': 'embeddings.mask_token' in shapes
      and config.get('use_mask_token', typed.TRUTH, True),
      'layer_scale': config.get('layerscale_value', _NUMBER, 1.0),
      'mlp_dim': shapes.get(f'{_LAYER}.mlp.{down}.weight', 2)[1],
    }
  elif kind == beit.KIND:
    fields |= beit.fields(shapes, config)
  else:
    distils = 'embeddings.distillation_token' in shapes
    teacher = 'distillation_classifier.weight' in shapes
    fields |= {
      'pool': 'gap' if kind == 'ijepa' else 'token',
      'mlp_dim': shapes.get(f'{_LAYER}.intermediate.dense.weight', 2)[0],
      'distillation_token': distils,
      'distillation_head': teacher or not distils,
    }
  return fields | _head_fields(shapes, config, kind)


def _gelu(config: typed.Json) -> str:
  """Returns the kind of GELU; that of a gated MLP does not matter."""
  activation = config.get('hidden_act', typed.TEXT, 'gelu')
  keys = ('use_swiglu_ffn', 'use_gated_mlp')
  gated = any(config.get(key, typed.TRUTH, False) for key in keys)
  if activation not in _GELUS and not gated:
    raise UserError(
      f'its config.json says hidden_act {activation!r}: those that can be'
      f' computed are {", ".join(_GELUS)}'
    )
  return _GELUS.get(activation, 'exact')


def _head_fields(
  shapes: base.Shapes, config: typed.Json, kind: str
) -> dict[str, int]:
  """Returns the number of classes, and the width of `pre_logits`."""
  heads = ('classifier.weight', 'cls_classifier.weight')
  classes = max(shapes.size(name, 0) for name in heads)
  if classes:  # the classifier does not use the pooler
    return {'num_classes': classes}
  pre_logits = shapes.size('pooler.dense.weight', 0)
  if pre_logits:
    config.get('pooler_act', typed.one_of('tanh'))
  if kind.startswith('dinov2'):
    logging.warning(
      'a %s without a classifier: its features are the class token and the'
      ' mean of the patch tokens, side by side (2 x %d numbers); the first'
      ' half is what transformers calls pooler_output',
      kind,
      shapes.size('embeddings.cls_token', 2),
    )
  return {'num_classes': 0, 'pre_logits': pre_logits}


def _image_size(
  shapes: base.Shapes,
  patch: Sequence[int],
  hints: base.Hints,
  model: flat.ViT,
) -> tuple[int, int]:
  size = hints.config.get('image_size', typed.SIZE)
  default = preprocessing.pair(size) if size else None
  if model.position_embedding == 'learned':
    rows = shapes.get('embeddings.position_embeddings', 3)[1]
    tokens = rows - model.positioned_prefix
    return base.image_size(tokens, patch, hints, default)
  if rows := beit.rows(shapes):
    return base.relative_size(rows, patch, hints, default)
  return base.image_size(None, patch, hints, default)


_NUMBER = typed.Kind('a finite number', typed.is_number)


def _labels(config: typed.Json, classes: int) -> tuple[str, ...]:
  """Returns the names in id2label, without trailing placeholders (LABEL_7)."""
  labels = [*config.labels('id2label', classes)]
  while labels and labels[-1] == f'LABEL_{len(labels) - 1}':
    labels.pop()
  return tuple(labels)


def unsupported(model: models.Flat, image_size: tuple[int, int]) -> str | None:
  """Returns which part of a model the format cannot store; None: no part."""
  if isinstance(model, igpt.IGPT):
    return imagegpt.unsupported(model)
  if isinstance(model, resnet.BiT):
    return bit.unsupported(model)
  if not isinstance(model, flat.ViT):
    return f'a {type(model).__name__}'
  return kinds.unsupported(model, image_size)
