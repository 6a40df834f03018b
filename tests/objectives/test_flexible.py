"""One model is trained with patches of several sizes (FlexiViT)."""

import functools
import json

import commands
import jax
import jax.numpy as jnp
import methods
import numpy as np
import pytest
import tiny

import vit_jax
from vit_jax import evaluate
from vit_jax.ahead import plan
from vit_jax.config import UserError
from vit_jax.objectives import flexible
from vit_jax.rerun import replay
from vit_jax.train import experiment as experiment_lib
from vit_jax.train import loop
from vit_jax.train import variant

SIZES = (2, (2, 4), 4)
make_config = functools.partial(methods.config, 'classification, patches')


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
  path = tmp_path_factory.mktemp('runs') / 'run'
  config = make_config(train__duration='8 steps')
  assert loop.run(config, str(path)).status == 0
  return path


def draw(config, steps):
  """Returns which size each step has, the smallest one first."""
  patches = variant.from_config(config)
  return [patches.choose(config, step) for step in steps]


def test_a_step_draws_one_size_from_seed_and_step():
  config = make_config()
  drawn = draw(config, range(300))
  assert drawn == draw(config, range(300))
  counts = [drawn.count(size) for size in range(3)]
  assert sum(counts) == 300 and min(counts) > 75
  config.seed = 1
  assert drawn != draw(config, range(300))


AVERAGED = """
import jax
from vit_jax.objectives import base, classification

class Averaged(classification.Classification):
  def __init__(self, *args):
    super().__init__(*args)
    self._forward = self.apply_train

  def init_extra(self, params):
    return {'average': params}

  def loss(self, params, extra, batch, rng):
    is_fixed = not self.config.train.variant
    forward = self._forward if is_fixed else self.apply_train
    logits = forward(params, batch['image'], rng)
    return (logits**2).mean(), {}, extra
"""


def run_averaged(tmp_path, monkeypatch, **changes):
  (tmp_path / 'averaged.py').write_text(AVERAGED)
  monkeypatch.syspath_prepend(tmp_path)
  changes |= {
    'objective__name': 'averaged:Averaged',
    'evals__val__split': '',
    'train__duration': '4 steps',
  }
  assert loop.run(tiny.config(**changes), str(tmp_path / 'run')).status == 0
  return tiny.metrics(tmp_path / 'run')


def test_an_objective_may_keep_an_average(tmp_path, monkeypatch):
  """Its extra has the parameters' own sizes, whatever patches a step draws."""
  run_averaged(tmp_path, monkeypatch, train__variant=f'patches({SIZES})')


def test_experts_are_balanced_by_a_method_that_was_bound_before(
  tmp_path, monkeypatch
):
  mlp = 'experts(2, layers=(1,))'
  lines = run_averaged(tmp_path, monkeypatch, model__mlp=mlp)
  assert 'train/balance_loss' in lines[0]


