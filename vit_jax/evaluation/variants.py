"""A model at several sizes: what each costs, and how right it is.

Sizes of the image and of the patch change a model's tokens; merging (ToMe,
arXiv:2210.09461) leaves out some of them in each layer. Quantization changes
the bytes of its kernels.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import functools
import math
import pathlib
import statistics
import time
from typing import Any

import jax
import numpy as np

from vit_jax import models
from vit_jax import tables
from vit_jax import weights
from vit_jax.config import UserError
from vit_jax.models import block as block_lib
from vit_jax.models import describing
from vit_jax.models import vit
from vit_jax.models.parts import as_class
from vit_jax.models.parts import merging
from vit_jax.plots import canvas
from vit_jax.plots import charts
from vit_jax.weights import quantized

CHANGES = ('image_size', 'patch_size', 'merge', 'quantize')  # what may differ
_ROUNDS = 7  # timed passes of each variant, in turn


def adapted(
  loaded: weights.Loaded, changes: Sequence[Mapping[str, Any]]
) -> list[weights.Loaded]:
  """Returns a model with each of several changes, its layers run in one way.

  Args:
    loaded: The model.
    changes: Arguments of `Loaded.adapted`, or `merge`, how many tokens an
      average layer merges. All changes have the same names.
  """
  overrides: dict[str, Any] = {}
  if 'merge' in changes[0]:  # leaves layers with different numbers of tokens
    overrides = {'scan': False}
  elif 'quantize' in changes[0] and quantized.can_scan(
    loaded.model, loaded.objective_params
  ):
    overrides = {'scan': True}  # as int8 would be by itself
  variants = []
  for change in changes:
    arguments = dict(change)
    if 'merge' in change and isinstance(loaded.model, vit.ViT):
      block = loaded.model.block
      if type(block) not in (block_lib.Block, merging.Merging):
        raise UserError(
          f'tokens cannot be merged in layers of {type(block).__name__}: that'
          " is of models whose config.model.block is 'block' or 'merging'"
        )
      merged = as_class(block, merging.Merging, merge=arguments.pop('merge'))
      model = loaded.model.clone(block=merged)
      arguments['block'] = describing.key_values(model)['block']
    variants.append(loaded.adapted(**arguments, **overrides))
  return variants


def rates(
  loaded: Sequence[weights.Loaded], batch_size: int, rounds: int = _ROUNDS
) -> list[float]:
  """Measures the images per second of models, which take turns.

  Images are on one device. The result is the median of the timed rounds; only
  the ratios of models are good to compare.
  """
  passes = []
  for variant in loaded:
    preprocess = variant.preprocess
    shape = (batch_size, *preprocess.image_size, preprocess.channels)
    images = np.random.default_rng(0).standard_normal(shape, np.float32)
    apply = jax.jit(
      lambda params, x, model=variant.model: model.apply({'params': params}, x)
    )
    arguments = jax.device_put((variant.params, images))
    passes.append(functools.partial(apply, *arguments))
  seconds: list[list[float]] = [[] for _ in passes]
  for turn in range(-1, rounds):  # the first one compiles
    for i, run in enumerate(passes):
      start = time.perf_counter()
      jax.block_until_ready(run())
      if turn >= 0:
        seconds[i].append(time.perf_counter() - start)
  return [batch_size / statistics.median(x) for x in seconds]


def measure(
  loaded: Sequence[weights.Loaded],
  changes: Sequence[Mapping[str, Any]],
  evaluate: Callable[[weights.Loaded], Mapping[str, Any]],
  draws: bool,
  batch_size: int,
) -> list[dict[str, Any]]:
  """Returns the sizes, the metrics and the speed of variants, one row each.

  If all rows have an accuracy, one of them may be the knee.

  Args:
    loaded: The variants, from `adapted`.
    changes: The changes that made each.
    evaluate: Returns the report of a model.
    draws: Whether the rows are for `draw`.
    batch_size: As for `rates`.
  """
  rows: list[dict[str, Any]] = []
  for variant, change in zip(loaded, changes, strict=True):
    metrics = {  # with their intervals
      name: x
      for name, x in evaluate(variant).items()
      if name not in ('k', 'confusion')
      and (
        x is None or isinstance(x, int | float) or name.endswith('_interval')
      )
    }
    if draws and metrics.get('accuracy') is None:
      raise UserError(
        '--plot draws the accuracy, which is not measured here: leave it out'
      )
    size = variant.preprocess.image_size
    row: dict[str, Any] = {'image_size': 'x'.join(map(str, size))}
    if patch := models.pixels_per_token(variant.model):
      row['patch_size'] = 'x'.join(map(str, patch))
      row['tokens'] = math.prod(weights.grid(variant.model, size))
    if 'merge' in change:
      row['merge'] = change['merge']
    if 'quantize' in change:
      row['quantize'] = change['quantize']
      everything = variant.params, variant.objective_params
      row['parameter_bytes'] = quantized.num_bytes(everything)
    rows.append(row | metrics)
  speeds, best = rates(loaded, batch_size), None
  if all(x.get('accuracy') is not None for x in rows):
    best = knee(speeds, [x['accuracy'] for x in rows])
  for i, (row, speed) in enumerate(zip(rows, speeds, strict=True)):
    row |= {'images_per_second': speed, 'knee': i == best}
  return rows


def draw(rows: Sequence[Mapping[str, Any]], path: pathlib.Path) -> None:
  """Writes the accuracy by images per second, as PNG and SVG.

  The rows, from `measure`, have `accuracy`. Intervals are drawn if all rows
  have them. `path` is without suffix.
  """
  canvas.check()
  differing = [name for name in CHANGES if len({x.get(name) for x in rows}) > 1]
  names = [
    ', '.join(f'{name.removesuffix("_size")} {x[name]}' for name in differing)
    for x in rows
  ]
  intervals = [x.get('accuracy_interval') for x in rows]
  with canvas.style():
    figure = charts.accuracy_by_speed(
      np.array([x['images_per_second'] for x in rows]),
      np.array([x['accuracy'] for x in rows]),
      np.array(intervals) if all(intervals) else None,
      names,
      next((i for i, x in enumerate(rows) if x.get('knee')), None),
    )
    canvas.save(figure, path)


def knee(speed: Sequence[float], quality: Sequence[float]) -> int | None:
  """Returns the point after which more speed costs more quality.

  Both are scaled to [0, 1]; the knee is the point that is farthest above the
  straight line from the slowest to the fastest one (Satopaa et al., Finding a
  "Kneedle" in a Haystack, 2011).

  Args:
    speed: Images per second, [N].
    quality: As the accuracy, [N]: more is better.

  Returns:
    Index of the point; None: no point is above the line.
  """
  order = np.argsort(speed)
  x, y = np.asarray(speed, float)[order], np.asarray(quality, float)[order]
  if len(x) < 3 or not x[-1] > x[0] or not np.ptp(y):
    return None
  across = (x - x[0]) / (x[-1] - x[0])
  above = (y - y[0] - across * (y[-1] - y[0])) / np.ptp(y)
  best = int(above.argmax())
  return int(order[best]) if above[best] > 1e-9 else None


def table(rows: Sequence[Mapping[str, Any]]) -> tables.Table:
  """Returns rows for people, with the intervals of rates.

  `rows` are from `measure`. A row with `knee` True is marked.
  """
  names = [
    name
    for name, x in rows[0].items()
    if name != 'knee' and (x is None or isinstance(x, int | float | str))
  ]
  cells = [
    [*(_cell(x, name) for name in names), 'the knee' if x.get('knee') else '']
    for x in rows
  ]
  return tables.Table([*(name.replace('_', ' ') for name in names), ''], cells)


def _cell(row: Mapping[str, Any], name: str) -> Any:
  value = row[name]
  low, high = row.get(f'{name}_interval') or (None, None)
  if low is not None:
    return f'{value:.4f} ({low:.4f} to {high:.4f})'
  return 'nan' if value is None else value
