"""Runs beside each other: tables, JSON and the picture."""

import importlib.util
import json
import logging
import math
import pathlib
import re

import commands
import cv2
import numpy as np
import pytest
import tiny

from vit_jax import config as config_lib
from vit_jax.compare import __main__ as compare
from vit_jax.compare import comparison
from vit_jax.config import UserError
from vit_jax.plots import curves
from vit_jax.runs import records
from vit_jax.runs import safe_io
from vit_jax.runs import workdir


def write(path, lines, starts=(0.0,), done=True, **overrides):
  """Writes a work directory; lines have a step and metrics."""
  path.mkdir(parents=True)
  config = config_lib.default()
  tiny.change(config, overrides)
  safe_io.write_json(path / 'config.json', config_lib.to_dict(config))
  runs = [
    {'started': f'1970-01-01T00:{x // 60:02.0f}:{x % 60:02.0f}+00:00'}
    | {'python': '3.11.7', 'packages': {'jax': '0.10.2'}, 'host': 'a'}
    | {'devices': {'kind': 'cpu', 'count': 1, 'processes': 1}}
    for x in starts
  ]
  safe_io.write_json(path / 'run.json', {'runs': runs})
  with (path / 'metrics.jsonl').open('w') as file:
    for line in lines:
      step = line['step']
      print(json.dumps({'epoch': step / 8, 'time': step, **line}), file=file)
  if done:
    (path / 'DONE').write_text('{}')
  return path


def accuracies(*values):
  return [{'step': 10 + i, 'val/accuracy': x} for i, x in enumerate(values)]


@pytest.fixture
def two(tmp_path):
  a = write(
    tmp_path / 'runs' / 'a' / 'x',
    [
      {'step': 1, 'train/loss': 2.5, 'train/images_per_second': 10.0},
      {'step': 5, 'train/loss': 0.5, 'train/images_per_second': 30.0},
      {'step': 5, 'val/accuracy': 0.75, 'val/examples': 9.0},
      {'step': 8, 'val/accuracy': 0.5, 'val/examples': 9.0},
    ],
    optim__learning_rate=0.5,
  )
  b = write(
    tmp_path / 'runs' / 'b' / 'x',
    [{'step': 1, 'train/loss': 3.5}, {'step': 2, 'train/loss': None}],
    done=False,
    data__name='folder:' + 'very/' * 20 + 'long',
  )
  return a, b


def rows(text):
  """Returns the cells of each line of the tables by its first cell."""
  lines = [line.split('  ') for line in text.splitlines()]
  cells = [[x.strip() for x in line if x.strip()] for line in lines]
  return {line[0]: line[1:] for line in cells if line}


def test_tables(two, tmp_path, capsys):
  out = tmp_path / 'x.png'
  assert commands.run(compare, *two, f'--out={out}') == 0
  actual = rows(capsys.readouterr().out)
  assert actual['config'] == actual['results'] == ['a', 'b']
  assert actual['optim.learning_rate'] == ['0.5', '0.001']
  name = actual['data.name']
  assert name[0] == 'digits' and name[1].endswith('...') and len(name[1]) == 40
  assert 'seed' not in actual and 'setting: no differences' in actual
  assert actual['state'] == ['finished', 'stopped']
  assert actual['val/accuracy'] == ['0.5', '-']
  assert actual['best'] == ['0.75 (step 5)', '-']
  assert 'val/examples' not in actual
  assert actual['train/loss'] == ['0.5', 'nan']
  assert actual['images/s'] == ['20', '-']
  assert actual['time'] == ['0:00:08', '0:00:02']
  height, width, _ = cv2.imread(str(out)).shape
  assert width > height > 300


def test_what_is_no_run_is_left_out(two, tmp_path, capsys, caplog):
  """A pattern of the shell matches reports and pictures, too."""
  names = 'inside', 'x.npz', 'x_timm'
  others = [tmp_path / 'runs' / name for name in names]
  others[0].mkdir()
  others[1].write_text('')
  others[2].mkdir()
  (others[2] / 'config.json').write_text('{}')
  assert commands.run(compare, *two, *others, '--out=') == 0
  assert rows(capsys.readouterr().out)['config'] == ['a', 'b']
  for other in others:
    assert f'{other} is left out: it is no run' in caplog.text
  with pytest.raises(
    UserError, match=rf'1 of these .* {others[0]}, {others[1]}'
  ):
    commands.run(compare, two[0], *others, '--out=')


