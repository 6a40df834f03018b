"""Trunks in the format of Hugging Face transformers: ViT, DINO, AIMv2, BiT, ...

MSN has ViT's class under another name; of MAE's files the encoder is read.
"""

from typing import Any

from absl import logging

from vit_jax.models import resnet
from vit_jax.weights.files import typed
from vit_jax.weights.formats import fields
from vit_jax.weights.formats import huggingface_fields as common
from vit_jax.weights.formats import tables
from vit_jax.weights.formats.base import FileFacts
from vit_jax.weights.formats.base import Values

L = 'encoder.layer.#'
QKV = f'{L}.attention.attention'
PROJECTION = 'embeddings.patch_embeddings.projection'
PATCH = f'{PROJECTION}.weight'
POSITIONS = 'embeddings.position_embeddings'
# Of BEiT, too.
COMMON = f"""
patch_embedding         {PROJECTION}                  conv*
class_token             embeddings.cls_token
distillation_token      embeddings.distillation_token
register_tokens         embeddings.register_tokens
position_embedding      {POSITIONS}
blocks_#/attention/qkv  {QKV}.{{query,key,value}}       parts*
blocks_#/attention/out  {L}.attention.output.dense    dense2*
"""
LAYERS = f"""
{COMMON}
blocks_#/norm1          {L}.layernorm_before          norm*
blocks_#/norm2          {L}.layernorm_after           norm*
blocks_#/mlp/up         {L}.intermediate.dense        dense*
blocks_#/mlp/down       {L}.output.dense              dense*
head                    classifier                    dense*
"""
_TWO_HEADS = 'distillation_token&head.distillation'
ARRAYS = tables.arrays(f"""
head                    cls_classifier                dense*  ?{_TWO_HEADS}
head_distillation       distillation_classifier       dense*
{LAYERS}
norm                    layernorm                     norm*
pre_logits              pooler.dense                  dense*
""")
DINO_ARRAYS = tables.arrays(f"""
{COMMON}
mask_token              embeddings.mask_token         row
-                       embeddings.mask_token         0[1,hidden_size]
                        ?registers&!mask_token
blocks_#/norm1          {L}.norm1                     norm*
blocks_#/norm2          {L}.norm2                     norm*
blocks_#/layer_scale1   {L}.layer_scale1.lambda1
blocks_#/layer_scale2   {L}.layer_scale2.lambda1
blocks_#/mlp/up         {L}.mlp.weights_in            dense*  ?mlp=swiglu
blocks_#/mlp/down       {L}.mlp.weights_out           dense*  ?mlp=swiglu
blocks_#/mlp/up         {L}.mlp.fc1                   dense*
blocks_#/mlp/down       {L}.mlp.fc2                   dense*
norm                    layernorm                     norm*
head                    classifier                    dense*
""")

# model_type -> the pool.
POOLS = {
  'vit': 'token',
  'deit': 'token',
  'vit_msn': 'token',
  'vit_mae': 'token',
  'ijepa': 'mean',
}
MAE = 'ViTMAEForPreTraining'
DINO_TYPES = ('dinov2', 'dinov2_with_registers')
TYPES = (*POOLS, *DINO_TYPES, 'dinov3_vit', 'aimv2_vision_model', 'bit')


def classes(file: FileFacts) -> int:
  """Returns the number of classes."""
  return max(
    file.size(f'{name}.weight', 0) for name in ('classifier', 'cls_classifier')
  )


def epsilon(file: FileFacts) -> float:
  """Returns the epsilon that a config leaves out."""
  return 1e-6 if common.is_type(file, ('vit_msn',)) else 1e-12


def has_two_heads(file: FileFacts) -> bool:
  """Whether a distillation token, if there is one, has a head."""
  is_alone = not file.has('distillation_classifier.')
  return not (file.values['distillation_token'] and is_alone)


# Of BEiT, too.
SIZES = common.sizes(
  PATCH, L, 'intermediate.dense.weight[0]', image_kind='square'
)
FIELDS = fields.table(
  f"""
pool                -  model_type               POOLS default=token
layer_norm_epsilon  -  layer_norm_eps!          POSITIVE default=epsilon()
attention.qkv_bias  {QKV}.query.bias?           qkv_bias!
positions.learned   =True
class_token         embeddings.cls_token?
distillation_token  embeddings.distillation_token?
num_classes         classes()
head.distillation   has_two_heads()
head.pre_logits     pre_logits()
>                   pooler_output_size          pooler()
>                   encoder_stride              stride()
!                   pool=mean                   !class_token&!distillation_token
!                   pool=token                  class_token
""",
  epsilon,
  classes,
  has_two_heads,
  changes=SIZES,
  POOLS=POOLS,
  # The pooler is not used beside a classifier.
  pre_logits=lambda file: (
    0 if file.values['num_classes'] else file.size('pooler.dense.weight', 0)
  ),
  pooler=lambda values: values['head.pre_logits'] or None,
  stride=lambda values: values['patch_size'][0],
)


