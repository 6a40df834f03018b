"""BEiT in the format of Hugging Face transformers (arXiv:2106.08254).

Keys have no bias, each residual branch may be scaled, and positions are
learned, relative (one table for all layers, or one in each), or both. A
classifier reads the mean of the patches, and normalises it, or the class token.
data2vec has the same layers.
"""

import re

from vit_jax.weights.files import typed
from vit_jax.weights.formats import fields
from vit_jax.weights.formats import huggingface_fields as common
from vit_jax.weights.formats import huggingface_vit as plain
from vit_jax.weights.formats import objective_tables
from vit_jax.weights.formats import tables
from vit_jax.weights.formats.base import FileFacts

FORMAT, KIND = 'huggingface', 'beit'
BARE = 'data2vec-vision'
TYPES = (KIND, BARE)
# Arrays that only prediction of tokens needs, and that are no parameters.
IGNORED = r'lm_head\..*|.*relative_position_index'

L, QKV = plain.L, plain.QKV
_TABLE = 'relative_position_bias.relative_position_bias_table'
_SHARED, _OF_LAYER = f'encoder.{_TABLE}', f'{QKV}.{_TABLE}'
_POOLED, _TOKENS = 'pooler.layernorm', 'layernorm'
_LAYER_TABLE = 'blocks_#/attention/relative_position_bias'
ARRAYS = tables.arrays(f"""
mask_token                   embeddings.mask_token
relative_position_bias       {_SHARED}
{_LAYER_TABLE}               {_OF_LAYER}
blocks_#/attention/qkv/bias  {QKV}.{{query,value}}.bias  two
blocks_#/layer_scale1        {L}.lambda_1
blocks_#/layer_scale2        {L}.lambda_2
norm                         {_POOLED}                 norm*  ?pool.norm_after
norm                         {_TOKENS}                 norm*
{plain.LAYERS}
""")
# What an objective that predicts tokens has beside the trunk, as 'head'.
HEAD = tables.arrays('head  lm_head  dense*')


def pool(file: FileFacts) -> str:
  """Returns the pool."""
  key = 'use_mean_pooling'
  if file.has('lm_head.') and not file.config.get(key, typed.TRUTH, True):
    raise file.config.error(
      key,
      False,
      'tokens are then normalised twice before they are predicted, which is'
      ' not computed here',
    )
  return 'mean' if file.has(f'{_POOLED}.') else 'token'


# transformers' classes have no factors where `layer_scale_init_value` is 0.
FIELDS = fields.table(
  f"""
attention.key_bias  =False
block.layer_scale   {L}.lambda_1?0.1:None
>                   layer_scale_init_value             scale()
class_token         =True
mask_token          is_masked()                        use_mask_token!
positions.learned   {plain.POSITIONS}?  use_absolute_position_embeddings!
positions.relative_bias         {_SHARED}|{_OF_LAYER}?
positions.relative_bias.shared  {_SHARED}?
>  use_relative_position_bias
   positions.relative_bias&!positions.relative_bias.shared
>  use_shared_relative_position_bias
   positions.relative_bias&positions.relative_bias.shared
pool                pool()
pool.norm_after     {_POOLED}.?
last_norm           {_POOLED}.|{_TOKENS}.?
>                   use_mean_pooling                   pool=mean|!last_norm
num_classes         classes()
!                   num_classes                        last_norm
""",
  pool,
  plain.classes,
  common.is_masked,
  changes=plain.SIZES,
  scale=lambda values: float(values['block.layer_scale'] or 0),
)


BEIT = common.class_format(
  TYPES,
  'BEiT',
  ARRAYS,
  FIELDS,
  # Tables are resized linearly.
  resize=lambda file: (
    'bicubic' if file.values['positions.learned'] else 'half_pixel'
  ),
  # BEiT's own class without a last norm has one after its pool.
  **common.classes(f"""
!last_norm  {BARE}  Data2VecVisionModel
-           {KIND}  Beit*
"""),
)


def with_head(count: int) -> objective_tables.ObjectiveTable:
  """Returns how a file stores the head that predicts one of `count` tokens."""

  def stored_name(name: str) -> str:
    is_outside = re.match(r'(lm_head|layernorm)\.', name)
    return name if is_outside else f'{KIND}.{name}'

  config = {
    'architectures': ['BeitForMaskedImageModeling'],
    'vocab_size': count,
    'use_mean_pooling': True,  # so that tokens are normalised once
  }
  return objective_tables.ObjectiveTable(HEAD, stored_name, config=config)
