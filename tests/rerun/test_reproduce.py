"""A run once more: what has changed since, and whether it is the same."""

import json
import math
import shutil

import pytest
import tiny

from vit_jax import config as config_lib
from vit_jax.config import UserError
from vit_jax.rerun import reproduce
from vit_jax.runs import records
from vit_jax.runs import safe_io
from vit_jax.runs import workdir
from vit_jax.train import loop

GIT = {'commit': 'a' * 40, 'dirty': False}


@pytest.fixture(autouse=True)
def clean_checkout(monkeypatch, caplog):
  monkeypatch.setattr(workdir, '_git', lambda: GIT)
  caplog.set_level('INFO')


@pytest.fixture
def original(digits_run, tmp_path):
  """A copy of a finished run, from a clean checkout."""
  path = tmp_path / 'original'
  ignored = shutil.ignore_patterns('checkpoints', '.lock')
  shutil.copytree(digits_run, path, ignore=ignored)
  change_run(path, git=GIT)
  return path


def change_run(path, **changes):
  """Changes what run.json says of the newest start."""
  info = json.loads((path / 'run.json').read_text())
  info['runs'][-1] |= changes
  safe_io.write_json(path / 'run.json', info)


def change_config(path, **changes):
  config = config_lib.from_dict(safe_io.read_json(path / 'config.json'))
  tiny.change(config, changes)
  safe_io.write_json(path / 'config.json', config_lib.to_dict(config))


@pytest.fixture
def stopped(monkeypatch):
  """Stops each run as it begins; returns the configs that they had."""
  configs = []

  def run(config, workdir, dry_run):
    del workdir, dry_run
    configs.append(config)
    return loop.Results({}, signal=15)

  monkeypatch.setattr(loop, 'run', run)
  return configs


def logged(caplog):
  return [record.getMessage() for record in caplog.records]


def test_the_same_bits(original, tmp_path, caplog):
  new = tmp_path / 'new'
  assert reproduce.run(str(original), str(new)) == 0
  lines = logged(caplog)
  assert lines[0].startswith(f'reproducing {original}, begun ')
  nothing = 'since then: nothing has changed: versions, code, devices, data'
  assert lines[1] == nothing
  assert lines[-1].startswith('equal to the bit: all ')
  was = safe_io.read_json(original / 'DONE')['val/accuracy']
  assert f'val/accuracy {was:.4g}, was {was:.4g} (step 3)' in lines
  assert lines[-1] in (new / 'train.log').read_text()
  for name in ('config.json', 'preprocess.json'):
    assert (new / name).read_text() == (original / name).read_text()
  # The same command says it again.
  caplog.clear()
  assert reproduce.run(str(original), str(new)) == 0
  assert logged(caplog)[-1] == lines[-1]


def test_what_has_changed_is_said_first(original, tmp_path, caplog, stopped):
  packages = {'jax': '0.0.1', 'clu': '0.0.0'}
  now = workdir.run_info(['x'])
  change_run(
    original,
    packages=now['packages'] | packages,
    git=GIT | {'dirty': True},
    devices=now['devices'] | {'kind': 'TPU v9'},
    data_fingerprint='x',
  )
  info = json.loads((original / 'run.json').read_text())
  later = info['runs'][-1] | {'packages': now['packages'] | {'jax': '0.0.2'}}
  info['runs'].append(later)
  safe_io.write_json(original / 'run.json', info)
  stored = json.loads((original / 'config.json').read_text())
  del stored['optim']['sam']
  (original / 'config.json').write_text(json.dumps(stored))
  assert reproduce.run(str(original), str(tmp_path / 'new')) == 143
  assert stopped[0].optim.sam == config_lib.default().optim.sam
  changes = [
    line.removeprefix('since then: ')
    for line in logged(caplog)
    if line.startswith('since then: ')
  ]
  versions = now['packages']
  assert f'jax is {versions["jax"]}, was 0.0.1, then 0.0.2' in changes
  assert any(line.startswith('clu is ') for line in changes)
  assert 'git is aaaaaaaaaa, was aaaaaaaaaa with changes' in changes
  count = now['devices']['count']
  assert f'devices is {count} x cpu, was {count} x TPU v9' in changes
  assert any('of the config are new: optim.sam' in line for line in changes)
  assert changes[-1].startswith('data is ') and changes[-1].endswith('was x')
  assert len(changes) == 6


def test_a_run_that_has_not_finished(original):
  """It is compared up to where it came; what differs is said."""
  new = records.read(original)
  (original / 'DONE').unlink()
  lines = [line for line in tiny.metrics(original) if line['step'] < 3]
  for line in lines:
    if 'train/loss' in line and line['step'] == 2:
      line['train/loss'] *= 2
  text = ''.join(json.dumps(line) + '\n' for line in lines)
  (original / 'metrics.jsonl').write_text(text)
  stopped, outcome = reproduce.outcome(records.read(original), new)
  assert stopped == f'{original} has not finished: compared up to step 2'
  assert outcome.startswith('1 of ') and 'from step 2 on' in outcome
  assert outcome.endswith('0.5 of the value, in train/loss at step 2')


def test_unchanged_changes_may_be_others(
  original, tmp_path, caplog, monkeypatch, stopped
):
  git = GIT | {'dirty': True}
  change_run(original, git=git)
  monkeypatch.setattr(workdir, '_git', lambda: git)
  assert reproduce.run(str(original), str(tmp_path / 'new')) == 143
  changes = [line for line in logged(caplog) if line.startswith('since then')]
  assert changes == [
    'since then: the code may be another: aaaaaaaaaa with changes, then as now'
  ]


def test_numbers_that_are_none(original):
  def record(value):
    points = [records.Point(1, 1.0, 1.0, value)]
    return records.Record(original, {}, (), {'train/loss': points}, 'finished')

  nan = math.nan
  assert 'equal' in reproduce.outcome(record(nan), record(nan))[-1]
  assert 'is inf of' in reproduce.outcome(record(1.0), record(nan))[-1]
  empty = records.Record(original, {}, (), {}, 'finished')
  assert 'no metrics' in reproduce.outcome(empty, record(1.0))[-1]


def test_relative_paths_lead_somewhere_else(original, tmp_path):
  change_run(original, directory='/started/here')
  new = str(tmp_path / 'new')
  for key, value in (
    ('data.name', 'folder:images'),
    ('data.dir', 'tfds'),
    ('init_from.path', 'runs/start'),
  ):
    change_config(original, **{key.replace('.', '__'): value})
    with pytest.raises(UserError) as error:
      reproduce.run(str(original), new)
    assert f'config.{key} of the run leads to ' in str(error.value)
    assert str(error.value).endswith('was started, /started/here')
    default = dict(config_lib.flatten(config_lib.default()))[key]
    change_config(original, **{key.replace('.', '__'): default})


def test_mistakes(original, tmp_path):
  new = str(tmp_path / 'new')
  for path, message in (
    (tmp_path / 'none', 'there is no such directory'),
    (tmp_path, 'no config.json'),
  ):
    with pytest.raises(UserError, match=message) as error:
      reproduce.run(str(path), new)
    assert '\n' not in str(error.value)
  with pytest.raises(UserError, match='is the run that --reproduce names'):
    reproduce.run(str(original), str(original))
  stored = json.loads((original / 'config.json').read_text())
  stored['optim']['lookahead'] = 1
  (original / 'config.json').write_text(json.dumps(stored))
  with pytest.raises(UserError, match=r"another version .*'optim.lookahead'"):
    reproduce.run(str(original), new)
