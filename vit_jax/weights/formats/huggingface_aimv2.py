"""AIMv2 in the format of Hugging Face transformers (arXiv:2411.14402).

Norms only scale, one follows the patch embedding, and MLPs are gated. Attention
pooling, if there is any, neither projects its query nor has an MLP. Of a file
of both towers the image tower is read.
"""

from vit_jax.weights.formats import fields
from vit_jax.weights.formats import huggingface_fields as common
from vit_jax.weights.formats import tables

KIND = 'aimv2_vision_model'
TYPES = (KIND,)
# Arrays outside the image tower.
IGNORED = r'text_model\..*|(text|visual)_projection\..*|logit_scale'

L = 'encoder.layers.#'
_PATCH = 'embeddings.patch_embed'
_POSITIONS = 'embeddings.position_embedding.weight'
ARRAYS = tables.arrays(
  f"""
patch_embedding         {_PATCH}                        conv*
patch_norm              embeddings.rms_norm             norm*
position_embedding      {_POSITIONS}                    row
blocks_#/norm1          {L}.rms_norm1                   norm*
blocks_#/attention/qkv  {L}.attention.{{q,k,v}}_proj      parts*
blocks_#/attention/out  {L}.attention.out_proj          dense2*
blocks_#/norm2          {L}.rms_norm2                   norm*
blocks_#/mlp/up         {L}.ffn.{{gate,up}}_proj          halves*
blocks_#/mlp/down       {L}.ffn.down_proj               dense*
norm                    rms_norm                        norm*
map_head/probe          head.cls_token
map_head/key_value      head.{{k,v}}_proj                 parts*
map_head/out            head.output_proj                dense2*
""",
  row=tables.squeezed(0),
)
FIELDS = fields.table(
  f"""
patches             =normed
norm                =rms_norm
layer_norm_epsilon  -  rms_norm_eps!  POSITIVE default=1e-5
attention.qkv_bias  {L}.attention.q_proj.bias?  qkv_bias!
attention.out_bias  @attention.qkv_bias
mlp.bias            {L}.ffn.down_proj.bias?     mlp_bias!
positions.learned   {_POSITIONS}?
positions.sincos2d  {_POSITIONS}?False:True
positions.sincos2d.kind  =sincos2d_mae
>                   is_native                   !positions.learned
class_token         =False
pool                head.cls_token?map:mean
>                   use_head                    pool=map
pool.query          =False
pool.bias           @attention.qkv_bias
pool.mlp_dim        =0
pool.gelu           =exact
num_classes         =0
""",
  changes=common.sizes(
    f'{_PATCH}.weight',
    L,
    'ffn.down_proj.weight[1]',
    gated='=swiglu',
    num_heads='8',
  ),
)
AIMV2 = common.vit_format(
  TYPES,
  'AIMv2',
  ARRAYS,
  FIELDS,
  projection=f'{_PATCH}.weight',
  positions=_POSITIONS,
  resize='bicubic_antialias',
  unread_keys={'is_native': None},
  header=lambda values: common.header(KIND, 'Aimv2VisionModel'),
  lacks=common.lacking('patch_size', 'image_size'),
)
