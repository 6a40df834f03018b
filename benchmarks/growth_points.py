"""The points of `growth`: one training step of one size."""

from collections.abc import Mapping
from collections.abc import Sequence
import math
import pathlib
import statistics
from typing import Any

from absl import logging
import jax
import numpy as np

from benchmarks import processes
from benchmarks import setting as setting_lib
from benchmarks import timing
from benchmarks.peers import ours
from vit_jax import config as config_lib
from vit_jax import optim
from vit_jax import tables
from vit_jax.objectives import stand_in
from vit_jax.plots import canvas
from vit_jax.plots import charts
from vit_jax.plots import style
from vit_jax.train import program as program_lib

Point = dict[str, float]

_PATCH = 16
# (height, width) in patches.
_GRIDS = {
  32: (4, 8),
  64: (8, 8),
  128: (8, 16),
  256: (16, 16),
  512: (16, 32),
  1024: (32, 32),
  2048: (32, 64),
  4096: (64, 64),
}
AXES: Mapping[str, Sequence[int]] = {
  'depth': (1, 2, 4, 8, 16, 24),
  'width': (96, 192, 384, 768),
  'tokens': tuple(_GRIDS),
  'batch': (1, 2, 4, 8, 16, 32),
  'devices': (1, 2),
}
# Fixed sizes: ViT-Ti/16's.
_WIDTH, _HEAD, _BATCH = 192, 64, 8
# At 4,096 tokens, the attention of more images would take tens of GiB.
_BATCH_OF_TOKENS = 1
# Points for the exponent: the last ones, where constant costs no longer count.
_FITTED = 3
_MEMORY = {
  'temporary_mib': ('temporary memory', style.GREEN),
  'state_mib': ('parameters and optimizer state', style.PURPLE),
}


def measure(axis: str, blocks: int) -> list[Point]:
  """Returns the points of a curve.

  Args:
    axis: The quantity that grows, one of AXES.
    blocks: Number of timed blocks.
  """
  if axis == 'devices':
    return _devices(blocks)
  curve = []
  for value in AXES[axis]:
    curve.append({'value': value} | _step(axis, value, blocks))
    logging.info('%s: %s', axis, curve[-1])
  return curve


def _step(axis: str, value: int, blocks: int) -> Point:
  """Returns seconds, GFLOP and MiB of a step."""
  config = _config(axis, value)
  batch_sizes = {'batch': value, 'tokens': _BATCH_OF_TOKENS}
  config.train.batch_size = batch_sizes.get(axis, _BATCH)
  program = program_lib.create(
    config,
    stand_in.features(config),
    optim.Lengths(total=10**6),
  )
  training = ours.Training(program, program.initialise(None), _batch(program))
  plan = training.compiled_step.memory_analysis()
  count = timing.steps_per_block([training.train], seconds=0.3)
  times = timing.in_turns({'': lambda: training.train(count)}, blocks)['']
  loss = training.train(1)
  if not math.isfinite(loss):
    raise config_lib.UserError(f'{axis} {value}: the loss is {loss}')
  return {
    'seconds': statistics.median(times) / count,
    'least_seconds': min(times) / count,
    'most_seconds': max(times) / count,
    'gflop': program.flops.step / 1e9,
    'state_mib': plan.alias_size_in_bytes / 2**20,
    'temporary_mib': plan.temp_size_in_bytes / 2**20,
  }


def _batch(program: program_lib.Program) -> Any:
  """Returns a batch of random images on the devices."""
  shapes, rng = program.abstract_batch(), np.random.default_rng(0)
  size = shapes['label'].shape[0]
  batch = {
    'image': rng.integers(0, 256, shapes['image'].shape, np.uint8),
    'label': rng.integers(0, 10, size, np.int32),
    'valid': np.ones(size, np.bool_),
    'index': np.arange(size, dtype=np.int32),
  }
  return jax.device_put(batch, jax.tree.map(lambda x: x.sharding, shapes))


