"""BEiT in the format of Hugging Face transformers (arXiv:2106.08254).

Keys have no bias, each residual branch may be scaled, and positions are
learned, relative (one table for all layers, or one in each), or both. A
classifier reads the mean of the patches, and normalises it, or the class token.
"""

import re
from typing import Any

from vit_jax.config import UserError
from vit_jax.models import flat
from vit_jax.weights.files import typed
from vit_jax.weights.formats import base
from vit_jax.weights.formats import tables
from vit_jax.weights.formats import uncommon
from vit_jax.weights.formats import whole
from vit_jax.weights.formats.tables import rule
from vit_jax.weights.formats.tables import torch_dense as _dense
from vit_jax.weights.formats.tables import torch_norm as _norm

FORMAT, KIND = 'huggingface', 'beit'
BARE = 'data2vec-vision'  # the same layers
# Fields of config.json that only this kind has.
KNOWN = dict.fromkeys(
  """
  layer_scale_init_value use_absolute_position_embeddings use_mean_pooling
  use_relative_position_bias use_shared_relative_position_bias vocab_size

  add_fpn auxiliary_channels auxiliary_concat_input auxiliary_loss_weight
  auxiliary_num_convs pool_scales segmentation_indices
  semantic_loss_ignore_index use_auxiliary_head
  """.split()
)
# Arrays that only prediction of tokens needs, and that are no parameters.
IGNORED = r'lm_head\..*|.*relative_position_index'

_LAYER = 'encoder.layer.{}'
_ATTENTION = f'{_LAYER}.attention.attention'
_TABLE = 'relative_position_bias.relative_position_bias_table'
_SHARED, _OF_LAYER = f'encoder.{_TABLE}', f'{_ATTENTION}.{_TABLE}'
_POOLED, _TOKENS = 'pooler.layernorm', 'layernorm'
RULES = [
  rule('mask_token', 'embeddings.mask_token'),
  rule('relative_position_bias', _SHARED),
  rule('blocks_{}/attention/relative_position_bias', _OF_LAYER),
  rule(
    'blocks_{}/attention/qkv/bias',
    [f'{_ATTENTION}.{name}.bias' for name in ('query', 'value')],
    tables.split(2, 0, tables.FLAT),
  ),
  rule('blocks_{}/layer_scale1', f'{_LAYER}.lambda_1'),
  rule('blocks_{}/layer_scale2', f'{_LAYER}.lambda_2'),
]
# What an objective that predicts tokens has beside the trunk, as 'head'.
HEAD = _dense('head', 'lm_head')


def norm(model: flat.ViT) -> list[tables.Rule]:
  """Returns the rules of the last norm."""
  return _norm('norm', _POOLED if model.norm_after_pool else _TOKENS)


def fields(shapes: base.Shapes, config: typed.Json) -> dict[str, Any]:
  """Returns fields of the model that other kinds have otherwise, or not.

  Raises:
    UserError: The file has a part that is not computed.
  """
  pools = config.get('use_mean_pooling', typed.TRUTH, True)
  predicts = 'lm_head.weight' in shapes
  if predicts and not pools:
    raise UserError(
      'its config.json says use_mean_pooling false, so that tokens are'
      ' normalised twice before they are predicted: that is not computed here'
    )
  is_pooled = f'{_POOLED}.weight' in shapes
  tables_of_layers = shapes.count(_OF_LAYER) > 0
  has_scale = shapes.count(f'{_LAYER}.lambda_1') > 0
  absolute = 'embeddings.position_embeddings' in shapes
  has_norm = is_pooled or f'{_TOKENS}.weight' in shapes
  return {
    'pool': 'gap' if is_pooled else 'token',
    'norm_after_pool': is_pooled,
    'last_norm': has_norm,
    'class_token': True,
    'mask_token': 'embeddings.mask_token' in shapes,
    'qkv_bias': shapes.count(f'{_ATTENTION}.query.bias') > 0,
    'key_bias': False,
    'layer_scale': config.get('layer_scale_init_value', typed.POSITIVE, 0.1)
    if has_scale
    else None,
    'relative_positions': 'shared'
    if _SHARED in shapes
    else ('layers' if tables_of_layers else 'none'),
    'position_embedding': 'learned' if absolute else 'none',
    'mlp_dim': shapes.get(f'{_LAYER}.intermediate.dense.weight', 2)[0],
  }