def test_json(two, capsys):
  commands.run(compare, *two, '--out=', '--format=json')
  actual = json.loads(capsys.readouterr().out)
  assert actual['config']['optim.learning_rate'] == {'a': [0.5], 'b': [0.001]}
  assert actual['setting'] == {}
  a, b = actual['runs']
  assert a['paths'] == [str(two[0])] and b['states'] == ['stopped']
  assert a['step'] == 8 and a['epoch'] == 1
  best = {'best': 0.75, 'best_interval': None, 'best_step': 5}
  best['best_range'] = None
  last = {'last': 0.5, 'last_interval': None, 'last_range': None}
  assert a['metrics']['val/accuracy'] == last | best
  assert b['metrics']['train/loss']['last'] is None


def test_a_real_run_with_itself_elsewhere(digits_run, tmp_path, capsys):
  """Another start of the config, with what another machine would write."""
  other = tmp_path / 'other'
  other.mkdir()
  for name in ('config.json', 'metrics.jsonl'):
    (other / name).write_text((digits_run / name).read_text())
  info = json.loads((digits_run / 'run.json').read_text())
  info['runs'][-1]['packages']['jax'] = '0.0.1'
  info['runs'][-1]['git'] = {'commit': 'f' * 40, 'dirty': True}
  safe_io.write_json(other / 'run.json', info)
  out = tmp_path / 'x.svg'
  commands.run(compare, digits_run, other, f'--out={out}', '--x=time')
  actual = rows(capsys.readouterr().out)
  assert 'config: no differences' in actual
  assert actual['jax'][1] == '0.0.1'
  assert actual['git'][1] == 'ffffffffff with changes'
  assert actual['state'] == ['finished', 'stopped']
  text = out.read_text()
  for shown in (
    'Loss (training)',
    'Accuracy (val)',
    'accuracy',
    'time (seconds)',
    'other',
  ):
    assert f'>{shown}</text>' in text


def test_groups(tmp_path, capsys, caplog):
  """Those that differ in the seed alone; of them the finished ones count."""
  for seed, value in enumerate((0.5, 0.75, 1.0)):
    write(tmp_path / f'a-seed{seed}', accuracies(0.5, value), seed=seed)
  write(tmp_path / 'a-seed3', accuracies(0.0), done=False, seed=3)
  write(tmp_path / 'b', accuracies(0.5), optim__name='sgd')
  commands.run(compare, *sorted(tmp_path.iterdir()), '--group', '--out=')
  actual = rows(capsys.readouterr().out)
  assert actual['results'] == ['a-seed (n=3)', 'b']
  assert actual['seed'] == ['0, 1, 2, 3', '0']
  assert actual['state'] == ['3 finished, 1 stopped', 'finished']
  half = 4.302653 * 0.25 / math.sqrt(3)
  assert actual['val/accuracy'] == [f'0.75 ± {half:.2g}', '0.5']
  assert not caplog.records
  columns = comparison.read([tmp_path / f'a-seed{i}' for i in (0, 1)], True)
  _, panels = comparison.lines(columns, 'epoch')
  line = panels['val/accuracy']['a-seed (n=2)']
  assert line.x.tolist() == [10 / 8, 11 / 8]
  assert line.y.tolist() == [0.5, 0.625]
  assert (line.low.tolist(), line.high.tolist()) == ([0.5, 0.5], [0.5, 0.75])
  write(tmp_path / 'c', accuracies(0.5), optim__name='sgd')
  comparison.read([tmp_path / 'b', tmp_path / 'c'], True)
  assert 'b, c: some have the same seed' in caplog.text


def test_two_runs_of_a_group_show_both_values(tmp_path, capsys):
  """Half of an interval of two is 12.7 standard errors."""
  for seed, speed in enumerate((793.0, 1167.0)):
    lines = [{'step': 1, 'train/images_per_second': speed}]
    run = {'train__duration': '2_700 steps', 'seed': seed}
    write(tmp_path / f'a{seed}', lines, **run)
  write(tmp_path / 'b', lines, train__duration='900 steps')
  commands.run(compare, *sorted(tmp_path.iterdir()), '--group', '--out=')
  actual = rows(capsys.readouterr().out)
  assert actual['images/s'] == ['980 (793 and 1,167)', '1,167']
  assert actual['train.duration'] == ['2,700 steps', '900 steps']


