"""A step of a run is repeated, and examined."""

import functools
import json
import os

import jax
import numpy as np
import pytest
import tiny

from vit_jax import config as config_lib
from vit_jax.rerun import diagnose
from vit_jax.rerun import replay
from vit_jax.train import experiment as experiment_lib
from vit_jax.train import loop

UserError = config_lib.UserError

# What the data decide, so that a run and its replay have one config.
DECIDED = {
  'model__num_classes': 10,
  'data__mean': (0.5,),
  'data__std': (0.5,),
  'evals__val__split': '',
}
# What a step may do.
RICH = DECIDED | {
  'model__depth': 2,
  'model__scan': True,
  'train__duration': '8 steps',
  'train__accumulation': 2,
  'train__ema_decay': 0.9,
  'optim__clip_norm': 1.0,
  'optim__freeze': '^patch_embedding/',
}
DROPOUT = {
  'model__depth': 2,
  'model__dropout_rate': 0.1,
  'optim__name': 'sgd',
}
# The first update throws the parameters far away.
WILD = DECIDED | {
  'optim__name': 'sgd',
  'optim__learning_rate': 1e18,
  'optim__warmup': '0 steps',
  'model__depth': 2,
}


@pytest.fixture(scope='module', autouse=True)
def compile_once():
  """Lets all runs and replays of a config share what is compiled."""
  build, built = experiment_lib.build, {}

  def build_once(config, resumes=False):
    key = json.dumps(config_lib.to_dict(config), sort_keys=True)
    if key not in built:
      built[key] = build(config, resumes)
    return built[key]

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(experiment_lib, 'build', build_once)
    yield


def files(directory):
  return {
    str(path.relative_to(directory)): path.read_bytes()
    for path in directory.rglob('*')
    if path.is_file()
  }


@pytest.fixture
def repeat(capsys):
  """Returns what repeats a step, and gives back what it printed."""

  def run(config, workdir, step):
    before = files(workdir)
    capsys.readouterr()
    assert replay.run(config, str(workdir), step) == 0
    report = json.loads(capsys.readouterr().out)
    # Nothing of the run has changed.
    added = {f'replay/{step}.json', f'replay/{step}.png'}
    after = {k: v for k, v in files(workdir).items() if k not in added}
    assert after == {k: v for k, v in before.items() if k not in added}
    stored = json.loads((workdir / 'replay' / f'{step}.json').read_text())
    assert report.items() <= stored.items()
    assert (workdir / 'replay' / f'{step}.png').stat().st_size > 1000
    return stored

  return run


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
  """A finished run: its work directory and config."""
  workdir = tmp_path_factory.mktemp('runs') / 'run'
  config = tiny.config(**RICH)
  assert loop.run(config, str(workdir)).status == 0
  assert sorted(os.listdir(workdir / 'checkpoints')) == ['4', '8']
  return workdir, config


@pytest.mark.slow
def test_a_finite_step_is_the_same_to_the_bit(finished, repeat):
  workdir, config = finished
  report = repeat(config, workdir, 7)
  line = next(x for x in tiny.metrics(workdir) if x['step'] == 7)
  assert report['metrics']['loss'] == line['train/loss']
  assert report['metrics']['grad_norm'] == line['train/grad_norm']
  assert report['same'] and report['ok'] and report['first'] is None
  assert all(report['finite'].values())
  assert report['restored'] == 4
  assert len(report['examples']) == 16
  # Layers have their own names, and the order in which they are computed.
  modules = list(report['modules'])
  assert modules[0] == 'patch_embedding'
  assert modules[-2:] == ['head', 'model']
  assert modules.index('blocks_0') < modules.index('blocks_1/norm1')
  arrays = report['arrays']
  assert 'blocks_0/mlp/up/kernel' in arrays['parameters']
  assert 'patch_embedding/kernel' not in arrays['gradient']  # it is frozen
  assert arrays['gradient']['blocks_1/mlp/up/kernel'][1] > 0


def test_without_a_checkpoint_it_goes_from_the_start(
  finished, repeat, monkeypatch
):
  workdir, config = finished
  monkeypatch.setattr(diagnose, 'examine', lambda *_: made_up())
  report = repeat(config, workdir, 3)
  assert report['restored'] == 0 and report['same']


