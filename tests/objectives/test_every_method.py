"""Behaviour that all methods have, at the level of one step.

tests/train and tests/test_main.py have it of whole runs.
"""

import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp
import methods
import numpy as np
import pytest
import tiny

import vit_jax
from vit_jax.config import UserError
from vit_jax.runs import checkpoint
from vit_jax.train import experiment as experiment_lib
from vit_jax.train import loop

# Of optimizers, none whose first steps depend on the rounding of a zero.
STEP = {
  'train.duration': '8 steps',
  'optim.name': 'sgd',
  'optim.warmup': '0 steps',
  'optim.schedule': 'constant',
  'optim.learning_rate': 1e-3,
}
SPLIT = {'mesh.data': 2, 'mesh.fsdp': 4, 'mesh.min_size': 0}
# What is kept beside parameters and optimizer, by the start of its name.
EXTRA = {
  'classification, normalised': 'statistics/',
  'mean_teacher:MeanTeacher': 'teacher/',
  'beit': 'tokenizer/codes',
  'dino': 'average/trunk/',
  'dinov2': 'average/trunk/',
  'mocov3': 'statistics/momentum_projector/norm_0/mean',
  'distillation': '',
}


@dataclasses.dataclass(frozen=True)
class Start:
  """The first two steps of a method.

  Attributes:
    method: Its name in `methods.METHODS`.
    changes: Of its config.
    experiment: The experiment.
    states: After each step, on the host.
    scalars: Of each step.
  """

  method: str
  changes: dict[str, Any]
  experiment: experiment_lib.Experiment
  states: list[Any]
  scalars: list[dict[str, float]]


def take_steps(experiment, state, steps):
  """Yields state and scalars after each step, on the host."""
  with experiment.train_batches(steps[0]) as batches:
    for step in steps:
      copy = jax.tree.map(jnp.copy, state)  # the step overwrites it
      program = experiment.program.variant(step)
      state, scalars = program.train_step(copy, next(batches), np.int32(step))
      yield (
        jax.device_get(state),
        {name: float(x) for name, x in scalars.items()},
      )


def build(method, changes, *, resumes=False):
  config = methods.config(method, **STEP | changes)
  experiment_lib.check(config)
  return experiment_lib.build(config, resumes=resumes)


@pytest.fixture(scope='module', params=methods.METHODS)
def start(request, digits_run):
  changes = {}
  if request.param == 'distillation':
    changes = {'options.teacher': str(digits_run)}
  experiment = build(request.param, changes)
  results = list(take_steps(experiment, experiment.init(), (0, 1)))
  states = [state for state, _ in results]
  scalars = [values for _, values in results]
  return Start(request.param, changes, experiment, states, scalars)


def test_there_is_a_case_for_each_method():
  config = tiny.config(objective__name='nothing')
  with pytest.raises(UserError, match='choose one of') as error:
    experiment_lib.check(config)
  listed = str(error.value).partition('choose one of ')[2]
  names = re.findall(r'\w+', listed.partition(', or')[0])
  assert {*names} <= {method.partition(',')[0] for method in methods.METHODS}


@pytest.mark.slow
def test_a_step_goes_on_from_a_checkpoint_to_the_bit(start, tmp_path):
  state = start.states[0]
  section = start.experiment.config.checkpoint
  with checkpoint.Checkpointer(tmp_path, section) as checkpoints:
    checkpoints.save(1, start.experiment.program.adopt(state))
  experiment = build(start.method, start.changes, resumes=True)
  program = experiment.program
  with checkpoint.Checkpointer(tmp_path, section) as checkpoints:
    restored, step, _ = checkpoints.restore(program.state_to_read)
  assert step == 1
  names = checkpoint.checksums(restored)
  extra = EXTRA.get(start.method)
  assert not extra or any(name.startswith(f'extra/{extra}') for name in names)
  ((after, scalars),) = take_steps(experiment, program.adopt(restored), [1])
  assert checkpoint.checksums(after) == checkpoint.checksums(start.states[1])
  assert scalars == start.scalars[1]


@pytest.mark.slow
def test_two_steps_do_not_depend_on_how_they_are_computed(start):
  """On eight devices, with scanned layers, and in microbatches if it may be."""
  changes = start.changes | SPLIT
  if start.method in methods.UNDIVIDED:
    accumulated = methods.config(start.method, train__accumulation=2)
    with pytest.raises(UserError, match='accumulation'):
      experiment_lib.check(accumulated)
  else:
    changes |= {'train.accumulation': 2}
  experiment = build(start.method, changes | {'model.scan': True})
  results = take_steps(experiment, experiment.init(), (0, 1))
  for (_, scalars), expected in zip(results, start.scalars, strict=True):
    assert scalars == pytest.approx(expected, rel=2e-3, abs=1e-4)


