"""BiT (arXiv:1912.11370) in the format of Hugging Face transformers."""

from collections.abc import Iterable
import re
from typing import Any

from vit_jax import data
from vit_jax.models import resnet
from vit_jax.weights import preprocessing
from vit_jax.weights.files import containers
from vit_jax.weights.files import typed
from vit_jax.weights.formats import base
from vit_jax.weights.formats import tables
from vit_jax.weights.formats.tables import rule
from vit_jax.weights.formats.tables import torch_norm as _norm

KIND, ARCHITECTURE = 'bit', 'BitForImageClassification'

_STEM = 'embedder.convolution.weight'
_OURS = 'stage{}/unit{}'
_STAGE = 'encoder.stages.{}.'
_UNIT = f'{_STAGE}layers.{{}}.'
_LAYERS = {'1': 'conv1', '2': 'conv2', '3': 'conv3', '_proj': 'downsample.conv'}
# transformers counts from 0, we from 1.
RULES = [
  rule('stem/conv/kernel', _STEM, tables.CONV),
  *(
    rule(f'{_OURS}/conv{n}/kernel', f'{_UNIT}{name}.weight', tables.CONV, -1)
    for n, name in _LAYERS.items()
  ),
  *(
    line
    for n in '123'
    for line in _norm(f'{_OURS}/norm{n}', f'{_UNIT}norm{n}', -1)
  ),
  *_norm('norm', 'norm'),
  rule('head/kernel', 'classifier.1.weight', tables.linear()),
  rule('head/bias', 'classifier.1.bias'),
]
# Fields of config.json that only this kind has, and values that are computed.
KNOWN: dict[str, typed.Kind | None] = dict.fromkeys(
  'depths embedding_size hidden_sizes num_groups width_factor'.split()
) | {
  'embedding_dynamic_padding': typed.one_of(False),
  'global_padding': typed.one_of(None),
  'layer_type': typed.one_of('preactivation'),
  'output_stride': typed.one_of(32),
}


def recognises(names: Iterable[str]) -> bool:
  """Whether a file with these arrays has such a model."""
  return any(name.removeprefix(f'{KIND}.') == _STEM for name in names)


def prepare(arrays: containers.Arrays) -> base.Renamed:
  """Returns the arrays under the names that the rules use."""
  prefix = '' if _STEM in arrays.shapes else f'{KIND}.'

  def restore(name: str) -> str:
    return name if name.startswith('classifier') else prefix + name

  return base.Renamed(arrays, lambda x: re.sub(f'^{prefix}', '', x), restore)


def describe(shapes: base.Shapes, hints: base.Hints) -> base.Description:
  """Infers the architecture from the arrays' shapes and config.json.

  Raises:
    UserError: The file has a part that is not computed.
  """
  hints.config.get('hidden_act', typed.one_of('relu'))
  width, channels, *_ = shapes.get(_STEM, 4)
  stages = shapes.stages(_UNIT, first=0)
  last = f'{_STAGE}layers.0.conv3.weight'
  fields: dict[str, Any] = {
    'num_classes': shapes.size('classifier.1.weight', 0),
    'stages': stages,
    'stem_width': width,
    'channels': tuple(
      shapes.get(last.format(i), 4)[0] for i in range(len(stages))
    ),
    'num_groups': hints.config.get('num_groups', typed.COUNT, 32),
    'zero_padded_pool': True,
  }
  model = base.build(resnet.BiT, fields, hints)
  size = base.image_size(None, (32, 32), hints, (224, 224))
  preprocess, silent = preprocessing.of_transformers(
    hints.preprocessor, KIND, size, channels
  )
  names = hints.config.labels('id2label', fields['num_classes'])
  return base.Description(
    model, size, {'classes': names, **preprocess}, 'bicubic', silent
  )


def unsupported(model: resnet.BiT) -> str | None:
  """Returns which part of a model the format cannot store; None: no part."""
  widths = [c * model.width_factor for c in model.channels]
  return base.first_of(
    {
      'a pool that is not padded with zeros': not model.zero_padded_pool,
      'channels that are no multiples of 32': any(c % 32 for c in widths),
    }
  )


def config(model: resnet.BiT, preprocess: data.Preprocess) -> dict[str, Any]:
  """Returns the content of config.json, but for the names of classes."""
  factor = model.width_factor
  return {
    'model_type': KIND,
    'architectures': [ARCHITECTURE if model.num_classes else 'BitModel'],
    'embedding_size': model.stem_width * factor,
    'hidden_sizes': [c * factor for c in model.channels],
    'depths': list(model.stages),
    'width_factor': 1,
    'layer_type': 'preactivation',
    'hidden_act': 'relu',
    'num_groups': model.num_groups,
    'num_channels': preprocess.channels,
    'dtype': 'float32',
    'torch_dtype': 'float32',  # the key in older versions
  }
