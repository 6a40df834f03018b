"""State dicts of timm (PyTorch Image Models): ViT, Eva, hybrids, Mixer, BiT.

DeiT, MAE, BEiT and MoCo v3 publish ViTs under these names, and DINO, DINOv2,
DINOv3 and EVA-02 under similar ones (`originals`).

timm has architectures by name, which `model_args` in config.json modify. If it
has no name for a model that is written, config.json has the most similar one,
and a note says what differs.
"""

from collections.abc import Iterable
import itertools
import math
import re
from typing import Any

from vit_jax import data
from vit_jax.weights.files import containers
from vit_jax.weights.formats import base
from vit_jax.weights.formats import dino_head
from vit_jax.weights.formats import format as format_lib
from vit_jax.weights.formats import moco
from vit_jax.weights.formats import open_clip
from vit_jax.weights.formats import originals
from vit_jax.weights.formats import timm_beit
from vit_jax.weights.formats import timm_eva
from vit_jax.weights.formats import timm_mixer
from vit_jax.weights.formats import timm_naflex
from vit_jax.weights.formats import timm_names
from vit_jax.weights.formats import timm_parallel
from vit_jax.weights.formats import timm_vit
from vit_jax.weights.formats.base import FileFacts
from vit_jax.weights.formats.base import Values
from vit_jax.weights.formats.format import Format

NAME, SUFFIX = 'timm', '.safetensors'
# In the order in which a model is written under one of them. A file is of the
# last that matches.
KINDS: tuple[Format, ...] = (
  timm_vit.VIT,
  timm_eva.EVA,
  timm_beit.BEIT,
  timm_beit.RELPOS,
  timm_naflex.NAFLEX,
  timm_mixer.MIXER,
  timm_mixer.BIT,
)
# Arrays outside the model, which MAE, DINO and BEiT leave in their files.
IGNORED = (
  r'mask_token|decoder_.*|fc_norm\.unused'
  r'|(momentum_encoder|predictor|head\.\d+)\..*'  # MoCo v3
  rf'|{timm_beit.IGNORED}|{originals.IGNORED}|{dino_head.IGNORED}'
  rf'|{open_clip.IGNORED}'
)
_SIGNS = (
  r'(patch_embed|embeds|stem)\.proj\.weight|stem\.conv\.weight|pos_embed'
  r'|blocks\.\d+\.(attn|mlp).*'
)


def recognises(names: Iterable[str]) -> bool:
  """Whether a file with these arrays has this format."""
  names = {dino_head.as_timms(moco.as_timms(name)) for name in names}
  signs = re.compile(_SIGNS)
  return open_clip.recognises(names) or any(map(signs.fullmatch, names))


def prepare(arrays: containers.Arrays) -> base.Renamed:
  """Returns the arrays under the names that the rules use."""
  if any('base_encoder.' in name for name in arrays.shapes):
    return base.Renamed(arrays, moco.as_timms, moco.stored)
  if timm_parallel.has_signs(arrays.shapes):
    return timm_parallel.as_vit(arrays)
  if open_clip.recognises(arrays.shapes):
    return open_clip.as_timm(arrays)
  if any(map(dino_head.is_whole, arrays.shapes)):
    arrays = base.Renamed(arrays, dino_head.as_timms)
  return originals.as_timm(arrays)


def describe(file: FileFacts) -> base.Description:
  """Returns the model that a file holds."""
  timm_names.check_arrays(file.shapes)
  return format_lib.describe(KINDS[::-1], file)


def companions(
  kind: Format, values: Values, preprocess: data.Preprocess, params: Any
) -> dict[str, dict[str, Any]]:
  """Returns the config.json from which timm rebuilds a model."""
  del params
  channels = preprocess.channels
  mode = 'squash' if isinstance(preprocess.resize, tuple) else 'center'
  pretrained = {
    'input_size': [channels, *values['image_size']],
    'fixed_input_size': 'stages' not in values,
    'interpolation': preprocess.interpolation,
    'crop_pct': _crop_pct(preprocess),
    'crop_mode': mode if preprocess.fill is None else 'border',
    'mean': base.per_channel(preprocess.mean, channels),
    'std': base.per_channel(preprocess.std, channels),
    'num_classes': values['num_classes'],
    'pool_size': None,
    **_layers(kind, values),
  }
  if preprocess.classes:
    pretrained['label_names'] = list(preprocess.classes)
  return {
    'config.json': {
      **kind.config(values),
      'num_classes': values['num_classes'],
      'num_features': values.get('hidden_size') or values['channels'][-1],
      'pretrained_cfg': pretrained,
    }
  }


def _layers(kind: Format, values: Values) -> dict[str, Any]:
  """Returns timm's names of the first layer and of the head, or of both."""

  def name(layer: str) -> str:
    names = (x.names(f'{layer}/kernel') for x in kind.rules(values))
    return next(x[0].removesuffix('.weight') for x in names if x)

  has_stem = 'stages' in values or values.get('patches') == 'hybrid'
  heads = [name('head')]
  if values.get('distillation_token'):
    heads.append(name('head_distillation'))
  return {
    'first_conv': name('stem/conv' if has_stem else 'patch_embedding'),
    'classifier': heads if heads[1:] else heads[0],
  }


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


def notes(kind: Format, values: Values) -> list[str]:
  """Returns notes on where timm's code differs or does not suffice."""
  notes = []
  if unsaid := kind.unsaid(values):
    notes.append(
      f'timm has no architecture for {unsaid}: `create_model` alone does not'
      ' rebuild this model; construct its class, and load the state dict'
    )
  if timm_parallel.has_one_output(values):
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
  kind: Format, values: Values, directory: str, file: str
) -> tuple[str, str]:
  """Returns the name of a program, and Python code that loads the model."""
  if n := values.get('head.pre_logits'):
    # Both layers are the head of timm's class.
    d, classes = values['hidden_size'], values['num_classes']
    last = f',\n    torch.nn.Linear({n}, {classes})' if classes else ''
    code = f"""\
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
  elif kind.unsaid(values):
    code = f"""\
import safetensors.torch
state_dict = safetensors.torch.load_file('{directory}/{file}')"""
  else:
    code = f"""\
import timm
model = timm.create_model('local-dir:{directory}', pretrained=True)"""
  return NAME, code
