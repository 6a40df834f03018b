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
from vit_jax.weights.formats.fields import has
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


_OPTION = 'positions.relative_mlp_bias'
FIELDS = (
  *changed(
    timm_vit.PLAIN,
    always('mlp.gelu', 'exact'),
    seen('num_heads', lambda file: _last(file)[0], A + 'num_heads'),
    always('last_norm', True),
    without='registers positions.learned positions.learned.tokens',
  ),
  seen('block', block),
  always(_OPTION, True),
  seen(f'{_OPTION}.hidden_dim', lambda file: _last(file)[1], A + 'rel_pos_dim'),
  has(f'{_OPTION}.shared', _SHARED, A + 'shared_rel_pos'),
  told(A + 'rel_pos_type', lambda values: 'mlp'),
  *timm_vit.TOKEN_OR_MEAN,
  shape('num_classes', 'head.weight', 0),
)


def image_size(file: Seen) -> Size:
  """Returns (height, width) of the images, which no array shows."""
  patch, default = file.values['patch_size'], timm_names.input_size(file.config)
  return base.image_size(None, patch, file.hints, default)


def lacks(values: Values) -> str | None:
  """Returns what timm's class has no place for, though its arrays have."""
  is_after = values['block'] == 'post_norm'
  return (
    'post_norm(layer_scale)'
    if is_after and values['block.layer_scale']
    else None
  )


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
