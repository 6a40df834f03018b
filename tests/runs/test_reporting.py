"""Metrics in a file and in TensorBoard, progress, and rates."""

import io
import json
import os
import pathlib
import signal
import subprocess
import sys
from typing import Any

from absl import logging
import cv2
import numpy as np
import pytest
import tiny

from vit_jax.config import UserError
from vit_jax.runs import logs
from vit_jax.runs import metrics_file
from vit_jax.runs import reporting


def lines(workdir: pathlib.Path) -> list[dict[str, Any]]:
  text = (workdir / 'metrics.jsonl').read_text()

  def refuse(constant: str) -> None:
    raise ValueError(constant)

  return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def steps(workdir: pathlib.Path, name: str) -> list[int]:
  return [line['step'] for line in lines(workdir) if name in line]


def board(workdir: pathlib.Path, name: str) -> list[tuple[int, float]]:
  """Returns what TensorBoard shows of a metric."""
  processing = 'tensorboard.backend.event_processing'
  lines = []
  # What its server reads with, and what scripts do.
  for module in ('plugin_event_accumulator', 'event_accumulator'):
    accumulators = pytest.importorskip(f'{processing}.{module}')
    accumulator = accumulators.EventAccumulator(str(workdir))
    accumulator.Reload()
    if module == 'event_accumulator':
      lines.append([(e.step, e.value) for e in accumulator.Scalars(name)])
    else:
      events = accumulator.Tensors(name)
      lines.append([(e.step, e.tensor_proto.float_val[0]) for e in events])
  assert lines[0] == lines[1]
  return lines[0]


def report(workdir: pathlib.Path, start: int, stop: int) -> None:
  """Does as a run does that logs at every step and evaluates at every fifth."""
  with reporting.Reporter(workdir, 20, start) as reporter:
    for step in range(start, stop + 1):
      if step > start:
        reporter.write(step, step / 10, {'train/loss': 100 + step})
      if step and step % 5 == 0:
        reporter.write(step, step / 10, {'val/loss': 200 + step})


def test_writes_each_metric_twice(tmp_path):
  with reporting.Reporter(str(tmp_path), 10) as reporter:
    reporter.write(1, 0.5, {'train/loss': 2.0, 'train/learning_rate': 1e-3})
    # A killed run loses nothing of this.
    assert board(tmp_path, 'train/loss') == [(1, 2.0)]
    line = lines(tmp_path)[0]
    assert line.pop('time') > 1.7e9
    assert line == {
      'step': 1,
      'epoch': 0.5,
      'train/loss': 2.0,
      'train/learning_rate': 1e-3,
    }


def test_what_is_not_finite_is_null(tmp_path):
  with reporting.Reporter(tmp_path, 10) as reporter:
    reporter.write(1, 0.5, {'a': float('nan'), 'b': float('-inf'), 'c': 1})
  line = lines(tmp_path)[0]
  assert (line['a'], line['b'], line['c']) == (None, None, 1.0)
  assert board(tmp_path, 'b') == [(1, float('-inf'))]


def test_large_metrics_survive_a_resume(tmp_path):
  """A run that diverges writes them; just then they are looked at."""
  with reporting.Reporter(tmp_path, 20, 0) as reporter:
    reporter.write(1, 0.0, {'train/grad_norm': 3e38})
  with reporting.Reporter(tmp_path, 20, 1) as reporter:
    reporter.write(2, 0.0, {'train/grad_norm': 1.0})
  assert [x['train/grad_norm'] for x in lines(tmp_path)] == [3e38, 1.0]


def test_resuming_leaves_no_step_twice(tmp_path):
  report(tmp_path, 0, 9)
  with (tmp_path / 'metrics.jsonl').open('a') as file:
    file.write('{"step": 10, "epo')  # killed as it wrote
  report(tmp_path, 5, 12)  # evaluates at 5 again, as a run may
  report(tmp_path, 10, 20)
  for name in ('train/loss', 'val/loss'):
    every = 1 if name == 'train/loss' else 5
    expected = list(range(every, 21, every))
    assert steps(tmp_path, name) == expected
    assert [step for step, _ in board(tmp_path, name)] == expected
  assert sorted(os.listdir(tmp_path))[-1] == 'metrics.jsonl'
  assert len(os.listdir(tmp_path)) == 4  # and three files of events


