"""timm's class Eva: EVA-02, DINOv3, RoPE-ViT and other rotary ViTs.

Their arrays have the names of timm's ViT but for a few. No array shows how they
rotate: that comes from the name in config.json, or from the caller.
"""

from collections.abc import Mapping
import re
from typing import Any

from absl import logging

from vit_jax.config import UserError
from vit_jax.models import flat
from vit_jax.models.parts import rotary
from vit_jax.weights import preprocessing
from vit_jax.weights.files import typed
from vit_jax.weights.formats import base
from vit_jax.weights.formats import tables
from vit_jax.weights.formats import timm_beit
from vit_jax.weights.formats import timm_names
from vit_jax.weights.formats import uncommon
from vit_jax.weights.formats.tables import rule

_NONE: Mapping[str, Any] = {'rotary': 'none'}
_POST_NORM = {**_NONE, 'post_norm': True}
_PE = {'rotary': 'rope_vit', 'rotary_base': 1e4, 'rotary_offset': 1.0}
_EVA02 = {'rotary': 'eva02', 'rotary_base': 1e4, 'rotary_grid': (16, 16)}
_DINOV3 = {
  'rotary': 'dinov3',
  'rotary_base': 100.0,
  'layer_norm_epsilon': 1e-5,
}
_ROPE_VIT = {'rotary': 'rope_vit', 'rotary_base': 100.0}
_MIXED = {'rotary': 'rope_vit_mixed', 'rotary_base': 10.0}
_BY_KIND: Mapping[str, Mapping[str, Any]] = {
  'none': _NONE,
  'eva02': _EVA02,
  'dinov3': _DINOV3,
  'rope_vit': _ROPE_VIT,
  'rope_vit_mixed': _MIXED,
}
# Fields that the names of timm's architectures stand for.
_BY_NAME: tuple[tuple[str, Mapping[str, Any]], ...] = (
  (r'eva02_enormous_', _POST_NORM),
  (r'vit_pe_\w+_gigantic_', {**_PE, 'rotary_offset': 0.0}),
  (r'vit_pe_', _PE),
  (r'eva02_|vit_\w+_rope_reg\d_gap_', _EVA02),
  (r'vit_\w+_(dinov3|sapiens2)', _DINOV3),
  (r'vit_\w+_rope_(ape_)?\d+$', _ROPE_VIT),
  (r'vit_\w+_rope_mixed_(ape_)?\d+$', _MIXED),
  (r'eva_giant_', _NONE),
)

_OFFSET = typed.Kind(
  'a finite number of at least 0', lambda x: typed.is_number(x) and x >= 0
)
_TYPES_OF = {'dinov3': 'dinov3', 'rope_vit_mixed': 'mixed'}
_TYPES = ('cat', *_TYPES_OF.values())  # values of rope_type

_BLOCK, _THEIRS = 'blocks_{}/attention/qkv', 'blocks.{}.attn'
_FREQUENCIES_NAME = 'rope.freqs'
_SCALES = [
  rule('blocks_{}/layer_scale1', 'blocks.{}.gamma_1'),
  rule('blocks_{}/layer_scale2', 'blocks.{}.gamma_2'),
]
_FREQUENCIES = rule('rotary_frequencies', _FREQUENCIES_NAME)
_NO_KEY_BIAS = rule(
  f'{_BLOCK}/bias',
  [f'{_THEIRS}.q_bias', f'{_THEIRS}.v_bias'],
  tables.split(2, 0, tables.FLAT),
)
# Of a model in some of whose layers keys have fewer heads.
_APART = [
  *tables.torch_dense(f'{_BLOCK}/query', f'{_THEIRS}.q_proj'),
  *tables.torch_parts(_BLOCK, [f'{_THEIRS}.{x}_proj' for x in 'qkv']),
  *tables.torch_parts(
    f'{_BLOCK}/key_value', [f'{_THEIRS}.{x}_proj' for x in 'kv']
  ),
]
# Those of `uncommon.parts` that this class has.
HOLDS = (
  uncommon.FEWER_KEYS,
  uncommon.ATTENTION_SCALE,
  uncommon.NO_KEY_BIAS,
  uncommon.ROTARY,
  uncommon.ROTARY_OFFSET,
  uncommon.MLP_NORM,
  uncommon.RMS,
  uncommon.ATTENTION_NORM,
  uncommon.POST_NORM,
  uncommon.NO_LAST_NORM,
  uncommon.MAP_PREFIX,
  uncommon.MAP_SIZE,
)


def has_signs(shapes: base.Shapes, config: typed.Json) -> bool:
  """Whether a file is of this class: its names differ from those of a ViT."""
  signs = 'attn.q_bias', 'attn.k_proj.weight', 'gamma_1', 'mlp.fc1_g.weight'
  if timm_beit.table(shapes) or 'patch_embed.norm.weight' in shapes:
    return False  # BEiT and AIMv2 have some of these names, too
  name = config.get('architecture', typed.TEXT, '')
  return any(re.match(pattern, name) for pattern, _ in _BY_NAME) or any(
    shapes.count(f'blocks.{{}}.{sign}') for sign in signs
  )


