"""timm's class Eva: EVA-02, DINOv3, RoPE-ViT and other rotary ViTs.

Their arrays have the names of timm's ViT but for a few. No array shows how they
rotate: that comes from the name in config.json, or from the caller.
"""

from collections.abc import Mapping
import dataclasses
import re
from typing import Any

from absl import logging

from vit_jax.config import UserError
from vit_jax.models import registry
from vit_jax.models.parts import rotary
from vit_jax.weights import preprocessing
from vit_jax.weights.files import typed
from vit_jax.weights.formats import base
from vit_jax.weights.formats import fields
from vit_jax.weights.formats import tables
from vit_jax.weights.formats import timm_beit
from vit_jax.weights.formats import timm_names
from vit_jax.weights.formats import timm_vit
from vit_jax.weights.formats.base import FileFacts
from vit_jax.weights.formats.base import Values
from vit_jax.weights.formats.fields import NULL

_FREQUENCIES = 'rope.freqs'
# In some layers keys have fewer heads: queries, keys and values are then apart.
ARRAYS = (
  tables.arrays(f"""
rotary_frequencies                  {_FREQUENCIES}
norm_before                         norm_pre                    norm*
blocks_#/attention/qkv/query        blocks.#.attn.q_proj        dense*
blocks_#/attention/qkv/key_value    blocks.#.attn.{{k,v}}_proj  parts*
blocks_#/attention/qkv  blocks.#.attn.{{q,k,v}}_proj  parts*  ?attention=grouped
blocks_#/mlp/up  blocks.#.mlp.fc1_{{g,x}}  halves*  ?mlp=swiglu&mlp.hidden_norm
""")
  + timm_beit.LAYERS
)
A, B, _ROPE = timm_vit.A, timm_vit.B, 'positions.rope'

Options = Mapping[str, Any]
_PE: Options = {'kind': 'rope_vit', 'base': 1e4, 'offset': 1.0}
_EVA02: Options = {'kind': 'eva02', 'base': 1e4, 'grid': (16, 16)}
_DINOV3: Options = {'kind': 'dinov3', 'base': 100.0}
_ROPE_VIT: Options = {'kind': 'rope_vit', 'base': 100.0}
_MIXED: Options = {'kind': 'rope_vit_mixed', 'base': 10.0}
# Options of `rope` that the names of timm's architectures stand for.
_BY_NAME: tuple[tuple[str, Options], ...] = (
  (r'eva02_enormous_', {}),
  (r'vit_pe_\w+_gigantic_', {**_PE, 'offset': 0.0}),
  (r'vit_pe_', _PE),
  (r'eva02_|vit_\w+_rope_reg\d_gap_', _EVA02),
  (r'vit_\w+_(dinov3|sapiens2)', _DINOV3),
  (r'vit_\w+_rope_(ape_)?\d+$', _ROPE_VIT),
  (r'vit_\w+_rope_mixed_(ape_)?\d+$', _MIXED),
  (r'eva_giant_', {}),
)
_OFFSET = typed.Kind(
  'a finite number of at least 0', lambda x: typed.is_number(x) and x >= 0
)


def rotation(file: FileFacts) -> Options:
  """Returns the options of `rope`; {}: queries and keys are not rotated."""
  hinted_values = file.caller_values
  if _ROPE in hinted_values:
    return {
      name: hinted_values.get(f'{_ROPE}.{name}', option.default)
      for name, option in registry.declared_options(rotary.Rope).items()
      if name != 'num_heads' and hinted_values[_ROPE]
    }
  config, name = file.config, timm_names.architecture(file.config)
  by_name = (x for pattern, x in _BY_NAME if re.match(pattern, name))
  kind = config.get(A + 'rope_type', typed.choice('cat', 'dinov3', 'mixed'))
  order = config.get(A + 'rope_grid_indexing', typed.choice('ij', 'xy'))
  options = dict(next(by_name, _by_arrays(file)))
  if not config.get(A + 'use_rot_pos_emb', typed.TRUTH, True):
    return {}
  if kind == 'dinov3':
    options = dict(_DINOV3)
  elif file.has(_FREQUENCIES):
    if order == 'ij':
      reason = "learned frequencies are computed with 'xy' alone"
      raise config.error(A + 'rope_grid_indexing', order, reason)
    options = dict(_MIXED)
  elif kind == 'cat' or order:
    options['kind'] = 'rope_vit' if order == 'xy' else 'eva02'
  if not options:
    return {}
  if base_ := config.get(A + 'rope_temperature', typed.POSITIVE):
    options['base'] = float(base_)
  if rotary.is_scaled(options['kind']):
    options |= _scaling(config, name)
  return options


