"""Several views of the rows of a batch in one call of `apply_train`."""

import itertools

import numpy as np
import pytest
import tiny

from vit_jax.train import experiment as experiment_lib

METHOD = """
import jax.numpy as jnp

from vit_jax.objectives import base


class Views(base.Objective):
  def loss(self, params, extra, batch, rng):
    image = batch['image']
    views, axis = {views}
    features = self.apply_train(params, views, rng)
    features = features.reshape(*{shape}, -1)
    difference = abs(features.take(0, axis) - features.take(1, axis)).mean()
    means = {{'difference': difference, 'cubes': (features**3).mean()}}
    return (features**4).mean(), means, extra
"""
ORDERS = {
  'concatenated': {
    'views': 'jnp.concatenate([image, image, image]), 0',
    'shape': '(3, len(image))',
  },
  'side_by_side': {
    'views': 'jnp.repeat(image, 3, axis=0), 1\n    rng = rng.repeat(3)',
    'shape': '(len(image), 3)',
  },
  'some': {  # not a multiple of the rows
    'views': 'jnp.concatenate([image, image[:1]]), 0',
    'shape': '(len(image) + 1, 1)',
  },
}
RANDOM = tiny.RANDOM | {'model__depth': 1}
SPLIT = {'mesh__data': 4, 'train__accumulation': 2, 'model__scan': True}
_count = itertools.count()  # a module is imported once


def first_step(tmp_path, monkeypatch, order, **overrides):
  """Returns the metrics of the first step of an objective with views."""
  monkeypatch.syspath_prepend(tmp_path)
  name = f'own_{next(_count)}_views'
  (tmp_path / f'{name}.py').write_text(METHOD.format(**ORDERS[order]))
  config = tiny.config(
    objective__name=f'{name}:Views', checkpoint__best='', **overrides
  )
  config.evals.val.split = ''
  experiment = experiment_lib.build(config)
  with experiment.train_batches(0) as batches:
    _, metrics = experiment.program.train_step(
      experiment.init(), next(batches), np.int32(0)
    )
  return {name: float(x) for name, x in metrics.items()}


@pytest.mark.slow
@pytest.mark.parametrize('order', ['concatenated', 'side_by_side'])
def test_views_drop_on_their_own_however_a_step_is_computed(
  tmp_path, monkeypatch, order
):
  args = tmp_path, monkeypatch, order
  expected = first_step(*args, **RANDOM)
  assert (
    expected['difference'] > 0.01
  )  # of views that are equal but for dropout
  split = first_step(*args, **RANDOM, **SPLIT)
  assert split == pytest.approx(expected, rel=1e-4)


def test_views_are_equal_without_dropout(tmp_path, monkeypatch):
  metrics = first_step(tmp_path, monkeypatch, 'concatenated')
  assert metrics['difference'] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize('rng', ['threefry', 'rbg'])
def test_another_number_of_images(tmp_path, monkeypatch, rng):
  dropout = {'model__dropout_rate': 0.1, 'train__rng': rng}
  assert first_step(tmp_path, monkeypatch, 'some', **dropout)['ok']
