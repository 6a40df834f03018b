"""A BatchNorm before the head, whose running statistics are measured."""

import methods
import numpy as np
import pytest
import tiny

import vit_jax
from vit_jax.config import UserError
from vit_jax.train import experiment as experiment_lib
from vit_jax.train import loop

# Adam would turn the rounding errors of the bias before the BatchNorm, whose
# gradient is zero, into steps of the learning rate's size.
RUN = {
  'model__head': "linear(norm='batch')",
  'train__duration': '8 steps',
  'optim__name': 'sgd',
}


finished = methods.finished(lambda: tiny.config(**RUN))


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_bit(finished, tmp_path):
  config = tiny.config(**RUN)
  methods.assert_resumes_to_the_bit(config, finished, tmp_path / 'run')


@pytest.mark.slow
def test_statistics_are_the_whole_batchs(finished, tmp_path):
  config = tiny.config(**RUN, **methods.LAYOUTS['8 devices'])
  assert loop.run(config, str(tmp_path / 'run')).status == 0
  losses = [methods.losses(path) for path in (finished, tmp_path / 'run')]
  np.testing.assert_allclose(*losses, rtol=1e-5)
  one, eight = (
    vit_jax.load(path).params['head_norm']
    for path in (finished, tmp_path / 'run')
  )
  for name, start in (('mean', 0.0), ('var', 1.0)):
    assert abs(np.asarray(one[name]) - start).max() > 1e-3
    np.testing.assert_allclose(one[name], eight[name], rtol=1e-5, atol=1e-6)


def test_a_probe_moves_the_head_and_the_statistics_alone(finished, tmp_path):
  config = tiny.config(
    **RUN, init_from__path=str(finished), optim__trainable='^head/'
  )
  assert loop.run(config, str(tmp_path)).status == 0
  before, after = (vit_jax.load(x).params for x in (finished, tmp_path))
  np.testing.assert_array_equal(
    before['patch_embedding']['kernel'], after['patch_embedding']['kernel']
  )
  for path in (('head', 'kernel'), ('head_norm', 'mean')):
    a, b = (x[path[0]][path[1]] for x in (before, after))
    assert abs(np.asarray(a) - np.asarray(b)).max() > 1e-5, path


@pytest.mark.parametrize(
  ('overrides', 'message'),
  [
    ({'train__accumulation': 2}, 'accumulation is 2.*: set it to 1'),
    ({'train__batch_size': 1}, 'batch_size is 1.*at least 2'),
    ({'model__distillation_token': True}, 'distillation_token is True'),
  ],
)
def test_mistakes_get_one_line(overrides, message):
  with pytest.raises(UserError, match=f'^[^\n]*{message}[^\n]*$'):
    experiment_lib.check(tiny.config(**RUN | overrides))