def test_what_is_not_finite_is_told_in_a_sentence(
  finished, repeat, monkeypatch, caplog
):
  workdir, config = finished
  caplog.set_level('INFO', logger='absl')
  bad = {'blocks_0/mlp/bias': (2, 0)}
  for stage, words in (
    ('gradient', 'the gradient of blocks_0/mlp/bias: 2 values'),
    ('parameters_after', 'the step, blocks_0/mlp/bias: 2 values'),
  ):
    actual = made_up(**{stage: bad})
    monkeypatch.setattr(diagnose, 'examine', lambda *_, actual=actual: actual)
    repeat(config, workdir, 3)
    assert words in caplog.text


@pytest.fixture(scope='module')
def stopped(tmp_path_factory):
  """A run that a step which is not finite stopped, and that step."""
  workdir = tmp_path_factory.mktemp('runs') / 'run'
  with pytest.raises(UserError, match='not finite') as error:
    loop.run(tiny.config(**WILD), str(workdir))
  return workdir, int(str(error.value).split()[1])


def test_the_step_that_stopped_a_run(stopped, repeat, caplog):
  workdir, step = stopped
  caplog.set_level('INFO', logger='absl')
  report = repeat(tiny.config(**WILD), workdir, step)
  assert not report['ok'] and not report['skipped']
  assert report['restored'] == step - 1
  assert report['finite']['images'] and report['finite']['parameters']
  first = report['first']
  # The scores of such parameters are too large for a softmax.
  assert (first['stage'], first['name']) == ('forward', 'blocks_0/attention')
  assert first['at'] == 'input of blocks_0/attention/out'
  assert first['largest_before'] > 1e18
  assert 'blocks_0/attention, input of blocks_0/attention/out' in caplog.text
  with pytest.raises(UserError, match=f'--replay={step}; or skip'):
    replay.run(tiny.config(**WILD), str(workdir), step + 1)


def test_skipped_steps_are_skipped_again(stopped, repeat, monkeypatch):
  workdir, step = stopped
  monkeypatch.setattr(diagnose, 'examine', lambda *_: made_up())
  config = tiny.config(**WILD, train__skip_nonfinite=True)
  report = repeat(config, workdir, step + 1)
  assert report['skipped'] and report['restored'] == step - 1


def test_mistakes_are_told(stopped, tmp_path):
  workdir, _ = stopped
  config = tiny.config(**WILD)
  with pytest.raises(UserError, match='there is no run in'):
    replay.run(config, str(tmp_path), 1)
  with pytest.raises(UserError, match=r'seed: 0 -> 7'):
    replay.run(tiny.config(**WILD, seed=7), str(workdir), 1)
  for step in (0, 13):
    with pytest.raises(UserError, match=f'--replay={step}: .* steps 1 to 12'):
      replay.run(config, str(workdir), step)


def made_up(bad_row=-1, event=3, **arrays):
  """Returns what a step of four examples might come to."""
  events = [
    ('', 'input'),
    ('patch_embedding', 'input'),
    ('patch_embedding', 'output'),
    ('blocks_0/mlp', 'input'),
    ('blocks_0/mlp', 'output'),
    ('head', 'output'),
    ('', 'output'),
  ]
  bad = np.zeros((len(events), 4), np.int32)
  if bad_row >= 0:
    bad[event:, bad_row] = 5
  names = ('patch_embedding/kernel', 'class_token', 'blocks_0/mlp/bias')
  good = {name: diagnose.Values(0, 1.0) for name in (*names, 'head/bias')}
  stages = ('parameters', 'gradient', 'optimizer', 'parameters_after')
  return diagnose.Findings(
    events=tuple(diagnose.Event(*event, True) for event in events),
    bad=bad,
    largest=np.arange(len(events), dtype=np.float32),
    arrays={
      stage: good
      | {k: diagnose.Values(*x) for k, x in arrays.get(stage, {}).items()}
      for stage in stages
    },
    index=np.array([7, 3, 9, 1]),
    targets={'label': np.array([0, 1, 2, 3])},
    drawn=[0, 1, 2, 3],
    images=np.zeros((4, 8, 8, 1), np.float32),
  )


