"""The loop and its step, with a tiny model on the digits, in this process."""

import dataclasses
import functools
import json
import os
import re
import shutil
import signal

import commands
import cv2
import jax
import numpy as np
import optax
import pytest
import stand_in
import tiny

from vit_jax import config as config_lib
from vit_jax import data
from vit_jax import models
from vit_jax.evaluation import accuracy
from vit_jax.models import layouts
from vit_jax.runs import reporting
from vit_jax.runs import restoring
from vit_jax.train import experiment as experiment_lib
from vit_jax.train import feed
from vit_jax.train import loop
from vit_jax.train import monitor

pytestmark = pytest.mark.usefixtures('programs_once')

UserError = config_lib.UserError


@functools.cache  # compiled functions are shared
def build(**overrides):
  config = tiny.config(**overrides)
  experiment_lib.check(config)
  return experiment_lib.build(config)


def run_steps(experiment, steps, state=None, start=0):
  """Returns the state after some steps, and their losses."""
  state = experiment.init() if state is None else state
  batches = experiment.train_batches(start)
  losses = []
  for step in range(start, start + steps):
    batch, step_fn = next(batches), experiment.program.train_step
    state, metrics = step_fn(state, batch, np.int32(step))
    losses.append(float(metrics['loss']))
  batches.close()
  return jax.device_get(state), losses


def assert_close(actual, expected, tolerance):
  """Compares trees, relative to the norm of each leaf."""
  jax.tree.map(
    lambda a, b: np.testing.assert_array_less(
      np.linalg.norm(a - b), tolerance * np.linalg.norm(b) + 1e-12
    ),
    actual,
    expected,
  )


@pytest.fixture(scope='module')
def reference():
  """Three steps with SGD, unsplit: the state, the losses, the overrides."""
  overrides = tiny.RANDOM | {'optim__name': 'sgd', 'optim__warmup': '0 steps'}
  return *run_steps(build(**overrides), 3), overrides


@pytest.mark.slow
@pytest.mark.parametrize(
  'settings',
  [
    {'train__accumulation': 4},
    {'mesh__data': 4, 'train__accumulation': 2, 'model__scan': True},
  ],
  ids=str,
)
def test_one_result_however_it_is_computed(reference, settings):
  """Accumulated or not, on one device or many; dropout and shifts included."""
  expected, expected_losses, overrides = reference
  state, losses = run_steps(build(**overrides, **settings), 3)
  params = state.params
  if 'model__scan' in settings:
    params = layouts.unstack_layers(params)
  np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
  assert_close(params, expected.params, 1e-5)


@pytest.mark.slow
def test_a_step_can_be_replayed_alone(reference):
  _, losses, overrides = reference
  experiment = build(**overrides)
  state, _ = run_steps(experiment, 2)
  _, third = run_steps(experiment, 1, state=state, start=2)
  assert third == losses[2:]


def test_the_seed_decides():
  first, second, other = (
    jax.device_get(build(seed=seed).init().params) for seed in (1, 1, 2)
  )
  jax.tree.map(np.testing.assert_array_equal, first, second)
  kernels = [x['patch_embedding']['kernel'] for x in (first, other)]
  assert not np.allclose(*kernels)
  batches = [next(build(seed=seed).train_batches(0)) for seed in (1, 2)]
  assert batches[0]['index'].tolist() != batches[1]['index'].tolist()


@pytest.mark.parametrize('warms_up', [False, True])
def test_the_average_is_that_of_the_steps_and_is_evaluated(warms_up):
  """Against the recursion by hand, over the parameters after each step."""
  config = {'optim__warmup': '0 steps', 'train__ema_warmup': warms_up}
  e = build(**config, train__ema_decay=0.3)
  state = e.init()
  average = jax.device_get(state.params)
  for step, batch in zip(range(6), e.train_batches(0), strict=False):
    state, _ = e.program.train_step(state, batch, np.int32(step))
    decay = min(0.3, (1 + step) / (10 + step)) if warms_up else 0.3
    average = jax.tree.map(
      lambda a, p, decay=decay: decay * a + (1 - decay) * p,
      *(average, jax.device_get(state.params)),
    )
    assert_close(jax.device_get(state.ema_params), average, 1e-6)
  read = jax.tree.map(lambda a, b: a is b, state.eval_params, state.ema_params)
  assert jax.tree.all(read)


