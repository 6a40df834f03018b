"""timm's class VisionTransformerRelPos: MLPs that compute relative positions.

Its arrays have the names of timm's ViT but for these MLPs. No array shows
whether the norms of a layer follow attention and MLP: that comes from the name
in config.json, or from the caller.
"""

import dataclasses

from vit_jax.weights.formats import fields
from vit_jax.weights.formats import tables
from vit_jax.weights.formats import timm_vit

_SHARED, _LAYERS = 'shared_rel_pos.mlp', 'blocks.#.attn.rel_pos.mlp'
_MLP_PATH = 'blocks_#/attention/relative_mlp'
ARRAYS = tables.arrays(f"""
relative_mlp/up    {_SHARED}.fc1  dense*
relative_mlp/down  {_SHARED}.fc2  dense*
{_MLP_PATH}/up         {_LAYERS}.fc1  dense*
{_MLP_PATH}/down       {_LAYERS}.fc2  dense*
{timm_vit.LAYERS}
""")
# Of an MLP, [H, hidden].
_LAST = f'{_SHARED}.fc2.weight|{_LAYERS}.fc2.weight'


FIELDS = fields.table(
  rf"""
mlp.gelu      =exact
num_heads     {_LAST}[0]    .num_heads
last_norm     =True
block         =~vit_\w+_rpn_?post_norm:block
positions.relative_mlp_bias             =True
positions.relative_mlp_bias.hidden_dim  {_LAST}[1]   .rel_pos_dim
positions.relative_mlp_bias.shared      {_SHARED}?   .shared_rel_pos
>             .rel_pos_type  'mlp'
-  registers positions.learned positions.learned.tokens
""",
  changes=timm_vit.TOKEN_OR_MEAN,
  below='model_args',
)


RELPOS = dataclasses.replace(
  timm_vit.PLAIN,
  title="timm's VisionTransformerRelPos",
  arrays=ARRAYS,
  fields=FIELDS,
  matches=lambda file: file.has(_LAST),
  unread_keys={
    **timm_vit.PLAIN.unread_keys,
    **fields.unread_keys('act_layer=gelu rel_pos_type=mlp'),
  },
  header=timm_vit.named("""
block=post_norm  vit_relpos_base_patch16_rpn_224
-                vit_relpos_base_patch16_224
"""),
  lacks=tables.chosen("""
block=post_norm&block.layer_scale  post_norm(layer_scale)
"""),
)
