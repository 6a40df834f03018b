"""BiT (arXiv:1912.11370) in the format of Hugging Face transformers."""

from typing import Any

from vit_jax.models import resnet
from vit_jax.weights.files import typed
from vit_jax.weights.formats import base
from vit_jax.weights.formats import fields
from vit_jax.weights.formats import huggingface_fields as common
from vit_jax.weights.formats import tables
from vit_jax.weights.formats.fields import FileFacts
from vit_jax.weights.formats.format import Format
from vit_jax.weights.formats.format import show
from vit_jax.weights.formats.format import Values

KIND = 'bit'
TYPES = (KIND,)
_STEM = 'embedder.convolution.weight'
U = 'encoder.stages.#.layers.#'
# transformers counts from 0, we from 1.
ARRAYS = tables.arrays(f"""
stem/conv/kernel               {_STEM}                      conv
stage#/unit#/conv1/kernel      {U}.conv1.weight             conv   -1
stage#/unit#/conv2/kernel      {U}.conv2.weight             conv   -1
stage#/unit#/conv3/kernel      {U}.conv3.weight             conv   -1
stage#/unit#/conv_proj/kernel  {U}.downsample.conv.weight   conv   -1
stage#/unit#/norm1             {U}.norm1                    norm*  -1
stage#/unit#/norm2             {U}.norm2                    norm*  -1
stage#/unit#/norm3             {U}.norm3                    norm*  -1
norm                           norm                         norm*
head                           classifier.1                 dense*
""")


def channels(file: FileFacts) -> tuple[int, ...]:
  """Returns the channels of each stage's output."""
  last = 'encoder.stages.{}.layers.0.conv3.weight'
  stages = range(len(file.values['stages']))
  return tuple(file.size(last.format(i), 0) for i in stages)


FIELDS = fields.table(
  f"""
stages            stages()  depths
stem_width        {_STEM}[0]  embedding_size  axes=4
channels          channels()  hidden_sizes
num_groups        -  num_groups!  COUNT default=32
zero_padded_pool  =True
num_classes       classifier.1.weight[0]
>                 num_channels  image_channels
""",
  channels,
  stages=lambda file: file.stages(f'{U}.', first=0),
)


def header(values: Values) -> dict[str, Any]:
  """Returns what a config says of the class."""
  name = 'BitForImageClassification' if values['num_classes'] else 'BitModel'
  return {
    **common.header(KIND, name),
    'layer_type': 'preactivation',
    'hidden_act': 'relu',
    'width_factor': 1,
  }


def lacks(values: Values) -> str | None:
  """Returns what the class has no place for: it has groups of 32 channels."""
  widths = values['channels']
  return show('channels', widths) if any(x % 32 for x in widths) else None


BIT = Format(
  title="transformers' BiT",
  family=resnet.BiT,
  arrays=ARRAYS,
  fields=FIELDS,
  image_size=lambda file: base.image_size(
    None, (32, 32), file.hints, (224, 224)
  ),
  channels=lambda file: file.size(_STEM, 1),
  preprocess=common.preprocess,
  resize=lambda file: 'bicubic',
  matches=lambda file: common.is_type(file, TYPES),
  unread_keys={
    **common.UNREAD_KEYS,
    'embedding_dynamic_padding': typed.choice(False),
    'global_padding': typed.choice(None),
    'hidden_act': typed.choice('relu'),
    'layer_type': typed.choice('preactivation'),
    'output_stride': typed.choice(32),
    'width_factor': None,
  },
  header=header,
  lacks=lacks,
)