def _config(axis: str, value: int) -> Any:
  width = value if axis == 'width' else _WIDTH
  grid = _GRIDS[value] if axis == 'tokens' else (14, 14)
  changes = {
    'model.name': f'ViT-Ti/{_PATCH}',
    'model.hidden_size': width,
    'model.mlp_dim': 4 * width,
    'model.num_heads': max(1, width // _HEAD),
    'model.depth': value if axis == 'depth' else 12,
    'model.pool': 'mean',
    'model.scan': True,
    'model.num_classes': 10,
    'model.dropout_rate': 0.0,
    'data.image_size': (grid[0] * _PATCH, grid[1] * _PATCH),
    'data.source_size': None,
    'mesh.data': 1,
  }
  return setting_lib.config(changes)


def _devices(blocks: int) -> list[Point]:
  """Returns the seconds of the tutorial's step on one device, and on two."""
  with setting_lib.Setting().changes() as changes:
    config = setting_lib.config(changes)
    entry = processes.parallel(config, blocks)
  rates = entry['baseline'], entry['images_per_second']
  return [
    {'value': count, 'seconds': config.train.batch_size / rate, 'gflop': 1.0}
    for count, rate in zip(AXES['devices'], rates, strict=True)
  ]


def exponent(curve: Sequence[Point], key: str) -> float:
  """Returns the slope at the upper end of a curve, on logarithmic axes."""
  points = curve[-_FITTED:]
  x = np.log([point['value'] for point in points])
  y = np.log([point[key] for point in points])
  return float(np.polyfit(x, y, 1)[0])


def table(curves: Mapping[str, Sequence[Point]]) -> str:
  """Returns curves as Markdown, with measured and expected exponents."""
  lines = []
  for axis, curve in curves.items():
    names = {'seconds': 'time', 'gflop': 'products'}
    if 'state_mib' in curve[0]:
      names |= {'state_mib': 'state', 'temporary_mib': 'temporary memory'}
    exponents = [
      f'{name} {exponent(curve, key):z.2f}' for key, name in names.items()
    ]
    columns = axis, 'ms a step', 'GFLOP/s', 'state, MiB', 'temporary, MiB'
    lines += [
      f'{axis}: exponents at the upper end: {", ".join(exponents)}',
      '',
      *tables.Table(columns, [_cells(axis, x) for x in curve]).markdown(),
      '',
    ]
  return '\n'.join(lines)


def _cells(axis: str, point: Point) -> tuple[str, ...]:
  rate = f'{point["gflop"] / point["seconds"]:.3g}'
  return (
    f'{point["value"]:,}',
    f'{1e3 * point["seconds"]:.4g}',
    '' if axis == 'devices' else rate,
    *(
      f'{point[key]:,.0f}' if key in point else ''
      for key in ('state_mib', 'temporary_mib')
    ),
  )


def plot(curves: Mapping[str, Sequence[Point]], path: pathlib.Path) -> None:
  """Writes a picture: time on the left, memory on the right, for each axis.

  Raises:
    UserError: matplotlib is not installed.
  """
  canvas.check()
  with canvas.style():
    figure = canvas.figure(800, 260 * len(curves))
    cells = figure.subplots(len(curves), 2, squeeze=False)
    for (left, right), (axis, curve) in zip(cells, curves.items(), strict=True):
      _plot_time(left, axis, curve)
      for key in _MEMORY:
        if key in curve[0]:
          y = [point[key] for point in curve]
          label, colour = _MEMORY[key]
          x = [point['value'] for point in curve]
          right.plot(x, y, 'o-', color=colour, label=label)
      canvas.make_log(right.yaxis)
      right.set_ylabel('memory (MiB)')
      for panel in (left, right):
        _finish(panel, axis, curve)
    entries = charts.legend_entries(figure.axes)
    place: Any = {'loc': 'outside upper left', 'ncols': 2, 'frameon': False}
    figure.legend(entries.values(), entries.keys(), **place)
    figure.savefig(path)


def _plot_time(cell: Any, axis: str, curve: Sequence[Point]) -> None:
  """Draws the time of a step, and how it would grow with its FLOP."""
  x = [point['value'] for point in curve]
  milliseconds = np.array([1e3 * point['seconds'] for point in curve])
  gflop = np.array([point['gflop'] for point in curve])
  expected = milliseconds[-1] * gflop / gflop[-1]
  cell.plot(x, milliseconds, 'o-', color=style.BLUE, label='time, measured')
  label = 'time, in proportion to the FLOP'
  cell.plot(x, expected, '--', color=style.RED, label=label)
  cell.set_ylabel('time per step (ms)')
  if axis == 'devices':  # expected to make no difference
    cell.set_ylim(0, 1.1 * milliseconds.max())
  else:
    canvas.make_log(cell.yaxis)


def _finish(cell: Any, axis: str, curve: Sequence[Point]) -> None:
  """Labels the x axis; removes a panel without lines."""
  if not cell.lines:
    cell.remove()
    return
  x = [point['value'] for point in curve]
  shown = x[::-2] if len(x) > 6 else x  # or the labels touch
  canvas.make_log(cell.xaxis)
  cell.set_xlabel(axis)
  cell.set_xticks(shown, [f'{value:,}' for value in shown], minor=False)
  cell.minorticks_off()