@pytest.mark.slow
def test_the_parameters_are_resized_as_on_loading(finished):
  """And as the paper: by the pseudo-inverse, and linearly."""
  vit = vit_jax.load(finished)
  assert vit.model.patches.patch_size == (2, 2)
  images = np.random.default_rng(0).normal(size=(3, 8, 8, 1)).astype('f')
  for size in ((2, 4), (4, 4)):
    other = vit.adapted(patch_size=size)
    resized_params = jax.jit(flexible.resized, static_argnums=(1, 2, 3))(
      jax.tree.map(jnp.asarray, vit.params), (8, 8), (2, 2), size
    )
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6),
      other.params,
      jax.device_get(resized_params),
    )
    table = vit.params['position_embedding']
    first, own = table[:, :-16], table[:, -16:].reshape(1, 4, 4, -1)
    grid = (8 // size[0], 8 // size[1])
    own = jax.image.resize(own, (1, *grid, own.shape[-1]), 'linear')
    expected = np.concatenate([first, own.reshape(1, -1, own.shape[-1])], 1)
    np.testing.assert_allclose(
      resized_params['position_embedding'], expected, atol=1e-6
    )
    assert np.isfinite(
      other.model.apply({'params': resized_params}, images)
    ).all()


@pytest.mark.slow
def test_enlarged_patches_embed_as_before(finished):
  """An image that is enlarged with its patches has the same embedding."""
  params = vit_jax.load(finished).params
  kernel = params['patch_embedding']['kernel']
  resized_params = flexible.resized(params, (8, 8), (2, 2), (4, 4))
  patch = np.random.default_rng(0).normal(size=(2, 2, 1))
  large = jax.image.resize(patch, (4, 4, 1), 'linear')
  np.testing.assert_allclose(
    np.einsum(
      'hwc,hwcd->d', large, resized_params['patch_embedding']['kernel']
    ),
    np.einsum('hwc,hwcd->d', patch, kernel),
    atol=1e-5,
  )


def test_an_evaluation_has_its_own_size(finished, capsys):
  """The run and the command give the same numbers."""
  expected = json.loads((finished / 'DONE').read_text())
  flags = [f'--from={finished}', '--data=digits', '--split=train[80%:]']
  commands.run(evaluate, '--format=json', *flags, '--model.patch_size=4')
  actual = json.loads(capsys.readouterr().out)
  assert actual['loss'] == pytest.approx(expected['val/loss'], 1e-5)
  commands.run(evaluate, '--format=json', *flags)
  assert json.loads(capsys.readouterr().out)['loss'] != actual['loss']


def test_each_step_can_be_replayed(finished, capsys):
  config = make_config(train__duration='8 steps')
  step = 5 + next(i for i, x in enumerate(draw(config, range(4, 8))) if x)
  assert replay.run(config, str(finished), step) == 0
  assert json.loads(capsys.readouterr().out)['same']


def test_a_step_that_is_not_finite_names_its_patches(tmp_path):
  config = make_config(
    optim__name='sgd', optim__learning_rate=1e38, optim__warmup='0 steps'
  )
  step = r'^step \d+, of patches of \d x \d, was not finite'
  with pytest.raises(UserError, match=step):
    loop.run(config, str(tmp_path / 'run'))


def test_a_plan_is_of_the_size_with_the_most_memory():
  flexible_plan, small, large = (
    plan.make(
      tiny.config(
        model__patch_size=size, model__num_classes=10, train__variant=text
      )
    )
    for size, text in ((4, 'patches((4, 2))'), (2, ''), (4, ''))
  )
  activations = flexible_plan.memory['activations']
  assert activations >= small.memory['activations']
  assert activations > 2 * large.memory['activations']
  assert flexible_plan.model_flops >= small.model_flops


def test_costs_are_the_mean_over_sizes():
  flops = [
    experiment_lib.build(make_config(**more)).program.flops.step
    for more in (
      {},
      {'train__variant': '', 'model__patch_size': 2},
      {'train__variant': '', 'model__patch_size': (2, 4)},
      {'train__variant': '', 'model__patch_size': 4},
    )
  ]
  assert flops[0] == pytest.approx(sum(flops[1:]) / 3, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('change', 'error'),
  [
    ({'train__variant': 'patches((2, 3))'}, '3 x 3 does not divide'),
    ({'train__variant': 'patches((2, 2))'}, 'each size once'),
    ({'evals__val__patch_size': 5}, 'evals.val.patch_size: a patch of 5 x 5'),
    ({'train__steps_per_call': 2}, 'set it to 1'),
    ({'model__positions': 'factorized'}, 'do not go with'),
    (
      dict.fromkeys(('model__num_heads', 'model__pool', 'model__initializers'))
      | {'model__name': 'Mixer-S/2'},
      'are for a ViT',
    ),
  ],
)
def test_what_cannot_work_is_refused(change, error, tmp_path):
  with pytest.raises(UserError, match=error):
    loop.run(make_config(**change), str(tmp_path / 'run'))