def test_evaluation_counts_each_example_once():
  """1,797 images in batches of 128, against all of them at once."""
  e = build(
    data__split='train', evals__val__split='train', train__batch_size=128
  )
  params = e.init().params
  step = e.program.eval_step(accuracy.measure)
  parts = [step(params, x)[0] for x in e.eval_batches('val')]
  actual = dict(functools.reduce(lambda x, y: x.merge(y), parts).compute())
  confusion = np.asarray(actual.pop('confusion'))
  actual = {k: float(v) for k, v in actual.items()}
  assert confusion.sum() == actual['examples']  # padding does not count
  assert confusion.trace() / confusion.sum() == pytest.approx(
    actual['accuracy']
  )
  assert step._cache_size() == 1  # compiled once
  model = models.from_config(e.config.model, 10)
  source = e.eval_sources['val']
  logits = model.apply(
    {'params': params}, (source.arrays['image'] / np.float32(255) - 0.5) / 0.5
  )
  loss = optax.softmax_cross_entropy_with_integer_labels(
    logits, source.arrays['label']
  )
  assert actual['examples'] == 1797
  assert actual['accuracy'] == pytest.approx(
    float((logits.argmax(-1) == source.arrays['label']).mean()), abs=1e-6
  )
  assert actual['loss'] == pytest.approx(float(loss.mean()), rel=1e-5)


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
  """A whole run: its work directory and config."""
  workdir = tmp_path_factory.mktemp('runs') / 'new' / 'run'
  config = tiny.config(checkpoint__best='val/loss', reporting='tensorboard')
  assert loop.run(config, str(workdir)).status == 0
  return workdir, config


def copy_unfinished(workdir, tmp_path):
  """Returns a copy of a finished run whose last file was never written."""
  copy = shutil.copytree(workdir, tmp_path / 'copy')
  (copy / 'DONE').unlink()
  return copy


def newest_params(workdir):
  """Returns the parameters of the newest checkpoint, not of the best."""
  shutil.rmtree(workdir / 'best', ignore_errors=True)
  return restoring.restore_params(workdir)[0]


def test_a_run_leaves_what_is_promised(finished):
  workdir, _ = finished
  names = {path.name for path in workdir.iterdir()}
  names = {name for name in names if not name.startswith(('.', 'events.out'))}
  assert names == {
    'config.json',
    'preprocess.json',
    'run.json',
    'metrics.jsonl',
    'train.log',
    'checkpoints',
    'best',
    'DONE',
  }
  steps = sorted(int(p.name) for p in (workdir / 'checkpoints').iterdir())
  assert steps == [8, 12]
  lines = tiny.metrics(workdir)
  train_lines = [line for line in lines if 'train/loss' in line]
  assert [line['step'] for line in train_lines] == list(range(1, 13))
  for name in ('learning_rate', 'grad_norm', 'images_per_second', 'data_wait'):
    assert all(f'train/{name}' in line for line in train_lines), name
  rates = [line['train/learning_rate'] for line in train_lines[:4]]
  assert rates[:3] == pytest.approx([0, 0.5 * max(rates), max(rates)])
  val_lines = [line for line in lines if 'val/accuracy' in line]
  assert [line['step'] for line in val_lines] == [5, 10, 12]
  assert all(line['val/examples'] == 359 for line in val_lines)
  stored = json.loads((workdir / 'config.json').read_text())
  assert stored['model']['num_classes'] == 10
  assert json.loads((workdir / 'DONE').read_text()) == {
    k: v for k, v in val_lines[-1].items() if k.startswith('val/')
  }


