"""Losses against NumPy, and teachers, through a step of training."""

import functools
import json
import shutil
import types

import jax
import jax.numpy as jnp
import methods
import numpy as np
import pytest
import tiny

import vit_jax
from vit_jax import config as config_lib
from vit_jax.evaluation import accuracy
from vit_jax.evaluation import metrics
from vit_jax.objectives import class_weights
from vit_jax.objectives import losses
from vit_jax.rerun import diagnose
from vit_jax.train import experiment as experiment_lib
from vit_jax.train import loop

UserError = config_lib.UserError

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(5, 4)).astype(np.float32) * 3
LABELS = np.array([0, 3, 1, 1, 2], np.int32)
SHARES = np.eye(4)[LABELS] * 0.7 + np.eye(4)[LABELS[::-1]] * 0.3
SHARES = SHARES.astype(np.float32)


def log_softmax(x):
  return x - np.log(np.exp(x).sum(-1, keepdims=True))


@pytest.mark.parametrize('labels', [LABELS, SHARES], ids=['ids', 'shares'])
@pytest.mark.parametrize('smoothing', [0.0, 0.1])
@pytest.mark.parametrize('name', losses.NAMES)
def test_cross_entropy(name, smoothing, labels):
  targets = labels if labels.ndim == 2 else np.eye(4)[labels]
  if name == 'sigmoid_any':
    targets = (targets > 0) * 1.0
  targets = targets * (1 - smoothing) + smoothing / 4
  if name == 'softmax':
    expected = -(targets * log_softmax(LOGITS)).sum(-1)
  else:
    p = 1 / (1 + np.exp(-LOGITS.astype(float)))
    losses_by_row = targets * np.log(p) + (1 - targets) * np.log(1 - p)
    expected = -losses_by_row.sum(-1)
  actual = losses.cross_entropy(LOGITS, jnp.asarray(labels), name, smoothing)
  np.testing.assert_allclose(actual, expected, rtol=1e-5)


@pytest.mark.parametrize('labels', [LABELS, SHARES], ids=['ids', 'shares'])
@pytest.mark.parametrize('smoothing', [0.0, 0.1])
@pytest.mark.parametrize('name', losses.NAMES)
def test_weights_of_classes(name, smoothing, labels):
  """A mixed image has the weighted losses of its classes, in their shares."""
  weights = np.array([0.5, 2, 3, 0.1], np.float32)
  actual = class_weights.weighted_cross_entropy(
    LOGITS, jnp.asarray(labels), weights, name, smoothing
  )
  if labels.ndim == 1 or name == 'sigmoid_any':  # which has no shares
    shares = labels if labels.ndim == 2 else np.eye(4)[labels]
    plain = losses.cross_entropy(LOGITS, jnp.asarray(labels), name, smoothing)
    expected = plain * (shares @ weights)
  else:
    ids = [np.full(5, k, np.int32) for k in range(4)]
    alone = [losses.cross_entropy(LOGITS, k, name, smoothing) for k in ids]
    expected = (np.stack(alone, 1) * labels * weights).sum(1)
  np.testing.assert_allclose(actual, expected, rtol=1e-5)


def test_resolved_weights():
  """The published rules, by hand, for 60, 30, 10 and no images."""
  counts = (60, 30, 10, 0)
  balanced = class_weights.values('balanced', counts, 5)
  np.testing.assert_allclose(balanced, [100 / 180, 100 / 90, 100 / 30, 1, 1])
  assert (balanced[:3] * counts[:3]).sum() == pytest.approx(100)
  inverse = class_weights.values('inverse', counts, 4)
  np.testing.assert_allclose(inverse[:2], [1 / 3, 2 / 3])
  assert inverse[:3].mean() == pytest.approx(1)
  weights = class_weights.values((1.0, 2.5), None, 3)
  assert weights.tolist() == [1, 2.5, 1]


