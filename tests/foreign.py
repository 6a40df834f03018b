"""Small models, and files of other libraries, that several tests read."""

import functools

import flax
import jax
import numpy as np
import tiny

from vit_jax import data
from vit_jax import models
from vit_jax import weights
from vit_jax.models import describing
from vit_jax.weights.files import containers

GOLDEN = tiny.TESTS / 'data' / 'golden'
GOOGLE = GOLDEN / 'google'
TORCH = GOLDEN / 'torch'
IMAGENET = (0.485, 0.456, 0.406)


# Each runs once: most of the time would go to LLVM.
@functools.partial(
  jax.jit,
  static_argnums=0,
  compiler_options={'xla_backend_optimization_level': 0},
)
def _apply(model, params, images):
  return model.apply({'params': params}, images)


def logits(loaded, images):
  return np.asarray(_apply(loaded.model, loaded.params, images))


def read(path, state=None):
  """Returns the arrays of a file, or of one of its states."""
  with containers.open_arrays(path, state) as arrays:
    return {name: arrays.read(name) for name in arrays.shapes}


def random_images(height, width, channels=3):
  rng = np.random.default_rng(0)
  return rng.standard_normal((2, height, width, channels), np.float32)


def transformers_model(name, fields):
  """Returns torch, transformers and a model of theirs with random weights.

  Args:
    name: Its class; what follows a comma is left out.
    fields: Of its config.
  """
  import other_libraries  # of pytest, which scripts/fuzz.py does without
  import pytest

  reason = "needs torch and transformers: pip install -e '.[compat]'"
  torch = pytest.importorskip('torch', reason=reason)
  transformers = other_libraries.imported('transformers', reason)
  torch.manual_seed(0)
  module = getattr(transformers, name.split(',')[0])
  model = module(module.config_class(**fields)).eval()
  with torch.no_grad():
    for parameter in model.parameters():
      parameter.normal_(std=0.2)
  return torch, transformers, model


def torch_outputs(model, images, **kwargs):
  """Returns what a model of torch gives for images [B, H, W, C]."""
  import torch

  pixels = torch.tensor(np.moveaxis(images, -1, 1).copy())
  with torch.no_grad():
    return model(pixels, **kwargs)


def flat(loaded):
  return flax.traverse_util.flatten_dict(loaded.params, sep='/')


def fields(loaded):
  """Returns the fields of a model, with nothing left open."""
  result = describing.full_values(loaded.model)
  if hasattr(type(loaded.model), 'prefix'):
    result['class_token'] = 'class_token' in loaded.model.prefix
  return result


def assert_same(loaded, expected):
  """Checks that two models are the same, to the bit."""
  assert fields(loaded) == fields(expected)
  arrays, expected_arrays = flat(loaded), flat(expected)
  assert arrays.keys() == expected_arrays.keys()
  for path, array in arrays.items():
    np.testing.assert_array_equal(array, expected_arrays[path], path)


def random_model(size=(32, 32), channels=3, classes=(), **fields):
  """Returns a small ViT, or another family's by its name."""
  small = {'patch_size': 8, 'hidden_size': 24, 'mlp_dim': 48}
  small |= {'num_heads': 3, 'depth': 2, 'num_classes': 5}
  name = fields.pop('name', 'ViT-B/16')
  model = models.create_model(
    name, **(small | fields if name.startswith(('ViT', 'R')) else fields)
  )
  rng = np.random.default_rng(0)
  params = jax.tree.map(
    lambda x: rng.standard_normal(x.shape, np.float32) * np.float32(0.3),
    models.abstract_params(model, (*size, channels)),
  )
  preprocess = data.Preprocess(
    classes, size, channels, (0.4,), (0.3,), resize=40
  )
  return weights.Loaded(model, params, preprocess, size, 'corner')
