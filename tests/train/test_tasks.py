"""Several tasks on one trunk, with tiny models on the digits."""

import functools
import json
import shutil

import jax
import numpy as np
import pytest
import tiny

import vit_jax
from vit_jax import config as config_lib
from vit_jax import data
from vit_jax.runs import restoring
from vit_jax.train import experiment as experiment_lib
from vit_jax.train import tasks

pytestmark = pytest.mark.usefixtures('programs_once')

UserError = config_lib.UserError

# Overrides of tasks: the digits, and the digits of other splits and batches.
FIRST = {'data.split': 'train[:50%]', 'evals.val.split': 'train[90%:]'}
SECOND = {'data.split': 'train[50%:80%]', 'evals.val.split': 'train[80%:90%]'}


def make_config(tasks=None, **overrides):
  """Returns a config of the tasks 'one' and 'two'."""
  config = tiny.config(**{'train__variant': 'tasks'} | overrides)
  named_tasks = {'one': FIRST, 'two': SECOND} if tasks is None else tasks
  for name, keys in named_tasks.items():
    config.tasks[name] = config_lib.task(config)
    tiny.change(config, keys, f'tasks.{name}.')
  config.evals.val.split = ''
  return config


def variant(sampling):
  return f'tasks(sampling={sampling!r})'


@functools.cache  # compiled functions are shared
def build(**overrides):
  config = make_config(**overrides)
  experiment_lib.check(config)
  return experiment_lib.create(config)


def run_steps(experiment, steps, state=None, start=0):
  """Returns the state after some steps, and what they measured."""
  state = experiment.init() if state is None else state
  actual = []
  with experiment.train_batches(start) as batches:
    for step in range(start, start + steps):
      run = experiment.program.variant(step).train_step
      state, metrics = run(state, next(batches), np.int32(step))
      actual.append({k: float(x) for k, x in metrics.items()})
  return jax.device_get(state), actual


def assert_equal(actual, expected):
  jax.tree.map(np.testing.assert_array_equal, actual, expected)


@pytest.mark.slow
def test_one_task_alone_is_the_run_of_its_config(tmp_path):
  """To the bit: data, random numbers, optimizer and average."""
  keys = tiny.RANDOM | {'train__ema_decay': 0.9, 'train__duration': '4 steps'}
  config = make_config({'one': FIRST}, **keys)
  alone = config_lib.for_task(config, 'one')
  vit_jax.train(config, str(tmp_path / 'tasks'))
  vit_jax.train(alone, str(tmp_path / 'alone'))
  actual, expected = (
    restoring.restore_params(path)[0]
    for path in (tmp_path / 'tasks/tasks/one', tmp_path / 'alone')
  )
  assert_equal(actual, expected)


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
  """The work directory of a run of two tasks."""
  path = tmp_path_factory.mktemp('tasks') / 'run'
  results = vit_jax.train(make_config(), str(path))
  return path, results


@pytest.mark.slow
def test_a_stopped_run_resumes_to_the_bit(finished, tmp_path):
  path, _ = finished
  shutil.copytree(path, tmp_path / 'run')
  for name in ('8', '12'):
    shutil.rmtree(tmp_path / 'run/checkpoints' / name)
  (tmp_path / 'run/DONE').unlink()
  vit_jax.train(make_config(), str(tmp_path / 'run'))
  actual, expected = (
    restoring.restore_params(x)[0] for x in (tmp_path / 'run', path)
  )
  assert_equal(actual, expected)


@pytest.mark.slow
def test_each_task_is_loaded_as_a_run(finished):
  path, results = finished
  for name in ('one', 'two'):
    loaded = vit_jax.load(path / 'tasks' / name)
    source = data.open_split(loaded.trained_with, 'evals.val.split')
    logits = loaded.predict(source.arrays['image'])
    right = np.mean(logits.argmax(-1) == source.arrays['label'])
    assert right == pytest.approx(results.metrics[f'{name}_val/accuracy'])
    assert loaded.origin.kind == 'newest'
    assert str(loaded.origin.path) == str(path / 'checkpoints' / '12')
    alone = config_lib.for_task(make_config(), name)
    with pytest.raises(UserError, match='which trains all its tasks'):
      vit_jax.train(alone, str(path / 'tasks' / name))
  with pytest.raises(UserError, match='several tasks, one, two: name one, as'):
    vit_jax.load(path)


