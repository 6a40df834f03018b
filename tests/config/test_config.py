"""Durations, keys, and config files."""

import fractions
import json
import pathlib
import subprocess
import sys

from absl import flags
import case_files
import ml_collections
import pytest
import tiny

from vit_jax import cli
from vit_jax import config as config_lib
from vit_jax.config import resuming

UserError = config_lib.UserError


def test_every_leaf_is_typed_and_serialises():
  config = config_lib.default()
  config.model.depth = 6
  config.data.image_size = (24, 32)
  config.evals['minival'] = config_lib.evaluation('train[:5%]', '2 epochs')
  stored = config_lib.to_dict(config)
  assert json.loads(json.dumps(stored)) == stored
  back = config_lib.from_dict(stored)
  assert config_lib.to_dict(back) == stored
  assert back.data.image_size == (24, 32) and back.model.num_heads is None
  back.model.num_heads = 3  # a placeholder, not a None
  with pytest.raises(TypeError):
    back.model.num_heads = 'three'
  assert resuming.differences(config, config_lib.from_dict(stored)) == []


def test_a_number_has_its_noun():
  actual = [
    config_lib.counted(i, x) for i in (0, 1, 2) for x in ('step', 'class')
  ]
  assert actual[:4] == ['0 steps', '0 classes', '1 step', '1 class']
  assert actual[4:] == ['2 steps', '2 classes']


def test_only_cadence_may_change_on_resuming():
  old, new = config_lib.default(), config_lib.default()
  new.train.log_every = '1 steps'
  new.checkpoint.keep = 5
  new.evals.val.every = '3 epochs'
  new.data.num_workers = 4
  assert resuming.differences(old, new) == []
  assert resuming.differences(old, new, resumable=True)[1:] == [
    'data.num_workers: 0 -> 4',
    "evals.val.every: '' -> '3 epochs'",
    "train.log_every: '50 steps' -> '1 steps'",
  ]
  new.optim.learning_rate = 0.5
  new.data.image_size = 32
  assert resuming.differences(old, new) == [
    'data.image_size: 224 -> 32',
    'optim.learning_rate: 0.001 -> 0.5',
  ]


