"""Optimizers that a config names: functions of optax, and of a user's file."""

import functools
import inspect
import pathlib

import documented
import jax
import jax.numpy as jnp
import mistakes
import numpy as np
import optax
import pytest
import tiny

import vit_jax
from vit_jax import config as config_lib
from vit_jax import optim
from vit_jax.models import layouts
from vit_jax.rerun import reproduce
from vit_jax.train import experiment as experiment_lib

UserError = config_lib.UserError
RATES = (0.0, 0.05, 0.1, 0.02)  # a warm-up begins with 0
OWN_OPTIMIZER = """
import jax
import optax

def signed(learning_rate, scale=1.0, weight_decay=0.0):
  return optax.chain(
    optax.scale_by_sign(),
    optax.add_decayed_weights(weight_decay),
    optax.scale_by_learning_rate(learning_rate * scale),
  )

def whole(learning_rate):
  return optax.chain(
    optax.clip_by_global_norm(1e-3), optax.sgd(learning_rate)
  )

def wrong(learning_rate):
  return 3

def no_rate(scale):
  return optax.scale(scale)

def needy(learning_rate, scale):
  return optax.sgd(learning_rate * scale)
"""


@pytest.fixture
def own_optimizer(tmp_path, monkeypatch):
  """A module of the user's."""
  (tmp_path / 'own_optimizers.py').write_text(OWN_OPTIMIZER)
  monkeypatch.syspath_prepend(str(tmp_path))


def make(name, **settings):
  """Returns config.optim with an optimizer, checked, and the optimizer."""
  config = config_lib.default()
  config.optim.update({'name': name, 'learning_rate': max(RATES), **settings})
  optim.check(config)
  return config.optim, optim.make_optimizer(config.optim)


@functools.cache
def draws():
  """Parameters of two layers, and the gradients of each step."""
  rng = np.random.default_rng(0)

  def tree():
    return {
      **{f'blocks_{i}': {'kernel': rng.normal(size=(3, 4))} for i in (0, 1)},
      'head': {'kernel': rng.normal(size=(4, 2)), 'bias': rng.normal(size=2)},
    }

  as_arrays = functools.partial(jax.tree.map, jnp.float32)
  return as_arrays(tree()), [as_arrays(tree()) for _ in RATES]


def trained(optimizer, params, gradients):
  """Returns the parameters after a step with each of RATES."""
  state = optimizer.init(params)
  for rate, g in zip(RATES, gradients, strict=True):
    direction, state = optimizer.update(g, state, params, learning_rate=rate)
    assert optimizer.has_rate
    params = jax.tree.map(jnp.subtract, params, direction)
  return params


def assert_near(actual, expected):
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7),
    actual,
    expected,
  )


@pytest.mark.parametrize(
  ('text', 'function', 'options'),
  [
    ('optax:adan(b1=0.9, b3=0.95)', optax.adan, {'b1': 0.9, 'b3': 0.95}),
    ('optax:adamw', optax.adamw, {}),
    ('optax:rmsprop(momentum=0.9)', optax.rmsprop, {'momentum': 0.9}),
    ('optax:fromage', optax.fromage, {}),  # not proportional to the rate
    ('optax:novograd', optax.novograd, {}),
    ('optax:contrib.madgrad', optax.contrib.madgrad, {}),
    ("optax.contrib:ademamix(mu_dtype='float32')", optax.contrib.ademamix, {}),
  ],
)
def test_is_the_function_of_optax(text, function, options):
  params, gradients = draws()
  static = set(inspect.signature(function).parameters) - {'learning_rate'}
  reference = optax.inject_hyperparams(function, static)(
    learning_rate=lambda step: jnp.array(RATES)[step], **options
  )
  expected, state = params, reference.init(params)
  for g in gradients:
    updates, state = reference.update(g, state, expected)
    expected = optax.apply_updates(expected, updates)
  actual = trained(make(text)[1], params, gradients)
  assert_near(actual, expected)


@pytest.mark.parametrize('text', ['optax:fromage', 'optax:lamb', 'optax:adan'])
def test_scanned_layers_get_the_same_updates(text):
  params, gradients = draws()
  stacked = [layouts.stack_layers(tree) for tree in (params, *gradients)]
  assert 'blocks' in stacked[0]
  optimizer = make(text)[1]
  actual = trained(optimizer, stacked[0], stacked[1:])
  expected = trained(optimizer, params, gradients)
  assert_near(layouts.unstack_layers(actual), expected)


def test_a_number_of_all_parameters_needs_unrolled_layers(own_optimizer):
  params, gradients = draws()
  optimizer = make('own_optimizers:whole')[1]
  trained(optimizer, params, gradients)
  scanned = layouts.stack_layers(params)
  with pytest.raises(UserError, match=r'^[^\n]*set config.model.scan=False$'):
    optimizer.update(scanned, optimizer.init(scanned), scanned)


def test_decay_and_clipping_are_around_it(own_optimizer):
  """The decay of the config takes the place of the function's default."""
  params, gradients = draws()
  settings = {'weight_decay': 0.5, 'clip_norm': 1e-3}
  for text in ('optax:adamw', 'own_optimizers:signed'):
    # Its own decay is off where the config has one, and it has no momentum.
    _, plain = make(text, **settings | {'weight_decay': 1e-9})
    _, decayed = make(text, **settings)
    args = gradients[0], plain.init(params), params
    state = decayed.init(params)
    kernel = params['head']['kernel'] * max(RATES)
    before = plain.update(*args)[0]
    after = decayed.update(args[0], state, params, decay=2.0)[0]
    assert_near(after['head']['bias'], before['head']['bias'])
    added = after['head']['kernel'] - before['head']['kernel']
    np.testing.assert_allclose(added, kernel, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
  ('_', 'settings', 'pattern'),
  mistakes.cases(pathlib.Path(__file__).with_name('mistakes.txt')),
)
def test_mistakes_are_told_in_one_line(_, settings, pattern, own_optimizer):
  """Of schedules, clipping and sharpness, too."""
  config = config_lib.default()
  tiny.change(config, settings, 'optim.')
  with mistakes.told(rf'^config\.optim\..*{pattern}'):
    optim.check(config)
    optim.make_optimizer(config.optim)


@pytest.mark.slow
def test_a_run_is_reproduced(tmp_path, caplog, monkeypatch):
  """That of docs/configs.md, with all that may be around it."""
  code, _ = documented.blocks('docs/configs.md', 'python')
  (tmp_path / 'my_optimizer.py').write_text(code)
  monkeypatch.syspath_prepend(str(tmp_path))
  config = tiny.config(
    optim__name='my_optimizer:signed(momentum=0.95)',
    optim__weight_decay=0.1,
    optim__layer_decay=0.5,
    optim__freeze='^patch_embedding/',
    model__scan=True,
    train__accumulation=2,
    train__steps_per_call=2,
  )
  caplog.set_level('INFO')
  experiment_lib.check(config)
  vit_jax.train(config, str(tmp_path / 'run'))
  old, new = str(tmp_path / 'run'), str(tmp_path / 'again')
  assert reproduce.run(old, new) == 0
  assert 'equal to the bit: all ' in caplog.text
