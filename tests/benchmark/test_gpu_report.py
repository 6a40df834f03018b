"""The report for GPUs, on the CPU with a small image; no time is asserted."""

import json
import re
import types

import commands
import pytest

from benchmarks import gpu_report
from benchmarks import gpu_rows
from benchmarks import measures
from benchmarks import setting as setting_lib
from benchmarks import timing

MODEL = 'ViT-Ti/16'


@pytest.fixture(scope='module')
def short():
  """A small model, few images, a rough rate of products."""
  in_full = gpu_rows.Report._config

  def small(*args):
    config = in_full(*args)
    if MODEL in args:
      config.model.depth, config.model.hidden_size = 2, 48
    return config

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(timing, 'matmul_flops', lambda *_: 1e11)
    patch.setattr(gpu_rows.Report, '_config', small)
    patch.setattr(gpu_rows, '_IMAGES', 64)
    patch.setattr(setting_lib, 'PHOTOGRAPH', (40, 32))
    patch.setattr(gpu_rows, '_BLOCKS', 2)
    yield


@pytest.fixture(scope='module')
def written(short, tmp_path_factory):
  """The report of some rows: (its directory, the object)."""
  out = tmp_path_factory.mktemp('report')
  with gpu_rows.Report(out, budget=10_000) as report:
    report.choices |= {'image_size': 32, 'scan': True}
    report.train(MODEL, 4)
    report.train(MODEL, 2, changes={'model.dropout_rate': 0.1})
    report.train(MODEL, 2, attention='cudnn')  # which no CPU has
    report.infer(MODEL, 4)
    report.loop(MODEL, 4)
  return out, report


@pytest.mark.slow
def test_rows(written):
  out, report = written
  stored = json.loads((out / 'report.json').read_text())
  assert stored['rows'] == report.rows
  assert stored['device'] and stored['cores'] and stored['date']
  train, dropout, cudnn, infer, loop = stored['rows']
  for row in (train, dropout, infer):
    low, high = row['range']
    assert 0 < low <= row['images_per_second'] <= high
    # No peak is known of a CPU: of the rate of products.
    assert row['mfu'] == pytest.approx(row['tflops'] / 0.1)
    assert row['scan'] is True
  assert dropout['changes'] == {'model.dropout_rate': 0.1}
  assert 'cudnn' in cudnn['problem'].lower()
  assert loop['against'] == 'bare step' and loop['cores'] >= 1
  assert 0 < loop['ratio']


@pytest.fixture
def made_up(short, tmp_path):
  """A report to put rows into."""
  with gpu_rows.Report(tmp_path, budget=10_000) as report:
    yield report


def row(rate, **fields):
  plain = {'what': 'train', 'model': MODEL, 'mfu': 0.5}
  return plain | {'images_per_second': rate} | fields


def test_the_best_is_of_plain_rows(made_up):
  fastest = row(3.0, attention='xla', remat='full')
  made_up.rows += [row(2.0), fastest, row(1.0, scan=True)]
  made_up.rows += [
    row(9.0, changes={'model.dropout_rate': 0.1}),
    row(9.0, options={'xla_gpu_enable_cublaslt': True}),
    row(9.0, what='infer'),
    row(9.0, model='ViT-S/16'),
    {'what': 'train', 'model': MODEL, 'problem': 'too little memory'},
  ]
  assert made_up.best(MODEL) == fastest
  assert made_up.best('ViT-B/16') == {}
  made_up.choices = {'attention': 'plain', 'dtype': 'float32'}
  made_up.choose('ViT-B/16')
  assert made_up.choices == {'attention': 'plain', 'dtype': 'float32'}
  made_up.choose(MODEL)
  assert made_up.choices == {
    'attention': 'xla',
    'remat': 'full',
    'dtype': 'float32',
  }


def test_what_a_row_raises_is_its_problem(made_up, monkeypatch):
  """Whatever it is; the next row is measured."""

  def fail(*_, **__):
    raise RuntimeError('CUDA out\nof memory')

  rates = {'images_per_second': 2.0, 'range': [1.0, 3.0]}
  monkeypatch.setattr(made_up, '_rate', lambda *_: dict(rates))
  bench = types.SimpleNamespace(ours=types.SimpleNamespace(forward=None))
  with monkeypatch.context() as patch:
    patch.setattr(made_up, '_bench', fail)
    made_up.against_timm(MODEL, 4)
  monkeypatch.setattr(made_up, '_bench', lambda *_, **__: bench)
  made_up.infer(MODEL, 2)
  *failed, infer = made_up.rows
  assert [x['what'] for x in failed] == ['infer', 'train']
  for x in failed:
    assert x['problem'] == 'RuntimeError: CUDA out of memory'
  assert infer['images_per_second'] == 2.0 and 'problem' not in infer


def test_each_way_to_compute_is_checked(made_up, monkeypatch):
  """The same changes and options, once each."""
  checked = []

  class Bench:
    def __init__(self, config, *_, **__):
      self.depth, self.dropout = config.model.depth, config.model.dropout_rate
      self.ours = types.SimpleNamespace(compiler_options={})

    def check(self):
      assert self.depth == 2
      checked.append((self.dropout, self.ours.compiler_options))

  monkeypatch.setattr(measures, 'Bench', Bench)
  dropout, given = {'model.dropout_rate': 0.1}, {'xla_option': True}
  for changes, options in (
    (None, None),
    ({}, {}),
    (dropout, None),
    (dropout, given),
    (None, given),
    (dropout, None),
  ):
    bench = made_up._bench(MODEL, 4, changes, options)
    assert bench.ours.compiler_options == (options or {})
  assert checked == [
    (0.0, {}),
    (0.1, {}),
    (0.1, {'xla_option': True}),
    (0.0, {'xla_option': True}),
  ]


