"""Probes, and evaluators of one's own, among the evaluations of a run."""

import json
import os
import re
import signal

import commands
import mean_rank
import numpy as np
import processes
import pytest
import stand_in
import tiny

from vit_jax import config as config_lib
from vit_jax import data
from vit_jax import evaluate
from vit_jax.evaluation import base as evaluation_base
from vit_jax.evaluation import embedded
from vit_jax.parallel import processes as processes_lib
from vit_jax.runs import records
from vit_jax.train import evaluations as evaluations_lib
from vit_jax.train import experiment as experiment_lib
from vit_jax.train import loop
from vit_jax.train import monitor

pytestmark = pytest.mark.usefixtures('programs_once')

UserError = config_lib.UserError

SPLITS = {'split': 'train[80%:]'}
TRAIN = "train_split='train[:80%]'"
EVALS = {
  'near': {'kind': f'knn({TRAIN}, k=5)', 'every': '5 steps'},
  'few': {'kind': f'few_shot({TRAIN}, shots=(1, 20))', 'every': '12 steps'},
  'probe': {'kind': f'linear({TRAIN})', 'every': ''},
}


EVALUATOR = """
from vit_jax.evaluation import base

class Own(base.Evaluator):
  metrics = {}

  def run(self, context):
    return {}
"""


@pytest.fixture
def own_evaluator(tmp_path, monkeypatch):
  """Returns a function that writes an evaluator, and returns its kind."""

  def write(declared, returned='{}'):
    name = f'own_{abs(hash((declared, returned)))}'
    text = EVALUATOR.replace('metrics = {}', f'metrics = {declared}')
    text = text.replace('return {}', f'return {returned}')
    (tmp_path / f'{name}.py').write_text(text)
    return f'{name}:Own'

  monkeypatch.syspath_prepend(tmp_path)
  return write


RANKS = "{'rank': 'min'}", "{'ranks': 1.0}"


@pytest.mark.parametrize(
  'declared, returned, message',
  [
    (
      *RANKS,
      r"returns 'ranks', which `metrics` does not declare, and does not",
    ),
    (*RANKS, "and does not return 'rank', which `metrics` declares"),
    ("{'a': 'min', 'b': 'max'}", "{'a': 1.0}", "does not return 'b', which"),
    ('{}', "{'a': 1.0, 'b': 2}", "returns 'a', 'b', which `metrics` does not"),
    ("{'of/': 'min'}", "{'of/x': 1.0, 'o': 1}", "returns 'o', which"),
  ],
)
def test_metrics_that_are_not_those_declared(
  digits_run, own_evaluator, declared, returned, message
):
  kind = own_evaluator(declared, returned)
  args = '--data=digits', '--split=train[:5]', f'--probe={kind}'
  error = commands.mistake(evaluate, f'--from={digits_run}', *args)
  assert re.search(rf'run\(\) of {kind} .*{message}', error), error


def test_a_run_stops_at_metrics_that_are_not_those_declared(
  own_evaluator, tmp_path
):
  kind = own_evaluator(*RANKS)
  evals = {'own': {'kind': kind, 'every': '1 steps'}}
  message = rf"^config\.evals\.own: .*run\(\) of {kind} returns 'ranks'"
  with pytest.raises(UserError, match=message):
    loop.run(config(evals, train__duration='3 steps'), str(tmp_path / 'run'))


@pytest.mark.parametrize(
  'declared', ["{'rank': 'low'}", "['rank']", "{1: 'min'}"]
)
def test_metrics_that_are_declared_wrongly(own_evaluator, declared):
  evals = {'own': {'kind': own_evaluator(declared)}}
  with pytest.raises(UserError, match=r'its `metrics` are .* must be a dict'):
    experiment_lib.check(config(evals))


def config(evaluations=EVALS, **overrides):
  """Returns the tiny config with further evaluations."""
  result = tiny.config(**overrides)
  for name, fields in evaluations.items():
    result.evals[name] = config_lib.evaluation(**SPLITS | fields)
  return result


def results(workdir):
  """Returns the results of all evaluations by step, in order."""
  actual = {}
  for line in tiny.metrics(workdir):
    metrics = {
      name: x
      for name, x in line.items()
      if '/' in name and not name.startswith('train/')
    }
    if metrics:
      assert line['step'] not in actual, 'evaluated twice'
      actual[line['step']] = metrics
  return actual


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
  """A whole run with an average of its parameters: its work directory."""
  workdir = tmp_path_factory.mktemp('runs') / 'run'
  passes = []

  def apply(self, *args, apply=evaluations_lib.TrainContext.apply):
    passes.append(args)
    return apply(self, *args)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(evaluations_lib.TrainContext, 'apply', apply)
    assert loop.run(config(train__ema_decay=0.5), str(workdir)).status == 0
  # At each of steps 5, 10 and 12 the metrics, and both splits of the probes:
  # those of one step share what is embedded.
  assert len(passes) == 9
  return workdir


