"""AIMv2 in the format of Hugging Face transformers (arXiv:2411.14402).

Norms only scale, one follows the patch embedding, and MLPs are gated. Attention
pooling, if there is any, neither projects its query nor has an MLP. Of a file
of both towers the image tower is read.
"""

from vit_jax.weights.files import typed
from vit_jax.weights.formats import huggingface_fields as common
from vit_jax.weights.formats import tables
from vit_jax.weights.formats.fields import always
from vit_jax.weights.formats.fields import check_gate
from vit_jax.weights.formats.fields import has
from vit_jax.weights.formats.fields import said
from vit_jax.weights.formats.fields import seen
from vit_jax.weights.formats.fields import shape
from vit_jax.weights.formats.fields import told

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
FIELDS = (
  always('patches', 'normed'),
  always('norm', 'rms_norm'),
  always('mlp', 'swiglu'),
  *common.sizes(
    f'{_PATCH}.weight',
    L,
    shape(
      'mlp_dim', f'{L}.ffn.down_proj.weight', 1, 'intermediate_size', axes=2
    ),
    heads_unsaid=8,
    check=check_gate('hidden_act'),
  ),
  said(
    'layer_norm_epsilon',
    'rms_norm_eps',
    1e-5,
    kind=typed.POSITIVE,
    is_stated=True,
  ),
  has(
    'attention.qkv_bias',
    f'{L}.attention.q_proj.bias',
    'qkv_bias',
    is_stated=True,
  ),
  seen('attention.out_bias', lambda file: file.values['attention.qkv_bias']),
  has('mlp.bias', f'{L}.ffn.down_proj.bias', 'mlp_bias', is_stated=True),
  has('positions.learned', _POSITIONS),
  seen('positions.sincos2d', lambda file: not file.has(_POSITIONS)),
  always('positions.sincos2d.kind', 'sincos2d_mae'),
  told('is_native', lambda values: not values.get('positions.learned')),
  always('class_token', False),
  has('pool', 'head.cls_token', yes='map', no='mean'),
  told('use_head', lambda values: values['pool'] == 'map'),
  always('pool.query', False),
  seen('pool.bias', lambda file: file.values['attention.qkv_bias']),
  always('pool.mlp_dim', 0),
  always('pool.gelu', 'exact'),
  always('num_classes', 0),
)


AIMV2 = common.vit_format(
  TYPES,
  'AIMv2',
  ARRAYS,
  FIELDS,
  projection=f'{_PATCH}.weight',
  positions=_POSITIONS,
  resize='bicubic_antialias',
  known={'is_native': None},
  header=lambda values: common.header(KIND, 'Aimv2VisionModel'),
  lacks=lambda values: common.oblong(values, 'patch_size', 'image_size'),
)
