"""Makes the config.json from which timm rebuilds a model.

timm has architectures by name, which `model_args` modify. If timm has no name
for a model, config.json has the most similar one, and a note says what differs.
"""

from collections.abc import Mapping
import itertools
import math
from typing import Any

from vit_jax import data
from vit_jax import models
from vit_jax.models import resnet
from vit_jax.models import values as values_lib
from vit_jax.models import vit
from vit_jax.weights.formats import base
from vit_jax.weights.formats import timm_parallel
from vit_jax.weights.formats.format import Format


def companions(
  kind: Format,
  model: models.Model,
  preprocess: data.Preprocess,
  image_size: tuple[int, int],
) -> dict[str, dict[str, Any]]:
  """Returns the content of the JSON files, by file name."""
  channels = preprocess.channels
  values = values_lib.model_values(model)
  values |= {'image_size': image_size, 'image_channels': channels}
  config = kind.config(values)
  pretrained = {
    'input_size': [channels, *image_size],
    'fixed_input_size': not isinstance(model, resnet.BiT),
    'interpolation': preprocess.interpolation,
    'crop_pct': _crop_pct(preprocess),
    'crop_mode': _crop_mode(preprocess),
    'mean': base.per_channel(preprocess.mean, channels),
    'std': base.per_channel(preprocess.std, channels),
    'num_classes': model.num_classes,
    'pool_size': None,
    **_layers(kind, values),
  }
  if preprocess.classes:
    pretrained['label_names'] = list(preprocess.classes)
  config |= {
    'num_classes': model.num_classes,
    'num_features': values.get('hidden_size') or values['channels'][-1],
    'pretrained_cfg': pretrained,
  }
  return {'config.json': config}


def _layers(kind: Format, values: Mapping[str, Any]) -> dict[str, Any]:
  """Returns timm's names of the first layer and of the head, or of both."""
  rules = kind.rules(values)

  def name(layer: str) -> str:
    names = (x.names(f'{layer}/kernel') for x in rules)
    return next(x[0].removesuffix('.weight') for x in names if x)

  has_stem = 'stages' in values or values.get('patches') == 'hybrid'
  heads = [name('head')]
  if values.get('distillation_token'):
    heads.append(name('head_distillation'))
  return {
    'first_conv': name('stem/conv' if has_stem else 'patch_embedding'),
    'classifier': heads if heads[1:] else heads[0],
  }


def notes(kind: Format, model: models.Model) -> list[str]:
  """Returns notes on where timm's code differs or does not suffice."""
  values = values_lib.model_values(model)
  notes = []
  if obstacle := kind.obstacle(values):
    notes.append(
      f'timm has no architecture for {obstacle}: `create_model` alone does not'
      ' rebuild this model; construct its class, and load the state dict'
    )
  if isinstance(model, vit.ViT) and timm_parallel.has_one_output(values):
    notes.append(
      'the biases of the layers after attention and after the MLP are added:'
      ' timm has one layer for both'
    )
  if values.get('patches') == 'hybrid':
    notes.append(
      'the epsilons of the ResNet stem: GroupNorm has 1e-6 here and 1e-5 in'
      ' timm'
    )
  return notes


def usage(
  kind: Format, model: models.Model, directory: str, file: str
) -> tuple[str, str]:
  """Returns the name of a program, and Python code that loads the model."""
  values = values_lib.model_values(model)
  if values.get('head.pre_logits'):
    return 'timm', _usage_with_pre_logits(values, directory, file)
  if kind.obstacle(values):
    return 'timm', (
      'import safetensors.torch\n'
      f"state_dict = safetensors.torch.load_file('{directory}/{file}')"
    )
  return 'timm', (
    f"import timm\nmodel = timm.create_model('local-dir:{directory}',"
    ' pretrained=True)'
  )


def _crop_mode(preprocess: data.Preprocess) -> str:
  if preprocess.fill is not None:
    return 'border'
  return 'squash' if isinstance(preprocess.resize, tuple) else 'center'


def _crop_pct(preprocess: data.Preprocess) -> float:
  """Returns a fraction f with floor(side / f) = the resized side.

  Unless one is stored, it is that with the fewest digits, as people write it.
  """
  if preprocess.crop_pct is not None:
    return preprocess.crop_pct
  side, resize = min(preprocess.image_size), preprocess.resize
  resized = min(resize) if isinstance(resize, tuple) else resize
  resized = max(resized or side, side)
  for digits in itertools.count(1):
    most = side * 10**digits // resized
    for numerator in (most, most - 1):
      fraction = numerator / 10**digits
      if fraction > 0 and math.floor(side / fraction) == resized:
        return fraction
  raise AssertionError


def _usage_with_pre_logits(
  values: Mapping[str, Any], directory: str, file: str
) -> str:
  """Returns Python code that makes both layers the head of timm's class."""
  d, n = values['hidden_size'], values['head.pre_logits']
  classes = values['num_classes']
  last = f',\n    torch.nn.Linear({n}, {classes})' if classes else ''
  return f"""\
import json
import safetensors.torch
import timm
import torch

with open('{directory}/config.json') as file:
  config = json.load(file)
model = timm.create_model(config['architecture'], **config['model_args'])
model.head = torch.nn.Sequential(
    torch.nn.Linear({d}, {n}), torch.nn.Tanh(){last})
arrays = safetensors.torch.load_file('{directory}/{file}')
model.load_state_dict({{
    name.replace('head.', 'head.2.').replace('pre_logits.fc.', 'head.0.'): array
    for name, array in arrays.items()}})"""