def test_a_run_reports_each_at_its_cadence(finished):
  rows = results(finished)
  assert list(rows) == [5, 10, 12]
  near = {'near/accuracy', 'near/examples'}
  val = {'val/accuracy', 'val/loss', 'val/examples'}
  assert set(rows[5]) == set(rows[10]) == near | val
  few = {f'few/few_shot_{n}_accuracy' for n in (1, 20)}
  few |= {f'{name}_margin' for name in few} | {'few/examples'}
  linear = {f'probe/{x}' for x in ('accuracy', 'penalty', 'examples')}
  assert set(rows[12]) == near | val | few | linear
  last = rows[12]
  assert last['probe/examples'] == last['near/examples'] == 359
  assert 0.2 < last['few/few_shot_1_accuracy'] < last['probe/accuracy']
  assert last['few/few_shot_20_accuracy_margin'] > 0
  assert json.loads((finished / 'DONE').read_text()) == last


def test_the_command_measures_the_same(finished, capsys):
  """On the averaged parameters, with another batch and number of devices."""
  last = results(finished)[12]
  for name, fields in EVALS.items():
    kind = fields['kind'].partition('(')[0]
    flags = [f'--probe={kind}', '--train_split=train[:80%]']
    flags += ['--k=5'] if name == 'near' else []
    flags += ['--shots=1,20'] if name == 'few' else []
    splits = [f'--{key}={value}' for key, value in SPLITS.items()]
    args = f'--from={finished}', '--data=digits', *splits, *flags
    assert commands.run(evaluate, '--format=json', *args) == 0
    report = json.loads(capsys.readouterr().out)
    for metric, value in report.items():
      if metric.endswith('accuracy'):  # a tie may fall to the other side
        assert value == pytest.approx(last[f'{name}/{metric}'], abs=3 / 359)


@pytest.mark.slow
@pytest.mark.parametrize(
  'settings',
  [
    {'mesh__data': 2, 'mesh__fsdp': 2, 'mesh__min_size': 0},
    {'model__scan': True, 'train__accumulation': 2, 'data__cache': 'device'},
  ],
  ids=str,
)
def test_one_result_however_it_is_computed(settings):
  """The embeddings of an initial model, and their labels."""

  def embed(**overrides):
    one = {'near': EVALS['near']}
    e = experiment_lib.build(config(one, **overrides)).cached()
    with monitor.Stop() as stop, processes_lib.Watch(0, None) as watch:
      context = evaluations_lib.TrainContext(
        e, e.program, e.init().eval_params, stop, watch
      )
      return e, embedded.embeddings(context, 'train[:80%]')

  e, actual = embed(**settings)
  _, expected = embed()
  source = e.probe_sources['near']
  np.testing.assert_array_equal(actual.labels, source.arrays['label'])
  np.testing.assert_array_equal(actual.index, source.indices)
  np.testing.assert_allclose(actual.features, expected.features, atol=1e-4)


@pytest.mark.slow
def test_a_signal_in_the_midst_of_a_probe(finished, tmp_path, monkeypatch):
  """Saves at once; the evaluations of the step are made on resuming."""

  def alive(self, alive=evaluations_lib.TrainContext.alive):
    monkeypatch.undo()
    os.kill(os.getpid(), signal.SIGTERM)
    alive(self)

  monkeypatch.setattr(evaluations_lib.TrainContext, 'alive', alive)
  run = config(train__ema_decay=0.5)
  assert loop.run(run, str(tmp_path)).status == 128 + signal.SIGTERM
  assert list(results(tmp_path)) == []
  assert '5' in os.listdir(tmp_path / 'checkpoints')
  assert loop.run(run, str(tmp_path)).status == 0
  assert results(tmp_path) == results(finished)


@pytest.mark.slow
def test_several_processes_come_to_the_same(tmp_path):
  """A probe that is on the command line alone."""
  key = 'evals__test__'
  overrides = {
    f'{key}split': 'train[80%:]',
    f'{key}every': '5 steps',
    f'{key}kind': f'knn({TRAIN})',
    'checkpoint__every': '5 steps',
  }
  alone, workdir = tmp_path / 'alone', tmp_path / 'run'
  assert loop.run(tiny.config(**overrides), str(alone)).status == 0
  several = {'mesh__data': -1}
  flags = tiny.flags(**overrides | several)
  command = ['-m', 'vit_jax.main', *flags, f'--workdir={workdir}']
  with processes.start(command, 2, tmp_path / 'logs') as group:
    assert group.statuses() == [0, 0], group.log(0) + group.log(1)
  actual, expected = results(workdir), results(alone)
  assert list(actual) == list(expected) == [5, 10, 12]
  for step, metrics in actual.items():
    assert metrics['test/examples'] == 359
    assert metrics['test/accuracy'] == pytest.approx(
      expected[step]['test/accuracy'], abs=5 / 359
    )