def test_what_tensorboard_shows(finished):
  """As its own plugins read it."""
  processing = 'tensorboard.backend.event_processing'
  multiplexers = pytest.importorskip(f'{processing}.plugin_event_multiplexer')
  providers = pytest.importorskip(f'{processing}.data_provider')
  hparams = pytest.importorskip('tensorboard.plugins.hparams.hparams_plugin')
  base = pytest.importorskip('tensorboard.plugins.base_plugin')
  from werkzeug import test as werkzeug_test

  workdir, config = finished
  multiplexer = multiplexers.EventMultiplexer()
  multiplexer.AddRun(str(workdir), 'run')
  multiplexer.Reload()
  shown = multiplexer.GetAccumulator('run')
  tags = shown.Tags()['tensors']
  assert 'val/loss' in tags and 'val/examples' not in tags
  assert 'perf/images_per_second' in tags
  assert 'train/images_per_second' not in tags
  epochs = [e.step for e in shown.Tensors('epoch')]
  assert epochs == sorted(set(epochs)) and epochs[-1] == 12
  (text,) = shown.Tensors('config/text_summary')
  changed, every = text.tensor_proto.string_val[0].decode().split('**all')
  line = f'optim.learning_rate = {config.optim.learning_rate}'
  assert line in changed and line in every
  assert 'train.rng =' in every and 'train.rng =' not in changed
  (command,) = shown.Tensors('command/text_summary')
  record = json.loads((workdir / 'run.json').read_text())['runs'][0]
  assert record['command'] in command.tensor_proto.string_val[0].decode()
  images = {
    name: shown.Tensors(name)
    for name in ('train/images', 'val/confusion', 'val/predictions')
  }
  steps = {name: [e.step for e in actual] for name, actual in images.items()}
  evaluated = [5, 10, 12]
  assert steps == {
    'train/images': [0],
    'val/confusion': evaluated,
    'val/predictions': evaluated,
  }
  for name, actual in images.items():
    width, height, png = actual[-1].tensor_proto.string_val
    picture = cv2.imdecode(np.frombuffer(png, np.uint8), cv2.IMREAD_COLOR)
    assert picture.shape == (int(height), int(width), 3), name
    assert picture.std() > 10, name
  provider = providers.MultiplexerDataProvider(multiplexer, str(workdir))
  plugin = hparams.HParamsPlugin(base.TBContext(data_provider=provider))
  client = werkzeug_test.Client(plugin.get_plugin_apps()['/session_groups'])
  states = [f'STATUS_{x}' for x in ('UNKNOWN', 'SUCCESS', 'RUNNING')]
  asked = {'allowedStatuses': states, 'startIndex': 0, 'sliceSize': 9}
  (session,) = client.post('/', json=asked).json['sessionGroups']
  assert session['hparams']['optim.learning_rate'] == pytest.approx(
    config.optim.learning_rate
  )
  assert 'train.rng' not in session['hparams']  # it has its default
  values = {x['name']['tag']: x['value'] for x in session['metricValues']}
  losses = [x['val/loss'] for x in tiny.metrics(workdir) if 'val/loss' in x]
  assert values['val/loss'] == pytest.approx(losses[-1])


def test_a_finished_run_is_left_alone(finished):
  workdir, config = finished
  before = (workdir / 'metrics.jsonl').read_bytes()
  assert loop.run(config, str(workdir)).status == 0
  assert (workdir / 'metrics.jsonl').read_bytes() == before
  with pytest.raises(UserError, match='seed: 0 -> 7'):
    loop.run(tiny.config(checkpoint__best='val/loss', seed=7), str(workdir))


def test_load_predicts_as_the_evaluation_did(finished):
  import vit_jax

  workdir, _ = finished
  vit = vit_jax.load(workdir)
  source = data.open_source(tiny.config(), 'train[80%:]')
  logits = vit.predict(list(source.arrays['image']))
  loss = optax.softmax_cross_entropy_with_integer_labels(
    logits, source.arrays['label']
  )
  best = min(line.get('val/loss', 9) for line in tiny.metrics(workdir))
  assert float(loss.mean()) == pytest.approx(best, rel=1e-4)
  assert vit.classes == tuple('0123456789')
  with pytest.raises(UserError, match='is no work directory'):
    vit_jax.load(workdir / 'checkpoints')


def test_another_config_is_refused(finished, tmp_path):
  workdir = copy_unfinished(finished[0], tmp_path)
  config = tiny.config(checkpoint__best='val/loss', optim__name='adamw(b1=0.5)')
  with pytest.raises(
    UserError, match=r"optim\.name: 'adamw\(b2=0\.95\)' -> 'adamw\(b1"
  ):
    loop.run(config, str(workdir))


