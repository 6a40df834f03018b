"""DINOv3 in the format of Hugging Face transformers (arXiv:2508.10104).

Patches have rotary positions, keys no bias, and there is no classifier.
"""

import numpy as np

from vit_jax.weights.files import typed
from vit_jax.weights.formats import fields
from vit_jax.weights.formats import huggingface_fields as common
from vit_jax.weights.formats import tables
from vit_jax.weights.formats.fields import FileFacts
from vit_jax.weights.formats.format import Arrays
from vit_jax.weights.formats.format import Values

KIND = 'dinov3_vit'
TYPES = (KIND,)
L = 'layer.#'
_PATCH = 'embeddings.patch_embeddings'
_NO_KEY = '?!attention.key_bias'
ARRAYS = tables.arrays(
  f"""
patch_embedding              {_PATCH}                        conv*
class_token                  embeddings.cls_token
register_tokens              embeddings.register_tokens
mask_token                   embeddings.mask_token
blocks_#/norm1               {L}.norm1                       norm*
blocks_#/attention/qkv/bias  {L}.attention.{{q,v}}_proj.bias   two  {_NO_KEY}
blocks_#/attention/qkv       {L}.attention.{{q,k,v}}_proj      parts*
blocks_#/attention/out       {L}.attention.o_proj            dense2*
blocks_#/layer_scale1        {L}.layer_scale1.lambda1
blocks_#/norm2               {L}.norm2                       norm*
blocks_#/mlp/up              {L}.mlp.{{gate,up}}_proj    halves*  ?mlp=swiglu
blocks_#/mlp/up              {L}.mlp.up_proj                 dense*
blocks_#/mlp/down            {L}.mlp.down_proj               dense*
blocks_#/layer_scale2        {L}.layer_scale2.lambda1
norm                         norm                            norm*
""",
  two=tables.split(2, 0, tables.FLAT),
)


def key_bias(file: FileFacts) -> bool:
  """Whether keys have a bias, or nothing has."""
  has_key_bias = file.has(f'{L}.attention.k_proj.bias')
  return has_key_bias or not file.values['attention.qkv_bias']


FIELDS = fields.table(
  f"""
attention.qkv_bias  {L}.attention.q_proj.bias?     query_bias
attention.key_bias  key_bias()
>                   key_bias
                    attention.qkv_bias&attention.key_bias
>                   value_bias                     attention.qkv_bias
block.layer_scale   -                              layerscale_value
                    POSITIVE default=1.0
class_token         =True
registers           embeddings.register_tokens[1]  num_register_tokens!
mask_token          is_masked()                    use_mask_token!
positions.rope       =True
positions.rope.kind  =dinov3
positions.rope.base  -  rope_theta  POSITIVE default=100.0
pool                =token
num_classes         =0
""",
  key_bias,
  common.is_masked,
  changes=common.sizes(
    f'{_PATCH}.weight',
    L,
    'mlp.down_proj.weight[1]',
    gated=f'{L}.mlp.gate_proj.?swiglu:mlp use_gated_mlp! True:swiglu,False:mlp',
    epsilon='1e-5',
  ),
)


def finish(values: Values, arrays: Arrays) -> Arrays:
  """Returns arrays with those that the class has, of use or not."""
  d = values['hidden_size']
  unused: dict[str, np.ndarray] = {}
  if not values['mask_token']:
    unused['embeddings.mask_token'] = np.zeros((1, 1, d), np.float32)
  if not values['registers']:
    unused['embeddings.register_tokens'] = np.zeros((1, 0, d), np.float32)
  return {**arrays, **unused}


DINOV3 = common.vit_format(
  TYPES,
  'DINOv3',
  ARRAYS,
  FIELDS,
  projection=f'{_PATCH}.weight',
  resize='bicubic_antialias',
  unread_keys={'proj_bias': typed.choice(True), 'mlp_bias': typed.choice(True)},
  header=lambda values: common.header(KIND, 'DINOv3ViTModel'),
  finish=finish,
)