def test_images_and_the_config_are_purged_like_metrics(tmp_path):
  accumulators = pytest.importorskip(
    'tensorboard.backend.event_processing.plugin_event_accumulator'
  )
  png = cv2.imencode('.png', np.zeros((3, 5, 3), np.uint8))[1].tobytes()
  for start in (0, 4):
    with reporting.Reporter(tmp_path, 20, start) as reporter:
      reporter.describe({'seed': start, 'optim.name': 'sgd', 'data.dir': None})
      for step in range(start + 2, start + 7, 2):
        reporter.show(step, 'val/confusion', png)
        reporter.write(step, 0.0, {'val/loss': 1.0, 'val/examples': 9.0})
  accumulator = accumulators.EventAccumulator(str(tmp_path))
  accumulator.Reload()

  def shown(name: str) -> list[int]:
    return [event.step for event in accumulator.Tensors(name)]

  assert shown('val/confusion') == shown('val/loss') == [2, 4, 6, 8, 10]
  assert shown('config/text_summary') == [0, 4]
  assert 'val/examples' not in accumulator.Tags()['tensors']
  assert steps(tmp_path, 'val/examples') == [2, 4, 6, 8, 10]
  image = accumulator.Tensors('val/confusion')[0].tensor_proto.string_val
  assert list(image) == [b'5', b'3', png]


def test_starting_anew_where_nothing_was_saved(tmp_path):
  report(tmp_path, 0, 7)
  report(tmp_path, 0, 3)
  assert steps(tmp_path, 'train/loss') == [1, 2, 3]
  assert [step for step, _ in board(tmp_path, 'train/loss')] == [1, 2, 3]
  assert steps(tmp_path, 'val/loss') == []


def test_an_evaluation_that_was_still_missing(tmp_path):
  report(tmp_path, 0, 4)
  with reporting.Reporter(tmp_path, 20, 4) as reporter:
    reporter.write(4, 0.4, {'val/loss': 1.0})
  assert steps(tmp_path, 'val/loss') == [4]
  assert steps(tmp_path, 'train/loss') == [1, 2, 3, 4]
  assert board(tmp_path, 'val/loss') == [(4, 1.0)]


def test_what_was_reported_before(tmp_path):
  report(tmp_path, 0, 12)
  with reporting.Reporter(tmp_path, 20, 8) as reporter:
    assert reporter.before('train/loss') == 108
    assert reporter.before('val/loss') == 205
    assert reporter.before('test/loss') is None
  with reporting.Reporter(tmp_path, 20, 8, writes=False) as reporter:
    assert reporter.before('train/loss') is None


def test_cut_back_drops_what_is_no_metric(tmp_path):
  path = tmp_path / 'metrics.jsonl'
  good = '{"step": 1, "a": 2}\n'
  path.write_bytes(b'\xff\n[1]\n' + good.encode() + b'{"step": 2}\n{"step": 1')
  assert metrics_file.cut_back(path, 1) == {'step': (1, 1), 'a': (1, 2)}
  assert path.read_text() == good


def test_other_processes_write_nothing(tmp_path):
  with reporting.Reporter(tmp_path, 10, writes=False) as reporter:
    reporter.write(1, 0.5, {'a': 1.0})
    reporter.progress(1, {'a': 1.0})
  assert not list(tmp_path.iterdir())


