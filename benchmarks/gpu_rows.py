"""The rows of `gpu_report`: measurements of one model in one way."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import datetime
import functools
import gc
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from absl import logging
import jax
import ml_collections

from benchmarks import gpu_candidates
from benchmarks import measures
from benchmarks import setting as setting_lib
from benchmarks import step_profile
from benchmarks import timing
from vit_jax import config as config_lib
from vit_jax import tables
from vit_jax.data.host import batches
from vit_jax.parallel import hardware

Row = dict[str, Any]

_BLOCKS, _BLOCK_SECONDS = 10, 0.3
# Seconds that a measurement may take; none begins with less time left. On an
# H100 the comparison with timm took 81, most of it to compile.
_AGAINST_TIMM, _LONGEST, _SHORT = 90.0, 60.0, 30.0
# Images in the folders that the rows share.
_IMAGES = 4096
# Largest relative differences between the first two losses of a candidate, and
# those of the defaults: in bfloat16, sums have another order.
_CLOSE = 0.02
# Seconds between two looks at a run in another process.
_WAIT = 5.0
# What says which measurement a row is; all other keys are its results.
_NAMES = ('what', 'model', 'batch_size', 'against', 'name', 'changes')

# A small model, for a test of all rows without a GPU.
SMALL: Mapping[str, Any] = {
  'model.depth': 2,
  'model.hidden_size': 64,
  'model.mlp_dim': 64,
  'model.num_heads': 2,
}
_SMALL_SIZE = 112  # patches of 14 and of 16 pixels divide it


class Report(contextlib.AbstractContextManager['Report']):
  """Rows, written as they are measured; an error is the content of its row.

  A report that is there already is gone on with: its rows are not measured
  again, except those with a problem.

  Attributes:
    rows: The rows measured so far.
    is_small: Whether all models are small, for a test without a GPU.
    reserved: Seconds at the end that are left to later parts.
  """

  def __init__(self, out: pathlib.Path, budget: float, is_small: bool = False):
    """Starts the clock.

    Args:
      out: An existing directory.
      budget: Seconds until the last measurement ends.
      is_small: Whether all models are small.
    """
    self.rows: list[Row] = []
    self.is_small, self.reserved = is_small, 0.0
    self._blocks = 2 if is_small else _BLOCKS
    self._out, self._stack = out, contextlib.ExitStack()
    self._end = time.monotonic() + budget
    self._folders: dict[tuple[int, int], str] = {}
    self._facts = _facts()
    path = out / 'report.json'
    if path.exists():
      rows = json.loads(path.read_text())['rows']
      self.rows = [row for row in rows if 'problem' not in row]

  def __exit__(self, *_: object) -> None:
    self._stack.close()

  def train(self, model: str, batch_size: int) -> None:
    """Measures training steps."""

    def measure() -> Row:
      bench = self._bench(model, batch_size)
      return self._rate(bench, bench.ours.train, 'step')

    self._row(self._names('train', model, batch_size), measure, _LONGEST)

  def against_timm(
    self, model: str, batch_size: int, parts: Sequence[str] = ('train',)
  ) -> None:
    """Measures a model in turns with timm's, which PyTorch compiles.

    Two layers of both are compared first.

    Args:
      model: Name of the model.
      batch_size: Number of images in a step.
      parts: What is measured: 'train', 'infer'.
    """

    @functools.cache
    def bench() -> Any:
      twin = self._bench(model, 8, {'model.depth': 2}, compare='timm')
      twin.check()
      # PyTorch's compiler is only for GPUs' rows: it takes a minute.
      compiles = not self.is_small
      return self._bench(
        model, batch_size, compare='timm', torch_compile=compiles
      )

    for part in parts:

      def measure(part: str = part) -> Row:
        return getattr(bench(), part)()

      said = self._names(part, model, batch_size) | {'against': 'timm'}
      self._row(said, measure, _AGAINST_TIMM)
    bench.cache_clear()
    _free()

  def profile(self, model: str, batch_size: int) -> None:
    """Measures each kernel of a training step."""

    def measure() -> Row:
      bench = self._bench(model, batch_size)
      return step_profile.measure(bench.ours.train)

    said = self._names('profile', model, batch_size)
    self._row(said, measure, _LONGEST)

  def candidates(
    self,
    model: str,
    batch_size: int,
    named: Mapping[str, gpu_candidates.Candidate],
  ) -> None:
    """Measures training steps of each candidate in turns with the defaults."""
    base = functools.cache(lambda: _Steps(self._bench(model, batch_size)))

    for name, one in named.items():

      def measure(one: gpu_candidates.Candidate = one) -> Row:
        bench = self._bench(model, batch_size, one.changes)
        bench.ours.compiler_options = dict(one.options)
        steps = _Steps(bench)
        if one.is_same:
          steps.check(base())
        return _in_turns(steps, base(), self._blocks)

      said = self._names('candidate', model, batch_size)
      said |= {'against': 'defaults', 'name': name}
      said |= {'changes': dict(one.changes), 'options': dict(one.options)}
      self._row(said, measure, _SHORT)
      _free()

  def loop(
    self, model: str, batch_size: int, changes: dict[str, Any] | None = None
  ) -> None:
    """Measures the whole loop, from files, in turns with the bare step."""

    def measure() -> Row:
      bench = self._bench(model, batch_size, changes)
      return bench.end_to_end() | {'cores': batches.num_cores()}

    said = self._names('end_to_end', model, batch_size)
    said |= {'against': 'bare step', 'changes': changes or {}}
    self._row(said, measure, _LONGEST)

  def recipe(self, config: str, changes: Mapping[str, Any]) -> None:
    """Trains a recipe by its command, as far as the time allows.

    The row is written as the run goes on.

    Args:
      config: Name of the config, as 'cifar10:200'.
      changes: Changed values of the config by key.
    """
    said = {'what': 'recipe', 'model': config, 'changes': dict(changes)}

    def measure() -> Row:
      with tempfile.TemporaryDirectory() as folder:
        workdir = pathlib.Path(folder, 'run')
        command = [
          *(sys.executable, '-m', 'vit_jax.main', f'--config={config}'),
          *(f'--config.{key}={value}' for key, value in changes.items()),
          f'--workdir={workdir}',
        ]
        start, row = time.monotonic(), Row()
        with subprocess.Popen(command, stdout=sys.stderr) as run:
          while run.poll() is None and time.monotonic() < self._end:
            time.sleep(_WAIT)
            row = _progress(workdir)
            self._write([*self.rows, said | row | {'problem': 'not done yet'}])
          run.terminate()  # it saves, and ends
        row = _progress(workdir) | {
          'run_seconds': round(time.monotonic() - start, 1)
        }
      if run.returncode:  # 143: it was stopped
        why = 'too little time' if run.returncode == 143 else 'see its output'
        row['problem'] = f'ended with {run.returncode}: {why}'
      return row

    self._row(said, measure, _SHORT)

  def _names(self, what: str, model: str, batch_size: int) -> Row:
    return {'what': what, 'model': model, 'batch_size': batch_size}

  def _row(self, said: Row, measure: Callable[[], Row], seconds: float) -> None:
    """Adds a row and writes all rows; an error is the result of its row.

    Args:
      said: Which measurement it is, and its choices.
      measure: Returns the results.
      seconds: How long it may take.
    """
    row: Row = {key: value for key, value in said.items() if value != {}}
    if _key(row) in map(_key, self.rows):
      return
    end = time.monotonic() + seconds + self.reserved
    if end > self._end and not self.is_small:
      row['problem'] = 'not reached in the time'
    else:
      start = time.monotonic()
      try:
        row |= measure()
      except config_lib.UserError as e:
        row['problem'] = config_lib.one_line(e)[:200]
      # Any type: JAX, PyTorch and the libraries have their own errors for what
      # a device cannot do, and the following rows are still to be measured.
      except Exception as e:
        problem = f'{type(e).__name__}: {config_lib.one_line(e)}'
        row['problem'] = problem[:200]
      row['seconds'] = round(time.monotonic() - start, 1)
    short = {key: value for key, value in row.items() if key != 'kernels'}
    logging.info('%s', json.dumps(short))
    self.rows.append(row)
    self._write(self.rows)

  def _write(self, rows: Sequence[Row]) -> None:
    """Writes both files; a process that is killed leaves whole ones."""
    report = self._facts | {'rows': list(rows)}
    files = {
      'report.json': json.dumps(report, indent=1),
      'report.md': markdown(report),
    }
    for name, text in files.items():
      part = self._out / f'{name}.part'
      part.write_text(text)
      part.replace(self._out / name)

  def _bench(
    self,
    model: str,
    batch_size: int,
    changes: Mapping[str, Any] | None = None,
    compare: str = 'baseline',
    torch_compile: bool = False,
  ) -> measures.Bench:
    return measures.Bench(
      self._config(model, batch_size, changes or {}),
      self._blocks,
      self._facts['matmul_tflops'] * 1e12,
      compare,
      torch_compile=torch_compile,
    )

  def _config(
    self, model: str, batch_size: int, changes: Mapping[str, Any]
  ) -> ml_collections.ConfigDict:
    size, image_size = setting_lib.PHOTOGRAPH, None
    if model == setting_lib.TUTORIAL or self.is_small:
      size = setting_lib.SMALL
    if model != setting_lib.TUTORIAL and self.is_small:
      image_size = _SMALL_SIZE
    setting = setting_lib.Setting(
      model=model,
      image_size=image_size,
      batch_size=min(batch_size, 4) if self.is_small else batch_size,
      # PyTorch takes minutes for bfloat16 on most CPUs.
      dtype='float32' if self.is_small else 'bfloat16',
      data=self._data(size),
    )
    with setting.changes() as all_changes:
      if self.is_small:
        all_changes |= SMALL
      return setting_lib.config(all_changes | dict(changes))

  def _data(self, size: tuple[int, int]) -> str:
    """Returns `data.name` of photographs of one size, shared by all rows."""
    if size not in self._folders:
      folder = self._stack.enter_context(tempfile.TemporaryDirectory())
      self._folders[size] = setting_lib.write_images(
        pathlib.Path(folder), 64 if self.is_small else _IMAGES, size
      )
    return self._folders[size]

  def _rate(
    self, bench: Any, function: Callable[[int], Any], pass_: str
  ) -> Row:
    steps = timing.steps_per_block([function], _BLOCK_SECONDS)
    times = timing.in_turns({'': lambda: function(steps)}, self._blocks)['']
    images = steps * bench.experiment.config.train.batch_size
    flops = getattr(bench.experiment.program.flops, pass_) * steps
    achieved = flops / statistics.median(times)
    peak = hardware.peak_flops(jax.devices()[0])
    return timing.summarize(times, images) | {
      'tflops': achieved / 1e12,
      'mfu': achieved / (peak or bench.matmul_flops),
    }


class _Steps:
  """Training steps of a model, whose first two losses are kept.

  Attributes:
    train: Takes a number of steps, and waits for them.
    images: Number of images in a step.
    planned_gib: Temporary memory, as the compiler plans it.
  """

  def __init__(self, bench: measures.Bench):
    self.train = bench.ours.train
    self._losses = [self.train(1), self.train(1)]
    self.images = bench.experiment.config.train.batch_size
    plan = bench.ours.compiled_step.memory_analysis()
    self.planned_gib = plan.temp_size_in_bytes / 2**30

  def check(self, base: '_Steps') -> None:
    """Compares the losses with those of the defaults.

    Raises:
      UserError: They differ.
    """
    for ours, theirs in zip(self._losses, base._losses, strict=True):
      if not abs(ours - theirs) <= _CLOSE * abs(theirs):  # also true for nan
        raise config_lib.UserError(
          f'losses {self._losses} and {base._losses} of the defaults differ:'
          ' what is not the same is not timed'
        )


def _in_turns(steps: _Steps, base: _Steps, blocks: int) -> Row:
  """Returns the rates of a candidate and of the defaults, and their ratio."""
  count = timing.steps_per_block([base.train, steps.train], _BLOCK_SECONDS)
  times = timing.in_turns(
    {
      'candidate': lambda: steps.train(count),
      'base': lambda: base.train(count),
    },
    blocks,
  )
  images = count * steps.images
  median = statistics.median(times['candidate'])
  return timing.compare(times['candidate'], times['base'], images) | {
    'milliseconds_per_step': 1e3 * median / count,
    'planned_gib': steps.planned_gib,
  }


def _key(row: Row) -> str:
  """Returns which measurement a row is."""
  return json.dumps([row.get(name) for name in _NAMES])


def _free() -> None:
  """Returns memory of models that no name leads to any more."""
  gc.collect()
  if 'torch' in sys.modules and jax.default_backend() == 'gpu':
    sys.modules['torch'].cuda.empty_cache()


def _progress(workdir: pathlib.Path) -> Row:
  """Returns the last step of a run, its rate and its metrics."""
  path, row = workdir / 'metrics.jsonl', Row()
  lines = path.read_text().splitlines() if path.exists() else []
  for line in lines:
    # The run may be writing the last one.
    with contextlib.suppress(json.JSONDecodeError):
      row |= json.loads(line)
  return _results(row)


def _results(row: Row) -> Row:
  names = ('step', 'train/images_per_second', 'train/loss')
  return {
    key: value
    for key, value in row.items()
    if key in names or key.startswith(('val/', 'test/'))
  }


def _facts() -> dict[str, Any]:
  """Returns facts about the machine and the versions."""
  device = jax.devices()[0]
  peak = hardware.peak_flops(device)
  return {
    'date': datetime.date.today().isoformat(),
    'device': device.device_kind,
    'jax': jax.__version__,
    'cores': batches.num_cores(),
    'peak_tflops': peak and peak / 1e12,
    'matmul_tflops': timing.matmul_flops('bfloat16') / 1e12,
  }


def markdown(report: Row) -> str:
  """Returns a report as a Markdown table."""
  rate = 'MFU' if report['peak_tflops'] else 'of the products'
  names = (
    *('what', 'model', 'batch', 'choices', 'images/s (least - most)', rate),
    *('against', 'its images/s', 'ratio (least - most)'),
  )
  lines = [
    f'{report["device"]}, {report["cores"]} cores, JAX {report["jax"]},'
    f' {report["date"]}; products of bfloat16 matrices at'
    f' {report["matmul_tflops"]:.4g} TFLOP/s.',
    '',
    *tables.Table(names, map(_cells, report['rows'])).markdown(),
  ]
  return '\n'.join(lines) + '\n'


def _cells(row: Row) -> tuple[str, ...]:
  names = 'changes', 'options'
  chosen: Row = {key: row[key] for key in names if key in row}
  against, size = row.get('against', ''), str(row.get('batch_size', ''))
  what = ' '.join(str(row[key]) for key in ('what', 'name') if key in row)
  first = what, row['model'], size, _list(chosen)
  if 'problem' in row:
    return (*first, row['problem'], '', against, '', '')
  if row['what'] == 'profile':
    kinds = (f'{kind} {ms:.1f}' for kind, ms in row['kinds'].items())
    return (
      *first,
      f'{row["milliseconds"]:.1f} ms: {", ".join(kinds)}',
      '',
      '',
      '',
      '',
    )
  if row['what'] == 'recipe':
    return (*first, _list(_results(row)), '', '', '', '')
  return (
    *first,
    _spread(row, 'images_per_second', 'range', ',.0f'),
    f'{row["mfu"]:.1%}' if 'mfu' in row else '',
    against,
    _spread(row, 'baseline', 'baseline_range', ',.0f'),
    _spread(row, 'ratio', 'ratio_range', '.2f'),
  )


def _spread(row: Row, key: str, ends: str, digits: str) -> str:
  """Returns `64 (63 - 65)`; '' if a row has no such number."""
  if key not in row:
    return ''
  low, high = row[ends]
  return f'{row[key]:{digits}} ({low:{digits}} - {high:{digits}})'


def _list(chosen: dict[str, Any]) -> str:
  pairs: list[tuple[str, Any]] = []
  for key, value in chosen.items():
    pairs += value.items() if isinstance(value, dict) else [(key, value)]
  return ', '.join(f'{key}={value}' for key, value in pairs)
