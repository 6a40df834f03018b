"""BEiT: predicting tokens of masked patches, classifying, and masks."""

import dataclasses
import pathlib
import tempfile

import jax
import jax.numpy as jnp
import mask_samples
import numpy as np
import optax
from safetensors import numpy as safetensors

from vit_jax import config as config_lib
from vit_jax import objectives
from vit_jax import weights
from vit_jax.data import features
from vit_jax.models.parts import relative
from vit_jax.objectives import beit
from vit_jax.objectives import block_masks
from vit_jax.train import experiment
from vit_jax.weights import initial
from vit_jax.weights.formats import export


def _load(case):
  """Loads the case's weights; the case says what the arrays do not."""
  h, w = case.fields['grid']
  patch = case.fields['patch_size']
  return weights.load(
    case.weights,
    image_size=(h * patch, w * patch),
    num_heads=case.fields['heads'],
    layer_norm_epsilon=case.fields['layer_norm_eps'],
  )


def _objective(case, loaded):
  """Returns the objective that starts from the case's weights, and these."""
  config = config_lib.default()
  config.objective.name = 'beit'
  config.objective.options.tokens = case.fields['vocab']
  config.objective.options.masked = case.fields['masked']
  config.objective.options.block_least = 1
  config.data.image_size = loaded.position_size
  config.init_from.path = str(case.weights)
  config.model.name = config_lib.INIT_FROM
  config.model.mask_token = True
  config.model.num_classes = 0
  initial.fill(config, loaded)
  experiment.fill_unset(config)
  objectives.fill_options(config)
  image_feature = {'image': features.Image(loaded.position_size)}
  objective = objectives.create(config, image_feature)
  assert isinstance(objective, beit.BEiT)
  start = initial.Start(config, (), loaded, objective)
  return objective, start.take()


def _check_export(case, loaded, objective=None, params=None):
  """Checks that what is written back has the file's bits.

  Raises:
    ValueError: It has not.
  """
  assert case.weights is not None
  foreign_params, objective_params = None, {}
  if objective is not None:
    foreign_params = objective.foreign(loaded.format)
    objective_params = {'head': params['head']}
  loaded = dataclasses.replace(loaded, objective_params=objective_params)
  with tempfile.TemporaryDirectory() as directory:
    path = pathlib.Path(directory) / 'written'
    export.write(loaded, path, loaded.format, str(case.weights), foreign_params)
    arrays = _arrays(path / 'model.safetensors')
  stored = case.weights
  if stored.is_dir():
    stored = stored / 'model.safetensors'
  expected = _arrays(stored)
  wrong = [k for k in arrays.keys() ^ expected.keys()]
  wrong += [
    k
    for k in arrays.keys() & expected.keys()
    if not np.array_equal(arrays[k], expected[k])
  ]
  if wrong:
    raise ValueError(f'written back, these differ: {sorted(wrong)}')


def _arrays(path):
  """Returns a file's parameters; a table of indices is none."""
  arrays = safetensors.load_file(path)
  return {k: x for k, x in arrays.items() if not k.endswith('position_index')}


def masked_images(case):
  """Answers logits, loss, its gradient's norm, and the last hidden state."""
  loaded = _load(case)
  objective, params = _objective(case, loaded)
  _check_export(case, loaded, objective, params)
  images, masked = case.inputs['image'], case.inputs['bool_masked_pos']
  tokens = np.zeros(masked.shape, np.int32)
  tokens[masked] = case.inputs['labels']
  picked = beit.pick(jnp.asarray(masked), int(masked.sum(axis=1).max()))

  def loss_fn(params):
    patches = objective.encode(params, images, masked)
    loss, _ = objective.scores(params, patches, tokens, picked)
    return loss / masked.sum()

  loss, grads = jax.jit(jax.value_and_grad(loss_fn))(params)
  patches = objective.encode(params, images, masked)
  _, state = objective.model.apply(
    {'params': params['trunk']},
    images,
    method='trunk',
    masked=masked,
    mutable=['intermediates'],
  )
  return {
    'logits': objective.predict(params, patches),
    'loss': loss,
    'grad_norm': optax.global_norm(grads),
    'hidden': state['intermediates']['tokens'][-1],
    'relative_position_index': relative.index(tuple(case.fields['grid'])),
  }


def classifier(case):
  """Answers the input of the head, and the logits."""
  loaded = _load(case)
  _check_export(case, loaded)
  headless = loaded.model.clone(num_classes=0)
  variables, images = {'params': loaded.params}, case.inputs['image']
  return {
    'pooled': headless.apply(variables, images),
    'logits': loaded.model.apply(variables, images),
  }


def masks(case):
  """Compares statistics of masks with another sample's."""
  masks = block_masks.BlockMasks(
    tuple(case.fields['grid']),
    case.fields['num_masking_patches'],
    case.fields['min_num_patches'],
    case.fields['max_num_patches'],
    (case.fields['min_aspect'], 1 / case.fields['min_aspect']),
  )
  return mask_samples.compare(case, masks)


CHECKS = {
  'beit_mim_shared': masked_images,
  'beit_mim_per_layer': masked_images,
  'beit_unilm_rectangle': masked_images,
  'beit_classifier': classifier,
  'beit_masks': masks,
}