def test_dry_run_opens_what_probes_learn_from(tmp_path, capsys, caplog):
  caplog.set_level('INFO', logger='absl')
  assert loop.run(config(), str(tmp_path / 'run'), dry_run=True).status == 0
  assert 'knn learns from train[:80%]: 1,438 examples' in caplog.text
  assert json.loads(capsys.readouterr().out)['parameters'] > 0
  assert not (tmp_path / 'run').exists()


def folder_config(root, shots, train_split='train'):
  result = stand_in.config(
    root,
    evals__val__split='',
    train__batch_size=8,
    train__duration='3 steps',
    optim__warmup='0 steps',
  )
  result.evals.few = config_lib.evaluation(
    'val', '2 steps', f'few_shot({train_split!r}, shots={shots})'
  )
  return result


def test_a_folder_with_too_few_of_a_class_loses_nothing(tmp_path):
  """It is seen when it is read; other shots go on from there."""
  root = stand_in.write_folder(tmp_path / 'images', train=8, val=2)
  for i in range(1, 8):
    (root / 'train' / 'cow' / f'{i}.png').unlink()
  workdir = tmp_path / 'run'
  with pytest.raises(UserError, match="class 'cow' has 1 image in 'train'"):
    loop.run(folder_config(root, (2,)), str(workdir))
  assert os.listdir(workdir / 'checkpoints') == ['2']
  assert loop.run(folder_config(root, (1,)), str(workdir)).status == 0
  assert list(results(workdir)) == [2, 3]
  with pytest.raises(UserError, match='17 images of 3 classes, fewer than 6 o'):
    experiment_lib.build(folder_config(root, (6,)))


def test_the_same_image_may_not_be_on_both_sides():
  """Their positions count where they count the same."""
  spec = config_lib.evaluation('val', kind="knn('train', k=1)")
  probe = evaluation_base.create('evals.near', spec)
  labels, index = np.zeros(4, np.int32), np.arange(4)
  args = (labels, index), (labels, index + 3), ('a',)
  probe.check_examples(*args)
  for split, train_split in (
    ('train[3:]', 'train[:4]'),
    ('val+train', 'val[:1]+train'),
    ('all', 'all'),
  ):
    spec.split, probe.train_split = split, train_split
    with pytest.raises(UserError, match='shares 1 image with'):
      probe.check_examples(*args)


@pytest.mark.parametrize(
  ('split', 'train_split', 'shared'),
  [
    ('train', 'train[:50%]', True),
    ('val+train[80%:]', 'train', True),
    ('val', 'all', True),
    ('train[10:20]', 'train[15:]', True),
    ('train[-10%:]', 'train[:80%]', False),
    ('val+train[80%:]', 'train[:80%]', False),
    ('train[:10]', 'train[50%:]', False),  # as far as their names tell
  ],
)
def test_what_names_say_of_both_sides_is_seen_at_once(
  split, train_split, shared, tmp_path
):
  """Before images are read."""
  root = stand_in.write_folder(tmp_path / 'images', train=8, val=2)
  (root / 'train' / 'cow' / '0.png').write_bytes(b'damaged')
  result = folder_config(root, (1,), train_split)
  result.evals.few.split = split
  if not shared:
    assert experiment_lib.build(result).probe_sources
    return
  with pytest.raises(UserError, match=r'evals\.few: images of .* as well'):
    experiment_lib.build(result)


@pytest.mark.parametrize(
  ('train_part', 'message'),
  [
    ([0, 0, 1, 1], r"class 'c' has 0 images in 'train\[:80%\]'"),
    ([0, 0, 1, 2, 2], r"class 'b' has 1 image in 'train\[:80%\]'"),
    ([0, 0, 1, 1, 2, 2], None),  # and of 'd' there are none at all
  ],
)
def test_few_shots_are_of_all_classes_that_are_asked_for(train_part, message):
  spec = config_lib.evaluation(
    **SPLITS, kind=f'few_shot({TRAIN}, shots=(1, 2))'
  )
  train_labels, labels = np.array(train_part), np.array([0, 1, 2])
  index = np.arange(len(train_labels))
  probe = evaluation_base.create('evals.few', spec)
  args = (train_labels, index), (labels, np.arange(3) + 90), tuple('abcd')
  if message is None:
    probe.check_examples(*args)
    return
  with pytest.raises(UserError, match=message):
    probe.check_examples(*args)


