"""BEiT's own names, which timm keeps: relative positions, keys without bias."""

import dataclasses

from vit_jax.weights.formats import base
from vit_jax.weights.formats import fields
from vit_jax.weights.formats import tables
from vit_jax.weights.formats import timm_names
from vit_jax.weights.formats import timm_vit
from vit_jax.weights.formats.fields import FileFacts
from vit_jax.weights.formats.format import Size

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
_TABLES = f'{_SHARED}|{_LAYERS}'  # [rows, H]
FIELDS = fields.table(
  f"""
mlp.gelu            =exact
attention.qkv_bias  blocks.#.attn.{{q_bias,qkv.bias}}?  .qkv_bias!
num_heads           {_TABLES}[1]           .num_heads
block.layer_scale   blocks.#.gamma_1?1e-5:None
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
-  attention.qk_norm registers
""",
  changes=timm_vit.TOKEN_OR_MEAN,
  below='model_args',
)


def image_size(file: FileFacts) -> Size:
  """Returns (height, width) that the positions are for."""
  patch, default = file.values['patch_size'], timm_names.input_size(file.config)
  if file.has('pos_embed'):
    return timm_vit.image_size(file)
  rows = file.size(_TABLES, 0)
  return base.relative_size(rows, patch, file.hints, default)


BEIT = dataclasses.replace(
  timm_vit.PLAIN,
  title="timm's Beit",
  arrays=ARRAYS,
  fields=FIELDS,
  matches=lambda file: file.has(_TABLES),
  image_size=image_size,
  resize=lambda file: 'geometric',
  header=timm_vit.named("""
hidden_size=1024  beit_large_patch16_224
-                 beit_base_patch16_224
"""),
  lacks=tables.chosen("""
attention.qkv_bias&attention.key_bias
  attention(key_bias=True) beside relative_bias
"""),
)