def is_kind(model: flat.ViT) -> bool:
  """Whether only this class can hold a model, and not BEiT's."""
  lacks_key_bias = model.qkv_bias and not model.key_bias
  norms = model.mlp_norm, model.attention_norm, model.post_norm
  sapiens = model.key_heads is not None, not model.layer_scale_mlp
  others = model.rotary != 'none' or lacks_key_bias or any(norms + sapiens)
  return others and model.relative_positions == 'none'


def rules(model: flat.ViT) -> list[tables.Rule]:
  """Returns the rules that come before those of timm's ViT."""
  found = [*_SCALES, _FREQUENCIES]
  if not model.key_bias:
    found.append(_NO_KEY_BIAS)
  return [*found, *_APART] if model.key_heads else found


def fields(shapes: base.Shapes, hints: base.Hints) -> dict[str, Any]:
  """Returns the fields in which a model differs from timm's ViT."""
  block = 'blocks.{}.'
  no_key_bias = shapes.count(f'{block}attn.q_bias') > 0
  biases = 'q_bias', 'qkv.bias', 'k_proj.bias'
  has_scale = shapes.count(f'{block}gamma_1') > 0
  found: dict[str, Any] = {
    'qkv_bias': any(shapes.count(f'{block}attn.{x}') for x in biases),
    'key_bias': not no_key_bias,
    'layer_scale': 1e-5 if has_scale else None,
    'layer_scale_mlp': not has_scale or shapes.count(f'{block}gamma_2') > 0,
  }
  if 'attn_pool.latent' in shapes:
    found['map_prefix'] = True
  heads = hints.config.get('model_args.attn_pool_num_heads', typed.COUNT)
  if heads or re.match('vit_pe_core_', timm_names.architecture(hints.config)):
    found['map_heads'] = heads or 8
  found |= _rotation(shapes, hints)
  if timm_names.norm(shapes.names, hints.config) == 'rms':
    found['layer_norm_epsilon'] = 1e-6
  return found


