"""ViT, DeiT, I-JEPA and DINOv2 in the format of Hugging Face transformers.

MSN has ViT's class under another name; of MAE's files the encoder is read.
"""

from typing import Any

from absl import logging
import numpy as np

from vit_jax.weights.files import typed
from vit_jax.weights.formats import fields
from vit_jax.weights.formats import huggingface_fields as common
from vit_jax.weights.formats import tables
from vit_jax.weights.formats.fields import FileFacts
from vit_jax.weights.formats.format import Arrays
from vit_jax.weights.formats.format import show
from vit_jax.weights.formats.format import Values

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
DINO_ARRAYS = tables.arrays(
  f"""
{COMMON}
mask_token              embeddings.mask_token         row
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
""",
  row=tables.squeezed(0),
)

# model_type -> the pool; and the name in that of its class.
POOLS = {
  'vit': 'token',
  'deit': 'token',
  'vit_msn': 'token',
  'vit_mae': 'token',
  'ijepa': 'mean',
}
_CLASSES = {
  'vit': 'ViT',
  'deit': 'DeiT',
  'ijepa': 'IJepa',
  'dinov2': 'Dinov2',
  'dinov2_with_registers': 'Dinov2WithRegisters',
}
MAE = 'ViTMAEForPreTraining'
DINO_TYPES = ('dinov2', 'dinov2_with_registers')
TYPES = (*POOLS, *DINO_TYPES)


def model_type(values: Values) -> str:
  """Returns the `model_type` of a model."""
  if values['pool'] == 'token_and_mean':
    return 'dinov2_with_registers' if values['registers'] else 'dinov2'
  if values['pool'] == 'mean':
    return 'ijepa'
  return 'deit' if values['distillation_token'] else 'vit'


def header(values: Values) -> dict[str, Any]:
  """Returns what a config says of the class."""
  name = model_type(values)
  purpose = 'ForImageClassification' if values['num_classes'] else 'Model'
  if values['distillation_token'] and values['head.distillation']:
    purpose += 'WithTeacher'
  return common.header(name, _CLASSES[name] + purpose)


def stored(values: Values, name: str) -> str:
  """Returns the name of an array: below the model's, beside a classifier."""
  return common.below(model_type(values), values, name)


def classes(file: FileFacts) -> int:
  """Returns the number of classes."""
  return max(
    file.size(f'{name}.weight', 0) for name in ('classifier', 'cls_classifier')
  )


def epsilon(file: FileFacts) -> float:
  """Returns the epsilon that a config leaves out."""
  kind = file.config.get('model_type', typed.TEXT)
  return 1e-6 if kind == 'vit_msn' else 1e-12


def has_two_heads(file: FileFacts) -> bool:
  """Whether a distillation token, if there is one, has a head."""
  is_alone = not file.has('distillation_classifier.')
  return not (file.values['distillation_token'] and is_alone)


def pre_logits(file: FileFacts) -> int:
  """Returns the size of the pooler, which is not used beside a classifier."""
  is_used = not file.values['num_classes']
  return file.size('pooler.dense.weight', 0) if is_used else 0


# Of BEiT, too.
SIZES = common.sizes(PATCH, L, 'intermediate.dense.weight[0]')
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
""",
  epsilon,
  classes,
  has_two_heads,
  pre_logits,
  changes=SIZES,
  POOLS=POOLS,
  pooler=lambda values: values['head.pre_logits'] or None,
  stride=lambda values: values['patch_size'][0],
)


def mlp_ratio(values: Values) -> int | None:
  """Returns DINOv2's `mlp_ratio`, a whole number; None: none fits."""
  d, hidden = values['hidden_size'], values['mlp_dim']

  def hidden_size(ratio: int) -> int:
    is_gated = values['mlp'] == 'swiglu'
    return (int(d * ratio * 2 / 3) + 7) // 8 * 8 if is_gated else d * ratio

  ratios = range(1, 2 * hidden // d + 2)
  return next((r for r in ratios if hidden_size(r) == hidden), None)


def dino_classes(file: FileFacts) -> int:
  """Returns the number of classes; without any, says what features are."""
  number = classes(file)
  if not number and file.hints.stored_size is None:
    logging.warning(
      'a %s without a classifier: its features are the class token and the'
      ' mean of the patch tokens, side by side (2 x %d numbers); the first'
      ' half is what transformers calls pooler_output',
      file.config.get('model_type', typed.TEXT),
      file.values['hidden_size'],
    )
  return number


def dino_finish(values: Values, arrays: Arrays) -> Arrays:
  """Returns arrays with a mask token that DINOv2 with registers always has."""
  if values['mask_token'] or not values['registers']:
    return arrays
  name = stored(values, 'embeddings.mask_token')
  return {**arrays, name: np.zeros((1, values['hidden_size']), np.float32)}


DINO_FIELDS = fields.table(
  f"""
mlp_dim             {L}.mlp.{{weights_out,fc2}}.weight[1]
>                   mlp_ratio                    mlp_ratio()
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


_DINO_LACKS = common.lacking('patch_size', 'image_size')
VIT = common.vit_format(
  (*POOLS,),
  'ViT, DeiT and I-JEPA',
  ARRAYS,
  FIELDS,
  projection=PATCH,
  positions=POSITIONS,
  unread_keys={'pooler_act': typed.choice('tanh')},
  header=header,
  stored=stored,
  lacks=common.lacking(
    'patch_size',
    text="""
pool=mean&class_token|pool=mean&distillation_token
  pool={pool} beside tokens before the patches
pool=token&!class_token  class_token=False
""",
  ),
)
DINOV2 = common.vit_format(
  DINO_TYPES,
  'DINOv2',
  DINO_ARRAYS,
  DINO_FIELDS,
  projection=PATCH,
  positions=POSITIONS,
  resize=lambda file: (
    'bicubic_antialias' if file.values['registers'] else 'bicubic'
  ),
  header=header,
  stored=stored,
  finish=dino_finish,
  lacks=lambda values: (
    show('mlp_dim', values['mlp_dim'])
    if mlp_ratio(values) is None
    else _DINO_LACKS(values)
  ),
)