@pytest.mark.slow
def test_weights_count_in_a_run(tmp_path, caplog):
  """Logged, stored with the counts, and resumed with them."""
  caplog.set_level('INFO', logger='absl')
  settings = {'train__duration': '4 steps', 'optim__warmup': '0 steps'}
  runs = {}
  for choice in ((), 'balanced', (9.0, *[1.0] * 9)):
    config = tiny.config(
      **settings,
      objective__class_weights=choice,
      evals__val__split='',
      checkpoint__every='2 steps',
    )
    path = tmp_path / f'run{len(runs)}'
    assert loop.run(config, str(path)).status == 0
    runs[choice] = [x.get('train/loss') for x in tiny.metrics(path)]
    if choice == 'balanced':
      assert 'class weights, 0.' in caplog.text
      stored = json.loads((path / 'config.json').read_text())['objective']
      assert sum(stored['class_counts']) == 1438
      assert stored['class_weights'] == 'balanced'
      (path / 'DONE').unlink()
      shutil.rmtree(path / 'checkpoints' / '4')
      assert loop.run(config, str(path)).status == 0
  assert len({str(x) for x in runs.values()}) == 3


def test_a_probe_moves_the_head_and_its_statistics_alone(method_run, tmp_path):
  method = 'classification, normalised'
  start = method_run(method)
  config = methods.config(
    method,
    init_from__path=str(start),
    optim__trainable='^head/',
    optim__warmup='0 steps',
    train__duration='2 steps',
  )
  assert loop.run(config, str(tmp_path)).status == 0
  before, after = (vit_jax.load(x).params for x in (start, tmp_path))
  np.testing.assert_array_equal(
    before['patch_embedding']['kernel'], after['patch_embedding']['kernel']
  )
  for part, name in (('head', 'kernel'), ('head_norm', 'mean')):
    difference = np.asarray(before[part][name]) - np.asarray(after[part][name])
    assert abs(difference).max() > 1e-5, part


def test_accuracy():
  right = LOGITS.argmax(-1)
  assert losses.accuracy(LOGITS, right) == 1
  assert losses.accuracy(LOGITS, np.eye(4)[right]) == 1
  right[0] = (right[0] + 1) % 4
  assert losses.accuracy(LOGITS, right) == pytest.approx(0.8)


def test_metrics_leave_padding_out():
  mask = np.array([True, True, False, True, False])
  losses_by_row = np.arange(5, dtype=np.float32)
  actual = metrics.classification(LOGITS, LABELS, losses_by_row, mask).compute()
  assert actual['loss'] == pytest.approx(4 / 3)
  assert actual['examples'] == 3


@functools.cache
def build(**overrides):
  config = tiny.config(**overrides)
  experiment_lib.check(config)
  return experiment_lib.build(config)


def first_step(**overrides):
  """Returns the state and the metrics of one step, and its batch."""
  e = build(**overrides)
  batch = jax.device_get(next(e.train_batches(0)))
  state, actual = e.program.train_step(e.init(), batch, np.int32(0))
  return e, batch, state, jax.device_get(actual)


def test_a_sigmoid_starts_at_its_bias():
  """A head of zeros says what the bias says: the loss is known."""
  bias = -np.log(9.0)  # one class of ten
  config = {'objective__loss': 'sigmoid', 'model__initializers': 'vit'}
  _, _, _, actual = first_step(**config, model__head=f'linear(bias={bias})')
  entropy = -np.log(0.1) - 9 * np.log(0.9)
  assert actual['loss'] == pytest.approx(entropy, rel=1e-5)
  _, _, _, actual = first_step(**config)
  assert actual['loss'] == pytest.approx(10 * np.log(2), rel=1e-5)


def test_the_evaluation_has_the_loss_of_the_objective():
  e = build(objective__loss='sigmoid', model__initializers='vit')
  batch = next(e.eval_batches('val'))
  actual, _ = e.program.eval_step(accuracy.measure)(e.init().params, batch)
  assert actual.compute()['loss'] == pytest.approx(10 * np.log(2), rel=1e-5)


def test_smoothing_is_not_evaluated():
  smooth = build(objective__label_smoothing=0.3)
  plain = build()
  results = []
  for e in (smooth, plain):
    batch = next(e.eval_batches('val'))
    total, _ = e.program.eval_step(accuracy.measure)(e.init().params, batch)
    results.append(float(total.compute()['loss']))
  assert results[0] == results[1]


# A teacher of other normalisation, so that its own has to be used.
STUDENT = {
  'objective__name': 'distillation',
  'data__mean': (0.2,),
  'data__std': (0.7,),
  'data__crop': 'center',
}


@pytest.fixture(scope='module')
def teacher(tmp_path_factory):
  path = tmp_path_factory.mktemp('teacher') / 'run'
  config = tiny.config(
    train__duration='8 steps',
    model__initializers='lecun',
    model__scan=True,
    seed=3,
  )
  assert loop.run(config, str(path)).status == 0
  return str(path)


