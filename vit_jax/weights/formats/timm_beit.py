"""BEiT's own names, which timm keeps: relative positions, keys without bias."""

from typing import Any

from vit_jax.models import vit
from vit_jax.weights.files import typed
from vit_jax.weights.formats import base
from vit_jax.weights.formats import tables
from vit_jax.weights.formats import timm_names
from vit_jax.weights.formats import timm_vit
from vit_jax.weights.formats.fields import always
from vit_jax.weights.formats.fields import changed
from vit_jax.weights.formats.fields import has
from vit_jax.weights.formats.fields import Seen
from vit_jax.weights.formats.fields import seen
from vit_jax.weights.formats.fields import shape
from vit_jax.weights.formats.fields import told
from vit_jax.weights.formats.format import Format
from vit_jax.weights.formats.format import Size
from vit_jax.weights.formats.format import Values

_TABLE = 'relative_position_bias_table'
_SHARED, _LAYERS = f'rel_pos_bias.{_TABLE}', f'blocks.#.attn.{_TABLE}'
# Layers of BEiT and of timm's class Eva.
LAYERS = tables.arrays(
  f"""
blocks_#/attention/qkv/bias blocks.#.attn.{{q,v}}_bias qv ?!attention.key_bias
blocks_#/layer_scale1       blocks.#.gamma_1
blocks_#/layer_scale2       blocks.#.gamma_2
{timm_vit.LAYERS}
""",
  qv=tables.split(2, 0, tables.FLAT),
)
ARRAYS = [
  *tables.arrays(f"""
relative_position_bias                     {_SHARED}
blocks_#/attention/relative_position_bias  {_LAYERS}
"""),
  *LAYERS,
]
# What an objective that predicts tokens has beside the trunk, as 'head'.
HEAD = tables.arrays('head lm_head dense*')
# Arrays outside the model.
IGNORED = r'lm_head\..*|.*relative_position_index'
A, B = timm_vit.A, timm_vit.B


def _table(file: Seen) -> tuple[int, ...]:
  """Returns the shape of a table of relative positions, [rows, H], or ()."""
  return file.shape(_SHARED) or file.shape(_LAYERS)


def has_qkv_bias(file: Seen) -> bool:
  """Whether queries and values have biases."""
  return any(
    file.has(f'{B}attn.{x}') for x in ('q_bias', 'qkv.bias', 'k_proj.bias')
  )


FIELDS = (
  *changed(
    timm_vit.PLAIN,
    always('mlp.gelu', 'exact'),
    seen('attention.qkv_bias', has_qkv_bias, A + 'qkv_bias', is_stated=True),
    seen('num_heads', lambda file: _table(file)[1], A + 'num_heads'),
    has('block.layer_scale', B + 'gamma_1', yes=1e-5, no=None),
    always('class_token', True),
    has('mask_token', 'mask_token'),
    always('last_norm', True),
    has(
      'positions.learned', 'pos_embed', A + 'use_abs_pos_emb', is_stated=True
    ),
    always('positions.learned.tokens', 'all'),
    without='attention.qk_norm registers',
  ),
  has('attention.key_bias', B + 'attn.q_bias', yes=False, no=True),
  always('positions.relative_bias', True),
  has('positions.relative_bias.shared', _SHARED),
  told(
    A + 'use_rel_pos_bias',
    lambda values: not values['positions.relative_bias.shared'],
  ),
  told(
    A + 'use_shared_rel_pos_bias',
    lambda values: values['positions.relative_bias.shared'],
  ),
  *changed(
    timm_vit.TOKEN_OR_MEAN,
    has('pool.norm_after', 'fc_norm.weight', A + 'use_fc_norm', is_stated=True),
  ),
  shape('num_classes', 'head.weight', 0),
)


def image_size(file: Seen) -> Size:
  """Returns (height, width) that the positions are for."""
  patch, default = file.values['patch_size'], timm_names.input_size(file.config)
  if file.has('pos_embed'):
    return timm_vit.image_size(file)
  return base.relative_size(_table(file)[0], patch, file.hints, default)


def lacks(values: Values) -> str | None:
  """Returns what timm's class has no place for, though its arrays have."""
  if values['attention.qkv_bias'] and values['attention.key_bias']:
    return 'attention(key_bias=True) beside relative_bias'
  return None


def header(values: Values) -> dict[str, Any]:
  """Returns what timm's config.json says of the architecture."""
  size = 'large' if timm_vit.is_of_size(values, 'L') else 'base'
  return timm_vit.named(values, f'beit_{size}_patch16_224')


BEIT = Format(
  title="timm's Beit",
  family=vit.ViT,
  arrays=ARRAYS,
  fields=FIELDS,
  matches=lambda file: bool(_table(file)),
  image_size=image_size,
  channels=timm_vit.channels,
  preprocess=timm_names.preprocess,
  resize=lambda file: 'geometric',
  scope='model_args',
  known={
    **timm_names.IGNORED,
    'norm_layer': timm_names.LAYER_NORM,
    'scale_mlp': typed.one_of(False),
    'swiglu_mlp': typed.one_of(False),
  },
  header=header,
  lacks=lacks,
)
