"""timm's ResNetV2, as BiT has it."""

from vit_jax.models import resnet
from vit_jax.models.zoo import bit
from vit_jax.weights.formats import base
from vit_jax.weights.formats import fields
from vit_jax.weights.formats import tables
from vit_jax.weights.formats import timm_names
from vit_jax.weights.formats import timm_vit
from vit_jax.weights.formats.fields import FileFacts
from vit_jax.weights.formats.format import Format
from vit_jax.weights.formats.format import Size
from vit_jax.weights.formats.format import Values

ARRAYS = [
  *tables.arrays(
    """
stem/conv/kernel  stem.conv.weight  conv
norm              norm              norm*
head/kernel       head.fc.weight    conv1x1
head/bias         head.fc.bias
""",
    conv1x1=tables.CONV_1X1,
  ),
  *timm_vit.UNITS,
]
_STEM = 'stem.conv.weight'


def stages(file: FileFacts) -> tuple[int, ...]:
  """Returns the units in each stage."""
  return file.stages('stages.#.blocks.#.', first=0)


def channels(file: FileFacts) -> tuple[int, ...]:
  """Returns the channels of each stage's output."""
  return tuple(
    file.shape(f'stages.{stage}.blocks.0.conv3.weight', 4)[0]
    for stage in range(len(file.values['stages']))
  )


def is_padded(file: FileFacts) -> bool:
  """Whether the first pool's border is zeros, as in BiT's published sizes.

  Other models of timm's class use its own padding.
  """
  width = file.size(_STEM, 0)
  return '_bit' in timm_names.architecture(file.config) or any(
    (file.values['stages'], width) == (x['stages'], 64 * x['width_factor'])
    for x in bit.SIZES.values()
  )


def _name(values: Values) -> str | None:
  """Returns timm's name; None: its names' sizes cannot be changed."""
  for name, size in bit.SIZES.items():
    factor = size['width_factor']
    sizes = {
      'stages': size['stages'],
      'stem_width': 64 * factor,
      'channels': tuple(factor * x for x in (256, 512, 1024, 2048)),
      'num_groups': 32,
      'zero_padded_pool': True,
    }
    if sizes.items() <= values.items():
      return f'resnetv2_{name[1:]}_bit'
  return None


FIELDS = fields.table(
  """
num_classes       head.fc.weight[0]
stages            stages()
stem_width        stem.conv.weight[0]  -  axes=4
channels          channels()
num_groups        =32           -  noted
zero_padded_pool  =is_padded()  -  noted
>                 .in_chans     image_channels
""",
  *(stages, channels, is_padded),
  below='model_args',
)


def image_size(file: FileFacts) -> Size:
  """Returns (height, width) of the images."""
  default = timm_names.input_size(file.config) or (224, 224)
  return base.image_size(None, (32, 32), file.hints, default)


BIT = Format(
  title="timm's ResNetV2",
  family=resnet.BiT,
  arrays=ARRAYS,
  fields=FIELDS,
  matches=lambda file: file.has(_STEM),
  image_size=image_size,
  channels=lambda file: file.size(_STEM, 1),
  preprocess=timm_names.preprocess,
  resize=lambda file: 'bicubic_antialias',
  scope='model_args',
  unread_keys=fields.unread_keys(
    timm_names.COMMON
    + 'channels layers stem_chs stem_type width_factor zero_init_last'
    ' act_layer=relu bottle_ratio=0.25 global_pool=avg output_stride=32'
    ' preact=True'
  ),
  header=lambda values: {
    'architecture': _name(values) or 'resnetv2_50x1_bit',
    'global_pool': 'avg',
  },
  obstacle=lambda values: None if _name(values) else 'a BiT of this size',
)
