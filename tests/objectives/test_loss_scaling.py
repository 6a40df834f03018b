"""Training in float16, with a loss that is scaled while gradients are made."""

import dataclasses
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

import vit_jax
from vit_jax.config import UserError
from vit_jax.train import experiment as experiment_lib
from vit_jax.train import loop

HALF = {
  'train__dtype': 'float16',
  'train__skip_nonfinite': True,
  'model__depth': 2,
}


@pytest.fixture(scope='module')
def experiment():
  return experiment_lib.create(tiny.config(**HALF))


@pytest.fixture(scope='module')
def batch(experiment):
  with experiment.train_batches(0) as batches:
    return next(batches)


def start(experiment, size):
  """The first state, with a head that is not 0, as it is at first."""
  state = experiment.init()
  head = state.params['head']
  kernel = size * jax.random.normal(jax.random.key(9), head['kernel'].shape)
  params = {**state.params, 'head': {**head, 'kernel': kernel}}
  return dataclasses.replace(state, params=params)


def step(experiment, batch, state, number=0):
  return experiment.program.train_step(
    jax.tree.map(jnp.copy, state), batch, np.int32(number)
  )


def with_scale(state, exponent, steps):
  scale = {'exponent': jnp.int32(exponent), 'steps': jnp.int32(steps)}
  return dataclasses.replace(state, extra={**state.extra, 'loss_scale': scale})


def scale(state):
  return {name: int(x) for name, x in state.extra['loss_scale'].items()}


def test_gradients_are_those_of_a_scale_that_no_one_sees(experiment, batch):
  """Powers of 2 change no digit; without one small gradients are lost."""
  state = start(experiment, 1.0)
  norms = {}
  for exponent in (-14, 10, 15):
    _, metrics = step(experiment, batch, with_scale(state, exponent, 0))
    assert metrics['ok'] and metrics['loss_scale'] == 2.0**exponent
    norms[exponent] = float(metrics['grad_norm'])
    assert np.isfinite(float(metrics['loss']))
  full = tiny.config(model__depth=2)
  exact = experiment_lib.create(full)
  _, metrics = step(exact, batch, start(exact, 1.0))
  expected = float(metrics['grad_norm'])
  assert 'loss_scale' not in metrics
  np.testing.assert_allclose(norms[15], expected, rtol=0.01)
  np.testing.assert_allclose(norms[10], norms[15], rtol=1e-3)
  assert abs(norms[-14] - expected) > abs(norms[15] - expected)


def test_an_overflow_is_skipped_and_halves_the_scale(experiment, batch):
  before = with_scale(start(experiment, 100.0), 24, 1_234)
  state, metrics = step(experiment, batch, before)
  assert not metrics['ok'] and np.isfinite(float(metrics['loss']))
  assert scale(state) == {'exponent': 23, 'steps': 0}
  assert int(state.step) == 1
  jax.tree.map(np.testing.assert_array_equal, state.params, before.params)
  jax.tree.map(np.testing.assert_array_equal, state.opt_state, before.opt_state)


@pytest.mark.parametrize(
  ('before', 'after'),
  [((10, 5), (10, 6)), ((10, 1_999), (11, 0)), ((24, 1_999), (24, 0))],
)
def test_finite_steps_double_the_scale_in_time(
  experiment, batch, before, after
):
  if before[0] == 24:
    objective = experiment.program.objective
    extra = {
      'loss_scale': dict(zip(('exponent', 'steps'), before, strict=True))
    }
    extra = jax.tree.map(jnp.int32, extra)
    new = objective.after_step(extra, jnp.bool_(True), jnp.bool_(True))
    assert tuple(new['loss_scale'].values()) == after
    broken = objective.after_step(extra, jnp.bool_(False), jnp.bool_(False))
    assert broken == extra  # a step without a batch is no overflow
    return
  state, _ = step(experiment, batch, with_scale(experiment.init(), *before))
  assert tuple(scale(state).values()) == after


def test_a_resumed_run_goes_on_to_the_bit(tmp_path):
  config = tiny.config(**HALF, train__accumulation=2, train__ema_decay=0.9)
  whole, run = tmp_path / 'whole', tmp_path / 'run'
  results = vit_jax.train(config, whole)
  rows = [x for x in tiny.metrics(whole) if 'train/loss_scale' in x]
  skipped = results.metrics['train/skipped_steps']
  assert rows[-1]['train/loss_scale'] == 2.0 ** (15 - skipped)
  shutil.copytree(whole, run)
  (run / 'DONE').unlink()
  shutil.rmtree(run / 'checkpoints/12')
  loop.run(config, str(run))
  states = [vit_jax.load(x, step='newest').params for x in (whole, run)]
  jax.tree.map(np.testing.assert_array_equal, *states)


def test_the_backward_pass_stops_where_nothing_trains():
  """Frozen parameters have no gradients, as in float32."""
  frozen = {'optim__trainable': '^head/', **HALF}
  programs = [
    experiment_lib.create(
      tiny.config(**frozen | {'train__dtype': dtype})
    ).program
    for dtype in ('float16', 'float32')
  ]
  half, full = (
    str(
      x.train_step.trace(
        x.abstract_state(), x.abstract_batch(), np.int32(0)
      ).jaxpr
    ).count('dot_general')
    for x in programs
  )
  assert half == full


def test_a_config_must_skip_overflows():
  config = tiny.config(train__dtype='float16')
  with pytest.raises(
    UserError, match=r'set config\.train\.skip_nonfinite=True'
  ):
    experiment_lib.check(config)