def key_heads(shapes: base.Shapes, fields: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the fields of a model in whose layers keys have fewer heads.

  Args:
    shapes: Shapes of the file, whose queries and keys are then apart.
    fields: The model's depth, hidden_size and num_heads.

  Raises:
    UserError: Other layers than the first and last have keys of all heads.
  """
  depth, heads = fields['depth'], fields['num_heads']
  if not isinstance(heads, int):  # refused with the other fields of the file
    return {}
  rows = (
    shapes.size(f'blocks.{i}.attn.k_proj.weight', 0) for i in range(depth)
  )
  found = [n * heads // fields['hidden_size'] for n in rows]
  if not any(found):
    return {}
  least, full = min(found), found.index(min(found))
  ends = [heads] * full
  if not least or found != [*ends, *[least] * (depth - 2 * full), *ends]:
    raise UserError(
      f'the keys of its layers have {", ".join(map(str, found))} heads: the'
      f' first layers and as many last ones must have {heads}, and all between'
      ' them the same smaller number'
    )
  return {'key_heads': least, 'full_key_layers': full}


def _rotation(shapes: base.Shapes, hints: base.Hints) -> dict[str, Any]:
  """Returns how a model rotates, and its epsilon where that is unusual."""
  config = hints.config
  name = config.get('architecture', typed.TEXT, '')
  by_name = (x for pattern, x in _BY_NAME if re.match(pattern, name))
  key = 'model_args.'
  kind = config.get(f'{key}rope_type', typed.one_of(*_TYPES))
  order = config.get(f'{key}rope_grid_indexing', typed.one_of('ij', 'xy'))
  found = dict(next(by_name, _by_arrays(shapes)))
  asked = hints.overrides.get('rotary', '')
  if asked in _BY_KIND:
    found = dict(_BY_KIND[asked])
  elif not config.get(f'{key}use_rot_pos_emb', typed.TRUTH, True):
    found = dict(_NONE)
  elif kind == 'dinov3':
    found = dict(_DINOV3)
  elif _FREQUENCIES_NAME in shapes:
    if order == 'ij':
      wrong = "learned frequencies are computed with 'xy' alone"
      raise config.error(f'{key}rope_grid_indexing', order, wrong)
    found = dict(_MIXED)
  elif kind == 'cat' or order:
    found['rotary'] = 'rope_vit' if order == 'xy' else 'eva02'
  if base_ := config.get(f'{key}rope_temperature', typed.POSITIVE):
    found['rotary_base'] = float(base_)
  if config.get(f'{key}use_post_norm', typed.TRUTH, False):
    found['post_norm'] = True
  if rotary.is_scaled(found['rotary']):
    offset = config.get(f'{key}rope_grid_offset', _OFFSET)
    if offset is not None:
      found['rotary_offset'] = float(offset)
    if size := re.match(r'vit_pe_\w+_patch(\d+)_(\d+)', name):
      found['rotary_grid'] = (int(size[2]) // int(size[1]),) * 2
    given = config.get('model_args', typed.OBJECT, {})
    grid = config.get(f'{key}ref_feat_shape', typed.SIZE)
    if 'ref_feat_shape' in given:  # null: not scaled
      found['rotary_grid'] = preprocessing.pair(grid) if grid else None
  said = name or kind or asked or hints.stored_size
  if not said and found['rotary'] != 'none':
    logging.warning(
      'warning: no file says how its queries and keys are rotated; assumed:'
      ' %s; to change that, give rotary=, rotary_base= and rotary_grid= (on the'
      ' command line --model.rotary=, ...)',
      ', '.join(f'{k}={x!r}' for k, x in found.items()),
    )
  return found


def _by_arrays(shapes: base.Shapes) -> Mapping[str, Any]:
  """Returns the most likely fields: what published models of these arrays have.

  All with positions have EVA-02's rotation, if their MLP is gated, or none.
  """
  is_gated = shapes.count('blocks.{}.mlp.fc1_g.weight') > 0
  if not is_gated:
    hidden = shapes.get('blocks.{}.mlp.fc2.weight', 2)[1]
    is_gated = shapes.get('blocks.{}.mlp.fc1.weight', 2)[0] == 2 * hidden
  if _FREQUENCIES_NAME in shapes:
    return _MIXED
  if 'pos_embed' in shapes:
    return _EVA02 if is_gated else _NONE
  both = 'cls_token' in shapes and 'reg_token' in shapes
  return _DINOV3 if both else _EVA02


def arguments(model: flat.ViT) -> dict[str, Any]:
  """Returns `model_args` that timm's ViT does not have."""
  found: dict[str, Any] = {'use_rot_pos_emb': model.rotary != 'none'}
  if model.rotary != 'none':
    found |= {
      'rope_type': _TYPES_OF.get(model.rotary, 'cat'),
      'rope_grid_indexing': 'xy' if 'rope_vit' in model.rotary else 'ij',
      'rope_rotate_half': model.rotary == 'dinov3',
      'rope_temperature': model.rotary_base,
    }
    grid = model.rotary_grid
    found['ref_feat_shape'] = list(grid) if grid else None
    found['rope_grid_offset'] = model.rotary_offset
  if model.pool == 'map':
    width = model.mlp_dim if model.map_mlp_dim is None else model.map_mlp_dim
    found['attn_pool_num_heads'] = model.map_heads or model.num_heads
    found['attn_pool_mlp_ratio'] = width / model.hidden_size
  is_rms, keys = model.norm == 'rms', model.key_heads is not None
  if keys or is_rms:  # else the values that go with the name stay
    full, heads = model.full_key_layers, model.key_heads or model.num_heads
    inner = model.depth - 2 * full
    ends = [model.num_heads] * full
    found['num_kv_heads'] = ends + [heads] * inner + ends
  if is_rms or not model.layer_scale_mlp:
    found['attn_only_layer_scale'] = not model.layer_scale_mlp
  is_rope = keys or (model.qkv_bias and model.key_bias)
  return {
    'attn_type': 'rope' if is_rope else 'eva',
    'qkv_fused': not keys,
    'swiglu_mlp': model.gated_mlp,
    'scale_mlp': model.mlp_norm,
    'scale_attn_inner': model.attention_norm,
    'use_post_norm': model.post_norm,
    'use_pre_transformer_norm': model.pre_norm,
    'use_post_transformer_norm': model.last_norm and not model.norm_after_pool,
    'num_reg_tokens': model.registers,
    'use_abs_pos_emb': model.position_embedding != 'none',
    'use_fc_norm': model.pool == 'gap' and model.norm_after_pool,
    **found,
  }


def unsupported(model: flat.ViT) -> dict[str, Any]:
  """Returns what this class has no place for, and whether a model has it."""
  return {
    'a distillation token beside rotary embeddings': model.distillation_token,
    'a ResNet stem beside rotary embeddings': model.resnet_stages is not None,
    'attention pooling of patches alone beside rotary embeddings': (
      model.pool == 'map' and model.prefix_length > 0 and not model.map_prefix
    ),
    'norms after attention and MLP with LayerScale or normalised queries': (
      model.post_norm and (model.layer_scale is not None or model.qk_norm)
    ),
    'norms after attention and MLP that only scale, or fewer heads of keys': (
      model.post_norm and (model.norm == 'rms' or model.key_heads)
    ),
    'attention pooling with norms that only scale beside rotary embeddings': (
      model.norm == 'rms' and model.pool == 'map'
    ),
    uncommon.PRE_NORM: model.pre_norm and model.patch_bias,
    uncommon.NO_PATCH_BIAS: not model.patch_bias and not model.pre_norm,
    'a layer before the head beside rotary embeddings': model.pre_logits,
    'approximations of the GELU beside rotary embeddings': model.gelu != 'exact'
    and not model.gated_mlp,
  }
