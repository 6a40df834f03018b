"""Configs that cannot work are refused in one line, which says what to do.

mistakes.txt says how its lines are read.
"""

import ast
import pathlib

import case_files
import documented
import pytest
import tiny

from vit_jax import config as config_lib
from vit_jax import data
from vit_jax import objectives
from vit_jax.config import UserError
from vit_jax.data.device import views
from vit_jax.train import experiment as experiment_lib


def read_value(text, before):
  """Returns the value that a text stands for; `before` is that of the key."""
  is_word = text != 'None' and not text.startswith('(')
  if isinstance(before, str) and is_word:
    return text
  if text in ('nan', 'inf'):
    return float(text)
  try:
    return ast.literal_eval(text)
  except (SyntaxError, ValueError):
    return text


def make_config(base, keys):
  if base == 'load':
    return config_lib.load(tiny.ROOT / 'configs' / keys)
  if base == 'default':
    config = config_lib.default()
  elif base == 'digits':
    config = config_lib.load(tiny.ROOT / 'configs' / 'digits.py')
  else:
    config = tiny.config()
  for setting in keys.split('; '):
    key, _, text = setting.partition('=')
    group, name, *_ = [*key.split('.'), '']
    if group == 'evals' and name not in config.evals:
      config.evals[name] = config_lib.evaluation('')
    before = dict(config_lib.flatten(config)).get(key, '')
    config_lib.set_value(config, key, read_value(text, before))
  return config


def make_views(config):
  data.check(config)
  source = data.open_source(config, config.data.split)
  views.train_transform(config, source.features)
  return source


def open_data(config):
  objectives.create(config, make_views(config).features)


def build(config):
  experiment_lib.check(config)
  experiment_lib.build(config)


STAGES = {
  'check': experiment_lib.check,
  'build': build,
  'data': open_data,
  'views': make_views,
}


@pytest.fixture(scope='module', autouse=True)
def my_modules(tmp_path_factory):
  """The hook and the variant of the docs."""
  folder = tmp_path_factory.mktemp('modules')
  blocks = documented.blocks('docs/methods.md', 'python')
  for name, kind in (('my_hook', 'KernelNorm'), ('my_variant', 'Sharpen')):
    (text,) = (x for x in blocks if f'class {kind}' in x)
    (folder / f'{name}.py').write_text(text)
  with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(folder)
    yield


@pytest.mark.parametrize(
  ('section', 'keys', 'pattern'),
  case_files.read(pathlib.Path(__file__).with_name('mistakes.txt')),
)
def test_mistakes_are_told_in_one_line(section, keys, pattern):
  base, stage, *common = section.split(maxsplit=2)
  keys = '; '.join([*common, keys])
  if not pattern:
    STAGES[stage](make_config(base, keys))
    return
  with pytest.raises(UserError, match=pattern) as error:
    STAGES[stage](make_config(base, keys))
  assert '\n' not in str(error.value)


def test_windows_are_exactly_what_they_are_compared_with():
  for key in ('data.intensity', 'data.volume.window'):
    for text in (' type', 'type ', 'type()', '(0,100)', '100,2000'):
      config = config_lib.default()
      config_lib.set_value(config, key, text)
      with pytest.raises(UserError, match=rf"{key} is '.*': write 'type' \("):
        data.check(config)


def test_data_without_a_policy_are_checked():
  config = config_lib.default()
  config.augment.policy = None
  data.check(config)