def test_a_run_records_which_parts_its_model_has(finished, tmp_path):
  """A resume may name a default, or write a part in another way."""
  workdir = copy_unfinished(finished[0], tmp_path)
  model = json.loads((workdir / 'config.json').read_text())['model']
  assert model['positions'] == 'learned' and model['last_norm'] is True
  assert (model['hidden_size'], model['num_heads']) == (16, 2)
  config = tiny.config(
    checkpoint__best='val/loss',
    model__positions='learned()',
    model__mlp="mlp(gelu='tanh')",
    model__patch_size=4,
  )
  assert loop.run(config, str(workdir)).status == 0
  assert json.loads((workdir / 'config.json').read_text())['model'] == model
  config.model.mlp = "mlp(gelu='exact')"
  with pytest.raises(UserError, match=r"config: model\.mlp: 'mlp' -> [^;]*;"):
    loop.run(config, str(workdir))


def test_a_run_that_lost_all_steps_binds_nothing(finished, tmp_path):
  workdir = copy_unfinished(finished[0], tmp_path)
  shutil.rmtree(workdir / 'checkpoints')
  shutil.rmtree(workdir / 'best')
  config = tiny.config(train__duration='1 steps', optim__name='adamw(b1=0.5)')
  config.optim.warmup = '0 steps'
  loop.run(config, str(workdir))
  stored = json.loads((workdir / 'config.json').read_text())
  assert stored['optim']['name'] == 'adamw(b1=0.5)'
  assert [line['step'] for line in tiny.metrics(workdir)] == [1, 1, 1]


def test_a_run_that_failed_in_its_first_step_binds_nothing(tmp_path):
  """Neither its config nor its classes, though it saved step 0."""
  root = stand_in.write_folder(tmp_path / 'images', train=2, val=2)
  images = sorted((root / 'train').rglob('*.png'))
  whole = images[0].read_bytes()
  for path in images:
    path.write_bytes(whole[:30])
  workdir = tmp_path / 'run'
  with pytest.raises(UserError, match='is damaged'):
    loop.run(stand_in.config(root), str(workdir))
  assert (workdir / 'config.json').exists()
  for path in images:
    path.write_bytes(whole)
  for split in ('train', 'val'):
    (root / split / 'cow').rename(root / split / 'dog')
  loop.run(
    stand_in.config(root, train__duration='1 steps', optim__warmup='0 steps'),
    str(workdir),
  )
  stored = json.loads((workdir / 'preprocess.json').read_text())
  assert stored['classes'] == ['ant', 'bee', 'dog']
  assert len(json.loads((workdir / 'run.json').read_text())['runs']) == 1
  assert os.listdir(workdir / 'checkpoints') == ['1']


def test_a_live_directory_is_refused(tmp_path):
  with loop.workdir_lib.lock(tmp_path):
    with pytest.raises(UserError, match='is in use by process'):
      loop.run(tiny.config(), tmp_path)  # a path is a work directory, too


def test_only_the_end_is_missing(finished, tmp_path):
  """Nothing is trained or evaluated again; cadence may change."""
  workdir = copy_unfinished(finished[0], tmp_path)
  config = tiny.config(checkpoint__best='val/loss', train__log_every='9 steps')
  assert loop.run(config, str(workdir)).status == 0
  for name in ('DONE', 'metrics.jsonl'):
    assert (workdir / name).read_text() == (finished[0] / name).read_text()


