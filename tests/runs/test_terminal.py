"""What a run draws on a terminal, and plain lines elsewhere."""

import io
import os
import pty
import re
import subprocess
import sys

import pytest
import tiny

from vit_jax.runs import logs
from vit_jax.runs import reporting
from vit_jax.runs import terminal

DIRECTIONS = {'val/accuracy': 'max', 'val/loss': 'min', 'val/iou/': 'max'}


def make_screen(monkeypatch):
  """Replaces stderr: not in a fixture, after which pytest sets it again."""
  monkeypatch.setenv('COLUMNS', '80')
  monkeypatch.setenv('LINES', '24')
  monkeypatch.setenv('TERM', 'xterm')
  monkeypatch.delenv('NO_COLOR', raising=False)
  stream = tiny.Terminal()
  monkeypatch.setattr(sys, 'stderr', stream)
  return stream


def visible(text):
  """Returns the lines that a terminal has after it was sent a text."""
  lines = ['']
  for part in re.split(r'(\x1b\[\d+A\x1b\[J|\r?\n)', text):
    if match := re.fullmatch(r'\x1b\[(\d+)A\x1b\[J', part):
      lines = [*lines[: -1 - int(match[1])], '']
    elif part.endswith('\n'):
      lines.append('')
    else:
      lines[-1] += part
  return lines


def plain(lines):
  return [re.sub(r'\x1b\[[\d;]*m', '', line).rstrip() for line in lines]


def results(accuracy, loss):
  return {'val/accuracy': accuracy, 'val/loss': loss, 'val/examples': 9.0} | {
    f'val/iou/{i}': 0.5 for i in range(20)
  }


def test_evaluations_grow_above_the_bar(monkeypatch, tmp_path):
  screen = make_screen(monkeypatch)
  with reporting.Reporter(tmp_path, 100, directions=DIRECTIONS) as reporter:
    for step, accuracy in ((20, 0.5), (40, 0.75), (60, 0.625)):
      fields = {'loss': 0.5, 'learning rate': 1e-3, 'images/s': 1234.5}
      reporter.progress(step, fields, step + 20)
      reporter.evaluated(step, step / 10, results(accuracy, 1 - accuracy))
    lines = visible(screen.getvalue())
    rows = [line.split() for line in plain(lines)]
    assert rows[:4] == [
      ['step', 'epoch', 'evaluation', 'accuracy', 'loss'],
      ['20', '2.0', 'val', '0.5000', '0.5000'],
      ['40', '4.0', 'val', '0.7500', '▲', '0.2500', '▲'],
      ['60', '6.0', 'val', '0.6250', '▼', '0.3750', '▼'],
    ]
    assert rows[5][0] == '60%' and rows[5][-4:-2] == ['step', '60/100,']
    assert ' '.join(rows[6]) == (
      'loss 0.5, learning rate 0.001, images/s 1,234, evaluation in 00:00'
    )
    best = '\x1b[1m0.7500\x1b[0m'
    assert best in lines[2] and '\x1b[1m' not in lines[1] + lines[3]
    assert '\x1b[32m' in screen.getvalue()
  assert plain(visible(screen.getvalue())) == [*plain(lines)[:5], '']


def test_the_table_goes_on_after_a_resume(monkeypatch, tmp_path):
  screen = make_screen(monkeypatch)
  for start in (0, 20):
    with reporting.Reporter(
      tmp_path, 100, start, directions=DIRECTIONS
    ) as reporter:
      step = start + 20
      reporter.evaluated(step, step / 10, results(step / 100, 0.5))
  rows = [x.split()[:4] for x in plain(visible(screen.getvalue()))[-4:-2]]
  assert rows == [
    ['20', '2.0', 'val', '0.2000'],
    ['40', '4.0', 'val', '0.4000'],
  ]


def test_long_runs_keep_the_best_in_sight(monkeypatch, tmp_path):
  screen = make_screen(monkeypatch)
  with reporting.Reporter(tmp_path, 999, directions=DIRECTIONS) as reporter:
    for step in range(1, 101):
      accuracy = 0.9 if step == 50 else 0.5
      reporter.evaluated(step, 0.0, {'val/accuracy': accuracy})
    lines = plain(visible(screen.getvalue()))
    assert len(lines) <= 24
    assert lines[1].split()[::3] == ['50', '0.9000']
    assert lines[2].split()[0] == '83'


