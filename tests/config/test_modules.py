"""A config file is one module, which runs once."""

import importlib
import os
import pathlib
import pickle
import sys
import typing

import commands
import pytest

from vit_jax import config as config_lib
from vit_jax import objectives
from vit_jax.summary import __main__ as summary

# A config, with classes of the kinds that look for their module.
FILE = """
from __future__ import annotations

import dataclasses
import pathlib
from typing import NamedTuple

from flax import linen as nn

from vit_jax import config as config_lib
from vit_jax.objectives import classification

with pathlib.Path('RUNS').open('a') as f:
  f.write('run ')


@dataclasses.dataclass(frozen=True)
class Size:
  depth: int = 2


class Pair(NamedTuple):
  first: Size
  second: Size | None = None


class Part(nn.Module):
  size: Size = Size()


class Mine(classification.Classification):
  part: Part


def get_config(arg: str = '') -> config_lib.ConfigDict:
  config = config_lib.load('digits')
  config.objective.name = f'{NAME}:Mine'
  config.model.depth = Size().depth
  return config
"""


def write(path: pathlib.Path, name: str) -> pathlib.Path:
  """Writes the file; its objective is in the module of that name."""
  path.parent.mkdir(exist_ok=True)
  text = FILE.replace('RUNS', str(path.parent / 'runs.txt'))
  path.write_text(text.replace('{NAME}', name))
  return path


def runs(path: pathlib.Path) -> int:
  """Returns how often a file ran."""
  return len((path.parent / 'runs.txt').read_text().split())


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
  """Starts commands in an empty folder, from which Python imports."""
  monkeypatch.chdir(tmp_path)
  monkeypatch.syspath_prepend(str(tmp_path))
  before = set(sys.modules)
  yield tmp_path
  for name in set(sys.modules) - before:
    if str(tmp_path) in str(getattr(sys.modules[name], '__file__', '')):
      del sys.modules[name]


@pytest.mark.parametrize(
  ('file', 'name'),
  [
    ('one_file.py', 'one_file'),
    ('experiments/one_file.py', 'experiments.one_file'),
  ],
)
@pytest.mark.parametrize('first', ['config', 'class', 'import'])
def test_a_file_that_is_a_config_and_a_module_runs_once(file, name, first):
  path = write(pathlib.Path(file), name)
  if first == 'class':
    config_lib.load_own(f'{name}:Mine', 'objective.name', objectives.Objective)
  config = config_lib.load(path)
  if first == 'import':
    importlib.import_module(name)
  Mine = objectives.objective_class(config)
  module = importlib.import_module(name)
  assert Mine is module.Mine and sys.modules[Mine.__module__] is module
  assert config_lib.load(f'{path}:') == config
  assert runs(path) == 1


def test_a_command_runs_it_once(capsys):
  path = write(pathlib.Path('of_command.py'), 'of_command')
  assert commands.run(summary, f'--config={path}', '--keys=depth') == 0
  assert 'model.depth ' in capsys.readouterr().out
  assert runs(path) == 1


@pytest.mark.parametrize('place', ['.', 'elsewhere'])
def test_its_classes_are_those_of_a_module(place, tmp_path_factory):
  """Also where Python could not import the file."""
  place = tmp_path_factory.mktemp('far') if place == 'elsewhere' else place
  path = write(pathlib.Path(place, f'classes_{len(str(place))}.py'), 'any')
  config_lib.load(path)
  (module,) = (
    x
    for x in list(sys.modules.values())
    if getattr(x, '__file__', None) == str(path.absolute())
  )
  assert typing.get_type_hints(module.Pair)['first'] is module.Size
  assert typing.get_type_hints(module.Part)['size'] is module.Size
  pair = module.Pair(module.Size(3))
  assert pickle.loads(pickle.dumps(pair)) == pair
  assert module.Part(module.Size(4)).size.depth == 4


def test_it_is_read_as_it_is_now(tmp_path, monkeypatch):
  """Where it changed, and where a file did that it loads as it runs.

  Also within the second, to the same size.
  """
  monkeypatch.setattr(sys, 'dont_write_bytecode', False)
  outer, inner = tmp_path / 'outer.py', tmp_path / 'inner.py'
  outer.write_text(
    'from vit_jax import config as c\n'
    f'BASE = c.load({str(inner)!r})\n'
    'def get_config():\n'
    '  BASE.seed += 1\n'
    '  return BASE\n'
  )
  for seed in (1, 5):
    inner.write_text(
      'from vit_jax import config as c\n'
      f'def get_config():\n  config = c.default()\n  config.seed = {seed}\n'
      '  return config\n'
    )
    for path in (outer, inner):
      os.utime(path, (1e9, 1e9))
    assert config_lib.load(inner).seed == seed
    first = config_lib.load(outer, {'train.duration': '3 epochs'})
    assert first.seed == seed + 1
  assert config_lib.load(outer).train.duration != '3 epochs'
  outer.write_text('from vit_jax import config\n\n1 / 0\n')
  with pytest.raises(config_lib.UserError, match=r'outer\.py, line 3: ZeroDiv'):
    config_lib.load('outer.py')
  path = tmp_path / 'text.txt'
  path.write_text('')
  with pytest.raises(config_lib.UserError, match='must be a Python file'):
    config_lib.load(path)


def test_files_of_one_name_are_two_modules(tmp_path, monkeypatch):
  actual = []
  for place in ('a', 'b'):
    path = write(tmp_path / place / 'same_name.py', 'same_name')
    monkeypatch.syspath_prepend(str(path.parent))
    actual.append(objectives.objective_class(config_lib.load(path)))
    assert runs(path) == 1
  assert actual[0] is not actual[1]
