"""The rows of `gpu_report`: measurements of one model in one way."""

from collections.abc import Callable
import contextlib
import datetime
import functools
import json
import pathlib
import statistics
import tempfile
import time
from typing import Any

from absl import logging
import jax
import ml_collections

from benchmarks import measures
from benchmarks import setting as setting_lib
from benchmarks import timing
from vit_jax import config as config_lib
from vit_jax import tables
from vit_jax.data.host import batches
from vit_jax.parallel import hardware

Row = dict[str, Any]

_BLOCKS, _BLOCK_SECONDS = 10, 0.3
# Seconds that a measurement may take; none begins with less time left. On an
# H100 the comparison with timm took 81.
_LONGEST = 90.0
# Images in the folders that the rows share.
_IMAGES = 4096
# Fields of the fastest row that other rows take over.
_CHOICES = ('attention', 'scan', 'remat')


class Report(contextlib.AbstractContextManager['Report']):
  """Rows, written as they are measured; an error is the content of its row.

  Attributes:
    choices: Default fields of `setting.Setting` for all rows.
    rows: The rows measured so far.
  """

  def __init__(self, out: pathlib.Path, budget: float):
    """Starts the clock.

    Args:
      out: An existing directory.
      budget: Seconds until the last measurement ends.
    """
    self.choices: dict[str, Any] = {}
    self.rows: list[Row] = []
    self._out, self._stack = out, contextlib.ExitStack()
    self._end = time.monotonic() + budget
    self._folders: dict[tuple[int, int], str] = {}
    self._checked: set[str] = set()
    self._facts = _facts()

  def __exit__(self, *_: object) -> None:
    self._stack.close()

  def best(self, model: str) -> Row:
    """Returns the fastest training row of a model; {} if there is none.

    Rows with changes of the config or with compiler options do not count, since
    no other row has these.
    """
    rows = [
      row
      for row in self.rows
      if row['model'] == model
      and row['what'] == 'train'
      and 'mfu' in row
      and not row.get('changes')
      and not row.get('options')
    ]
    return max(rows, key=lambda row: row['images_per_second'], default={})

  def choose(self, model: str) -> None:
    """Makes attention, scan and remat of a model's fastest row the default.

    Without such a row, the choices stay as they are.
    """
    row = self.best(model)
    self.choices |= {key: row[key] for key in _CHOICES if key in row}

  def train(
    self,
    model: str,
    batch_size: int,
    changes: dict[str, Any] | None = None,
    options: dict[str, Any] | None = None,
    **choices: Any,
  ) -> None:
    """Measures training steps.

    Args:
      model: Name of the model.
      batch_size: Number of images in a step.
      changes: Changed values of the config by key.
      options: Compiler options.
      **choices: Fields of `setting.Setting`.
    """
    said = choices | {'changes': changes or {}} | {'options': options or {}}

    def measure() -> Row:
      bench = self._bench(model, batch_size, changes, options, **choices)
      return self._rate(bench, bench.ours.train, 'step')

    self._row('train', model, batch_size, said, measure)

  def infer(self, model: str, batch_size: int) -> None:
    """Measures forward passes."""

    def measure() -> Row:
      bench = self._bench(model, batch_size)
      return self._rate(bench, bench.ours.forward, 'forward')

    self._row('infer', model, batch_size, {}, measure)

  def against_timm(self, model: str, batch_size: int) -> None:
    """Measures inference and training in turns with timm's model."""

    @functools.cache
    def bench() -> Any:
      result = self._bench(model, batch_size, compare='timm')
      result.check()
      return result

    for part in ('infer', 'train'):

      def measure(part: str = part) -> Row:
        return getattr(bench(), part)()

      self._row(part, model, batch_size, {'against': 'timm'}, measure)

  def loop(
    self, model: str, batch_size: int, changes: dict[str, Any] | None = None
  ) -> None:
    """Measures the whole loop, from files, in turns with the bare step."""

    def measure() -> Row:
      bench = self._bench(model, batch_size, changes)
      entry = bench.end_to_end()
      return entry | {'cores': batches.num_cores()}

    said = {'changes': changes or {}}
    self._row('end_to_end', model, batch_size, said, measure)

  def _row(
    self,
    what: str,
    model: str,
    batch_size: int,
    said: dict[str, Any],
    measure: Callable[[], Row],
  ) -> None:
    """Adds a row and writes all rows; an error is the result of its row."""
    row: Row = {'what': what, 'model': model, 'batch_size': batch_size}
    row |= self.choices | {key: x for key, x in said.items() if x}
    if time.monotonic() + _LONGEST > self._end:
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
    logging.info('%s', row)
    self.rows.append(row)
    report = self._facts | {'rows': self.rows}
    (self._out / 'report.json').write_text(json.dumps(report, indent=1))
    (self._out / 'report.md').write_text(markdown(report))

  def _bench(
    self,
    model: str,
    batch_size: int,
    changes: dict[str, Any] | None = None,
    options: dict[str, Any] | None = None,
    compare: str = 'baseline',
    **choices: Any,
  ) -> Any:
    """Returns a `measures.Bench` after checking two layers of its model."""
    fields = {'dtype': 'bfloat16'} | self.choices | choices
    parts = (model, fields, changes or {}, options or {})
    checked = json.dumps(parts, sort_keys=True)
    if checked not in self._checked:
      small = self._config(model, 8, changes, fields)
      small.model.depth = 2
      twin = measures.Bench(small, _BLOCKS, matmul_flops=1.0)
      twin.ours.compiler_options = options or {}
      twin.check()
      self._checked.add(checked)
    bench = measures.Bench(
      self._config(model, batch_size, changes, fields),
      _BLOCKS,
      self._facts['matmul_tflops'] * 1e12,
      compare,
      torch_compile=compare != 'baseline',
    )
    bench.ours.compiler_options = options or {}
    return bench

  def _config(
    self,
    model: str,
    batch_size: int,
    changes: dict[str, Any] | None,
    fields: dict[str, Any],
  ) -> ml_collections.ConfigDict:
    small = model == setting_lib.TUTORIAL
    size = setting_lib.SMALL if small else setting_lib.PHOTOGRAPH
    setting = setting_lib.Setting(
      model=model, batch_size=batch_size, data=self._data(size), **fields
    )
    with setting.changes() as all_changes:
      return setting_lib.config(all_changes | (changes or {}))

  def _data(self, size: tuple[int, int]) -> str:
    """Returns `data.name` of photographs of one size, shared by all rows."""
    if size not in self._folders:
      folder = self._stack.enter_context(tempfile.TemporaryDirectory())
      self._folders[size] = setting_lib.write_images(
        pathlib.Path(folder), _IMAGES, size
      )
    return self._folders[size]

  def _rate(
    self, bench: Any, function: Callable[[int], Any], pass_: str
  ) -> Row:
    steps = timing.steps_per_block([function], _BLOCK_SECONDS)
    times = timing.in_turns({'': lambda: function(steps)}, _BLOCKS)['']
    images = steps * bench.experiment.config.train.batch_size
    flops = getattr(bench.experiment.program.flops, pass_) * steps
    achieved = flops / statistics.median(times)
    peak = hardware.peak_flops(jax.devices()[0])
    return timing.summarize(times, images) | {
      'tflops': achieved / 1e12,
      'mfu': achieved / (peak or bench.matmul_flops),
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
  chosen = {
    key: row[key] for key in (*_CHOICES, 'changes', 'options') if key in row
  }
  against = row.get('against', '')
  first = row['what'], row['model'], str(row['batch_size']), _list(chosen)
  if 'problem' in row:
    return (*first, row['problem'], '', against, '', '')
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
