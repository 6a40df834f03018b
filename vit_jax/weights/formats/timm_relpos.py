"""timm's class VisionTransformerRelPos: MLPs that compute relative positions.

Its arrays have the names of timm's ViT but for these MLPs. No array shows
whether the norms of a layer follow attention and MLP: that comes from the name
in config.json, or from the caller.
"""

import dataclasses
import re

from vit_jax.weights.files import typed
from vit_jax.weights.formats import base
from vit_jax.weights.formats import fields
from vit_jax.weights.formats import tables
from vit_jax.weights.formats import timm_names
from vit_jax.weights.formats import timm_vit
from vit_jax.weights.formats.fields import Seen
from vit_jax.weights.formats.format import Size

_SHARED, _LAYERS = 'shared_rel_pos.mlp', 'blocks.#.attn.rel_pos.mlp'
_OURS = 'blocks_#/attention/relative_mlp'
ARRAYS = tables.arrays(f"""
relative_mlp/up    {_SHARED}.fc1  dense*
relative_mlp/down  {_SHARED}.fc2  dense*
{_OURS}/up         {_LAYERS}.fc1  dense*
{_OURS}/down       {_LAYERS}.fc2  dense*
{timm_vit.LAYERS}
""")
# Of an MLP, [H, hidden].
_LAST = f'{_SHARED}.fc2.weight|{_LAYERS}.fc2.weight'


def block(file: Seen) -> str:
  """Returns the block that an architecture's name stands for."""
  name = timm_names.architecture(file.config)
  return 'post_norm' if re.match(r'vit_\w+_rpn_', name) else 'block'


FIELDS = fields.table(
  f"""
mlp.gelu      =exact
num_heads     {_LAST}[0]    .num_heads
last_norm     =True
block         =block()
positions.relative_mlp_bias             =True
positions.relative_mlp_bias.hidden_dim  {_LAST}[1]   .rel_pos_dim
positions.relative_mlp_bias.shared      {_SHARED}?   .shared_rel_pos
>             .rel_pos_type  rel_pos_type()
-  registers positions.learned positions.learned.tokens
""",
  block,
  changes=timm_vit.TOKEN_OR_MEAN,
  below='model_args',
  rel_pos_type=lambda values: 'mlp',
)


def image_size(file: Seen) -> Size:
  """Returns (height, width) of the images, which no array shows."""
  patch, default = file.values['patch_size'], timm_names.input_size(file.config)
  return base.image_size(None, patch, file.hints, default)


RELPOS = dataclasses.replace(
  timm_vit.PLAIN,
  title="timm's VisionTransformerRelPos",
  arrays=ARRAYS,
  fields=FIELDS,
  matches=lambda file: file.has(_LAST),
  image_size=image_size,
  known={
    **timm_vit.PLAIN.known,
    'act_layer': typed.one_of('gelu'),
    'rel_pos_type': typed.one_of('mlp'),
  },
  header=timm_vit.named(
    tables.chosen("""
block=post_norm  vit_relpos_base_patch16_rpn_224
-                vit_relpos_base_patch16_224
""")
  ),
  lacks=tables.chosen("""
block=post_norm&block.layer_scale  post_norm(layer_scale)
"""),
)