def test_no_colour(monkeypatch, tmp_path):
  screen = make_screen(monkeypatch)
  monkeypatch.setenv('NO_COLOR', '1')
  with reporting.Reporter(tmp_path, 100, directions=DIRECTIONS) as reporter:
    reporter.evaluated(1, 0.1, results(0.5, 0.5))
    reporter.evaluated(2, 0.2, results(0.75, 0.25))
  assert '▲' in screen.getvalue()
  assert not re.search(r'\x1b\[[\d;]*3\dm', screen.getvalue())


@pytest.mark.parametrize('term', ['dumb', None])
def test_lines_where_nothing_can_be_redrawn(
  monkeypatch, term, tmp_path, caplog
):
  screen = make_screen(monkeypatch)
  caplog.set_level('INFO', 'absl')
  if term is None:
    monkeypatch.setattr(sys, 'stderr', io.StringIO())
  else:
    monkeypatch.setenv('TERM', term)
  logs.show_facts('vit_jax', [('model', 'ViT'), ('devices', '1 x cpu')])
  with reporting.Reporter(tmp_path, 100) as reporter:
    reporter.progress(20, {'loss': 0.5})
    reporter.advance(30)
    reporter.evaluated(30, 1.0, results(0.5, 0.25))
  with terminal.ProgressBar(10, 'images') as bar:
    bar.update(10)
  assert [x.getMessage() for x in caplog.records] == [
    'model: ViT\ndevices: 1 x cpu',
    'step 20/100: loss 0.5',
    'evaluated at step 30: val/accuracy 0.5, val/loss 0.25, val/examples 9,'
    ' 20 more in metrics.jsonl',
  ]
  assert not screen.getvalue()


def test_a_panel_keeps_within_the_width(monkeypatch, caplog):
  screen = make_screen(monkeypatch)
  caplog.set_level('INFO', 'absl')
  facts = [('model', 'ViT-B/16, ' + 'a word ' * 30), ('path', '/x~' * 40)]
  logs.show_facts('vit_jax', facts)
  lines = screen.getvalue().splitlines()
  assert max(map(len, plain(lines))) <= 80 and len(lines) > 5
  assert screen.getvalue().count('~') == 40  # nothing is cut


_RUN = """
import sys
from absl import logging
from vit_jax.runs import reporting
logging.use_absl_handler()
logging.set_verbosity(logging.INFO)
with reporting.Reporter(sys.argv[1], 100) as reporter:
  for step in range(1, 101):
    reporter.advance(step)
    if step % 25 == 0:
      reporter.progress(step, {'loss': 1 / step})
      reporter.evaluated(step, step / 50, {'val/accuracy': step / 200})
  logging.info('a message')
  print('{}')
"""


def test_a_real_terminal(tmp_path):
  """stdout is a pipe, and has nothing but its JSON."""
  actual, expected = pty.openpty()
  environ = os.environ | {'TERM': 'xterm', 'COLUMNS': '80', 'LINES': '24'}
  with subprocess.Popen(
    [sys.executable, '-c', _RUN, str(tmp_path)],
    stdout=subprocess.PIPE,
    stderr=expected,
    cwd=tiny.ROOT,
    env=environ,
  ) as process:
    os.close(expected)
    content = b''
    while True:
      try:
        content += os.read(actual, 65536)
      except OSError:  # the other end is closed
        break
    assert process.stdout is not None and process.stdout.read() == b'{}\n'
  os.close(actual)
  assert process.returncode == 0
  text = content.decode()
  assert '\x1b[?25l' not in text  # the cursor is not hidden
  lines = plain(visible(text))
  assert any(line.endswith('a message') for line in lines)
  assert [x.split()[:1] for x in lines if ' val ' in x] == [
    ['25'],
    ['50'],
    ['75'],
    ['100'],
  ]
