"""Names of MAE's decoder in the files of its authors and of transformers.

The authors' files have the trunk under timm's names. transformers calls its
class ViTMAEForPreTraining.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax.models import decoder as decoder_lib
from vit_jax.models import embedding
from vit_jax.weights.formats import huggingface
from vit_jax.weights.formats import tables
from vit_jax.weights.formats import whole
from vit_jax.weights.formats.tables import rule
from vit_jax.weights.formats.tables import torch_dense as _dense
from vit_jax.weights.formats.tables import torch_norm as _norm

_BLOCK = 'decoder/blocks_{}'
_TIMM = [
  *_dense('decoder/embedding', 'decoder_embed'),
  rule('decoder/mask_token', 'mask_token'),
  *_norm(f'{_BLOCK}/norm1', 'decoder_blocks.{}.norm1'),
  *_dense(f'{_BLOCK}/attention/qkv', 'decoder_blocks.{}.attn.qkv'),
  *_dense(f'{_BLOCK}/attention/out', 'decoder_blocks.{}.attn.proj', inputs=2),
  *_norm(f'{_BLOCK}/norm2', 'decoder_blocks.{}.norm2'),
  *_dense(f'{_BLOCK}/mlp/up', 'decoder_blocks.{}.mlp.fc1'),
  *_dense(f'{_BLOCK}/mlp/down', 'decoder_blocks.{}.mlp.fc2'),
  *_norm('decoder/norm', 'decoder_norm'),
  *_dense('decoder/prediction', 'decoder_pred'),
]

_HUGGINGFACE = [
  *_dense('decoder/embedding', 'decoder.decoder_embed'),
  rule('decoder/mask_token', 'decoder.mask_token'),
  *tables.below(
    [x for x in huggingface.VIT if x.ours.startswith('blocks_{}/')],
    'decoder/',
    'decoder.decoder_',
  ),
  *_norm('decoder/norm', 'decoder.decoder_norm'),
  *_dense('decoder/prediction', 'decoder.decoder_pred'),
]


def whole_of(
  format_name: str,
  decoder: decoder_lib.Decoder,
  grid: tuple[int, int],
  options: Mapping[str, Any],
) -> whole.Whole | None:
  """Returns how a format stores the decoder; None: it has no such files.

  Args:
    format_name: 'google', 'timm' or 'huggingface'.
    decoder: The decoder; positions of tokens before the patches are zeros.
    grid: Patches (h, w).
    options: Of the objective.
  """
  patches = embedding.sincos2d(grid, decoder.hidden_size, 'sincos2d_mae')
  positions = np.pad(patches, ((0, 0), (decoder.prefix_length, 0), (0, 0)))
  if format_name == 'timm':
    constants = {'decoder_pos_embed': positions}
    return whole.Whole(_TIMM, constants=constants)
  if format_name != 'huggingface':
    return None
  config = {
    'model_type': 'vit_mae',
    'architectures': [huggingface.ARCHITECTURES['vit_mae']],
    'decoder_hidden_size': decoder.hidden_size,
    'decoder_intermediate_size': decoder.block.mlp.hidden_dim,
    'decoder_num_attention_heads': decoder.block.attention.num_heads,
    'decoder_num_hidden_layers': decoder.depth,
    'mask_ratio': options['mask_ratio'],
    'norm_pix_loss': options['normalize_targets'],
  }
  return whole.Whole(
    _HUGGINGFACE,
    lambda name: name if name.startswith('decoder.') else f'vit.{name}',
    {'decoder.decoder_pos_embed': positions},
    config,
  )
