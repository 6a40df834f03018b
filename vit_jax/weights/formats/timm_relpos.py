"""timm's class VisionTransformerRelPos: MLPs that compute relative positions.

Its arrays have the names of timm's ViT but for these MLPs. No array shows
whether the norms of a layer follow attention and MLP: that comes from the name
in config.json, or from the caller.
"""

import re
from typing import Any

from vit_jax.models import vit
from vit_jax.weights.files import typed
from vit_jax.weights.formats import base
from vit_jax.weights.formats import tables
from vit_jax.weights.formats import timm_names
from vit_jax.weights.formats import timm_vit
from vit_jax.weights.formats.fields import always
from vit_jax.weights.formats.fields import changed
from vit_jax.weights.formats.fields import said
from vit_jax.weights.formats.fields import Seen
from vit_jax.weights.formats.fields import seen
from vit_jax.weights.formats.fields import shape
from vit_jax.weights.formats.fields import told
from vit_jax.weights.formats.format import Format
from vit_jax.weights.formats.format import Size
from vit_jax.weights.formats.format import Values

_SHARED, _LAYERS = 'shared_rel_pos.mlp', 'blocks.#.attn.rel_pos.mlp'
_OURS = 'blocks_#/attention/relative_mlp'
ARRAYS = tables.arrays(f"""
relative_mlp/up    {_SHARED}.fc1  dense*
relative_mlp/down  {_SHARED}.fc2  dense*
{_OURS}/up         {_LAYERS}.fc1  dense*
{_OURS}/down       {_LAYERS}.fc2  dense*
{timm_vit.LAYERS}
""")
A = timm_vit.A


def _last(file: Seen) -> tuple[int, ...]:
  """Returns the shape of an MLP's last kernel, [H, hidden], or ()."""
  last = '.fc2.weight'
  return file.shape(_SHARED + last) or file.shape(_LAYERS + last)


def block(file: Seen) -> str:
  """Returns which layers a name stands for, unless the caller says it."""
  asked: str | None = file.hints.values.get('block')
  if asked in ('block', 'post_norm'):
    return asked
  name = timm_names.architecture(file.config)
  return 'post_norm' if re.match(r'vit_\w+_rpn_', name) else 'block'


_IS_SHARED = 'positions.relative_mlp_bias.shared'
FIELDS = (
  *changed(
    timm_vit.FIELDS,
    seen('block', block),
    said('mlp.gelu', '', 'exact'),
    always('mlp.bias', True),
    always('attention.out_bias', True),
    seen('num_heads', lambda file: _last(file)[0], A + 'num_heads'),
    seen('norm', lambda file: 'layer_norm'),
    said('layer_norm_epsilon', '', 1e-6, is_noted=True),
    always('patches', 'patches'),
    always('patches.bias', True),
    seen(
      'last_norm',
      lambda file: file.has('norm.weight') or file.has('fc_norm.weight'),
    ),
    always('positions.relative_mlp_bias', True),
    seen(
      'positions.relative_mlp_bias.hidden_dim',
      lambda file: _last(file)[1],
      A + 'rel_pos_dim',
    ),
    seen(
      _IS_SHARED,
      lambda file: file.has(_SHARED),
      A + 'shared_rel_pos',
      is_stated=True,
    ),
    told(A + 'rel_pos_type', lambda values: 'mlp'),
    without=(
      'block.count mlp mlp.hidden_norm attention attention.out_norm'
      ' distillation_token registers patches.stages patches.width pre_norm'
      f' positions.learned positions.learned.tokens {A}no_embed_class'
    ),
  ),
  *changed(
    timm_vit.POOL,
    without='pool.prefix pool.query pool.bias pool.mlp_dim pool.gelu',
  ),
  shape('num_classes', 'head.weight', 0),
)


def image_size(file: Seen) -> Size:
  """Returns (height, width) of the images, which no array shows."""
  patch, default = file.values['patch_size'], timm_names.input_size(file.config)
  return base.image_size(None, patch, file.hints, default)


def lacks(values: Values) -> str | None:
  """Returns what timm's class has no place for, though its arrays have."""
  if values['pool'] == 'map':
    return "pool='map' beside relative_mlp_bias"
  if values['block'] == 'post_norm' and values['block.layer_scale']:
    return 'post_norm(layer_scale)'
  return None if values['last_norm'] else 'last_norm=False'


def header(values: Values) -> dict[str, Any]:
  """Returns what timm's config.json says of the architecture."""
  after = 'rpn_' if values['block'] == 'post_norm' else ''
  return timm_vit.named(values, f'vit_relpos_base_patch16_{after}224')


RELPOS = Format(
  title="timm's VisionTransformerRelPos",
  family=vit.ViT,
  arrays=ARRAYS,
  fields=FIELDS,
  matches=lambda file: bool(_last(file)),
  image_size=image_size,
  channels=timm_vit.channels,
  preprocess=timm_vit.preprocess,
  resize=timm_vit.resize,
  scope='model_args',
  known={
    **timm_names.IGNORED,
    'act_layer': typed.one_of('gelu'),
    'norm_layer': timm_names.LAYER_NORM,
    'rel_pos_type': typed.one_of('mlp'),
  },
  header=header,
  lacks=lacks,
)
