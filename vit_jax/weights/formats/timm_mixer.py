"""timm's MlpMixer, and its ResNetV2, as BiT has it."""

from collections.abc import Mapping
import functools
from typing import Any

from vit_jax import models
from vit_jax.config import UserError
from vit_jax.models import mixer
from vit_jax.models import resnet
from vit_jax.models import values as values_lib
from vit_jax.models.zoo import bit as zoo_bit
from vit_jax.models.zoo import mixer as zoo_mixer
from vit_jax.weights.formats import base
from vit_jax.weights.formats import fields
from vit_jax.weights.formats import tables
from vit_jax.weights.formats import timm_names
from vit_jax.weights.formats import timm_vit
from vit_jax.weights.formats.base import FileFacts
from vit_jax.weights.formats.base import Size
from vit_jax.weights.formats.format import Format

_PATCHES, _STEM = 'stem.proj.weight', 'stem.conv.weight'


def tokens_mlp_dim(file: FileFacts) -> int:
  """Returns the size of the hidden layer of the MLP over tokens."""
  hidden = file.shape('blocks.#.mlp_tokens.fc1.weight', 2)[0]
  if file.size('blocks.#.mlp_tokens.fc2.weight', 1) != hidden:
    raise UserError(
      'it has gated MLPs, as in timm with mlp_layer=GluMlp: those of a Mixer'
      ' are not computed here'
    )
  return hidden


def _mixer_size(file: FileFacts) -> Size:
  tokens = file.size('blocks.#.mlp_tokens.fc1.weight', 1)
  patch, default = file.values['patch_size'], timm_names.input_size(file.config)
  return base.image_size(tokens, patch, file, default)


def is_padded(file: FileFacts) -> bool:
  """Whether the first pool's border is zeros, as in BiT's published sizes.

  Other models of timm's class use its own padding.
  """
  width = file.size(_STEM, 0)
  return '_bit' in timm_names.architecture(file.config) or any(
    (file.values['stages'], width) == (x['stages'], 64 * x['width_factor'])
    for x in zoo_bit.SIZES.values()
  )


def _format(
  names: Mapping[str, str],
  default_name: str,
  sizes: str,
  unread_keys: str,
  **attributes: Any,
) -> Format:
  """Returns the format of a class whose architectures' sizes are fixed.

  Args:
    names: Our names of published models, and timm's.
    default_name: Timm's of the one that is written where there is none.
    sizes: The values that each name has.
    unread_keys: As of `Format`.
    **attributes: Further ones of `Format`.
  """

  @functools.cache
  def rows() -> list[tuple[str, str]]:
    conditions = []
    for model_name in names:
      published = values_lib.model_values(models.create_model(model_name))
      texts = [f'{x}={published[x]}' for x in sizes.split()]
      conditions.append('&'.join(texts).replace(' ', ''))
    return [
      *zip(conditions, names.values(), strict=True),
      ('', default_name),
    ]

  return Format(
    preprocess=timm_names.preprocess,
    resize=lambda file: 'bicubic_antialias',
    stated_size=lambda file: timm_names.input_size(file.config),
    scope='model_args',
    unread_keys=fields.unread_keys(
      f'{timm_names.COMMON} {unread_keys} global_pool=avg'
    ),
    header=lambda values: {'global_pool': 'avg'},
    names=rows,
    **attributes,
  )


MIXER = _format(
  {x: f'mixer_{x[6].lower()}{x[8:]}_224' for x in zoo_mixer.NAMES},
  'mixer_b16_224',
  'patch_size hidden_size block.tokens_mlp_dim mlp_dim depth',
  'embed_dim mlp_ratio nlhb num_blocks patch_size act_layer=gelu'
  + timm_names.LAYER_NORM,
  title="timm's MlpMixer",
  family=mixer.Mixer,
  arrays=tables.arrays("""
patch_embedding            stem.proj                  conv*
blocks_#/norm1             blocks.#.norm1             norm*
blocks_#/token_mlp/up      blocks.#.mlp_tokens.fc1    dense*
blocks_#/token_mlp/down    blocks.#.mlp_tokens.fc2    dense*
blocks_#/norm2             blocks.#.norm2             norm*
blocks_#/channel_mlp/up    blocks.#.mlp_channels.fc1  dense*
blocks_#/channel_mlp/down  blocks.#.mlp_channels.fc2  dense*
norm                       norm                       norm*
head                       head                       dense*
"""),
  fields=fields.table(
    """
hidden_size           stem.proj.weight[0]  -  axes=4
patch_size            stem.proj.weight[2,3]
block.tokens_mlp_dim  tokens_mlp_dim()
mlp_dim               blocks.#.mlp_channels.fc1.weight[0]  -  axes=2
depth                 blocks.#.[#]
num_classes           head.weight[0]
mlp.gelu              =exact  -  noted
layer_norm_epsilon    =1e-6   -  noted
>                     .img_size  image_size
>                     .in_chans  image_channels
""",
    tokens_mlp_dim,
    below='model_args',
  ),
  matches=lambda file: file.has(f'{_PATCHES}|blocks.#.mlp_tokens.'),
  image_size=_mixer_size,
)
BIT = _format(
  {x: f'resnetv2_{x[5:]}_bit' for x in zoo_bit.NAMES},
  'resnetv2_50x1_bit',
  'stages stem_width channels num_groups zero_padded_pool',
  'channels layers stem_chs stem_type width_factor zero_init_last'
  ' act_layer=relu bottle_ratio=0.25 output_stride=32 preact=True',
  title="timm's ResNetV2",
  family=resnet.BiT,
  arrays=[
    *tables.arrays("""
stem/conv/kernel  stem.conv.weight  conv
norm              norm              norm*
head              head.fc           conv1x1*
"""),
    *timm_vit.UNITS,
  ],
  fields=fields.table(
    """
num_classes       head.fc.weight[0]
stages            stages()
stem_width        stem.conv.weight[0]  -  axes=4
channels          channels()
num_groups        =32           -  noted
zero_padded_pool  =is_padded()  -  noted
>                 .in_chans     image_channels
""",
    is_padded,
    channels=lambda file: file.widths(
      'stages.#.blocks.0.conv3.weight', 0, first=0
    ),
    stages=lambda file: file.stages('stages.#.blocks.#.', first=0),
    below='model_args',
  ),
  matches=lambda file: file.has(_STEM),
)
