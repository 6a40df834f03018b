"""The classes of docs/methods.md: objectives, and an evaluator."""

import json
import sys
from typing import ClassVar

from absl import flags
import commands
import documented
import numpy as np
import pytest
import stand_in
import tiny

import vit_jax
from vit_jax import cli
from vit_jax import config as config_lib
from vit_jax import data
from vit_jax import evaluate
from vit_jax import objectives
from vit_jax.data import base as data_base
from vit_jax.data import features
from vit_jax.data import stored
from vit_jax.data.host import batches
from vit_jax.rerun import replay
from vit_jax.train import experiment as experiment_lib

# A method and its config, Barlow Twins and its config, the metric of an
# objective, an evaluator and its keys, and a source and its keys.
PYTHON = documented.blocks('docs/methods.md', 'python')


@pytest.mark.slow
def test_a_method_of_ones_own(tmp_path, monkeypatch, capsys):
  method, config = PYTHON[:2]
  assert len(method.splitlines()) < 60
  (tmp_path / 'my_method.py').write_text(method)
  (tmp_path / 'my_config.py').write_text(config)
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.chdir(tiny.ROOT)
  config = config_lib.load(
    tmp_path / 'my_config.py',
    {'train.duration': '3 steps', 'optim.warmup': '1 steps'},
  )
  results = vit_jax.train(config, str(tmp_path / 'run'))
  assert 0 <= results.metrics['val/accuracy'] <= 1
  assert results.metrics['val/examples'] == 359
  vit = vit_jax.load(tmp_path / 'run')
  assert vit.model.num_classes == 4 and vit.classes == ()
  args = f'--from={tmp_path}/run', '--data=digits', '--split=train[80%:]'
  assert commands.run(evaluate, *args, '--format=json') == 0
  actual = json.loads(capsys.readouterr().out)
  expected = results.metrics['val/accuracy']
  assert actual['accuracy'] == pytest.approx(expected, abs=1e-6)


def test_an_evaluator_of_ones_own(digits_run, tmp_path, monkeypatch, capsys):
  evaluator, settings = PYTHON[7:9]
  (tmp_path / 'my_evaluator.py').write_text(evaluator)
  monkeypatch.syspath_prepend(tmp_path)
  config = tiny.config()
  exec(settings, {'config': config, 'config_lib': config_lib})
  experiment_lib.check(config)
  args = '--data=digits', '--split=train[80%:]', '--format=json'
  assert (
    commands.run(
      *(
        evaluate,
        f'--from={digits_run}',
        '--probe=my_evaluator:MeanRank',
        *args,
      )
    )
    == 0
  )
  actual = json.loads(capsys.readouterr().out)
  source = data.open_source(tiny.config(), 'train[80%:]')
  logits = vit_jax.load(digits_run).predict(list(source.arrays['image']))
  right = np.take_along_axis(logits, source.arrays['label'][:, None], axis=1)
  ranks = (logits > right).sum(axis=1) + 1
  assert actual['mean_rank'] == pytest.approx(ranks.mean(), abs=0.02)
  assert actual['examples'] == 359


def test_a_metric_of_ones_own():
  scope = {}
  exec(PYTHON[4], scope)
  outputs = {'error': np.float32([1, 2, 60])}
  batch = {'valid': np.array([True, True, False])}
  actual = scope['measure'](None, outputs, batch).compute()
  assert actual == {'error': 1.5, 'examples': 2}


def test_a_source_of_ones_own(tmp_path, monkeypatch):
  source, settings = PYTHON[-2:]
  (tmp_path / 'my_data.py').write_text(source)
  (tmp_path / 'scans').mkdir()
  for i in range(20):
    scan = stand_in.pixels(i, 9 + i % 3, 12).astype(np.uint16) * 256
    np.save(tmp_path / 'scans' / f'{"cat" if i % 2 else "dog"}-{i}.npy', scan)
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.chdir(tmp_path)
  config = tiny.config(
    data__channels=3, train__duration='1 steps', optim__warmup='0 steps'
  )
  exec(settings, {'config': config})
  results = vit_jax.train(config, str(tmp_path / 'run'))
  assert results.metrics['val/examples'] == 4
  assert vit_jax.load(tmp_path / 'run').classes == ('cat', 'dog')
  train, val = (data.open_source(config, x) for x in ('train', 'train[80%:]'))
  assert {val.read(i).origin for i in range(4)} <= {
    train.read(i).origin for i in range(20)
  }
  assert train.fingerprint() != val.fingerprint()


@pytest.fixture(scope='module')
def twins(tmp_path_factory):
  """The folder of the second method, with its files."""
  folder = tmp_path_factory.mktemp('twins')
  method, config = PYTHON[2:4]
  assert len(method.splitlines()) < 60
  (folder / 'my_twins.py').write_text(method)
  (folder / 'my_config.py').write_text(config)
  return folder