@pytest.mark.parametrize(
  ('text', 'steps'),
  [
    ('200 epochs', 200 * 45_000 / 128),
    ('1 epoch', 45_000 / 128),
    ('0.5 epochs', 22_500 / 128),
    ('10_000 steps', 10_000),
    ('1.5e6 examples', 1.5e6 / 128),
    ('1 step', 1),
  ],
)
def test_durations(text, steps):
  period = config_lib.period(text, examples=45_000, batch_size=128)
  assert period == fractions.Fraction(steps)
  assert config_lib.num_steps(text, 45_000, 128) == -int(-steps // 1)


def test_a_duration_of_very_many_digits():
  config = config_lib.default()
  config.train.duration = '9' * 5000 + ' steps'
  with pytest.raises(UserError, match=r'train\.duration: .*length of time'):
    config_lib.check(config)


@pytest.mark.parametrize('examples', [1, 127, 1437, 45_000])
@pytest.mark.parametrize('text', ['1 epochs', '0.3 epochs', '700 examples'])
def test_cadence_never_drifts(examples, text):
  """After n periods, n were due, though none is a whole number of steps."""
  every = config_lib.period(text, examples, batch_size=32)
  steps = range(1, 2000)
  due = [step for step in steps if config_lib.is_due(step, every)]
  assert len(due) == min(steps.stop - 1, (steps.stop - 1) // every)
  assert not config_lib.is_due(0, every) and not config_lib.is_due(5, None)


def test_unknown_keys_name_the_nearest():
  with pytest.raises(UserError, match=r"mean 'optim\.learning_rate'"):
    config_lib.set_value(config_lib.default(), 'optim.learning_rat', 1.0)
  config = config_lib.default()
  config.evals.vla = config_lib.evaluation('test')
  config.evals.vla.unlock()
  config.evals.vla.evry = '1 epochs'
  with pytest.raises(UserError, match=r'evals\.vla\.evry'):
    config_lib.check(config)


@pytest.mark.parametrize(
  ('_', 'words', 'message'),
  case_files.read(pathlib.Path(__file__).with_name('meant.txt')),
)
def test_what_was_meant(_, words, message):
  for typed in words.split():
    error = str(config_lib.unknown_key(config_lib.default(), typed))
    assert error.startswith(f'config has no key {typed!r}: ')
    assert message in error and '\n' not in error


def test_a_flag_that_was_meant_as_a_key():
  config = f'--config={tiny.ROOT}/configs/digits.py'
  for flag, message in {
    '--lr=1': "no flag --lr: did you mean '--config.optim.learning_rate'?",
    '--data.name=digits': "did you mean '--config.data.name'?",
    '--epochs=3': "--config.train.duration='10 epochs'?",
    '--save_dir=x': 'it is --workdir=PATH',
    '--wrokdir=x': 'did you mean --workdir?',
    '--foo=1': 'no flag --foo: see --help',
  }.items():
    flag_values = flags.FlagValues()
    cli.define_config(flag_values)
    flags.DEFINE_string('workdir', None, '', flag_values=flag_values)
    with pytest.raises(UserError) as error:
      cli.parse_flags(['main', config, flag], flag_values)
    assert message in str(error.value)


@pytest.mark.parametrize('path', ['defaults', 'tasks', 'configs/defaults.py'])
def test_no_other_modules_are_suggested(path, tmp_path, monkeypatch):
  """As a wheel has them: configs/ is beside vit_jax/config/."""
  monkeypatch.chdir(tmp_path)
  with pytest.raises(UserError, match=r'those that come .* are in configs/$'):
    config_lib.load(path)


@pytest.mark.parametrize(
  ('body', 'message'),
  [
    ('config.optim.lr = 1.0', "line 4: config has no key 'lr': did you mean"),
    (
      'config.seed = "one"',
      'line 4: config.seed is one, of type str: it must be of type int, as 0',
    ),
    (
      'config.train.log_every = 10',
      "of type int: it must be of type str, as '50 steps'",
    ),
    ('[] + ()', 'line 4: TypeError: can only concatenate list'),
    ('1 / 0', 'line 4: ZeroDivisionError: division by zero'),
    ('config = = 3', 'line 4: SyntaxError'),
    ('return 3', 'must return a ConfigDict'),
    ('raise c.UserError("no such thing")', 'config.py: no such thing'),
  ],
)
def test_broken_config_files(tmp_path, body, message):
  path = tmp_path / 'config.py'
  path.write_text(
    'from vit_jax import config as c\n'
    'def get_config():\n'
    '  config = c.default()\n'
    f'  {body}\n'
    '  return config\n'
  )
  with pytest.raises(UserError, match=r'^[^\n]*$') as error:
    config_lib.load(str(path))
  assert message in str(error.value) and str(path) in str(error.value)


def test_config_file_with_an_argument(tmp_path):
  path = tmp_path / 'config.py'
  path.write_text(
    'from vit_jax import config as c\n'
    'def get_config(arg=""):\n'
    '  config = c.default()\n'
    '  config.model.name = arg or "ViT-Ti/16"\n'
    '  return config\n'
  )
  assert config_lib.load(str(path)).model.name == 'ViT-Ti/16'
  assert config_lib.load(f'{path}:ViT-B/16').model.name == 'ViT-B/16'
  missing = pathlib.Path(tmp_path, 'missing.py')
  with pytest.raises(UserError, match='there is no such file'):
    config_lib.load(str(missing))


def test_an_evaluation_has_all_its_keys():
  config = config_lib.default()
  config.evals.mine = ml_collections.ConfigDict({'split': 'a', 'every': ''})
  with pytest.raises(
    UserError, match=r'evals\.mine must be made by config\.ev'
  ):
    config_lib.check(config)


def test_evaluations_may_change_on_resuming():
  config = config_lib.default()
  config.evals.mine = config_lib.evaluation('train')
  new = config_lib.from_dict(config_lib.to_dict(config))
  kind = "few_shot('train', shots=(2,))"
  new.evals.mine = config_lib.evaluation('test', '1 epochs', kind)
  back = config_lib.from_dict(config_lib.to_dict(new))
  assert back.evals.mine.kind == kind
  assert resuming.differences(config, back) == []


@pytest.mark.parametrize(
  'change',
  [
    {'evals': []},
    {'objective': []},
    {'objective': {'options': 3}},
    {'tasks': []},
    {'tasks': {'a': 3}},
    {'tasks': {'a': {'weight': 'much'}}},
    {'tasks': {'a': {'model': []}}},
    {'objective': {'options': {'a.b': 1}}},
  ],
)
def test_what_is_no_stored_config(change):
  stored = config_lib.to_dict(config_lib.default()) | change
  for value in (stored, [stored]):
    with pytest.raises(UserError, match='does not hold a config'):
      config_lib.from_dict(value)
  stored['augment'] = {'mixup': {'a': 1}}
  with pytest.raises(UserError):
    config_lib.from_dict(stored)


def test_load_with_overrides():
  """Values are typed as in defaults.py; lists stand for tuples."""
  config = config_lib.load(
    tiny.ROOT / 'configs' / 'digits.py',  # absolute; a Path, too
    {
      'train.duration': '3 epochs',
      'optim.learning_rate': 1,  # an int where a float is
      'model.num_heads': None,
      'data.mean': [0.1],
      'augment.gray': (0.5, 1),
      'mesh.rules': [['^head/kernel$', [None, 'fsdp']]],
      'evals.val.every': '1 epochs',
    },
  )
  assert config.train.duration == '3 epochs'
  assert config.optim.learning_rate == 1.0
  assert config.model.num_heads is None
  assert config.data.mean == (0.1,)
  assert config.augment.gray == (0.5, 1)
  assert config.mesh.rules == (('^head/kernel$', (None, 'fsdp')),)
  back = config_lib.from_dict(config_lib.to_dict(config))
  assert resuming.differences(config, back) == []
  with pytest.raises(UserError, match=r"no key 'optim\.lr': did you mean"):
    config_lib.load('digits', {'optim.lr': 1.0})


def test_load_from_the_package(tmp_path):
  """`vit_jax.config.load`, in any directory and without jax."""
  file = tmp_path / 'mine.py'
  file.write_text(
    'from vit_jax import config as c\n'
    'def get_config(arg="ViT-Ti/16"):\n'
    '  config = c.default()\n'
    '  config.model.name = arg\n'
    '  return config\n'
  )
  code = (
    'import sys, vit_jax\n'
    f'config = vit_jax.config.load("{file}:ViT-B/16", {{"seed": 3}})\n'
    'assert (config.model.name, config.seed) == ("ViT-B/16", 3)\n'
    'assert "jax" not in sys.modules'
  )
  subprocess.run([sys.executable, '-c', code], check=True, cwd=tmp_path)


def test_a_config_is_found_by_its_name(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  expected = config_lib.load(tiny.ROOT / 'configs' / 'digits.py')
  assert config_lib.load('digits') == expected
  assert config_lib.find('vit_i1k:S/16').endswith('configs/vit_i1k.py:S/16')
  assert config_lib.find('no_such_name') == 'no_such_name'
  assert config_lib.find('seeds', 'configs/sweeps/').endswith('seeds.py')
  argv = ['main', '--config=digits', '--config.seed=3']
  values = flags.FlagValues()
  cli.define_config(values)
  cli.parse_flags(argv, values)
  assert values['config'].value.seed == 3