@pytest.mark.slow
def test_a_step_lowers_the_loss_of_its_batch(start):
  """By the same draws, teacher and statistics."""
  experiment = start.experiment
  before = experiment.init()
  state = jax.tree.map(jnp.asarray, start.states[0])
  state = state.replace(extra=before.extra)
  ((_, scalars),) = take_steps(experiment, state, [0])
  assert scalars['loss'] < start.scalars[0]['loss']


@pytest.mark.slow
@pytest.mark.parametrize(
  'method', [x for x in methods.METHODS if not x.startswith('segmentation')]
)
def test_its_trunk_is_loaded_and_embeds(method, method_run):
  """Models of maps are in the tests of segmentation."""
  vit = vit_jax.load(method_run(method))
  shape = *vit.preprocess.image_size, vit.preprocess.channels
  images = list(np.random.default_rng(0).integers(0, 256, (2, *shape), 'u1'))
  assert not vit.params.keys() & vit.objective_params.keys()
  embedded = vit_jax.embeddings(vit, images)
  assert embedded.shape == (2, 16)
  features = vit.outputs(images)['features']
  if method == 'contrastive':  # projected
    assert features.shape == (2, 8)
  else:
    np.testing.assert_allclose(embedded, features, atol=1e-5)


# method -> steps, learning rate, and what the loss falls to, as a share of the
# first steps'.
LEARNS = {
  'beit': (120, 1e-2, 0.9),
  'igpt': (8, 3e-3, 0.9),
  'mae': (60, 1e-2, 0.8),
  'mocov3': (150, 3e-3, 0.95),
}


@pytest.mark.slow
@pytest.mark.parametrize('method', LEARNS)
def test_the_loss_falls(method):
  """Over new batches, by the optimizer of `tiny.config`."""
  steps, learning_rate, share = LEARNS[method]
  config = methods.config(
    method,
    train__duration=f'{steps} steps',
    optim__learning_rate=learning_rate,
    evals__val__split='',
    checkpoint__best='',
  )
  experiment = experiment_lib.build(config)
  results = take_steps(experiment, experiment.init(), range(steps))
  losses = [scalars['loss'] for _, scalars in results]
  few = max(1, steps // 12)
  first = np.mean(losses[:few])
  assert np.mean(losses[-few:]) < share * first
  if method == 'beit':  # of 24 tokens
    assert first == pytest.approx(np.log(24), rel=0.3)


@pytest.mark.slow
@pytest.mark.parametrize(
  'method', ['classification, normalised', 'segmentation']
)
def test_running_statistics_are_of_the_whole_batch(method):
  statistics = []
  for changes in ({}, SPLIT):
    experiment = build(method, changes)
    *_, (state, _) = take_steps(experiment, experiment.init(), (0, 1))
    leaves = jax.tree_util.tree_leaves_with_path(state.params)
    statistics.append(
      {
        jax.tree_util.keystr(path): x
        for path, x in leaves
        if path[-1].key in ('mean', 'var')
      }
    )
  single, eight = statistics
  assert single
  for name, x in single.items():
    assert abs(x - name.endswith("['var']")).max() > 1e-4, name
    np.testing.assert_allclose(x, eight[name], rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize('method', ['dino', 'dinov2'])
def test_steps_of_one_call_are_the_same(method, tmp_path):
  """Whose teacher and last layer depend on the step, with scanned layers."""
  losses = []
  for name, changes in (
    ('single', {}),
    ('call', {'train.steps_per_call': 4, 'model.scan': True}),
  ):
    changes |= {'train.duration': '4 steps', 'checkpoint.every': '4 steps'}
    config = methods.config(method, **STEP | changes)
    assert loop.run(config, str(tmp_path / name)).status == 0
    losses.append(methods.losses(tmp_path / name))
  assert len(losses[0]) == 4
  assert losses[1] == pytest.approx(losses[0], rel=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
  'method', ['classification, patches', 'contrastive', 'dino']
)
def test_a_whole_run_goes_on_to_the_bit(method, tmp_path):
  config = methods.config(method, train__duration='8 steps')
  assert loop.run(config, str(tmp_path / 'run')).status == 0
  methods.assert_resumes_to_the_bit(config, tmp_path / 'run', tmp_path / 'copy')