def test_a_damaged_checkpoint_gives_way(finished, tmp_path, caplog):
  """The run goes on from the one before, and ends in the same bits."""
  workdir = copy_unfinished(finished[0], tmp_path)
  for path in (workdir / 'checkpoints' / '12' / 'state').rglob('*'):
    if path.is_file():
      os.truncate(path, path.stat().st_size // 2)
  assert loop.run(finished[1], str(workdir)).status == 0
  assert 'checkpoints/12 is damaged' in caplog.text
  jax.tree.map(
    np.testing.assert_array_equal,
    newest_params(workdir),
    newest_params(finished[0]),
  )


@pytest.mark.slow
def test_resumes_in_another_way(finished, tmp_path, caplog):
  """On more devices, scanned and accumulated; the log says what changed."""
  workdir = copy_unfinished(finished[0], tmp_path)
  shutil.rmtree(workdir / 'checkpoints' / '12')
  config = tiny.config(
    checkpoint__best='val/loss',
    reporting='tensorboard',
    mesh__data=4,
    mesh__fsdp=2,
    mesh__min_size=0,
    model__scan=True,
    train__accumulation=2,
  )
  caplog.set_level('INFO', logger='absl')
  assert loop.run(config, str(workdir)).status == 0
  log = caplog.text
  assert 'mesh.data: 1 -> 4; mesh.fsdp: 1 -> 2; mesh.min_size: 4096 -> 0' in log
  assert 'model.scan: False -> True; train.accumulation: 1 -> 2' in log
  losses = [
    {x['step']: x['train/loss'] for x in tiny.metrics(d) if 'train/loss' in x}
    for d in (workdir, finished[0])
  ]
  assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def began_with_rbg(finished, tmp_path, **changes):
  """Returns the directory of a run with rbg that is not finished."""
  workdir = copy_unfinished(finished[0], tmp_path)
  stored = json.loads((workdir / 'config.json').read_text())
  stored['train']['rng'] = 'rbg'
  for key, value in changes.items():
    stored['mesh'][key] = value
  (workdir / 'config.json').write_text(json.dumps(stored))
  return workdir


@pytest.mark.parametrize(
  'changes, line',
  [
    ({'mesh__data': 4}, 'mesh.data: 1 -> 4'),
    ({'mesh__fsdp': 2}, 'mesh.fsdp: 1 -> 2'),
    ({'train__accumulation': 2}, 'train.accumulation: 1 -> 2'),
  ],
)
def test_a_run_whose_masks_would_differ_is_not_resumed(
  finished, tmp_path, changes, line
):
  workdir = began_with_rbg(finished, tmp_path)
  config = tiny.config(checkpoint__best='val/loss', train__rng='rbg', **changes)
  reason = " (on which the masks of dropout depend with train.rng='rbg')"
  with pytest.raises(UserError, match=re.escape(f'config: {line}{reason};')):
    loop.run(config, str(workdir))


@pytest.mark.parametrize('count', [1, 4])
def test_masks_that_depend_on_the_number_of_devices(finished, tmp_path, count):
  workdir = began_with_rbg(finished, tmp_path, data=-1)
  record = json.loads((workdir / 'run.json').read_text())
  record['runs'][-1]['devices']['count'] = count
  (workdir / 'run.json').write_text(json.dumps(record))
  config = tiny.config(
    checkpoint__best='val/loss', train__rng='rbg', mesh__data=-1
  )
  with pytest.raises(
    UserError, match=f'was trained on {count} device.*, not on'
  ):
    loop.run(config, str(workdir))


def test_a_run_with_rbg_is_resumed_as_it_began(finished, tmp_path):
  workdir = began_with_rbg(finished, tmp_path)
  config = tiny.config(
    checkpoint__best='val/loss', train__rng='rbg', train__log_every='9 steps'
  )
  assert loop.run(config, str(workdir)).status == 0


def test_a_signal_after_the_last_evaluation_finds_the_run_finished(
  tmp_path, monkeypatch
):
  """As when a sweep prunes a trial by the value of its last step."""

  def write(self, step, epoch, scalars, write=reporting.Reporter.write):
    write(self, step, epoch, scalars)
    if step == 12 and 'val/loss' in scalars:
      os.kill(os.getpid(), signal.SIGTERM)

  monkeypatch.setattr(reporting.Reporter, 'write', write)
  assert loop.run(tiny.config(), str(tmp_path)).status == 0
  assert (tmp_path / 'DONE').exists()
  assert '12' in os.listdir(tmp_path / 'checkpoints')


@pytest.mark.slow
@pytest.mark.parametrize(
  ('number', 'when'),
  [(signal.SIGTERM, 'step'), (signal.SIGINT, 'evaluation')],
)
def test_signals_save_within_a_step(tmp_path, monkeypatch, number, when):
  """At step 5, where an evaluation is due, or in the middle of it."""

  def send(*_):
    monkeypatch.undo()
    os.kill(os.getpid(), number)

  def after_call(self, run, call, after_call=monitor.Monitor.after_call):
    after_call(self, run, call)
    if run.step == 5:
      send()

  def close(self, close=feed.Feed.close):  # at first, of the evaluation
    close(self)
    send()

  target = {
    'step': (monitor.Monitor, 'after_call', after_call),
    'evaluation': (feed.Feed, 'close', close),
  }[when]
  monkeypatch.setattr(*target)
  assert loop.run(tiny.config(), str(tmp_path)).status == 128 + number
  assert sorted(os.listdir(tmp_path / 'checkpoints')) == ['4', '5']
  assert not (tmp_path / 'DONE').exists()
  assert loop.run(tiny.config(), str(tmp_path)).status == 0
  evaluated = [x['step'] for x in tiny.metrics(tmp_path) if 'val/loss' in x]
  assert evaluated == [5, 10, 12]  # none is lost, none is double


NONFINITE = {
  # The first updates throw the parameters so far that nothing is finite.
  'optim__name': 'sgd',
  'optim__learning_rate': 1e38,
  'optim__warmup': '0 steps',
  'evals__val__split': '',
}


def test_a_step_that_is_not_finite_stops_the_run_or_is_skipped(tmp_path):
  config = tiny.config(**NONFINITE)
  with pytest.raises(UserError, match=r'^[^\n]*not finite[^\n]*$') as error:
    loop.run(config, str(tmp_path))
  # The state before it is kept, with finite parameters.
  step = int(str(error.value).split()[1]) - 1
  params, stored, _ = restoring.restore_params(tmp_path)
  assert stored == step
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(params))
  source = data.open_source(config, config.data.split)
  batch = list(
    data.train_batches(source, config, start_step=step, num_steps=12)
  )
  assert str(batch[0]['index'].tolist()) in str(error.value)
  assert not (tmp_path / 'DONE').exists()
  assert 'error: step' in (tmp_path / 'train.log').read_text()
  # As the error says, it goes on in the same directory, with one more flag.
  config.train.skip_nonfinite = True
  assert loop.run(config, str(tmp_path)).status == 0
  params, step, _ = restoring.restore_params(tmp_path)
  assert step == 12
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(params))


