"""timm's class Eva: EVA-02, DINOv3, RoPE-ViT and other rotary ViTs.

Their arrays have the names of timm's ViT but for a few. No array shows how they
rotate: that comes from the name in config.json, or from the caller.
"""

from collections.abc import Mapping
import re
from typing import Any

from absl import logging

from vit_jax.config import UserError
from vit_jax.models import registry
from vit_jax.models import vit
from vit_jax.models.parts import rotary
from vit_jax.weights import preprocessing
from vit_jax.weights.files import typed
from vit_jax.weights.formats import base
from vit_jax.weights.formats import tables
from vit_jax.weights.formats import timm_beit
from vit_jax.weights.formats import timm_names
from vit_jax.weights.formats import timm_vit
from vit_jax.weights.formats.fields import always
from vit_jax.weights.formats.fields import changed
from vit_jax.weights.formats.fields import has
from vit_jax.weights.formats.fields import NULL
from vit_jax.weights.formats.fields import said
from vit_jax.weights.formats.fields import Seen
from vit_jax.weights.formats.fields import seen
from vit_jax.weights.formats.fields import shape
from vit_jax.weights.formats.fields import told
from vit_jax.weights.formats.format import Format
from vit_jax.weights.formats.format import show
from vit_jax.weights.formats.format import Values

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
_POST_NORM = r'eva02_enormous_'
# Options of `rope` that the names of timm's architectures stand for.
_BY_NAME: tuple[tuple[str, Options], ...] = (
  (_POST_NORM, {}),
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
_TYPES = {'dinov3': 'dinov3', 'rope_vit_mixed': 'mixed'}


def rotation(file: Seen) -> Options:
  """Returns the options of `rope`; {}: queries and keys are not rotated.

  Raises:
    UserError: The config says something that is not computed here.
  """
  asked = file.hints.values
  if _ROPE in asked:
    return {
      name: asked.get(f'{_ROPE}.{name}', option.default)
      for name, option in registry.options_of(rotary.Rope).items()
      if name != 'num_heads' and asked[_ROPE]
    }
  config, name = file.config, timm_names.architecture(file.config)
  by_name = (x for pattern, x in _BY_NAME if re.match(pattern, name))
  kind = config.get(A + 'rope_type', typed.one_of('cat', *_TYPES.values()))
  order = config.get(A + 'rope_grid_indexing', typed.one_of('ij', 'xy'))
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


def _by_arrays(file: Seen) -> Options:
  """Returns the most likely options, of published models with such arrays.

  All with positions have EVA-02's rotation, if their MLP is gated, or none.
  """
  if file.has(_FREQUENCIES):
    return _MIXED
  if file.has('pos_embed'):
    return _EVA02 if file.values['mlp'] == 'swiglu' else {}
  has_prefix = file.has('cls_token') and file.has('reg_token')
  return _DINOV3 if has_prefix else _EVA02


def is_rotary(file: Seen) -> bool:
  """Whether queries and keys are rotated; warns if nothing says how."""
  options = rotation(file)
  is_said = (
    timm_names.architecture(file.config)
    or file.config.get(A + 'rope_type', typed.TEXT)
    or file.hints.stored_size
    or _ROPE in file.hints.values
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


def block(file: Seen) -> str:
  """Returns whether the norms of a layer follow attention and MLP."""
  asked: str | None = file.hints.values.get('block')
  if asked in ('block', 'post_norm'):
    return asked
  is_named = re.match(_POST_NORM, timm_names.architecture(file.config))
  is_after = file.config.get(A + 'use_post_norm', typed.TRUTH, bool(is_named))
  return 'post_norm' if is_after else 'block'


def key_heads(file: Seen) -> tuple[int | None, int | None]:
  """Returns how many heads keys have, and the full layers at each end.

  Raises:
    UserError: Other layers than the first and last have keys of all heads.
  """
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


def _key_heads(values: Values) -> list[int] | None:
  """Returns timm's `num_kv_heads`; None: that of the architecture's name."""
  heads, is_rms = values['num_heads'], values['norm'] == 'rms_norm'
  if values['attention'] != 'grouped':  # the name of Sapiens2 has fewer
    return [heads] * values['depth'] if is_rms else None
  full = values['attention.full_layers']
  inner = values['depth'] - 2 * full
  ends = [heads] * full
  return ends + [values['attention.key_heads']] * inner + ends


def epsilon(file: Seen) -> float:
  """Returns the epsilon of norms that a file's kind of model has."""
  if file.values['norm'] == 'rms_norm':
    return 1e-6
  is_dino = rotation(file).get('kind') == 'dinov3'
  return 1e-5 if is_dino or file.has('norm_pre.') else 1e-6


def pool_heads(file: Seen) -> int | None:
  """Returns the heads of attention pooling that a name stands for."""
  is_core = re.match('vit_pe_core_', timm_names.architecture(file.config))
  return 8 if is_core else None


def _pool_heads(values: Values) -> int | None:
  """Returns timm's `attn_pool_num_heads`."""
  heads: int = values.get('pool.num_heads', values['num_heads'])
  return heads if values['pool'] == 'map' else None


def _pool_ratio(values: Values) -> float | None:
  """Returns timm's `attn_pool_mlp_ratio`."""
  width: int = values.get('pool.mlp_dim', values['mlp_dim'])
  return width / values['hidden_size'] if values['pool'] == 'map' else None


def _has_last_norm(values: Values) -> bool:
  """Returns timm's `use_post_transformer_norm`."""
  return values['last_norm'] and not values.get('pool.norm_after')


def _attention(values: Values) -> str:
  """Returns timm's `attn_type`."""
  is_whole = values['attention.qkv_bias'] and values['attention.key_bias']
  is_rope = is_whole or values['attention'] == 'grouped'
  return 'rope' if is_rope else 'eva'


def _grid(values: Values) -> Any:
  """Returns timm's `ref_feat_shape`, where null is not the name's default."""
  if not values.get('positions.rope'):
    return None
  grid = values['positions.rope.grid']
  return list(grid) if grid else NULL


def _if_rotary(word: Any) -> Any:
  """Returns a function that writes a word of the kind of rotation."""

  def write(values: Values) -> Any:
    kind = values.get('positions.rope.kind')
    return word(kind) if kind else None

  return write


FIELDS = (
  *changed(
    timm_vit.FIELDS,
    told(
      A + 'mlp_ratio',
      lambda values: base.ratio(values['mlp_dim'], values['hidden_size']),
    ),
    seen(
      'block',
      block,
      A + 'use_post_norm',
      words={True: 'post_norm', False: 'block'},
    ),
    seen(
      'mlp',
      timm_vit.mlp,
      A + 'swiglu_mlp',
      words={True: 'swiglu', False: 'mlp'},
    ),
    has('mlp.hidden_norm', B + 'mlp.norm.', A + 'scale_mlp'),
    always('mlp.gelu', 'exact'),
    always('mlp.bias', True),
    has(
      'attention',
      B + 'attn.k_proj.weight',
      A + 'qkv_fused',
      yes='grouped',
      no='attention',
      words={False: 'grouped', True: 'attention'},
    ),
    seen('attention.qkv_bias', timm_beit.has_qkv_bias, A + 'qkv_bias'),
    always('attention.out_bias', True),
    has('attention.out_norm', B + 'attn.norm.', A + 'scale_attn_inner'),
    has('block.layer_scale', B + 'gamma_1', yes=1e-5, no=None),
    told(A + 'init_values', lambda values: values['block.layer_scale'] or NULL),
    seen(
      'norm',
      lambda file: (
        'layer_norm' if file.has('blocks.0.norm1.bias') else 'rms_norm'
      ),
    ),
    always('layer_norm_epsilon', epsilon, is_noted=True),
    has('class_token', 'cls_token', A + 'class_token'),
    shape('registers', 'reg_token', 1, A + 'num_reg_tokens'),
    always('patches', 'patches'),
    has('pre_norm', 'norm_pre.', A + 'use_pre_transformer_norm'),
    seen(
      'last_norm',
      lambda file: file.has('norm.weight') or file.has('fc_norm.weight'),
      A + 'use_post_transformer_norm',
      write=_has_last_norm,
    ),
    has('positions.learned', 'pos_embed', A + 'use_abs_pos_emb'),
    without='block.count distillation_token patches.stages patches.width',
  ),
  has('attention.key_bias', B + 'attn.q_bias', yes=False, no=True),
  seen('attention.key_heads', lambda file: key_heads(file)[0]),
  seen('attention.full_layers', lambda file: key_heads(file)[1]),
  told(A + 'num_kv_heads', _key_heads),
  told(A + 'attn_type', _attention),
  seen(
    'block.layer_scale_mlp',
    lambda file: not file.has(B + 'gamma_1') or file.has(B + 'gamma_2'),
    A + 'attn_only_layer_scale',
    write=lambda values: not values['block.layer_scale_mlp'],
  ),
  seen(_ROPE, is_rotary, A + 'use_rot_pos_emb', is_stated=True),
  seen(
    f'{_ROPE}.kind',
    lambda file: rotation(file).get('kind'),
    A + 'rope_type',
    write=_if_rotary(lambda kind: _TYPES.get(kind, 'cat')),
  ),
  seen(
    f'{_ROPE}.base',
    lambda file: rotation(file).get('base'),
    A + 'rope_temperature',
  ),
  seen(
    f'{_ROPE}.grid',
    lambda file: rotation(file).get('grid'),
    A + 'ref_feat_shape',
    write=_grid,
    is_stated=True,
  ),
  seen(
    f'{_ROPE}.offset',
    lambda file: rotation(file).get('offset'),
    A + 'rope_grid_offset',
  ),
  told(
    A + 'rope_grid_indexing',
    _if_rotary(lambda kind: 'xy' if 'rope_vit' in kind else 'ij'),
  ),
  told(A + 'rope_rotate_half', _if_rotary(lambda kind: kind == 'dinov3')),
  *changed(
    timm_vit.POOL,
    has(
      'pool.norm_after',
      'fc_norm.weight',
      A + 'use_fc_norm',
      write=lambda values: bool(values.get('pool.norm_after')),
      is_stated=True,
    ),
    has('pool.prefix', 'attn_pool.latent'),
  ),
  said(
    'pool.num_heads',
    A + 'attn_pool_num_heads',
    pool_heads,
    kind=typed.COUNT,
    write=_pool_heads,
    is_stated=True,
  ),
  told(A + 'attn_pool_mlp_ratio', _pool_ratio),
  shape('num_classes', 'head.weight', 0),
)


def matches(file: Seen) -> bool:
  """Whether a file is of this class: its names differ from those of a ViT."""
  if file.has('patch_embed.norm.weight'):  # AIMv2 has some of the names, too
    return False
  signs = 'attn.q_bias', 'attn.k_proj.weight', 'gamma_1', 'mlp.fc1_g.weight'
  name = timm_names.architecture(file.config)
  is_named = any(re.match(pattern, name) for pattern, _ in _BY_NAME)
  return is_named or any(file.has(B + sign) for sign in signs)


def lacks(values: Values) -> str | None:
  """Returns what timm's class has no place for, though its arrays have."""
  if values['patches.bias'] == values['pre_norm']:
    bias, pre_norm = values['patches.bias'], values['pre_norm']
    return f'pre_norm={pre_norm} beside patches(bias={bias})'
  if values.get('positions.learned.tokens') == 'class':
    return "learned(tokens='class')"
  is_rms = values['norm'] == 'rms_norm'
  if values['pool'] == 'map' and is_rms:
    return "attention pooling beside norm='rms_norm'"
  missing = {
    'block.layer_scale': values['block.layer_scale'] is not None,
    'attention.qk_norm': values['attention.qk_norm'],
    'norm': is_rms,
    'attention': values['attention'] == 'grouped',
  }
  path = next((x for x, is_there in missing.items() if is_there), None)
  if values['block'] == 'block' or path is None:
    return None
  return f"{show(path, values[path], values)} beside block='post_norm'"


def header(values: Values) -> dict[str, Any]:
  """Returns what timm's config.json says of the architecture."""
  name = 'eva02_base_patch14_224'
  if values['norm'] == 'rms_norm':
    name = 'vit_base_patch16_sapiens2'
  elif values['pre_norm'] and values.get(f'{_ROPE}.grid'):
    name = 'vit_pe_core_base_patch16_224'
  elif values.get(f'{_ROPE}.kind') == 'dinov3':
    name = 'vit_base_patch16_dinov3'
  return timm_vit.named(values, name)


EVA = Format(
  title="timm's Eva",
  family=vit.ViT,
  arrays=ARRAYS,
  fields=FIELDS,
  matches=matches,
  image_size=timm_vit.image_size,
  channels=timm_vit.channels,
  preprocess=timm_vit.preprocess,
  resize=timm_vit.resize,
  scope='model_args',
  known={
    **timm_names.IGNORED,
    **dict.fromkeys(
      'rope_jitter_coords rope_rescale_coords rope_shift_coords'
      ' swiglu_align_to'.split()
    ),
    'attn_head_dim': typed.one_of(None),
    'norm_layer': timm_names.LAYER_NORM,
  },
  header=header,
  lacks=lacks,
)
