"""Methods that are one file each: numbers, several classes, a mean teacher."""

import csv
import json

import commands
import cv2
import jax
import methods
import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics
import tiny

from configs import digits_multilabel
import vit_jax
from vit_jax import convert
from vit_jax import evaluate
from vit_jax import objectives
from vit_jax.config import UserError
from vit_jax.data import kinds as kinds_lib
from vit_jax.data import sources
from vit_jax.data import target_kinds
from vit_jax.objectives import trained
from vit_jax.predict import __main__ as predict
from vit_jax.train import experiment as experiment_lib
from vit_jax.train import loop

METHODS = ('regression', 'multilabel', 'mean_teacher:MeanTeacher')


@pytest.fixture(params=METHODS)
def finished(request, method_run):
  """A method and the work directory of its run."""
  return request.param, method_run(request.param)


@pytest.mark.slow
def test_evaluation_is_that_of_training(finished, capsys, tmp_path):
  method, path = finished
  data = methods.METHODS[method].get('data.name', 'digits')
  args = f'--from={path}', '--step=newest', f'--data={data}', '--format=json'
  args += (f'--predictions={tmp_path}/rows.csv',)
  assert commands.run(evaluate, *args, '--split=train[80%:]') == 0
  actual = json.loads(capsys.readouterr().out)
  trained = [line for line in tiny.metrics(path) if 'val/loss' in line][-1]
  name = methods.METHODS[method]['checkpoint.best'].removeprefix('val/')
  assert actual[name] == pytest.approx(trained[f'val/{name}'], abs=1e-5)
  assert actual['examples'] == trained['val/examples']
  with (tmp_path / 'rows.csv').open() as file:
    rows = list(csv.DictReader(file))
  assert len(rows) == actual['examples']
  if method == 'regression':
    names = vit_jax.load(path).preprocess.target.names
    errors = [
      float(x[f'{n}_predicted']) - float(x[n]) for x in rows for n in names
    ]
    expected = pytest.approx(actual['mean_absolute_error'], rel=1e-4)
    assert np.abs(errors).mean() == expected


def test_a_converted_run_is_measured_as_before(finished, capsys, tmp_path):
  method, path = finished
  folder = tmp_path / 'converted'
  assert commands.run(convert, path, folder, '--to=vit_jax') == 0
  data = methods.METHODS[method].get('data.name', 'digits')
  args = f'--data={data}', '--split=train[80%:]', '--format=json'
  reports = []
  for source in (path, folder):
    assert commands.run(evaluate, f'--from={source}', *args) == 0
    reports.append(json.loads(capsys.readouterr().out))
    del reports[-1]['checkpoint']
  assert reports[0] == reports[1]


def test_loaded_and_looked_into(finished, capsys, tmp_path):
  method, path = finished
  vit = vit_jax.load(path)
  config = methods.config(method)
  source = sources.open_source(config, 'train[80%:]')
  images = list(source.arrays['image'][:4])
  outputs = vit.outputs(images)
  assert outputs['features'].shape == (4, 16)
  names = vit.preprocess.target.names
  assert outputs['logits'].shape == (4, len(names))
  embedded = vit_jax.embeddings(vit, images)
  np.testing.assert_allclose(embedded, outputs['features'], atol=1e-5)
  file = tmp_path / 'x.png'
  assert cv2.imwrite(str(file), images[0])
  assert commands.run(predict, f'--from={path}', file, '--format=json') == 0
  (answer,) = json.loads(capsys.readouterr().out)
  if method == 'regression':
    actual = [answer['numbers'][name] for name in names]
    np.testing.assert_allclose(actual, outputs['numbers'][0], atol=1e-4)
  else:
    assert {x['class'] for x in answer['predictions']} <= set(names)


def test_a_key_that_changes_no_parameter_reaches_the_method(method_run):
  keys = {'attention_implementation': 'einsum', 'dtype': 'bfloat16'}
  vit = vit_jax.load(method_run('mae'), **keys)
  config = trained.restored(vit)[0].config
  assert config.model.attention_implementation == 'einsum'
  assert config.train.dtype == 'bfloat16'


def test_metrics_are_scikit_learns():
  """On the outputs of an initial model."""
  for method in ('regression', 'multilabel'):
    config = methods.config(method, model__initializers='lecun')
    experiment_lib.check(config)
    e = experiment_lib.build(config)
    params, objective = e.init().params, e.program.objective
    source = e.eval_sources['val']
    images = (source.arrays['image'] / np.float32(255) - 0.5) / 0.5
    out = jax.jit(objective.outputs)(params, {'image': images})
    name = objective.target[0]
    batch = {name: source.arrays[name], 'valid': np.ones(len(source), bool)}
    actual = objective.measure(jax.device_get(out), batch).compute()
    if method == 'regression':
      truth = source.arrays[name], out['numbers']
      expected = {
        'r2': sklearn_metrics.r2_score(*truth),
        'mean_absolute_error': sklearn_metrics.mean_absolute_error(*truth),
      }
    else:
      expected = {
        'map': sklearn_metrics.average_precision_score(
          source.arrays[name], out['logits'], average='macro'
        )
      }
    for key, value in expected.items():
      assert actual[key] == pytest.approx(value, abs=1e-4)


def test_huber_pulls_less_than_squares():
  losses = []
  for loss in ('mse', 'huber'):
    config = methods.config('regression', model__initializers='lecun')
    config.objective.options.loss = loss
    config.objective.options.delta = 0.5
    e = experiment_lib.build(config)
    with e.train_batches(0) as batches:
      _, metrics = e.program.train_step(e.init(), next(batches), np.int32(0))
    losses.append(float(metrics['loss']))
  assert losses[1] < 0.5 * losses[0]


def test_a_coupled_loss_refuses_accumulation(monkeypatch):
  import mean_teacher

  monkeypatch.setattr(mean_teacher.MeanTeacher, 'couples_examples', True)
  config = methods.config('mean_teacher:MeanTeacher', train__accumulation=2)
  with pytest.raises(UserError, match='needs the whole batch at once'):
    objectives.check(config)


def test_metrics_have_the_names_of_what_is_learned(
  tmp_path, monkeypatch, capsys
):
  """Also where the examples have as many numbers as labels."""
  init = digits_multilabel.Pairs.__init__

  def with_numbers(self, config, split):
    init(self, config, split)
    self.features['numbers'] = target_kinds.Number(tuple('abcdefghij'))
    self.arrays['numbers'] = np.zeros((len(self), 10), np.float32)

  monkeypatch.setattr(digits_multilabel.Pairs, '__init__', with_numbers)
  config = methods.config(
    'multilabel', train__duration='2 steps', optim__warmup='0 steps'
  )
  path = tmp_path / 'run'
  assert loop.run(config, str(path)).status == 0
  (trained,) = (x for x in tiny.metrics(path) if 'val/map' in x)
  args = f'--from={path}', f'--data={config.data.name}', '--split=train[80%:]'
  assert commands.run(evaluate, *args, '--format=json') == 0
  evaluated = json.loads(capsys.readouterr().out)
  for digit in range(10):
    name = f'average_precision/{digit}'
    assert name in evaluated and f'val/{name}' in trained


def test_a_feature_of_an_unknown_kind():
  with pytest.raises(UserError, match='describes no feature'):
    kinds_lib.from_dict({'kind': 'Smell'})