def _scaling(config: typed.Json, name: str) -> Options:
  """Returns what a config and a name say of how indices are scaled."""
  options: dict[str, Any] = {}
  offset = config.get(A + 'rope_grid_offset', _OFFSET)
  if offset is not None:
    options['offset'] = float(offset)
  if size := re.match(r'vit_pe_\w+_patch(\d+)_(\d+)', name):
    options['grid'] = (int(size[2]) // int(size[1]),) * 2
  grid = config.get(A + 'ref_feat_shape', typed.SIZE)
  if 'ref_feat_shape' in config.get('model_args', typed.OBJECT, {}):
    options['grid'] = preprocessing.pair(grid) if grid else None
  return options


def _by_arrays(file: FileFacts) -> Options:
  """Returns the most likely options, of published models with such arrays.

  All with positions have EVA-02's rotation, if their MLP is gated, or none.
  """
  if file.has(_FREQUENCIES):
    return _MIXED
  if file.has('pos_embed'):
    return _EVA02 if file.values['mlp'] == 'swiglu' else {}
  has_prefix = file.has('cls_token') and file.has('reg_token')
  return _DINOV3 if has_prefix else _EVA02


def is_rotary(file: FileFacts) -> bool:
  """Whether queries and keys are rotated; warns if nothing says how."""
  options = rotation(file)
  is_said = (
    timm_names.architecture(file.config)
    or file.config.get(A + 'rope_type', typed.TEXT)
    or file.stored_size
    or _ROPE in file.caller_values
  )
  if options and not is_said:
    words = ', '.join(f'{k}={x!r}' for k, x in options.items())
    logging.warning(
      'warning: no file says how its queries and keys are rotated; assumed:'
      " rope(%s); to change that, give positions=, as 'learned + rope(%s)' (on"
      ' the command line --model.positions=)',
      words,
      words,
    )
  return bool(options)


def attention(file: FileFacts) -> str:
  """Returns which attention there is: keys may have fewer heads in a layer."""
  shapes = file.shapes
  is_grouped = any(
    # A layer without queries does not fit, and the error names them.
    shape != shapes.get(name.replace('k_proj', 'q_proj'), shape)
    for name, shape in shapes.items()
    if name.endswith('.attn.k_proj.weight')
  )
  return 'grouped' if is_grouped else 'attention'


def key_heads(file: FileFacts) -> tuple[int | None, int | None]:
  """Returns how many heads keys have, and the full layers at each end."""
  depth, heads = file.values['depth'], file.values['num_heads']
  if file.values['attention'] != 'grouped' or not isinstance(heads, int):
    return None, None  # a wrong number is refused with the model
  rows = (file.size(f'blocks.{i}.attn.k_proj.weight', 0) for i in range(depth))
  counts = [n * heads // file.values['hidden_size'] for n in rows]
  least, full = min(counts), counts.index(min(counts))
  ends = [heads] * full
  if not least or counts != [*ends, *[least] * (depth - 2 * full), *ends]:
    raise UserError(
      f'the keys of its layers have {", ".join(map(str, counts))} heads: the'
      f' first layers and as many last ones must have {heads}, and all between'
      ' them the same smaller number'
    )
  return least, full


def key_heads_word(values: Values) -> list[int] | None:
  """Returns timm's `num_kv_heads`; None: that of the architecture's name."""
  heads, is_rms = values['num_heads'], values['norm'] == 'rms_norm'
  if values['attention'] != 'grouped':  # the name of Sapiens2 has fewer
    return [heads] * values['depth'] if is_rms else None
  full = values['attention.full_layers']
  inner = values['depth'] - 2 * full
  ends = [heads] * full
  return ends + [values['attention.key_heads']] * inner + ends


def epsilon(file: FileFacts) -> float:
  """Returns the epsilon of norms that a file's kind of model has."""
  is_rms = file.values['norm'] == 'rms_norm'
  is_dino = rotation(file).get('kind') == 'dinov3'
  return 1e-5 if not is_rms and (is_dino or file.has('norm_pre.')) else 1e-6


def grid_word(values: Values) -> Any:
  """Returns timm's `ref_feat_shape`, where null is not the name's default."""
  grid = values.get(f'{_ROPE}.grid')
  return [*grid] if grid else NULL if values[_ROPE] else None


FIELDS = fields.table(
  """
mlp_dim             mlp_dim()  .mlp_ratio>  write=mlp_ratio()
block               -           .use_post_norm  True:post_norm,False:block
                    default=~eva02_enormous_?post_norm:block
mlp                 mlp()       .swiglu_mlp     True:swiglu,False:mlp
mlp.hidden_norm     blocks.#.mlp.norm.?         .scale_mlp
mlp.gelu            =exact
mlp.bias            =True
attention           attention()  .qkv_fused  False:grouped,True:attention
attention.qkv_bias  blocks.#.attn.{q_bias,qkv.bias,k_proj.bias}?   .qkv_bias
attention.out_bias  =True
attention.out_norm  blocks.#.attn.norm.?        .scale_attn_inner
block.layer_scale   blocks.#.gamma_1?1e-5:None  .init_values>
                    write=init_values()
norm                blocks.0.norm1.bias?layer_norm:rms_norm
layer_norm_epsilon  =epsilon()    -  noted
class_token         cls_token?    .class_token
registers           reg_token[1]  .num_reg_tokens
patches             =patches
patches.bias        patch_embed.proj.bias?      .use_pre_transformer_norm
                    True:False,False:True default=True
pre_norm            norm_pre.?    .use_pre_transformer_norm
last_norm           {norm,fc_norm}.weight?  .use_post_transformer_norm
                    write=last_norm&!pool.norm_after
positions.learned   pos_embed?    .use_abs_pos_emb
attention.key_bias  blocks.#.attn.{q_bias,qkv.bias_mask}?False:True
attention.key_heads key_heads()
attention.full_layers  full_layers()
>                   .num_kv_heads  key_heads_word()
>                   .attn_type     attn_type()
block.layer_scale_mlp  blocks.#.gamma_2?True:blocks.#.gamma_1?False:True
                    .attn_only_layer_scale  True:False,False:True
positions.rope      is_rotary()    .use_rot_pos_emb!
positions.rope.kind    kind()      .rope_type  write=rope_type()
positions.rope.base    base()      .rope_temperature
positions.rope.grid    grid()      .ref_feat_shape!  write=grid_word()
positions.rope.offset  offset()    .rope_grid_offset
>                   .rope_grid_indexing  grid_indexing()
>                   .rope_rotate_half    rotate_half()
pool.norm_after     fc_norm.weight?      .use_fc_norm!
                    write=pool.norm_after=True
pool.prefix         attn_pool.latent?
pool.num_heads      -  .attn_pool_num_heads!  COUNT
                    default=~vit_pe_core_?8:None write=pool_heads_word()
pool.mlp_dim        pool_width()  .attn_pool_mlp_ratio>  write=pool_ratio()
num_classes         head.weight[0]
!  !block=block
   norm=layer_norm&!attention=grouped&!attention.qk_norm
!  pool=map  norm=layer_norm
-  block.count distillation_token patches.stages patches.width head.norm
   head.pre_logits head.distillation !patches=normed !mlp=swiglu
   !distillation_token !distillation_token&head.distillation
""",
  *(
    attention,
    timm_vit.mlp,
    timm_vit.mlp_dim,
    timm_vit.pool_ratio,
    timm_vit.pool_width,
    epsilon,
    key_heads_word,
    is_rotary,
    grid_word,
  ),
  changes=timm_vit.FIELDS,
  below='model_args',
  mlp_ratio=lambda values: base.ratio(values['mlp_dim'], values['hidden_size']),
  init_values=lambda values: values['block.layer_scale'] or NULL,
  key_heads=lambda file: key_heads(file)[0],
  full_layers=lambda file: key_heads(file)[1],
  attn_type=tables.chosen("""
attention=grouped|attention.qkv_bias&attention.key_bias  rope
-                                                        eva
"""),
  rope_type=tables.chosen("""
positions.rope.kind=dinov3          dinov3
positions.rope.kind=rope_vit_mixed  mixed
positions.rope                      cat
"""),
  grid_indexing=tables.chosen("""
positions.rope.kind=rope_vit|positions.rope.kind=rope_vit_mixed  xy
positions.rope                                                   ij
"""),
  pool_heads_word=lambda values: (
    values.get('pool.num_heads', values['num_heads'])
    if values['pool'] == 'map'
    else None
  ),
  # None: that of a model without RoPE.
  rotate_half=lambda values: (
    values[f'{_ROPE}.kind'] == 'dinov3' if values[_ROPE] else None
  ),
  kind=lambda file: rotation(file).get('kind'),
  base=lambda file: rotation(file).get('base'),
  grid=lambda file: rotation(file).get('grid'),
  offset=lambda file: rotation(file).get('offset'),
)


def matches(file: FileFacts) -> bool:
  """Whether a file is of this class: its names differ from a ViT's."""
  if file.has('patch_embed.norm.weight'):  # AIMv2 has some of the names, too
    return False
  signs = 'attn.q_bias', 'attn.qkv.bias_mask', 'gamma_1'
  name = timm_names.architecture(file.config)
  is_named = any(re.match(pattern, name) for pattern, _ in _BY_NAME)
  has_apart = file.has(B + 'mlp.fc1_g.weight') and file.has(B + 'mlp.norm.')
  is_other = has_apart or attention(file) == 'grouped'
  return is_named or is_other or any(file.has(B + sign) for sign in signs)


EVA = dataclasses.replace(
  timm_vit.PLAIN,
  title="timm's Eva",
  arrays=ARRAYS,
  fields=FIELDS,
  matches=matches,
  unread_keys={
    **timm_vit.PLAIN.unread_keys,
    **fields.unread_keys(
      'rope_jitter_coords rope_rescale_coords rope_shift_coords swiglu_align_to'
    ),
  },
  names=timm_vit.named("""
norm=rms_norm                     vit_base_patch16_sapiens2
pre_norm&positions.rope.grid      vit_pe_core_base_patch16_224
positions.rope.kind=dinov3        vit_base_patch16_dinov3
-                                 eva02_base_patch14_224
"""),
)
