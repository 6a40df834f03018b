"""The lock of a work directory, and the files that describe a run."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
from typing import Any

import pytest
import stand_in
import tiny

from vit_jax import config as config_lib
from vit_jax.config import UserError
from vit_jax.runs import metrics_file
from vit_jax.runs import safe_io
from vit_jax.runs import workdir
from vit_jax.train import loop

_HOLD = """
import sys
from vit_jax.runs import workdir
with workdir.lock(sys.argv[1]):
  print('held', flush=True)
  sys.stdin.read()
"""


def prepare(path, config, classes=('a', 'b'), digest='x'):
  workdir.prepare(path, config, {'classes': list(classes)}, digest)


def hold(path: pathlib.Path) -> subprocess.Popen[str]:
  process = subprocess.Popen(
    [sys.executable, '-c', _HOLD, str(path)],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
    cwd=tiny.ROOT,
  )
  assert process.stdout is not None
  assert process.stdout.readline() == 'held\n'
  return process


def read(path: pathlib.Path) -> Any:
  return json.loads(path.read_text())


def test_lock_is_held_until_the_process_is_killed(tmp_path):
  path = tmp_path / 'new' / 'run'
  process = hold(path)
  with pytest.raises(UserError) as error:
    with workdir.lock(path):
      pass
  assert f'{path} is in use by process {process.pid} on ' in str(error.value)
  assert '\n' not in str(error.value)
  process.kill()
  process.communicate()
  with workdir.lock(path):
    with pytest.raises(UserError, match='is in use by process'):
      with workdir.lock(path):
        pass
  with workdir.lock(path):
    pass


def test_what_a_killed_run_left_is_removed(tmp_path):
  for name in ('.run.json.0123abcd.tmp', '.DONE.01234567.tmp'):
    (tmp_path / name).write_text('{')
  others = {'.run.json.tmp', '.mine.0123abcd.tmp', 'run.json.0123abcd.tmp'}
  for name in others:
    (tmp_path / name).write_text('')
  with workdir.lock(tmp_path):
    pass
  assert set(os.listdir(tmp_path)) == others | {'.lock'}


def test_lock_of_what_is_no_directory(tmp_path):
  (tmp_path / 'file').write_text('')
  with pytest.raises(UserError, match='cannot use work directory'):
    with workdir.lock(tmp_path / 'file' / 'run'):
      pass


def test_a_file_that_cannot_be_replaced_is_intact(tmp_path):
  path = tmp_path / 'a.json'
  safe_io.write_json(path, {'a': 1})
  with pytest.raises(TypeError):
    safe_io.write_json(path, {'a': object()})
  with pytest.raises(UserError, match=r'cannot write .*: No space left'):
    with safe_io.replacing(path) as file:
      file.write('{')
      raise OSError(28, 'No space left on device')
  assert read(path) == {'a': 1}
  assert [p.name for p in tmp_path.iterdir()] == ['a.json']


def test_two_that_replace_a_file_at_once(tmp_path):
  path = tmp_path / 'a.txt'
  with safe_io.replacing(path) as first:
    first.write('first')
    first.flush()
    with safe_io.replacing(path) as second:
      second.write('2')
    assert path.read_text() == '2'
  assert path.read_text() == 'first'
  assert [p.name for p in tmp_path.iterdir()] == ['a.txt']


def test_the_trouble_of_another_file_stays_its_own(tmp_path):
  with pytest.raises(FileNotFoundError, match='elsewhere'):
    with safe_io.replacing_path(tmp_path / 'a'):
      open(tmp_path / 'elsewhere')
  assert not any(tmp_path.iterdir())


def test_reading_json(tmp_path):
  assert safe_io.read_json(tmp_path / 'a.json') is None
  (tmp_path / 'a.json').write_text('{"a":')
  with pytest.raises(UserError, match=r'cannot read .*/a\.json: '):
    safe_io.read_json(tmp_path / 'a.json')


def test_what_is_no_regular_file_is_not_waited_for(tmp_path):
  """A device would fill the memory, and a FIFO has nobody who writes."""
  (tmp_path / 'zero').symlink_to('/dev/zero')
  os.mkfifo(tmp_path / 'fifo')
  (tmp_path / 'folder').mkdir()
  for name in ('zero', 'fifo', 'folder'):
    with pytest.raises(UserError, match=r'^cannot read .* regular [^\n]*$'):
      safe_io.read_json(tmp_path / name)
    with pytest.raises(UserError, match=r'^cannot read .* regular [^\n]*$'):
      list(metrics_file.read_lines(tmp_path / name))


@pytest.mark.parametrize(
  ('content', 'message'),
  [
    (b'{"a": "\xff"}', "codec can't decode"),
    (b'[' * 100_000 + b']' * 100_000, 'in each other'),
    (b'{"a":' * 100 + b'1' + b'}' * 100, 'in each other'),
    (b'9' * 5000, 'digits'),
    (b'', 'Expecting value'),
    (b' ' * (safe_io.MOST_TEXT + 1), 'it has more than'),
  ],
)
def test_json_that_is_refused(content, message, tmp_path):
  (tmp_path / 'a.json').write_bytes(content)
  with pytest.raises(UserError, match=r'^cannot read [^\n]*$') as e:
    safe_io.read_json(tmp_path / 'a.json')
  assert message in str(e.value)


@pytest.mark.parametrize(
  'line',
  [
    '{"step": true}',
    '{"step": 1, "train/loss": "low"}',
    '{"step": 1, "time": null}',
    '{"step": 1, "train/loss": [1]}',
    '{"step": 1' + '0' * 400 + '}',
    '[1]',
    '{"step": 1}x',
  ],
)
def test_a_line_of_metrics_that_is_damaged(line):
  assert metrics_file.parse_metrics(f'{line}\n') is None


def test_prepare_describes_each_start(tmp_path, caplog):
  config = config_lib.default()
  prepare(tmp_path, config)
  config.train.log_every = '7 steps'
  prepare(tmp_path, config)
  assert not caplog.records
  prepare(tmp_path, config, digest='y')
  assert 'the data is not what it was' in caplog.text
  runs = read(tmp_path / 'run.json')['runs']
  assert [run['data_fingerprint'] for run in runs] == ['x', 'x', 'y']
  assert runs[0]['packages']['jax'][0].isdecimal()
  assert runs[0]['devices']['count'] >= 1
  assert runs[0]['python'] == '.'.join(map(str, sys.version_info[:3]))
  stored = config_lib.from_dict(read(tmp_path / 'config.json'))
  assert stored.train.log_every == '7 steps'
  assert read(tmp_path / 'preprocess.json') == {'classes': ['a', 'b']}


def test_prepare_refuses_another_config(tmp_path):
  config = config_lib.default()
  prepare(tmp_path, config)
  config.optim.learning_rate = 0.5
  config.seed = 3
  with pytest.raises(UserError) as error:
    prepare(tmp_path, config)
  assert 'optim.learning_rate: 0.001 -> 0.5; seed: 0 -> 3' in str(error.value)
  for key in ('weight_decay', 'clip_norm', 'warmup_factor', 'layer_decay'):
    config.optim[key] = 0.25
  config.train.duration = '3 steps'  # is not all that differs
  with pytest.raises(UserError, match=r'config: .*; and 2 other keys;'):
    prepare(tmp_path, config)
  assert len(read(tmp_path / 'run.json')['runs']) == 1


@pytest.mark.parametrize(
  ('classes', 'message'),
  [
    (('a', 'c'), "without 'b', with 'c'"),
    (('b', 'a'), 'their order changed'),
  ],
)
def test_prepare_refuses_other_classes(tmp_path, classes, message):
  config = config_lib.default()
  prepare(tmp_path, config)
  with pytest.raises(UserError, match=message):
    prepare(tmp_path, config, classes)


@pytest.mark.parametrize('objective', ['classification', 'multilabel'])
def test_classes_that_changed_before_a_run_resumes_are_named(
  tmp_path, objective
):
  def write(names):
    lines = [f'{i}.png,{name}' for i, name in enumerate(2 * names)]
    for i in range(len(lines)):
      image = stand_in.png(stand_in.pixels(i, 16, 16))
      (tmp_path / f'{i}.png').write_bytes(image)
    column = 'labels' if objective == 'multilabel' else 'label'
    (tmp_path / 'all.csv').write_text('\n'.join([f'path,{column}', *lines]))

  config = tiny.config(
    objective__name=objective,
    data__name=f'table:{tmp_path}/all.csv',
    data__split='train',
    data__image_size=8,
    data__channels=3,
    train__batch_size=4,
    train__duration='1 steps',
    optim__warmup='0 steps',
    evals__val__split='',
    checkpoint__best='',
  )
  write(['ant', 'bee', 'cow'])
  run = tmp_path / 'run'
  assert loop.run(config, str(run)).status == 0
  (run / 'DONE').unlink()
  for names, message in (
    (['ant', 'bee', 'elk'], "without 'cow', with 'elk'"),
    (['ant', 'bee', 'cow', 'elk'], "with 'elk'"),
    (['ant', 'bee'], "without 'cow'"),
  ):
    write(names)
    with pytest.raises(UserError, match=f'other classes .*: {message}; bring'):
      loop.run(config, str(run))


@pytest.mark.skipif(shutil.which('git') is None, reason='there is no git')
def test_commit_of_the_checkout(tmp_path, monkeypatch):
  def git(*arguments: str) -> str:
    identity = ('-c', 'user.name=a', '-c', 'user.email=a@b')
    command = ('git', '-C', str(tmp_path), *identity, *arguments)
    return subprocess.run(
      command, check=True, capture_output=True, text=True
    ).stdout

  file = tmp_path / 'vit_jax' / 'workdir.py'
  file.parent.mkdir()
  file.write_text('')
  monkeypatch.setattr(workdir, '__file__', str(file))
  assert 'git' not in workdir.run_info(['a'])  # no checkout
  git('init', '-q')
  assert 'git' not in workdir.run_info(['a'])  # installed inside another's
  git('add', '.')
  git('commit', '-q', '-m', 'a')
  commit = git('rev-parse', 'HEAD').strip()
  info = workdir.run_info(['python', 'a b'])
  assert info['git'] == {'commit': commit, 'dirty': False}
  assert info['command'] == "python 'a b'"
  (tmp_path / 'compare.png').write_text('')  # what is not tracked is no change
  assert not workdir.run_info(['a'])['git']['dirty']
  file.write_text('changed')
  assert workdir.run_info(['a'])['git']['dirty']