class Calls:
  """Stands for a report: what it is asked for, with the choices then."""

  def __init__(self, rates):
    self.rates, self.choices, self.calls, self.rows = rates, {}, [], []

  def choose(self, model):
    best = self.best(model)
    self.choices |= {key: best[key] for key in best if key != 'batch_size'}

  def best(self, model):
    actual = [x for x in self.rows if x[0] == model]
    return max(actual, key=lambda x: x[1])[2] if actual else {}

  def train(self, model, batch_size, changes=None, options=None, **choices):
    answers = self.choices | choices
    self.calls.append(('train', model, batch_size, answers, changes, options))
    if not changes and not options:
      rate = sum(self.rates.get(x, 0) for x in (*answers.items(), batch_size))
      self.rows.append((model, rate, answers | {'batch_size': batch_size}))

  def infer(self, model, batch_size):
    self.calls.append(('infer', model, batch_size, dict(self.choices)))

  def against_timm(self, model, batch_size):
    self.calls.append(('timm', model, batch_size, dict(self.choices)))

  def loop(self, model, batch_size, changes=None):
    self.calls.append(('loop', model, batch_size, dict(self.choices)))


@pytest.mark.parametrize('scan, remat', [(-1, -1), (1, -1), (1, 2), (-1, 2)])
def test_what_pays_is_what_all_others_get(scan, remat):
  report = Calls(
    {
      ('attention', 'cudnn'): 5,
      ('attention', 'plain'): 4,
      ('scan', True): scan,
      ('remat', 'full'): remat,
      512: 1,
    }
  )
  gpu_report.measure(report)
  chosen = {'attention': 'cudnn'}
  if remat > max(scan, 0):
    chosen |= {'remat': 'full'}
  elif scan > 0:
    chosen |= {'scan': True}
  tried, others = report.calls[:4], report.calls[4:]
  assert [x[3] for x in tried] == [
    {'attention': 'cudnn'},
    {'attention': 'plain'},
    {'attention': 'cudnn', 'scan': True},
    {'attention': 'cudnn', 'remat': 'full'},
  ]
  assert all(x[3] == chosen for x in others)
  for asked in (
    ('infer', 'ViT-B/16', 512, chosen),
    ('timm', 'ViT-B/16', 256, chosen),
    ('loop', 'ViT-B/16', 512, chosen),
    ('loop', 'tutorial', 128, chosen),
    ('infer', 'ViT-S/16', 512, chosen),
    ('train', 'ViT-S/16', 1024, chosen, None, None),
  ):
    assert asked in others
  assert {x[1] for x in others} >= {'ViT-L/16', 'ViT-H/14'}
  # What no other row has comes last.
  changed = [bool(x[4:] and (x[4] or x[5])) for x in others]
  assert changed == sorted(changed) and sum(changed) == 5


def test_without_a_gpu(tmp_path):
  """One line, before anything is made or measured."""
  result = commands.python(
    *('-m', 'benchmarks.gpu_report'),
    *(f'--out={tmp_path / "report"}', '--compile_cache='),
    env=commands.CPU_ENV,
  )
  assert result.returncode == 1
  assert result.stderr.startswith('error: JAX finds no GPU: install')
  assert result.stderr.count('\n') == 1
  assert not (tmp_path / 'report').exists()


@pytest.mark.slow
def test_the_table(written):
  out, _ = written
  lines = (out / 'report.md').read_text().splitlines()
  rows = [line for line in lines if line.startswith(('| train', '| infer'))]
  assert len(rows) == 4 and all(row.count('|') == 10 for row in rows)
  assert 'model.dropout_rate=0.1' in rows[1]
  (loop,) = (line for line in lines if line.startswith('| end_to_end'))
  *_, against, baseline, ratio, _ = loop.split('|')
  assert against == ' bare step '
  number = r'[\d,.]+'
  for cell in (loop.split('|')[5], baseline, ratio):
    assert re.fullmatch(rf' {number} \({number} - {number}\) ', cell)


def test_no_time_is_left(short, tmp_path):
  """Nothing is begun that could not end in time; what is done is kept."""
  with gpu_rows.Report(tmp_path, budget=1) as report:
    report.train(MODEL, 4)
  (row,) = json.loads((tmp_path / 'report.json').read_text())['rows']
  assert row['problem'] == 'not reached in the time'
  assert 'not reached' in (tmp_path / 'report.md').read_text()


@pytest.mark.slow
def test_small_images_stay_on_the_device(short, tmp_path):
  """Several steps in a call log less often; the loop is still timed."""
  with gpu_rows.Report(tmp_path, budget=10_000) as report:
    changes = {
      'model.depth': 1,
      'model.hidden_size': 16,
      'model.mlp_dim': 16,
      'data.cache': 'device',
      'train.steps_per_call': 3,
      'train.log_every': '3 steps',
    }
    report.choices |= {'dtype': 'float32'}
    report.loop(setting_lib.TUTORIAL, 8, changes)
  (row,) = report.rows
  assert 'problem' not in row, row
  assert row['ratio'] > 0
