"""The report for GPUs, on the CPU with a small model; no time is asserted."""

import importlib.util
import json
import re
import shutil

import commands
import pytest

from benchmarks import gpu_candidates
from benchmarks import gpu_report
from benchmarks import gpu_rows
from benchmarks import setting as setting_lib
from benchmarks import timing

MODEL = 'ViT-Ti/16'
# Options of this compiler, one that no compiler has, and a different function.
CANDIDATES = {
  'flat_optimizer': gpu_candidates.CANDIDATES['flat_optimizer'],
  'cublaslt': gpu_candidates.CANDIDATES['cublaslt'],
  'tokens_200': gpu_candidates.CANDIDATES['tokens_200'],
  'cudnn': gpu_candidates.Candidate(
    {'model.attention_implementation': 'cudnn'}  # which no CPU has
  ),
  'unknown': gpu_candidates.Candidate(options={'xla_gpu_unknown': True}),
  'another': gpu_candidates.Candidate({'optim.learning_rate': 3.0}),
}


@pytest.fixture(scope='module')
def short():
  """Few blocks, and a rough rate of products."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(timing, 'matmul_flops', lambda *_: 1e11)
    patch.setattr(gpu_rows, '_BLOCK_SECONDS', 0.01)
    yield


@pytest.fixture(scope='module')
def written(short, tmp_path_factory):
  """The report of some rows: (its directory, the rows)."""
  out = tmp_path_factory.mktemp('report')
  with gpu_rows.Report(out, 10_000, is_small=True) as report:
    report.train(MODEL, 4)
    report.profile(MODEL, 4)
    report.candidates(MODEL, 4, CANDIDATES)
    gpu_report._loop(report)
  return out, report.rows


@pytest.mark.slow
def test_rows(written):
  out, rows = written
  stored = json.loads((out / 'report.json').read_text())
  assert stored['rows'] == rows
  assert stored['device'] and stored['cores'] and stored['date']
  train, profile, *candidates, tutorial, photographs = rows
  low, high = train['range']
  assert 0 < low <= train['images_per_second'] <= high
  # No peak is known of a CPU: of the rate of products.
  assert train['mfu'] == pytest.approx(train['tflops'] / 0.1)
  assert 0 < sum(profile['kinds'].values()) <= 1.01 * profile['milliseconds']
  assert profile['kernels'][0]['name'] and profile['kernels'][0]['times'] > 0
  flat, cublaslt, tokens, cudnn, unknown, another = candidates
  for row in (flat, cublaslt, tokens):
    assert 'problem' not in row, row
    assert row['ratio'] > 0 and row['milliseconds_per_step'] > 0
  for row in (tutorial, photographs):
    assert 'problem' not in row, row
    assert row['against'] == 'bare step' and row['ratio'] > 0
  assert cublaslt['options'] == {'xla_gpu_enable_cublaslt': True}
  assert 'cudnn' in cudnn['problem'].lower()
  assert 'No such compile option' in unknown['problem']
  assert 'what is not the same is not timed' in another['problem']


@pytest.mark.slow
def test_the_table(written):
  out, _ = written
  lines = (out / 'report.md').read_text().splitlines()
  rows = [line for line in lines if line.startswith(('| train', '| candidate'))]
  assert len(rows) == 7 and all(row.count('|') == 10 for row in rows)
  assert 'candidate flat_optimizer' in rows[1]
  *_, against, baseline, ratio, _ = rows[1].split('|')
  assert against == ' defaults '
  number = r'[\d,.]+'
  for cell in (rows[1].split('|')[5], baseline, ratio):
    assert re.fullmatch(rf' {number} \({number} - {number}\) ', cell)


@pytest.mark.slow
def test_goes_on_with_a_report_that_is_there(written, tmp_path):
  """Rows with a problem are measured again, others are not."""
  out, rows = written
  shutil.copy(out / 'report.json', tmp_path)
  with gpu_rows.Report(tmp_path, 1, is_small=False) as report:
    report.train(MODEL, 4)
    report.candidates(MODEL, 4, CANDIDATES)
  good = [row for row in rows if 'problem' not in row]
  assert report.rows[: len(good)] == good
  problems = [row['problem'] for row in report.rows[len(good) :]]
  assert problems == 3 * ['not reached in the time']
  assert 'not reached' in (tmp_path / 'report.md').read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
  'name',
  [
    name
    for name, one in gpu_candidates.CANDIDATES.items()
    if 'benchmarks.gpu_parts' in str(one.changes)
  ],
)
def test_our_candidates_train_as_the_defaults(name, short, tmp_path):
  one = gpu_candidates.CANDIDATES[name]
  with gpu_rows.Report(tmp_path, 10_000, is_small=True) as report:
    exact = {'train.dtype': 'float32'}
    bench = report._bench(MODEL, 4, {**one.changes, **exact})
    base = report._bench(MODEL, 4, exact)
  for _ in range(2):
    assert bench.ours.train(1) == pytest.approx(base.ours.train(1), rel=1e-4)


@pytest.mark.slow
def test_the_command(tmp_path):
  """In processes of their own; the recipe runs to its end."""
  cifar10 = tmp_path / 'cifar10'
  setting_lib.write_images(cifar10, 20, setting_lib.SMALL)
  out = tmp_path / 'report'
  result = commands.python(
    *('-m', 'benchmarks.gpu_report', f'--out={out}', '--small'),
    *('--compile_cache=', '--parts=candidates,recipe', '--budget=400'),
    *('--candidates=remat_none', f'--cifar10={cifar10}'),
    env=commands.CPU_ENV,
  )
  assert result.returncode == 0, result.stderr
  rows = json.loads((out / 'report.json').read_text())['rows']
  assert [row['what'] for row in rows] == ['candidate', 'recipe']
  assert not [row for row in rows if 'problem' in row], rows
  assert rows[-1]['step'] == 2 and rows[-1]['run_seconds'] > 0


def test_unknown_names(tmp_path):
  result = commands.python(
    *('-m', 'benchmarks.gpu_report', '--small', '--parts=x'),
    *(f'--out={tmp_path / "report"}', '--compile_cache='),
    env=commands.CPU_ENV,
  )
  assert result.returncode == 1
  assert result.stderr.startswith('error: --parts=x: choose from train, ')


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


class Calls:
  """Stands for a report: what it is asked for."""

  is_small = False

  def __init__(self):
    self.calls = []

  def __getattr__(self, name):
    return lambda *args: self.calls.append((name, *args))


@pytest.mark.parametrize('has_timm', [True, False])
def test_models_take_turns_with_timm(has_timm, monkeypatch):
  """Where it is installed."""
  monkeypatch.setattr(
    importlib.util, 'find_spec', lambda name: has_timm or None
  )
  report = Calls()
  gpu_report._train(report)
  sizes = [
    ('ViT-B/16', 256),
    ('ViT-B/16', 512),
    ('ViT-L/16', 128),
    ('ViT-S/16', 1024),
    ('ViT-H/14', 64),
  ]
  if not has_timm:
    assert report.calls == [('train', *size) for size in sizes]
    return
  parts = [('train',), ('train', 'infer'), *3 * [('train',)]]
  assert report.calls == [
    ('against_timm', *size, part)
    for size, part in zip(sizes, parts, strict=True)
  ]