def test_lines_where_there_is_no_terminal(tmp_path, caplog, monkeypatch):
  caplog.set_level('INFO', 'absl')
  stream = io.StringIO()
  monkeypatch.setattr(sys, 'stderr', stream)
  with reporting.Reporter(tmp_path, 100, 20) as reporter:
    reporter.progress(30, {'loss': 0.123456, 'images/s': 12345.6})
    reporter.progress(40, {'loss': 0.1})
  first, second = (record.getMessage() for record in caplog.records)
  assert first == 'step 30/100: loss 0.1235, images/s 12,346'
  assert second.startswith('step 40/100: loss 0.1, 00:')
  assert second.endswith(' left')
  assert not stream.getvalue()


def test_a_bar_on_a_terminal(tmp_path, caplog, monkeypatch):
  caplog.set_level('INFO', 'absl')
  monkeypatch.delenv('TERM', raising=False)
  stream = tiny.Terminal()
  monkeypatch.setattr(sys, 'stderr', stream)
  log = tmp_path / 'train.log'
  with (
    logs.log_to(log),
    reporting.Reporter(tmp_path, 100) as reporter,
  ):
    reporter.progress(50, {'loss': 0.5})
    logging.info('hello')
    reporter.progress(100, {'loss': 0.25})
  assert 'step 100/100' in stream.getvalue()
  assert '\nloss 0.25\n' in stream.getvalue()
  # pytest may listen to the file's own logger too; the terminal does not.
  shown = [x.getMessage() for x in caplog.records if x.name == 'absl']
  assert shown == ['hello']
  text = log.read_text()
  assert '\r' not in text
  assert 'step 50/100: loss 0.5\n' in text
  assert '] hello\n' in text
  # And nothing is left behind.
  logging.info('later')
  assert 'later' not in log.read_text()
  assert not stream.getvalue().endswith('later')


def test_the_log_is_appended_to(tmp_path):
  for word in ('one', 'two'):
    with logs.log_to(tmp_path / 'train.log'):
      logging.warning(word)
  text = (tmp_path / 'train.log').read_text()
  assert [line.split('] ')[1] for line in text.splitlines()] == ['one', 'two']
  with pytest.raises(UserError, match='cannot write'):
    with logs.log_to(tmp_path / 'missing' / 'train.log'):
      pass


_FULL = """
import resource, sys
from absl import logging
from vit_jax import config
from vit_jax.runs import logs
from vit_jax.runs import reporting
try:
  with logs.log_to(sys.argv[1] + '/train.log'):
    with reporting.Reporter(sys.argv[1], 10**6) as reporter:
      resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
      for step in range(1, 10**6):
        logging.info('a line for the log')
        reporter.write(step, 0.1, {'train/loss': step / 7})
except config.UserError as e:
  sys.exit(f'error: {e}')
"""


def test_a_full_disk(tmp_path):
  done = subprocess.run(
    [sys.executable, '-c', _FULL, str(tmp_path)],
    capture_output=True,
    text=True,
    check=False,
    timeout=60,
    cwd=tiny.ROOT,
  )
  path = tmp_path / 'metrics.jsonl'
  assert done.returncode == 1
  assert done.stderr.startswith(f'error: cannot write {path}: File too large; ')
  assert done.stderr.count('\n') == 1
  report(tmp_path, 5, 6)  # what is there is of use
  assert steps(tmp_path, 'train/loss') == [1, 2, 3, 4, 5, 6]


_KILLED = """
import os, signal, sys
from vit_jax.runs import reporting
reporter = reporting.Reporter(sys.argv[1], 10)
for step in range(1, 6):
  reporter.write(step, 0.1, {'train/loss': step})
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_run_loses_nothing(tmp_path):
  done = subprocess.run(
    [sys.executable, '-c', _KILLED, str(tmp_path)],
    check=False,
    cwd=tiny.ROOT,
  )
  assert done.returncode == -signal.SIGKILL
  report(tmp_path, 5, 7)
  expected = [1, 2, 3, 4, 5, 6, 7]
  assert steps(tmp_path, 'train/loss') == expected
  assert [step for step, _ in board(tmp_path, 'train/loss')] == expected