WILD = {
  # Each step's update is finite, but the next is not: it is skipped, and so on.
  **NONFINITE,
  'train__skip_nonfinite': True,
}


def skipped_steps(workdir):
  """Returns how many steps were skipped up to each step."""
  lines = tiny.metrics(workdir)
  name = 'train/skipped_steps'
  return {line['step']: line[name] for line in lines if name in line}


@pytest.mark.slow
def test_skipped_steps_are_counted(tmp_path, caplog, monkeypatch):
  """In metrics, in DONE, and the same where the run was killed between."""
  results = loop.run(tiny.config(**WILD), str(tmp_path / 'whole'))
  count = results.metrics['train/skipped_steps']
  done = json.loads((tmp_path / 'whole' / 'DONE').read_text())
  assert done['train/skipped_steps'] == count > 3
  assert f'warning: {count} of 12 steps were not finite' in caplog.text
  counts = skipped_steps(tmp_path / 'whole')
  assert counts[12] == count and sorted(counts) == list(range(1, 13))

  def after_call(self, run, call, after_call=monitor.Monitor.after_call):
    after_call(self, run, call)
    if run.step == 7:
      os.kill(os.getpid(), signal.SIGTERM)

  with monkeypatch.context() as context:
    context.setattr(monitor.Monitor, 'after_call', after_call)
    stopped = loop.run(tiny.config(**WILD), str(tmp_path / 'cut'))
  assert stopped.status == 128 + signal.SIGTERM and stopped.metrics == {}
  # What the terminal and metrics.jsonl showed is not what it counts from.
  (tmp_path / 'cut' / 'metrics.jsonl').unlink()
  again = loop.run(tiny.config(**WILD), str(tmp_path / 'cut'))
  assert again == results
  later = {step: n for step, n in counts.items() if step > 7}
  assert skipped_steps(tmp_path / 'cut') == later