def test_a_resumed_run_must_have_the_same_tasks(finished):
  path, _ = finished
  config = make_config()
  config.tasks.two.data.flip = True
  with pytest.raises(UserError, match=r'tasks\.two\.data\.flip: False -> True'):
    vit_jax.train(config, str(path))


def test_a_resumed_run_must_have_the_same_classes(finished, tmp_path):
  path, _ = finished
  shutil.copytree(path, tmp_path / 'run')
  (tmp_path / 'run/DONE').unlink()
  stored = tmp_path / 'run/tasks/two/preprocess.json'
  content = json.loads(stored.read_text())
  content['classes'][3] = 'drei'
  stored.write_text(json.dumps(content))
  with pytest.raises(UserError, match=r'tasks/two began: without .drei., with'):
    vit_jax.train(make_config(), str(tmp_path / 'run'))


def test_the_log_has_each_task_in_each_interval(tmp_path):
  """However rare it is."""
  config = make_config(
    train__log_every='6 steps',
    train__variant=variant('weighted'),
    train__duration='24 steps',
  )
  config.tasks.one.weight = 5.0
  e = experiment_lib.create(config)

  def label(step):
    return e.program.variant(step - 1).label

  logged = [step for step in range(1, 25) if e.log_due(step)]
  for interval in range(4):
    inside = range(max(1, 6 * interval), 6 * interval + 6)
    there = {label(step) for step in inside}
    assert {label(step) for step in inside if step in logged} == there
  assert {label(step) for step in logged} == {'task one', 'task two'}
  assert {1, 6, 12, 18, 24} <= set(logged) and len(logged) <= 10


def test_a_step_that_is_not_finite_names_its_task(tmp_path):
  config = make_config(
    optim__name='sgd',
    optim__learning_rate=1e38,
    optim__warmup='0 steps',
    train__variant=variant('alternating'),
  )
  with pytest.raises(UserError, match=r'step \d+, of task (one|two), was') as e:
    vit_jax.train(config, str(tmp_path))
  assert 'replay' not in str(e.value)


@pytest.mark.slow
def test_the_state_of_a_tasks_objective_is_read(tmp_path):
  teacher = {'objective.name': 'mean_teacher:MeanTeacher'}
  config = make_config(
    {'one': FIRST, 'two': SECOND | teacher}, train__duration='3 steps'
  )
  vit_jax.train(config, str(tmp_path))
  for name, keys in ('one', set()), ('two', {'teacher', 'centre', 'updates'}):
    origin = vit_jax.load(tmp_path / 'tasks' / name).origin
    assert origin.task == origin.to_dict()['task'] == name
    assert restoring.restore_extra(origin.path, origin.task).keys() == keys


def test_what_a_task_has_for_itself_waits_for_its_steps():
  """Neither the head of the other task changes, nor its moments."""
  e = build(train__variant=variant('alternating'), optim__warmup='0 steps')
  before = jax.device_get(e.init())
  after, _ = run_steps(e, 1)
  changed = {
    jax.tree_util.keystr(path, simple=True, separator='/')
    for (path, x), y in zip(
      jax.tree_util.tree_leaves_with_path(before),
      jax.tree.leaves(after),
      strict=True,
    )
    if not np.array_equal(x, y)
  }
  assert not [x for x in changed if 'tasks/two' in x]
  assert [x for x in changed if x.startswith('opt_state') and 'tasks/one' in x]
  assert 'params/blocks_0/mlp/up/kernel' in changed


