"""timm's Beit and VisionTransformerRelPos: positions relative to each other.

Beit has tables of them and keys without bias, under BEiT's own names, and the
other class MLPs. There no array shows whether the norms of a layer follow
attention and MLP: that comes from the name in config.json, or from the caller.
"""

import dataclasses

from vit_jax.weights.formats import fields
from vit_jax.weights.formats import tables
from vit_jax.weights.formats import timm_vit

_TABLE = 'relative_position_bias_table'
_SHARED, _LAYERS = f'rel_pos_bias.{_TABLE}', f'blocks.#.attn.{_TABLE}'
_TABLES = f'{_SHARED}|{_LAYERS}'  # [rows, H]
# Layers of BEiT and of timm's class Eva.
LAYERS = tables.arrays(f"""
blocks_#/attention/qkv/bias blocks.#.attn.{{q,v}}_bias two ?!attention.key_bias
blocks_#/layer_scale1       blocks.#.gamma_1
blocks_#/layer_scale2       blocks.#.gamma_2
{timm_vit.LAYERS}
""")
# What an objective that predicts tokens has beside the trunk, as 'head'.
HEAD = tables.arrays('head lm_head dense*')
# Arrays outside the model.
IGNORED = r'lm_head\..*|.*relative_position_index'
_MLP, _MLPS = 'shared_rel_pos.mlp', 'blocks.#.attn.rel_pos.mlp'
_MLP_PATH = 'blocks_#/attention/relative_mlp'
_LAST = f'{_MLP}.fc2.weight|{_MLPS}.fc2.weight'  # of an MLP, [H, hidden]


BEIT = dataclasses.replace(
  timm_vit.PLAIN,
  title="timm's Beit",
  arrays=[
    *tables.arrays(f"""
relative_position_bias                     {_SHARED}
blocks_#/attention/relative_position_bias  {_LAYERS}
"""),
    *LAYERS,
  ],
  fields=fields.table(
    f"""
mlp.gelu            =exact
attention.qkv_bias  blocks.#.attn.{{q_bias,qkv.bias}}?  .qkv_bias!
num_heads           {_TABLES}[1]           .num_heads
block.layer_scale   blocks.#.gamma_1?1e-5:None  .init_values>
                    write=init_values()
class_token         =True
mask_token          mask_token?
last_norm           =True
positions.learned   pos_embed?             .use_abs_pos_emb!
positions.learned.tokens  =all
attention.key_bias  blocks.#.attn.q_bias?False:True
positions.relative_bias         =True
positions.relative_bias.shared  {_SHARED}?
>                   .use_rel_pos_bias         !positions.relative_bias.shared
>                   .use_shared_rel_pos_bias  positions.relative_bias.shared
pool.norm_after     fc_norm.weight?        .use_fc_norm!
!  attention.qkv_bias  !attention.key_bias
-  attention.qk_norm registers !block=post_norm
""",
    timm_vit.init_values,
    changes=timm_vit.TOKEN_OR_MEAN,
    below='model_args',
  ),
  matches=lambda file: file.has(_TABLES),
  resize=lambda file: 'geometric',
  names=timm_vit.named("""
hidden_size=1024  beit_large_patch16_224
-                 beit_base_patch16_224
"""),
)
RELPOS = dataclasses.replace(
  timm_vit.PLAIN,
  title="timm's VisionTransformerRelPos",
  arrays=tables.arrays(f"""
relative_mlp/up    {_MLP}.fc1   dense*
relative_mlp/down  {_MLP}.fc2   dense*
{_MLP_PATH}/up     {_MLPS}.fc1  dense*
{_MLP_PATH}/down   {_MLPS}.fc2  dense*
{timm_vit.LAYERS}
"""),
  fields=fields.table(
    f"""
mlp.gelu      =exact
num_heads     {_LAST}[0]    .num_heads
last_norm     =True
block         block()
positions.relative_mlp_bias             =True
positions.relative_mlp_bias.hidden_dim  {_LAST}[1]  .rel_pos_dim
positions.relative_mlp_bias.shared      {_MLP}?     .shared_rel_pos
>             .rel_pos_type  'mlp'
-  registers positions.learned positions.learned.tokens
""",
    timm_vit.block,
    changes=timm_vit.TOKEN_OR_MEAN,
    below='model_args',
  ),
  matches=lambda file: file.has(_LAST),
  unread_keys={
    **timm_vit.PLAIN.unread_keys,
    **fields.unread_keys('act_layer=gelu rel_pos_type=mlp'),
  },
  names=timm_vit.named("""
block=post_norm  vit_relpos_base_patch16_rpn_224
-                vit_relpos_base_patch16_224
"""),
)