def test_too_many_skipped_steps_end_the_run(tmp_path):
  """In one line; also where it is run again, until the bound is raised."""
  config = tiny.config(**WILD, train__max_skipped_in_a_row=3)
  for _ in range(2):
    with pytest.raises(
      UserError, match=r'^\d+ steps in a row were not'
    ) as error:
      loop.run(config, str(tmp_path))
    assert '\n' not in str(error.value)
    assert 'config.train.max_skipped_in_a_row=3' in str(error.value)
  assert not (tmp_path / 'DONE').exists()
  assert loop.run(tiny.config(**WILD), str(tmp_path)).status == 0


STAGNANT = {
  # Nothing is learned, so that the first evaluation stays the best.
  'optim__learning_rate': 0.0,
  'optim__warmup': '0 steps',
  'train__duration': '30 steps',
  'train__patience': '6 steps',
  'checkpoint__best': 'val/accuracy',
  'evals__val__every': '2 steps',
  'evals__test__split': 'train[:20]',
}


@pytest.mark.slow
def test_patience_ends_the_run(tmp_path, caplog, monkeypatch):
  """At the same step, to the bit, where it was killed between."""
  caplog.set_level('INFO', logger='absl')
  config = tiny.config(**STAGNANT)
  whole = loop.run(config, str(tmp_path / 'whole'))
  assert whole.best_step == 2 and whole.status == 0
  assert 'val/accuracy has not improved since step 2, by step 8' in whole.reason
  assert {'val/accuracy', 'test/accuracy'} <= whole.metrics.keys()
  done = json.loads((tmp_path / 'whole' / 'DONE').read_text())
  assert done['best_step'] == 2 and done['reason'] == whole.reason
  assert os.listdir(tmp_path / 'whole' / 'best') == ['2']
  caplog.clear()
  assert loop.run(config, str(tmp_path / 'whole')) == whole
  assert 'finished already: val/accuracy' in caplog.text
  assert 'it ended early: val/accuracy has not improved' in caplog.text

  def after_call(self, run, call, after_call=monitor.Monitor.after_call):
    after_call(self, run, call)
    if run.step == 7:
      raise KeyboardInterrupt  # as a kill: nothing is saved

  with monkeypatch.context() as context:
    context.setattr(monitor.Monitor, 'after_call', after_call)
    with pytest.raises(KeyboardInterrupt):
      loop.run(config, str(tmp_path / 'cut'))
  assert loop.run(config, str(tmp_path / 'cut')) == whole
  # Where DONE alone was never written, nothing is trained again.
  (tmp_path / 'cut' / 'DONE').unlink()
  lines = (tmp_path / 'cut' / 'metrics.jsonl').read_text()
  assert loop.run(config, str(tmp_path / 'cut')) == whole
  assert (tmp_path / 'cut' / 'metrics.jsonl').read_text() == lines
  jax.tree.map(
    np.testing.assert_array_equal,
    *(newest_params(tmp_path / name) for name in ('whole', 'cut')),
  )


@pytest.mark.slow
def test_a_run_from_python_shows_its_progress(tmp_path):
  """In a process of its own, which has not set up any logging.

  absl does so when Orbax is imported, as by `vit_jax.load`.
  """
  code = (
    'import orbax.checkpoint\nimport tiny\nfrom vit_jax import train\n'
    'config = tiny.config(train__duration="2 steps", optim__warmup="0 steps")\n'
    f'results = train(config, {str(tmp_path)!r})\n'
    'print(results.metrics["val/accuracy"], results.status)\n'
  )
  path = f'{tiny.ROOT}:{tiny.TESTS}'
  actual = commands.python('-c', code, env=commands.ENV | {'PYTHONPATH': path})
  assert actual.returncode == 0, actual.stderr
  done = json.loads((tmp_path / 'DONE').read_text())
  assert actual.stdout == f'{done["val/accuracy"]} 0\n'
  assert actual.stderr.count('\nstep 2/2: loss') == 1
  assert 'INFO:absl' not in actual.stderr
  assert 'evaluated at step 2: val/accuracy' in actual.stderr
  assert 'step 2/2: loss' in (tmp_path / 'train.log').read_text()


