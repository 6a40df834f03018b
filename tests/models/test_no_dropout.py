"""A rate of 0 draws nothing, as a whole number too."""

import jax
import jax.numpy as jnp
import pytest

from vit_jax import models

# All rates of a model, by its name.
RATES = {
  'ViT-Ti/4': (
    'dropout_rate',
    'attention_dropout_rate',
    'stochastic_depth',
    'patch_dropout',
  ),
  'Mixer-S/4': ('dropout_rate', 'stochastic_depth'),
  'iGPT-S': ('dropout_rate', 'attention_dropout_rate', 'stochastic_depth'),
}


def program(name, **fields):
  """Returns the text of a forward pass in training."""
  model = models.create_model(name, 5, depth=2, **fields)
  params = models.abstract_params(model, (8, 8, 3))
  images = jnp.zeros((2, 8, 8), jnp.int32)
  if not name.startswith('iGPT'):
    images = jnp.zeros((2, 8, 8, 3))

  def apply(params, images, key):
    rngs = {'dropout': key}
    return model.apply({'params': params}, images, train=True, rngs=rngs)

  return str(jax.make_jaxpr(apply)(params, images, jax.random.key(0)))


def draws(text):
  return any(word in text for word in ('threefry', 'random_bits'))


@pytest.mark.parametrize('zero', [0, 0.0])
@pytest.mark.parametrize(
  ('name', 'fields'),
  [
    *((name, {}) for name in RATES),
    ('ViT-Ti/4', {'scan': True}),
    ('ViT-Ti/4', {'block': 'block(stochastic_depth_uniform=True)'}),
    (
      'ViT-Ti/4',
      {'attention': "attention(implementation='einsum')", 'pool': 'map'},
    ),
    ('ViT-Ti/4', {'mlp': 'swiglu', 'block': 'branches(2)'}),
    ('ViT-Ti/4', {'remat': 'activations'}),
  ],
)
def test_zero_draws_nothing(name, fields, zero):
  rates = dict.fromkeys(RATES[name], zero)
  text = program(name, **fields, **rates)
  assert not draws(text)
  assert draws(program(name, **fields, **(rates | {'dropout_rate': 0.1})))