def test_what_is_not_finite_has_no_accuracy():
  features = np.full((40, 4), np.nan, np.float32)
  labels, index = np.arange(40) % 2, np.arange(40)
  broken = embedded.Embedded(features, labels, index)
  for fields in EVALS.values():
    probe = evaluation_base.create('', config_lib.evaluation(**SPLITS | fields))
    metrics = probe.measure_embedded(broken, broken)
    assert set(metrics) == set(probe.metrics)
    assert metrics.pop('examples') == 40
    assert np.isnan(list(metrics.values())).all()


def test_a_probe_on_tfds_is_opened_by_its_key(tmp_path):
  name = stand_in.write_tfds(tmp_path, train=30, test=6)
  result = folder_config(tmp_path, (5,))
  result.data.name, result.data.dir = name, str(tmp_path)
  result.evals.few.split = 'test'
  e = experiment_lib.build(result)
  assert len(e.probe_sources['few']) == 30
  assert set(e.splits) == {'train', 'evals.few', 'evals.few.train'}
  assert isinstance(e.probe_sources['few'], data.Source)


def test_a_probe_may_choose_the_best(tmp_path):
  one = {'near': EVALS['near']}
  best = config(one, checkpoint__best='near/accuracy')
  experiment_lib.check(best)
  wrong = config(one, checkpoint__best='near/acc')
  with pytest.raises(UserError, match=r"best is 'near/a.*of near/accuracy,"):
    experiment_lib.check(wrong)
  assert loop.run(best, str(tmp_path)).status == 0
  actual = {k: x['near/accuracy'] for k, x in results(tmp_path).items()}
  assert os.listdir(tmp_path / 'best') == [str(max(actual, key=actual.get))]


OWN_KIND = 'mean_rank:MeanRank'


def own_config(**fields):
  result = tiny.config(checkpoint__best='rank/mean_rank')
  result.evals.rank = config_lib.evaluation(
    **SPLITS | {'every': '4 steps', 'kind': f'{OWN_KIND}(k=8)'} | fields
  )
  return result


def test_an_evaluator_of_ones_own(tmp_path, capsys):
  """In training, where lower ranks are the best; and by the command."""
  assert loop.run(own_config(), str(tmp_path)).status == 0
  ranks = {
    step: x['rank/mean_rank']
    for step, x in results(tmp_path).items()
    if 'rank/mean_rank' in x
  }
  assert list(ranks) == [4, 8, 12]
  assert os.listdir(tmp_path / 'best') == [str(min(ranks, key=ranks.get))]
  record = records.read(tmp_path)
  assert record.directions['rank/mean_rank'] == 'min'
  assert record.directions['val/accuracy'] == 'max'
  assert record.best('rank/mean_rank').value == min(ranks.values())
  args = f'--from={tmp_path}', '--step=newest', '--data=digits'
  args += (
    '--split=train[80%:]',
    f'--probe={OWN_KIND}',
    '--k=8',
    '--batch_size=50',
  )
  assert commands.run(evaluate, *args, '--format=json') == 0
  report = json.loads(capsys.readouterr().out)
  assert report['probe'] == OWN_KIND and report['examples'] == 359
  assert report['mean_rank'] == pytest.approx(ranks[12], abs=1e-3)
  assert commands.run(evaluate, *args) == 0
  assert 'mean rank' in capsys.readouterr().out


@pytest.mark.parametrize(
  ('found', 'message'),
  [
    (3.5, 'returns a float: it must return a dict of metrics'),
    (
      {'ranks': np.ones(3)},
      r"'ranks', a ndarray of the shape \(3,\): it",
    ),
    ({'ranks': [[1], [1, 2]]}, "'ranks', a list: it must be one number"),
    ({'ranks': None}, "'ranks', a NoneType: it must be one number"),
  ],
)
def test_an_own_evaluator_returns_numbers(
  found, message, digits_run, monkeypatch
):
  monkeypatch.setattr(mean_rank.MeanRank, 'run', lambda *_: found)
  args = '--data=digits', '--split=train[80%:]', f'--probe={OWN_KIND}', '--k=8'
  told = commands.mistake(evaluate, f'--from={digits_run}', *args)
  assert re.search(message, told)


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'kind': 'nowhere:Mine'}, "evals.rank.kind=.*no module 'nowhere'"),
    ({'kind': 'tiny:config'}, "another class 'config'"),
    (
      {'kind': f'{OWN_KIND}(k=1)'},
      'evals.rank.kind=.* k is 1: all ranks would be 1',
    ),
    ({'kind': f'{OWN_KIND}(kk=1)'}, "no option 'kk': did you mean 'k'"),
  ],
)
def test_mistakes_with_an_evaluator_of_ones_own(fields, message):
  with pytest.raises(UserError, match=f'^[^\n]*{message}[^\n]*$'):
    experiment_lib.check(own_config(**fields))