def kinds(token):
  student = {'model__distillation_token': True, 'model__pool': 'token'}
  return student if token else {}


@pytest.mark.slow
@pytest.mark.parametrize('token', [True, False], ids=['token', 'no token'])
@pytest.mark.parametrize('kind', ['hard', 'soft'])
def test_distillation(teacher, kind, token):
  """The first step's loss, by NumPy from both models' answers."""
  from vit_jax import weights

  e, batch, _, actual = first_step(
    objective__options__teacher=teacher,
    objective__options__distillation=kind,
    objective__options__teacher_weight=0.3,
    objective__options__temperature=2.0,
    objective__label_smoothing=0.1,
    **STUDENT,
    **kinds(token),
  )
  pixels = batch['image'].astype(np.float32) / 255
  params, model = e.init().params, e.program.objective.model
  kwargs = {'merge_heads': False} if token else {}
  logits = model.apply({'params': params}, (pixels - 0.2) / 0.7, **kwargs)
  class_logits, listening = (
    (logits[:, 0], logits[:, 1]) if token else (logits, logits)
  )
  loaded = weights.load(teacher)
  answers = np.asarray(
    loaded.model.apply({'params': loaded.params}, (pixels - 0.5) / 0.5)
  )
  targets = np.eye(10)[batch['label']] * 0.9 + 0.01
  loss = -(targets * log_softmax(class_logits)).sum(-1).mean()
  if kind == 'hard':
    right = answers.argmax(-1)[:, None]
    teacher_loss = -np.take_along_axis(log_softmax(listening), right, -1).mean()
  else:
    p, q = log_softmax(answers / 2), log_softmax(listening / 2)
    teacher_loss = 4 * (np.exp(p) * (p - q)).sum(-1).mean()
  assert actual['distillation_loss'] == pytest.approx(
    float(teacher_loss), rel=1e-4
  )
  expected_loss = float(0.7 * loss + 0.3 * teacher_loss)
  assert actual['loss'] == pytest.approx(expected_loss, rel=1e-4)


@pytest.mark.slow
def test_a_student_runs_and_is_loaded_without_its_teacher(teacher, tmp_path):
  config = tiny.config(
    objective__options__teacher=teacher, **STUDENT, **kinds(True), mesh__data=2
  )
  assert loop.run(config, str(tmp_path / 'run')).status == 0
  done = json.loads((tmp_path / 'run' / 'DONE').read_text())
  assert done['val/examples'] == 359
  from vit_jax import weights

  student = weights.load(tmp_path / 'run')
  assert 'head_distillation' in student.params
  image = np.zeros((8, 8, 1), np.uint8)
  assert student.predict([image]).shape == (1, 10)


def test_a_replay_looks_at_the_student_alone(teacher):
  e = build(objective__options__teacher=teacher, **STUDENT)
  batch = next(e.train_batches(0))
  actual = diagnose.examine(e, e.init(), batch, 0)
  pixels = np.asarray(batch['image'])[actual.drawn] / 255
  np.testing.assert_allclose(actual.images, (pixels - 0.2) / 0.7, atol=1e-5)
  names = [(event.path, event.phase) for event in actual.events]
  assert len(set(names)) == len(names)
  np.testing.assert_array_equal(actual.targets['label'], batch['label'])


def make_source(names):
  return types.SimpleNamespace(classes=tuple(names))


def test_classes_in_another_order(teacher, caplog):
  objective = build(
    objective__options__teacher=teacher, **STUDENT
  ).program.objective
  names = [str(i) for i in range(10)]
  objective.check_source(make_source(names))
  assert not caplog.records
  with pytest.raises(UserError, match="class 0 is '0' there, and '9' here"):
    objective.check_source(make_source(names[::-1]))
  objective.check_source(make_source([f'n{i}' for i in names]))
  assert 'names its classes otherwise' in caplog.text


def test_a_teacher_that_does_not_fit(teacher):
  config = tiny.config(objective__options__teacher='nowhere', **STUDENT)
  with pytest.raises(
    UserError, match=r'config\.objective\.options\.teacher: .*nowhere'
  ):
    experiment_lib.build(config)
  config = tiny.config(
    objective__options__teacher=teacher, model__num_classes=12, **STUDENT
  )
  with pytest.raises(UserError, match='knows 10 classes, but the data has 12'):
    experiment_lib.build(config)