@pytest.mark.slow
@pytest.mark.parametrize(
  'scan, optim',
  [(True, {'layer_decay': 0.8}), (False, {'name': 'muon'})],
)
def test_a_trunk_beside_other_parameters(
  twins, tmp_path, monkeypatch, scan, optim
):
  """It trains, stops, resumes with its layers kept otherwise, and is loaded."""
  monkeypatch.syspath_prepend(twins)
  monkeypatch.chdir(twins)
  overrides = tiny.TINY | {
    'model.depth': 2,
    'model.scan': scan,
    'objective.options.width': 16,
    'evals.knn.every': '3 steps',
    'evals.val.every': '',
    'train.duration': '3 steps',
    'optim.schedule': 'constant',
    'optim.warmup': '1 steps',
  }
  overrides |= {f'optim.{key}': value for key, value in optim.items()}
  run = str(tmp_path / 'run')
  vit_jax.train(config_lib.load('my_config.py', overrides), run)
  overrides |= {'train.duration': '6 steps', 'model.scan': not scan}
  config = config_lib.load('my_config.py', overrides)
  results = vit_jax.train(config, run)
  assert 0 <= results.metrics['knn/accuracy'] <= 1
  vit = vit_jax.load(run)
  assert 'projector' not in vit.params and vit.model.num_classes == 0
  assert replay.run(config, run, step=6) == 0
  actual = json.loads((tmp_path / 'run/replay/6.json').read_text())
  assert actual['ok'] and actual['first'] is None


def test_options_from_the_command_line(twins, monkeypatch):
  monkeypatch.syspath_prepend(twins)
  monkeypatch.chdir(twins)

  def options(*argv):
    flag_values = flags.FlagValues()
    config = cli.define_config(flag_values)
    argv = [f'--config.objective.options.{text}' for text in argv]
    cli.parse_flags(['main', '--config=my_config.py', *argv], flag_values)
    objectives.fill_options(config.value)
    return config.value.objective.options.to_dict()

  assert options('width=64') == {'width': 64, 'redundancy': 0.1}
  assert options('redundancy=1') == {'width': 128, 'redundancy': 1.0}
  with pytest.raises(config_lib.UserError, match=r"no key 'widht'.*which has"):
    options('widht=64')
  with pytest.raises(config_lib.UserError, match=r"'a': it must be of type"):
    options('width=a')


@pytest.mark.slow
def test_the_template_of_an_objective(tmp_path, monkeypatch):
  """It trains as CONTRIBUTING.md says, copied into a folder of the user."""
  template = tiny.ROOT / 'tests' / 'my_objective.py'
  (tmp_path / 'my_objective.py').write_text(template.read_text())
  monkeypatch.syspath_prepend(tmp_path)
  settings = {
    'train.duration': '4 steps',
    'optim.warmup': '1 steps',
    'evals.knn.every': '2 steps',
    'train.log_every': '1 steps',
    'model.dropout_rate': 0.1,
    'objective.options.noise': 0.0,
  }
  config = config_lib.load(tmp_path / 'my_objective.py', settings)
  results = vit_jax.train(config, str(tmp_path / 'run'))
  assert 0 < results.metrics['knn/accuracy'] <= 1
  first = tiny.metrics(tmp_path / 'run')[0]
  assert first['train/distance'] > 0.01  # of views that drop on their own
  vit = vit_jax.load(tmp_path / 'run')
  assert vit.predict([np.zeros((8, 8), np.uint8)]).shape == (1, 64)
  config.objective.options.noise = -1.0
  with pytest.raises(config_lib.UserError, match=r'noise=-1.0: must be'):
    experiment_lib.check(config)


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    ({'image': np.zeros((8, 8, 1))}, r'x-0: the image is float64 of the shape'),
    ({'image': np.zeros((1, 8, 8, 1), np.uint8)}, r'shape \(1, 8, 8, 1\): it'),
    ({'label': 2}, r'x-0: the label is 2: it must be the position of one of 2'),
    ({'label': None}, r'x-0: the values of the example have no label, which'),
  ],
)
def test_examples_that_are_not_as_declared(change, message):
  class Rows(stored.Table):
    features: ClassVar = {
      'image': features.Image(),
      'label': features.Label(('a', 'b')),
    }

    def example(self, split, row, index):
      values = {'image': np.zeros((8, 8, 1), np.uint8), 'label': 0} | change
      values = {name: x for name, x in values.items() if x is not None}
      return data_base.Example(values, index, 'x-0')

    def fingerprint(self):
      return ''

  source = Rows('train', {'train': range(4)}, 'rows')
  with pytest.raises(config_lib.UserError, match=message):
    batches.train_rows(source, tiny.config(), 0, range(2))


def test_a_class_without_its_methods(tmp_path, monkeypatch):
  (tmp_path / 'my_few.py').write_text(
    'from vit_jax.data import stored\nfrom vit_jax.objectives import base\n'
    'class Rows(stored.Table):\n  pass\nclass Few(base.Objective):\n  pass\n'
  )
  monkeypatch.syspath_prepend(tmp_path)
  message = 'my_few:Rows: the class has no example and no fingerprint, which a '
  with pytest.raises(config_lib.UserError, match=message):
    experiment_lib.check(tiny.config(data__name='my_few:Rows'))
  with pytest.raises(
    config_lib.UserError, match='the class has no loss, which'
  ):
    experiment_lib.check(tiny.config(objective__name='my_few:Few'))


def test_a_module_that_is_here_but_not_searched(tmp_path, monkeypatch):
  """Programs other than `vit-jax` may not search the current directory."""
  for name in ('my_rotation', 'my_rotations'):
    (tmp_path / f'{name}.py').write_text('')
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, 'path', [x for x in sys.path if x])
  message = r'my_rotation\.py is here: set PYTHONPATH to this directory, '
  with pytest.raises(config_lib.UserError, match=message):
    experiment_lib.check(tiny.config(objective__name='my_rotation:X'))
