"""Names of MAE's decoder in the files of its authors and of transformers.

The authors' files have the trunk under timm's names. transformers calls its
class ViTMAEForPreTraining.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax.models import decoder as decoder_lib
from vit_jax.models import embedding
from vit_jax.weights.formats import huggingface_vit
from vit_jax.weights.formats import objective_tables
from vit_jax.weights.formats import tables
from vit_jax.weights.formats import timm_vit


def _table(layers: str, prefix: str) -> list[tables.Rule]:
  """Returns the table of a decoder, whose layers are like the trunk's."""
  blocks = [
    x
    for x in tables.arrays(layers)
    if x.path_pattern.startswith('blocks_#/') and not x.is_read_only
  ]
  return [
    *tables.arrays(f"""
decoder/embedding   {prefix}embed  dense*
decoder/norm        {prefix}norm   norm*
decoder/prediction  {prefix}pred   dense*
"""),
    *tables.below(blocks, 'decoder/', prefix),
  ]


_TIMM = [
  *tables.arrays('decoder/mask_token mask_token'),
  *_table(timm_vit.LAYERS, 'decoder_'),
]
_HUGGINGFACE = [
  *tables.arrays('decoder/mask_token decoder.mask_token'),
  *_table(huggingface_vit.LAYERS, 'decoder.decoder_'),
]


def decoder_table(
  format_name: str,
  decoder: decoder_lib.Decoder,
  grid: tuple[int, int],
  options: Mapping[str, Any],
) -> objective_tables.ObjectiveTable | None:
  """Returns how a format stores the decoder; None: it has no such files.

  `grid` is that of the patches; `options` are the objective's. Positions of
  tokens before the patches are zeros.
  """
  patches = embedding.sincos2d(grid, decoder.hidden_size, 'sincos2d_mae')
  positions = np.pad(patches, ((0, 0), (decoder.prefix_length, 0), (0, 0)))
  if format_name == 'timm':
    constants = {'decoder_pos_embed': positions}
    return objective_tables.ObjectiveTable(_TIMM, constants=constants)
  if format_name != 'huggingface':
    return None
  config = {
    'model_type': 'vit_mae',
    'architectures': [huggingface_vit.MAE],
    'decoder_hidden_size': decoder.hidden_size,
    'decoder_intermediate_size': decoder.block.mlp.hidden_dim,
    'decoder_num_attention_heads': decoder.block.attention.num_heads,
    'decoder_num_hidden_layers': decoder.depth,
    'mask_ratio': options['mask_ratio'],
    'norm_pix_loss': options['normalize_targets'],
  }
  return objective_tables.ObjectiveTable(
    _HUGGINGFACE,
    lambda name: name if name.startswith('decoder.') else f'vit.{name}',
    {'decoder.decoder_pos_embed': positions},
    config,
  )