@pytest.mark.slow
def test_accumulated_steps_follow_the_mean_of_the_losses():
  keys = {
    'optim__name': 'sgd(momentum=0.0)',
    'optim__warmup': '0 steps',
    'optim__weight_decay': 0.0,
    'train__ema_decay': 0.0,
    'optim__clip_norm': 0.0,
  }
  both = build(train__variant=variant('accumulated'), **keys)
  start = jax.device_get(both.init().params)
  state, (actual,) = run_steps(both, 1)
  moved = []
  for name, its in (('one', FIRST), ('two', SECOND)):
    config = make_config({name: its}, **keys)
    after, _ = run_steps(experiment_lib.create(config), 1)
    moved.append(after.params)
  for path in (('blocks_0', 'mlp', 'up', 'kernel'), ('norm', 'scale')):
    one, two, mean, x = (
      functools.reduce(lambda tree, key: tree[key], path, tree)
      for tree in (*moved, state.params, start)
    )
    expected = x + ((one - x) + (two - x)) / 2
    np.testing.assert_allclose(mean, expected, atol=1e-6)
  mean = (actual['one/loss'] + actual['two/loss']) / 2
  np.testing.assert_allclose(actual['loss'], mean, rtol=1e-6)


@pytest.mark.slow
def test_one_result_on_any_mesh():
  keys = {
    'train__variant': variant('accumulated'),
    'optim__sam': 'sam(rho=0.05)',
    'mesh__min_size': 0,
    'optim__name': 'sgd',
  }
  expected, _ = run_steps(build(**keys), 3)
  actual, _ = run_steps(build(mesh__data=2, mesh__fsdp=2, **keys), 3)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5),
    actual.params,
    expected.params,
  )


def test_draws_depend_on_the_seed_and_the_step():
  config = make_config(train__variant=variant('weighted'))
  config.tasks.one.weight = 3.0
  sizes = {'one': 898, 'two': 539}

  def draw(config, steps=4_000, sampling='weighted'):
    epochs = {name: size / 16 for name, size in sizes.items()}
    return tasks.Tasks(sampling).draw(config, epochs, steps)

  long, short = (draw(config, n) for n in (4_000, 100))
  np.testing.assert_array_equal(long[:100], short)
  assert abs(np.mean(long == 0) - 0.75) < 0.03
  for sampling, share in (('uniform', 0.5), ('epochs', 898 / (898 + 539))):
    drawn = draw(config, sampling=sampling)
    assert abs(np.mean(drawn == 0) - share) < 0.03
  config.seed = 1
  assert not np.array_equal(draw(config, sampling='epochs'), drawn)


def test_each_epoch_of_a_task_has_its_examples_once():
  e = build(train__variant=variant('uniform'), train__duration='200 steps')
  seen = {'one': [], 'two': []}
  with e.train_batches(0) as batches:
    for step in range(e.total_steps):
      name = [*e.parts][e.program.order[step]]
      seen[name] += np.asarray(next(batches)['index']).tolist()
  for name, part in e.parts.items():
    size = len(part.source)
    assert len(seen[name]) > size
    assert len(set(seen[name][:size])) == size


def test_first_layers_of_a_modality():
  e = build(model__depth=2, train__variant='tasks(layers=1)')
  params = e.program.abstract_state().params
  assert {'blocks_1', 'norm', 'modalities', 'tasks'} == params.keys()
  assert 'blocks_0' in params['modalities']['image']


@pytest.mark.slow
@pytest.mark.parametrize(
  ('keys', 'message'),
  [
    ({'two.data.channels': 3}, r'share patch_embedding/kernel.*modality'),
    ({'two.model.depth': 2}, r'no trunk in common'),
    ({'two.model.mlp_dim': 64}, r'share the trunk'),
    ({'two.model.depht': 2}, r'config.tasks.two: config has no key'),
    ({'two.weight': 0.0}, r'config.tasks.two.weight is 0'),
    ({'two.objective.name': 'mocov3'}, r'patch_embedding.*but one freezes it'),
    ({'two.data.split': 'valid'}, r'task two: config.data.split'),
  ],
)
def test_tasks_that_do_not_fit(keys, message):
  config = make_config()
  tiny.change(config, keys, 'tasks.')
  with pytest.raises(UserError, match=message):
    experiment_lib.check(config)
    experiment_lib.create(config)