def test_what_a_method_measures_is_drawn(tmp_path, digits_run):
  lines = [
    {'step': i, 'train/loss': 1.0, 'train/teacher_entropy': i, 'train/mfu': 0.5}
    | {'val/miou': 0.5, 'val/iou/cat': 0.5, 'val/examples': 9}
    for i in (1, 2)
  ]
  columns = comparison.read(
    [write(tmp_path / 'dino', lines), write(tmp_path / 'b', accuracies(0.5))]
  )
  _, panels = comparison.lines(columns, 'step')
  assert panels['train/teacher_entropy']['dino'].y.tolist() == [1, 2]
  assert not {'b'} & panels['train/teacher_entropy'].keys()
  assert 'train/mfu' not in panels
  # A panel for each class would be too many.
  evaluations = [name for name in panels if name.startswith('val/')]
  assert evaluations == ['val/accuracy', 'val/miou']
  # All else that a run writes is the loop's.
  _, panels = comparison.lines(
    comparison.read([digits_run, tmp_path / 'b']), 'step'
  )
  training = [name for name in panels if name.startswith('train/')]
  assert training == ['train/loss', 'train/learning_rate', 'train/accuracy']


def test_what_a_run_writes_at_the_moment(tmp_path, caplog):
  """It is read as far as it is whole."""
  path = write(tmp_path / 'a', accuracies(0.5), done=False)
  with (path / 'metrics.jsonl').open('a') as file:
    file.write('damaged\n{"step": 12, "val/accuracy": 0.75}\n{"step": 13, "va')
  with workdir.lock(path):
    record = records.read(path)
  assert record.state == 'running'
  assert [p.value for p in record.curves['val/accuracy']] == [0.5, 0.75]
  assert '1 damaged line(s) left out, the first is line 2' in caplog.text
  assert records.read(path).state == 'stopped'


def test_the_time_stands_between_starts(tmp_path):
  lines = [{'step': x, 'train/loss': 1.0} for x in (5, 9, 101, 104)]
  path = write(tmp_path / 'a', lines, starts=(2.0, 100.0))
  points = records.read(path).curves['train/loss']
  assert [p.seconds for p in points] == [3, 7, 8, 11]


def test_best_is_as_the_run_says(tmp_path):
  """Or, in runs before it did, as the name of the metric ends."""
  lines = [{'step': i, 'v/rank': 5.0 - i, 'v/of/a': i} for i in range(3)]
  path = write(tmp_path / 'a', lines)
  assert records.read(path).best('v/rank').step == 0
  stored = json.loads((path / 'run.json').read_text())
  stored['runs'][-1]['metrics'] = {'v/rank': 'min', 'v/of/': 'min'}
  safe_io.write_json(path / 'run.json', stored)
  record = records.read(path)
  assert record.best('v/rank').step == 2 and record.best('v/of/a').step == 0
  stored['runs'][-1]['metrics'] = ['v/rank']
  safe_io.write_json(path / 'run.json', stored)
  with pytest.raises(UserError, match='does not hold what a run writes'):
    records.read(path)


def test_best(tmp_path):
  lines = [{'step': i, 'v/loss': x} for i, x in enumerate((None, 2, 1, 1, 3))]
  record = records.read(write(tmp_path / 'a', lines))
  assert record.best('v/loss').step == 2 and record.best('v/accuracy') is None
  assert record.last.step == 4 and record.final('v/loss') == 3


@pytest.mark.parametrize(
  ('paths', 'names'),
  [
    (['/r/a', '/r/b'], ['a', 'b']),
    (['/r/a/0', '/r/b/0'], ['a', 'b']),
    (['/r/a/0', '/r/b/1'], ['0', '1']),
    (['/r/a/0', '/r/a/1', '/r/b/0'], ['a/0', 'a/1', 'b/0']),
    (['/r/a', '/r/a/b'], ['a', 'b']),
  ],
)
def test_short_names(paths, names):
  assert records.short_names(list(map(pathlib.Path, paths))) == names


def test_many_lines_in_one_picture(tmp_path):
  """More runs than colours; gaps, bands, and names that look like markup."""
  rng = np.random.default_rng(0)
  names = [f'${i}_run$' for i in range(9)] + ['_x']
  panels = {}
  for metric in ('train/loss', 'val/accuracy', 'val/loss'):
    y = rng.uniform(1e-3, 1, [len(names), 60])
    y[:, 7] = math.nan
    panels[metric] = {
      name: curves.Line(np.arange(60), y[i], y[i] - 1e-3, y[i] + 1e-3)
      for i, name in enumerate(names)
    }
  out = tmp_path / 'x.svg'
  curves.draw(panels, names, out, x_label='step', smooth=('train/loss',))
  text = out.read_text()
  assert all(f'>{name}</text>' in text for name in names)