def rows(shapes: base.Shapes) -> int:
  """Returns the rows of a table of relative positions; 0 if there is none."""
  if _SHARED in shapes:
    return shapes.get(_SHARED, 2)[0]
  return shapes.get(_OF_LAYER, 2)[0] if shapes.count(_OF_LAYER) else 0


def resize(model: flat.ViT) -> str:
  """Returns how transformers resizes positions: tables linearly."""
  return 'bicubic' if model.position_embedding == 'learned' else 'half_pixel'


def is_kind(model: flat.ViT) -> bool:
  """Whether only this kind can hold a model."""
  return model.relative_positions != 'none' or not model.key_bias


def unsupported(model: flat.ViT) -> str | None:
  """Returns which part of a model the format cannot store; None: no part."""
  pooled = model.pool == 'gap' and model.norm_after_pool
  return base.first_of(
    {
      **{
        what: has
        for what, has in uncommon.parts(model).items()
        if what not in (*uncommon.BEITS, uncommon.NO_LAST_NORM)
      },
      'a classifier without a norm before it': not model.last_norm
      and model.num_classes,
      'biases of keys beside relative positions': model.qkv_bias
      and model.key_bias,
      f'the tokens {", ".join(model.prefix)} beside relative positions': (
        model.prefix != ('class_token',)
      ),
      f'the pool {model.pool!r} beside relative positions, but of the class'
      ' token, or of the patches with a LayerNorm after it': (
        model.pool != 'token' and not pooled
      ),
      'a ResNet stem': model.resnet_stages is not None,
      'normalised queries and keys': model.qk_norm,
      'a gated MLP beside relative positions': model.gated_mlp,
      'a layer before the head': model.pre_logits,
      'a patch that is not square': model.patch_size[0] != model.patch_size[1],
      'fixed positions': model.position_embedding not in ('learned', 'none'),
      'a class token without a position beside relative ones': (
        model.position_embedding == 'learned' and model.positioned_prefix != 1
      ),
    }
  )


def config(model: flat.ViT) -> dict[str, Any]:
  """Returns fields of config.json that other kinds do not have."""
  # BEiT's own class without a last norm has one after its pool.
  bare = {'model_type': BARE, 'architectures': ['Data2VecVisionModel']}
  return {
    **({} if model.last_norm else bare),
    'intermediate_size': model.mlp_dim,
    'use_mask_token': model.mask_token,
    'use_mean_pooling': model.pool == 'gap' or not model.last_norm,
    'use_absolute_position_embeddings': model.position_embedding == 'learned',
    'use_relative_position_bias': model.relative_positions == 'layers',
    'use_shared_relative_position_bias': model.relative_positions == 'shared',
    # transformers' classes have no factors where this is 0.
    'layer_scale_init_value': float(model.layer_scale or 0),
    'drop_path_rate': model.stochastic_depth,
  }


def with_head(count: int) -> whole.Whole:
  """Returns how a file stores the head that predicts tokens beside a trunk.

  Args:
    count: Number of different tokens.
  """

  def stored(name: str) -> str:
    is_outside = re.match(r'(lm_head|layernorm)\.', name)
    return name if is_outside else f'{KIND}.{name}'

  config = {
    'architectures': ['BeitForMaskedImageModeling'],
    'vocab_size': count,
    'use_mean_pooling': True,  # so that tokens are normalised once
  }
  return whole.Whole(HEAD, stored, config=config)