@pytest.mark.parametrize('skips', [False, True])
def test_a_damaged_image_loses_no_step(tmp_path, skips):
  """It is named; what was done before it is saved."""
  root = stand_in.write_folder(tmp_path / 'images', train=8)
  config = stand_in.config(
    root,
    evals__val__split='',
    train__batch_size=8,
    train__skip_nonfinite=skips,
  )
  source = data.open_source(config, 'train')
  batches = list(data.train_batches(source, config, start_step=0, num_steps=3))
  early = {i for batch in batches[:2] for i in batch['index'].tolist()}
  late = next(i for i in batches[2]['index'].tolist() if i not in early)
  where = next(
    source.read(i).origin
    for i in range(len(source))
    if source.read(i).index == late
  )
  with open(where, 'r+b') as file:
    file.truncate(30)
  workdir = tmp_path / 'run'
  with pytest.raises(UserError, match=re.escape(where)):
    loop.run(config, str(workdir))
  assert where in (workdir / 'train.log').read_text()
  assert os.listdir(workdir / 'checkpoints') == ['2']


def test_dry_run_writes_nothing(tmp_path, capsys):
  workdir = tmp_path / 'run'
  assert loop.run(tiny.config(), str(workdir), dry_run=True).status == 0
  sizes = json.loads(capsys.readouterr().out)
  state = build().init()
  assert sizes['parameters'] == sum(
    x.size for x in jax.tree.leaves(state.params)
  )
  assert not workdir.exists()


def test_experiment_is_what_the_config_says():
  e = build(train__duration='2 epochs', evals__val__every='')
  assert e.total_steps == -(-2 * 1438 // 16)
  assert e.evals_due(5) == [] and e.evals_due(e.total_steps) == ['val']
  short = dataclasses.replace(e, total_steps=5)
  assert short.evals_due(5) == ['val'] and short.checkpoint_due(5)


def test_a_step_that_was_compiled_ahead_is_not_compiled_again(tmp_path):
  config = tiny.config(model__mlp_dim=40)  # of which no other test has a step
  experiment = experiment_lib.build(config)
  program = experiment.program
  program.compile_ahead().result()
  state = experiment.init()
  compiled = []
  jax.monitoring.register_event_time_span_listener(
    lambda event, *_, **__: compiled.append(event)
  )
  with (
    monitor.Stop() as stop,
    experiment.train_batches(0) as batches,
  ):
    batch = next(batches)
    told = monitor.tell(stop, batches, program.mesh)
    compiled.clear()
    program.train_step(state, batch, np.int32(0), told)
  assert not [event for event in compiled if 'backend_compile' in event]


def lengthened(duration, **overrides):
  settings = {'optim__schedule': 'constant', 'optim__warmup': '0 steps'}
  return tiny.config(train__duration=duration, **(settings | overrides))


@pytest.mark.slow
def test_a_finished_run_is_made_longer(tmp_path):
  """It ends in the same bits as one that was as long from the start."""
  whole, grown = tmp_path / 'whole', tmp_path / 'grown'
  overrides = {'optim__schedule': 'rsqrt'}
  assert loop.run(lengthened('8 steps', **overrides), str(whole)).status == 0
  for duration in ('4 steps', '8 steps'):
    results = loop.run(lengthened(duration, **overrides), str(grown))
    assert results.status == 0 and (grown / 'DONE').exists()
  one, other = newest_params(whole), newest_params(grown)
  jax.tree.map(np.testing.assert_array_equal, one, other)
  with pytest.raises(UserError, match='can be made longer alone'):
    loop.run(lengthened('6 steps', **overrides), str(grown))


def test_what_follows_the_duration_is_not_made_longer(tmp_path):
  cosine = {'optim__schedule': 'cosine'}
  path = str(tmp_path / 'cosine')
  assert loop.run(lengthened('3 steps', **cosine), path).status == 0
  with pytest.raises(UserError, match=r'cosine schedule.*init_from\.path'):
    loop.run(lengthened('4 steps', **cosine), path)
  wsd = {'optim__schedule': "wsd('2 steps')"}
  path = str(tmp_path / 'wsd')
  assert loop.run(lengthened('4 steps', **wsd), path).status == 0
  with pytest.raises(UserError, match=r'cooldown from step 2.*init_from'):
    loop.run(lengthened('8 steps', **wsd), path)
  assert (tmp_path / 'wsd' / 'DONE').exists()
