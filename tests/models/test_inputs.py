"""Images that do not fit a model: one line that says what to do."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vit_jax
from vit_jax import models
from vit_jax.config import UserError
from vit_jax.data import given
from vit_jax.data.host import levels

MODELS = {
  'ViT-Ti/16': {'depth': 1},
  'R26+ViT-S/32': {'depth': 1},
  'Mixer-S/16': {'depth': 1},
  'Mixer-S/16 scanned': {'depth': 1, 'scan': True},
  'BiT-R50x1': {'stages': (1, 1, 1, 1)},
  'iGPT-S': {'depth': 2},
}
SIZE = 64


@functools.cache
def make(name):
  """Returns a model and the shapes of its parameters for 64 x 64 pixels."""
  model = vit_jax.create_model(name.split()[0], num_classes=3, **MODELS[name])
  return model, models.abstract_params(model, (SIZE, SIZE, 3))


def apply(name, shape, **kwargs):
  model, params = make(name)
  images = jax.ShapeDtypeStruct(shape, jnp.float32)
  return jax.eval_shape(
    lambda params, x: model.apply({'params': params}, x, **kwargs),
    params,
    images,
  )


@pytest.mark.parametrize('name', MODELS)
@pytest.mark.parametrize(
  ('shape', 'message'),
  [
    ((2, 3, SIZE, SIZE), 'channels first: .* as images.transpose.0, 2, 3, 1'),
    ((SIZE, SIZE, 3), r'must be \[B, height, width, C\].* is image\[None\]'),
    ((2, 5, SIZE, SIZE, 3), r'must be \[B, height, width, C\]'),
    ((2, SIZE, SIZE, 1), 'have 1 channels.* but the parameters are for 3'),
    ((2, SIZE, SIZE, 4), 'have 4 channels.* but the parameters are for 3'),
    ((2, 128, 96, 3), r'has \d+ patches, but .* image_size=\(128, 96\)\)'),
  ],
)
def test_images_that_do_not_fit(name, shape, message):
  assert apply(name, (2, SIZE, SIZE, 3)).shape == (2, 3)
  if name.startswith('BiT') and shape == (2, 128, 96, 3):
    assert apply(name, shape).shape == (2, 3)  # of any size
    return
  with pytest.raises(ValueError, match=message) as error:
    apply(name, shape)
  assert '\n' not in str(error.value)
  if name.startswith('ViT') and 'patches' in message:
    assert 'for 16, as of 64 x 64 pixels' in str(error.value)


@pytest.mark.parametrize('name', [x for x in MODELS if x[:3] != 'BiT'])
def test_training_needs_a_key(name):
  with pytest.raises(
    ValueError, match=r"rngs=\{'dropout': jax.random.key"
  ) as e:
    apply(name, (2, SIZE, SIZE, 3), train=True)
  assert '\n' not in str(e.value)


def test_positions_of_volumes_and_of_initial_parameters():
  model = vit_jax.create_model('ViT-Ti/16', 3, depth=1, patch_size=(8, 8, 8))
  params = models.abstract_params(model, (16, 16, 16, 1))

  def call(shape):
    images = jnp.zeros(shape)
    return jax.eval_shape(lambda p: model.apply({'params': p}, images), params)

  assert call((1, 16, 16, 16, 1)).shape == (1, 3)
  with pytest.raises(ValueError, match=r'has 16 patches, but .* are for 8: '):
    call((1, 16, 16, 32, 1))
  with pytest.raises(ValueError, match=r'transpose.0, 2, 3, 4, 1'):
    call((1, 1, 16, 16, 16))
  with pytest.raises(ValueError, match='with channels first'):
    models.abstract_params(make('ViT-Ti/16')[0], (3, SIZE, SIZE))


# A field of another library, and what is said of it.
FIELDS = {
  'drop_path': "did you mean 'stochastic_depth'?",
  'drop_path_rate': "did you mean 'stochastic_depth'?",
  'attn_drop_rate': "did you mean 'attention_dropout_rate'?",
  'embed_dim': "did you mean 'hidden_size'?",
  'num_layers': "did you mean 'depth'?",
  'qk_nrom': "'qk_norm' is an option of a part: attention='attention(qk_",
  'pretrained': 'a model with its weights is vit_jax.load(PATH or name)',
  'checkpoint_path': 'a model with its weights is vit_jax.load(PATH or name)',
  'img_size': 'it is no part of the model, but config.data.image_size',
  'in_chans': 'it is no part of the model, but config.data.channels',
  'cheese': 'it has num_classes, ',
}


@pytest.mark.parametrize('field', FIELDS)
def test_fields_of_other_libraries(field, digits_run):
  start = f'a ViT has no field {field!r}: {FIELDS[field]}'
  makers = [lambda: vit_jax.create_model('ViT-Ti/16', **{field: 0.1})]
  if field != 'pretrained':  # which `load` has
    makers.append(lambda: vit_jax.load(digits_run, **{field: 0.1}))
  for make in makers:
    with pytest.raises(ValueError, match=re.escape(start)) as error:
      make()
    assert '\n' not in str(error.value)


@pytest.mark.parametrize(
  ('array', 'advice'),
  [
    (np.zeros((8, 8, 3), np.float32), '(255 * image).round().astype(np.uint8)'),
    (np.zeros((8, 8, 3), np.float32), "vit.model.apply({'params': vit.params}"),
    (np.zeros((3, 8, 8), np.uint8), 'as in image.transpose(1, 2, 0)'),
    (np.zeros((2, 8, 8, 3), np.uint8), 'give the array itself'),
  ],
)
def test_arrays_that_are_no_images(array, advice):
  with pytest.raises(UserError, match=r'^input 0 is an array[^\n]*$') as error:
    given.load(array, 3, 'input 0', levels.Levels())
  assert advice in str(error.value)