@pytest.mark.parametrize(
  ('keys', 'message'),
  [
    ({'evals__val__split': 'train[:9%]'}, 'each task has evaluations'),
    ({'train__steps_per_call': 2}, 'steps_per_call'),
    ({'train__variant': variant('often')}, 'sampling'),
    (
      {'model__scan': True, 'train__variant': 'tasks(layers=1)'},
      'model.scan=False',
    ),
    ({'checkpoint__best': 'val/accuracy'}, 'no such evaluation'),
    (
      {
        'train__variant': variant('accumulated'),
        'model__head': "linear(norm='batch')",
      },
      'statistics of the model of task one: leave norm of model.head out',
    ),
    (
      {
        'train__variant': variant('accumulated'),
        'tasks__two__rate_factor': 2.0,
      },
      'tasks.two.rate_factor is not 1',
    ),
  ],
)
def test_configs_that_do_not_work_with_tasks(keys, message):
  config = make_config()
  tiny.change(config, keys)
  with pytest.raises(UserError, match=message):
    experiment_lib.check(config)


def test_commands_of_one_task_say_so():
  with pytest.raises(UserError, match='this command takes one task'):
    experiment_lib.build(make_config())


@pytest.mark.slow
def test_the_demo_trains_each_of_its_tasks():
  """With digits in place of CIFAR-10, which is not here."""
  changes = {
    'tasks.cifar10.data.name': 'digits',
    'tasks.cifar10.data.split': 'train',
    'tasks.cifar10.evals.val.split': '',
    'model.hidden_size': 16,
    'model.mlp_dim': 32,
    'model.num_heads': 2,
    'model.depth': 1,
    'train.batch_size': 4,
    'mesh.data': 1,
    'train.variant': variant('alternating'),
    'train.duration': '4 steps',
    'optim.warmup': '1 steps',
  }
  config = config_lib.load(tiny.ROOT / 'configs/polyvit_demo.py', changes)
  experiment_lib.check(config)
  _, actual = run_steps(experiment_lib.create(config), 4)
  for name, metrics in zip(config.tasks, actual, strict=True):
    assert metrics['ok'] and np.isfinite(metrics[f'{name}/loss'])


def test_polyvits_recipe(tmp_path):
  """Settings of the paper's code: steps, rates and batches by dataset."""
  for name in ('kinetics400', 'moments_in_time', 'vggsound', 'audioset'):
    (tmp_path / name / 'train' / 'a').mkdir(parents=True)
  path = f'{tiny.ROOT}/configs/polyvit_b16.py:{tmp_path}'
  config = config_lib.load(path)
  experiment_lib.check(config)
  actual = {
    name: (x.weight, x.batch_size or config.train.batch_size, x.rate_factor)
    for name, x in config.tasks.items()
  }
  assert actual == {
    'imagenet2012': (20_000, 512, 0.03),
    'cifar10': (10_000, 512, 0.03),
    'cifar100': (10_000, 512, 0.03),
    'oxford_iiit_pet': (500, 512, 0.03),
    'resisc45': (2_500, 512, 0.1),
    'kinetics400': (100_680, 64, 0.1),
    'moments_in_time': (123_640, 64, 0.25),
    'vggsound': (134_700, 64, 0.5),
    'audioset': (15_900, 64, 0.5),
  }
  video = config_lib.for_task(config, 'kinetics400')
  assert video.optim.learning_rate == pytest.approx(0.1)
  assert video.model.patch_size == (4, 16, 16)
  assert config.train.duration == '417920 steps'


def test_images_start_a_video(tmp_path):
  """A video of equal frames has the patches of its frame."""
  config = tiny.config(train__duration='3 steps')
  vit_jax.train(config, str(tmp_path / 'images'))
  target = tiny.config(init_from__path=str(tmp_path / 'images'))
  target.data.name = 'moving_digits'
  target.data.split, target.evals.val.split = 'train', ''
  target.data.source_size = target.data.image_size = (4, 8, 8)
  target.model.patch_size = (2, 4, 4)
  started = experiment_lib.build(target).init().params
  loaded = vit_jax.load(tmp_path / 'images')
  kernel = loaded.params['patch_embedding']['kernel']
  inflated = jax.device_get(started['patch_embedding']['kernel'])
  np.testing.assert_allclose(inflated.sum(axis=0), kernel, atol=1e-6)
  positions = jax.device_get(started['position_embedding'])
  expected = np.tile(loaded.params['position_embedding'], (1, 2, 1))
  np.testing.assert_array_equal(positions, expected)