def mlp_ratio(values: Values) -> Any:
  """Returns DINOv2's `mlp_ratio`, a whole number, if one fits."""
  d, hidden = values['hidden_size'], values['mlp_dim']

  def hidden_size(ratio: int) -> int:
    is_gated = values['mlp'] == 'swiglu'
    return (int(d * ratio * 2 / 3) + 7) // 8 * 8 if is_gated else d * ratio

  ratios = range(1, 2 * hidden // d + 2)
  fitting = (r for r in ratios if hidden_size(r) == hidden)
  return next(fitting, fields.NO_WORD)


def dino_classes(file: FileFacts) -> int:
  """Returns the number of classes; without any, says what features are."""
  number = classes(file)
  if not number and file.stored_size is None:
    logging.warning(
      'a %s without a classifier: its features are the class token and the'
      ' mean of the patch tokens, side by side (2 x %d numbers); the first'
      ' half is what transformers calls pooler_output',
      file.config.get('model_type', typed.TEXT),
      file.values['hidden_size'],
    )
  return number


DINO_FIELDS = fields.table(
  f"""
mlp_dim             {L}.mlp.{{weights_out,fc2}}.weight[1]  mlp_ratio>
                    axes=2 write=mlp_ratio()
attention.qkv_bias  {QKV}.query.bias?            qkv_bias!
block.layer_scale   -                            layerscale_value
                    NUMBER default=1.0
class_token         =True
registers           embeddings.register_tokens[1]  num_register_tokens
                    default=0
mask_token          is_masked()                  use_mask_token!
positions.learned   =True
positions.learned.tokens  =class
pool                =token_and_mean
num_classes         dino_classes()
""",
  dino_classes,
  mlp_ratio,
  common.is_masked,
  changes=common.sizes(
    PATCH,
    L,
    'mlp.{weights_out,fc2}.weight[1]',
    gated=f'{L}.mlp.weights_in.?swiglu:mlp use_swiglu_ffn!'
    ' True:swiglu,False:mlp',
    epsilon='1e-6',
    is_gate_said=False,
  ),
)
VIT = common.class_format(
  (*POOLS,),
  'ViT, DeiT and I-JEPA',
  ARRAYS,
  FIELDS,
  unread_keys=fields.unread_keys('pooler_act=tanh'),
  **common.classes("""
pool=mean                                         ijepa  IJepa*
num_classes&distillation_token&head.distillation  deit   DeiT*WithTeacher
distillation_token                                deit   DeiT*
-                                                 vit    ViT*
"""),
)
DINOV2 = common.class_format(
  DINO_TYPES,
  'DINOv2',
  DINO_ARRAYS,
  DINO_FIELDS,
  resize=lambda file: (
    'bicubic_antialias' if file.values['registers'] else 'bicubic'
  ),
  **common.classes("""
registers  dinov2_with_registers  Dinov2WithRegisters*
-          dinov2                 Dinov2*
"""),
)

# DINOv3 (arXiv:2508.10104): patches have rotary positions, keys no bias, and
# there is no classifier.
DINOV3 = common.class_format(
  ('dinov3_vit',),
  'DINOv3',
  tables.arrays("""
patch_embedding              embeddings.patch_embeddings     conv*
class_token                  embeddings.cls_token
register_tokens              embeddings.register_tokens
mask_token                   embeddings.mask_token
-  embeddings.mask_token       0[1,1,hidden_size]  ?!mask_token
-  embeddings.register_tokens  0[1,0,hidden_size]  ?!registers
blocks_#/norm1               layer.#.norm1                       norm*
blocks_#/attention/qkv/bias  layer.#.attention.{q,v}_proj.bias
                             two  ?!attention.key_bias
blocks_#/attention/qkv       layer.#.attention.{q,k,v}_proj      parts*
blocks_#/attention/out       layer.#.attention.o_proj            dense2*
blocks_#/layer_scale1        layer.#.layer_scale1.lambda1
blocks_#/norm2               layer.#.norm2                       norm*
blocks_#/mlp/up              layer.#.mlp.{gate,up}_proj    halves*  ?mlp=swiglu
blocks_#/mlp/up              layer.#.mlp.up_proj                 dense*
blocks_#/mlp/down            layer.#.mlp.down_proj               dense*
blocks_#/layer_scale2        layer.#.layer_scale2.lambda1
norm                         norm                            norm*
"""),
  fields.table(
    """
attention.qkv_bias  layer.#.attention.q_proj.bias?     query_bias
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
    common.is_masked,
    # Keys have a bias, or nothing has.
    key_bias=lambda file: (
      file.has('layer.#.attention.k_proj.bias')
      or not file.values['attention.qkv_bias']
    ),
    changes=common.sizes(
      'embeddings.patch_embeddings.weight',
      'layer.#',
      'mlp.down_proj.weight[1]',
      gated='layer.#.mlp.gate_proj.?swiglu:mlp use_gated_mlp!'
      ' True:swiglu,False:mlp',
      epsilon='1e-5',
      patch_kind='square',
      image_kind='square',
    ),
  ),
  resize='bicubic_antialias',
  unread_keys=fields.unread_keys('proj_bias=True mlp_bias=True'),
  header=lambda values: common.header('dinov3_vit', 'DINOv3ViTModel'),
)
# AIMv2 (arXiv:2411.14402): norms only scale, one follows the patch embedding,
# and MLPs are gated. Attention pooling, if there is any, neither projects its
# query nor has an MLP. Of a file of both towers the image tower is read.
_AIM, _AIM_L, _AIM_PATCH = (
  'aimv2_vision_model',
  'encoder.layers.#',
  'embeddings.patch_embed',
)
_AIM_POSITIONS = 'embeddings.position_embedding.weight'
AIMV2 = common.class_format(
  (_AIM,),
  'AIMv2',
  tables.arrays(f"""
patch_embedding         {_AIM_PATCH}                        conv*
patch_norm              embeddings.rms_norm             norm*
position_embedding      {_AIM_POSITIONS}                    row
blocks_#/norm1          {_AIM_L}.rms_norm1                   norm*
blocks_#/attention/qkv  {_AIM_L}.attention.{{q,k,v}}_proj      parts*
blocks_#/attention/out  {_AIM_L}.attention.out_proj          dense2*
blocks_#/norm2          {_AIM_L}.rms_norm2                   norm*
blocks_#/mlp/up         {_AIM_L}.ffn.{{gate,up}}_proj          halves*
blocks_#/mlp/down       {_AIM_L}.ffn.down_proj               dense*
norm                    rms_norm                        norm*
map_head/probe          head.cls_token
map_head/key_value      head.{{k,v}}_proj                 parts*
map_head/out            head.output_proj                dense2*
"""),
  fields.table(
    f"""
patches             =normed
norm                =rms_norm
layer_norm_epsilon  -  rms_norm_eps!  POSITIVE default=1e-5
attention.qkv_bias  {_AIM_L}.attention.q_proj.bias?  qkv_bias!
attention.out_bias  @attention.qkv_bias
mlp.bias            {_AIM_L}.ffn.down_proj.bias?     mlp_bias!
positions.learned   {_AIM_POSITIONS}?
positions.sincos2d  {_AIM_POSITIONS}?False:True
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
      f'{_AIM_PATCH}.weight',
      _AIM_L,
      'ffn.down_proj.weight[1]',
      gated='=swiglu',
      num_heads='8',
    ),
  ),
  resize='bicubic_antialias',
  unread_keys=fields.unread_keys('is_native'),
  header=lambda values: common.header(_AIM, 'Aimv2VisionModel'),
)
# BiT (arXiv:1912.11370). transformers counts from 0, we from 1.
_STEM, _UNIT = 'embedder.convolution.weight', 'encoder.stages.#.layers.#'
BIT = common.class_format(
  ('bit',),
  'BiT',
  tables.arrays(f"""
stem/conv/kernel               {_STEM}                      conv
stage#/unit#/conv1/kernel      {_UNIT}.conv1.weight             conv   -1
stage#/unit#/conv2/kernel      {_UNIT}.conv2.weight             conv   -1
stage#/unit#/conv3/kernel      {_UNIT}.conv3.weight             conv   -1
stage#/unit#/conv_proj/kernel  {_UNIT}.downsample.conv.weight   conv   -1
stage#/unit#/norm1             {_UNIT}.norm1                    norm*  -1
stage#/unit#/norm2             {_UNIT}.norm2                    norm*  -1
stage#/unit#/norm3             {_UNIT}.norm3                    norm*  -1
norm                           norm                         norm*
head                           classifier.1                 dense*
"""),
  fields.table(
    f"""
stages            stages()  depths
stem_width        {_STEM}[0]  embedding_size  axes=4
channels          channels()  hidden_sizes  write=widths()
num_groups        -  num_groups!  COUNT default=32
zero_padded_pool  =True
num_classes       classifier.1.weight[0]
>                 num_channels  image_channels
""",
    channels=lambda file: file.widths(
      'encoder.stages.#.layers.0.conv3.weight', 0, first=0
    ),
    stages=lambda file: file.stages(f'{_UNIT}.', first=0),
    # A quarter of them is rounded to multiples of 8.
    widths=lambda values: (
      fields.NO_WORD
      if any(x % 32 for x in values['channels'])
      else [*values['channels']]
    ),
  ),
  family=resnet.BiT,
  unread_keys=fields.unread_keys(
    'embedding_dynamic_padding=False global_padding=None hidden_act=relu'
    ' layer_type=preactivation output_stride=32 width_factor'
  ),
  header=lambda values: {
    **common.header(
      'bit',
      'BitForImageClassification' if values['num_classes'] else 'BitModel',
    ),
    'layer_type': 'preactivation',
    'hidden_act': 'relu',
    'width_factor': 1,
  },
)