def cause(findings, **metrics):
  metrics = {'loss': 0.0, 'grad_norm': 0.0, 'param_norm': 0.0} | metrics
  return next(replay._causes(findings, metrics), None)


@pytest.mark.parametrize(
  ('found', 'metrics', 'expected'),
  [
    ({}, {}, None),
    ({'bad_row': 2, 'event': 0}, {}, ('forward', 'images', 'input')),
    (
      {'bad_row': 2, 'event': 2},
      {},
      ('forward', 'patch_embedding', 'output'),
    ),
    (
      {'bad_row': 2},
      {'loss': np.nan},
      ('forward', 'blocks_0', 'input of blocks_0/mlp'),
    ),
    ({'bad_row': 2, 'event': 6}, {}, ('forward', 'model', 'output')),
    ({'gradient': {'head/bias': (1, 0.0)}}, {'loss': np.inf}, ('loss',)),
    (
      {'gradient': dict.fromkeys(['class_token', 'blocks_0/mlp/bias'], (2, 0))},
      {'grad_norm': np.nan},
      ('gradient', 'blocks_0/mlp/bias'),
    ),
    (
      {
        'gradient': dict.fromkeys(['patch_embedding/kernel'], (2, 0))
        | {'class_token': (2, 0)}
      },
      {'grad_norm': np.nan},
      ('gradient', 'class_token'),
    ),
    (
      {'gradient': {'class_token': (0, 1e30)}},
      {'grad_norm': np.inf},
      ('grad_norm', 'class_token'),
    ),
    (
      {'optimizer': {'0/nu/class_token': (2, 0)}},
      {},
      ('optimizer', '0/nu/class_token'),
    ),
    (
      {'parameters_after': {'head/bias': (0, 1e30)}},
      {'param_norm': np.inf},
      ('param_norm', 'head/bias'),
    ),
  ],
  ids=str,
)
def test_the_first_cause(found, metrics, expected):
  first = cause(made_up(**found), **metrics)
  if expected is None:
    assert first is None
    return
  keys = ('stage', 'name', 'at')
  assert tuple(first[k] for k in keys if k in first) == expected
  if first['stage'] == 'forward':
    assert first['examples'] == [9] and first['not_finite'] == 5


def poison(e, path, value):
  """Returns the first state with the last element of a parameter replaced."""
  state = jax.device_get(e.init())
  *modules, name = path.split('/')
  inner = functools.reduce(dict.__getitem__, modules, state.params)
  inner[name] = np.array(inner[name])
  inner[name].flat[-1] = value  # of the last layer, if they are stacked
  shardings = jax.tree.map(lambda x: x.sharding, e.program.abstract_state())
  return jax.device_put(state, shardings)


@pytest.mark.slow
def test_a_poisoned_parameter_is_found_in_its_layer():
  """Scanned or not, whole or in parts, on any mesh: the same is found."""
  spread = {
    'model__scan': True,
    'model__remat': 'full',
    'mesh__data': 2,
    'mesh__fsdp': 2,
    'mesh__min_size': 0,
    'train__accumulation': 2,
  }
  actual = {}
  for blocks, overrides in (('blocks_1', {}), ('blocks', spread)):
    e = experiment_lib.build(tiny.config(**DROPOUT | overrides))
    with e.train_batches(0) as batches:
      batch = next(batches)
    state = poison(e, f'{blocks}/mlp/up/kernel', np.inf)
    actual[blocks] = diagnose.examine(e, state, batch, 0)
  one, other = actual.values()
  for f in (one, other):
    bad = [name for name, x in f.arrays['parameters'].items() if x.bad]
    assert bad == ['blocks_1/mlp/up/kernel']
    first = cause(f)
    assert (first['stage'], first['name']) == ('forward', 'blocks_1/mlp/up')
    # One of each of 4 tokens of 16 images.
    assert first['at'] == 'output' and first['not_finite'] == 16 * 4
    assert first['examples'] == f.index.tolist()
  assert one.events == other.events
  np.testing.assert_array_equal(one.bad, other.bad)
  np.testing.assert_allclose(one.largest, other.largest, rtol=1e-4)
  np.testing.assert_array_equal(one.index, other.index)
  np.testing.assert_array_equal(one.images, other.images)
