"""Small models to look inside of; in one, all queries find a bright patch."""

import dataclasses
from typing import Any

import jax
import numpy as np

from vit_jax import data
from vit_jax import models
from vit_jax import weights
from vit_jax.models import describing
from vit_jax.models import layouts
from vit_jax.models import mixer
from vit_jax.models import registry
from vit_jax.models import resnet
from vit_jax.models import vit as vit_lib
from vit_jax.weights import features

SIZE = (8, 16)  # of images; in patches, 2 x 4
BRIGHT = (1, 2)  # row and column of the bright patch


def tiny(**overrides: Any) -> vit_lib.ViT:
  fields = {
    'num_classes': 5,
    'patch_size': (4, 4),
    'hidden_size': 16,
    'mlp_dim': 24,
    'num_heads': 2,
    'depth': 3,
  }
  return models.create(vit_lib.ViT, fields | overrides)


def tiny_mixer(**overrides: Any) -> mixer.Mixer:
  fields = {
    'num_classes': 5,
    'patch_size': (4, 4),
    'hidden_size': 16,
    'tokens_mlp_dim': 10,
    'mlp_dim': 24,
    'depth': 3,
  }
  return registry.build_model(mixer.Mixer, **(fields | overrides))


def tiny_bit(**overrides: Any) -> resnet.BiT:
  fields = {
    'num_classes': 5,
    'stages': (1,),
    'stem_width': 8,
    'channels': (16,),
    'num_groups': 4,
  }
  return resnet.BiT(**(fields | overrides))


def loaded(
  model: models.Model, params: Any = None, size: tuple[int, int] = SIZE
) -> weights.Loaded:
  """Returns a model as `load` does, by default with random parameters."""
  if params is None:
    random = np.random.default_rng(0)
    params = jax.tree.map(
      lambda x: random.normal(0, 0.3, x.shape).astype(np.float32),
      models.abstract_params(model, (*size, 3)),
    )
  names = tuple('abcdefgh'[: model.num_classes])
  preprocess = data.Preprocess(names, size, 3, (0.5,), (0.5,))
  return weights.Loaded(model, params, preprocess, size, 'corner')


def scanned(model: weights.Loaded) -> weights.Loaded:
  """Returns the same model with its layers in a scan."""
  return dataclasses.replace(
    model,
    model=model.model.clone(scan=True),
    params=layouts.stack_layers(model.params),
  )


def images(count: int = 5, size: tuple[int, int] = SIZE) -> np.ndarray:
  """Returns what a model takes, float32 [count, height, width, 3]."""
  random = np.random.default_rng(1)
  return random.normal(size=(count, *size, 3)).astype(np.float32)


def with_bright_patches(*patches: tuple[int, int]) -> np.ndarray:
  """Returns an image [1, 8, 16, 3] that is 0 but for some patches."""
  image = np.zeros((1, *SIZE, 3), np.float32)
  for row, column in patches or [BRIGHT]:
    image[:, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] = 4.0
  return image


def finder(**overrides: Any) -> weights.Loaded:
  """Returns a model in which all tokens look at bright patches.

  Channel 0 of a token is its brightness, channel 3 is 5. Queries are constant,
  keys are channel 0. What is found adds its brightness to channel 1, which
  speaks for class 1; class 0 has no kernel.
  """
  model = describing.with_keys(
    tiny(hidden_size=8, depth=2, positions='none', num_classes=2),
    **overrides,
  )
  shapes = models.abstract_params(model.clone(scan=False), (*SIZE, 3))
  params = jax.tree.map(lambda x: np.zeros(x.shape, np.float32), shapes)
  if 'class_token' in params:
    params['class_token'][..., 3] = 5
  params['patch_embedding']['kernel'][..., 0] = 1 / 48
  params['patch_embedding']['bias'][3] = 5
  params['head']['kernel'][1, 1] = 1
  params['norm']['scale'][:] = 1
  for layer in range(model.depth):
    block = params[f'blocks_{layer}']
    for norm in ('norm1', 'norm2'):
      block[norm]['scale'][:] = 1
    block['attention']['qkv']['bias'][0, :, 0] = 10
    block['attention']['qkv']['kernel'][0, 1, :, 0] = 1
    block['attention']['qkv']['kernel'][0, 2, :, 1] = 1
    block['attention']['out']['kernel'][:, 1, 1] = 1
  return loaded(model, params)


def looked(vit, images):
  """Returns logits, tokens and, unless of a Mixer, attention, in one pass."""
  names = ['logits', 'tokens']
  if not isinstance(vit.model, mixer.Mixer):
    names.append('attention')

  def keep(outputs):
    return outputs | {'logits': outputs['logits'][None]}

  outputs = features.reduced(vit, images, names, keep, axis=1)
  return outputs | {'logits': outputs['logits'][0]}