def test_all_runs_are_smoothed_alike(tmp_path):
  """Over the same steps, however often each reports; the picture says so."""
  x = np.arange(101.0)
  y = x % 2
  often, seldom = curves.Line(x, y), curves.Line(x[::25], y[::25])
  out = tmp_path / 'x.svg'
  curves.draw(
    {'train/loss': {'a': often, 'b': seldom}, 'val/loss': {'a': often}},
    ['a', 'b'],
    out,
    x_label='step',
    smooth=('train/loss',),
  )
  note = '>Training: mean over 5 steps, thin: each value</text>'
  assert out.read_text().count(note) == 1
  # Where there is nothing to take together, nothing is said.
  few = {'train/loss': {'a': seldom, 'b': seldom}}
  curves.draw(few, ['a', 'b'], out, x_label='step', smooth=('train/loss',))
  assert 'mean over' not in out.read_text()


@pytest.mark.parametrize('count, rows', [(1, 1), (4, 2), (5, 2), (7, 2)])
def test_panels_are_named_and_of_equal_lines(count, rows, tmp_path):
  """Each axis has a name; the width of a line says nothing of its run."""
  line = curves.Line(np.arange(3.0), np.ones(3))
  panels = {f'val{i}/miou': {'a': line, 'b': line} for i in range(count)}
  out = tmp_path / 'x.svg'
  curves.draw(panels, ['a', 'b'], out, x_label='step')
  text = out.read_text()
  assert text.count('>mIoU</text>') == text.count('>step</text>') == count
  assert all(f'>mIoU (val{i})</text>' in text for i in range(count))
  widths = re.findall(r'stroke: #(?:0072b2|d55e00); stroke-width: (.*?);', text)
  assert len({*widths}) == 1
  height = float(re.search(r'height="([\d.]+)pt"', text)[1])
  assert round(height / 238) == rows


@pytest.mark.parametrize(
  'metric, title',
  [
    ('train/learning_rate', 'Learning rate (training)'),
    ('val/miou', 'mIoU (val)'),
    ('val/class_dice/background', 'Class dice background (val)'),
    ('val/iou/0', 'IoU 0 (val)'),
    ('loss', 'Loss'),
  ],
)
def test_titles_are_words(metric, title):
  assert curves.title(metric) == title


def test_smoothing():
  y = np.array([1.0, 2.0, 6.0, math.nan, 4.0])
  x = np.array([10.0, 20.0, 30.0, 40.0, 50.0])
  smooth = curves._smoothed(x, y, 20.0)
  np.testing.assert_allclose(smooth, [1.5, 3, 4, math.nan, 4])
  np.testing.assert_allclose(curves._smoothed(x, y, 0.0), y)
  uneven = curves._smoothed(np.array([0.0, 1.0, 9.0, 10.0, 11.0]), y, 2.0)
  np.testing.assert_allclose(uneven, [1.5, 1.5, 6, math.nan, 4])


def test_mistakes(two, tmp_path, monkeypatch):
  a, b = two
  (tmp_path / 'empty').mkdir()
  (tmp_path / 'bad').mkdir()
  (tmp_path / 'bad' / 'config.json').write_text('{')
  (tmp_path / 'bad' / 'run.json').write_text('{}')
  for args, message in (
    ([a], 'name two or more work directories'),
    ([a, b, a], 'is given twice'),
    ([a, tmp_path / 'none'], 'there is no work directory'),
    ([a, tmp_path / 'empty'], 'there is no config.json, .* in .*empty'),
    ([a, tmp_path / 'bad'], 'cannot read .*config.json.*leave this run out'),
    ([a, b, '--out=x.gif'], 'must end in .png or'),
    ([a, b, '--out=/none/x.png'], 'there is no folder /none'),
  ):
    with pytest.raises(UserError, match=message) as error:
      commands.run(compare, *args)
    assert '\n' not in str(error.value)
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  with pytest.raises(UserError, match=r"pip install 'vit_jax\[explore\]'"):
    commands.run(compare, a, b)


def test_without_metrics(two, tmp_path, caplog, capsys):
  paths = [write(tmp_path / name, [], done=False) for name in 'cd']
  out = tmp_path / 'x.png'
  with caplog.at_level(logging.WARNING):
    commands.run(compare, *paths, f'--out={out}')
  assert f'{paths[0]} has no metrics yet' in caplog.text and not out.exists()
  assert rows(capsys.readouterr().out)['step'] == ['-', '-']


def test_jax_is_not_imported(two):
  code = (
    'import sys, runpy\n'
    f'sys.argv = ["compare", {str(two[0])!r}, {str(two[1])!r}, "--out="]\n'
    'try: runpy.run_module("vit_jax.compare", run_name="__main__")\n'
    'finally: assert "jax" not in sys.modules'
  )
  result = commands.python('-c', code)
  assert result.returncode == 0, result.stderr
  assert 'optim.learning_rate' in result.stdout
