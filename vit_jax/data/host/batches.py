"""Batches as a pure function of (seed, step).

    step      number of a global batch, from 0
    row       index of an example in its global batch, 0 to B - 1
    draw      step * B + row: numbers the examples of a whole run, and is part
              of the key of their random numbers
    turn      step * M + row % M: numbers the images of a whole run. A batch has
              M = ceil(B / R) images, each up to R times
              (`config.augment.repeats`); without repeats, turn = draw
    epoch     turn // N; each has its own permutation of the N examples
    position  index of an example in the source, 0 to N - 1

Nothing else affects the content of a batch: neither the number of hosts,
workers or threads, nor where a run was interrupted. Each host makes only its
own rows. Durations in a config count draws: '1 epochs' is N draws, which are
N / R images with repeats. With `config.data.balance` an epoch is not a
permutation: images of rare classes come several times, and some others do not
come (`balance.py`).
"""

from collections.abc import Callable
from collections.abc import Mapping
import dataclasses
import functools
import math
import os
from typing import Any

import ml_collections
import numpy as np

from vit_jax import config as config_lib
from vit_jax.config import UserError
from vit_jax.data import features
from vit_jax.data.base import ArraySource
from vit_jax.data.base import Source
from vit_jax.data.host import geometry
from vit_jax.data.host import levels as levels_lib
from vit_jax.data.host.prefetch import Batch
from vit_jax.data.host.prefetch import Batches

Views = Mapping[str, geometry.View]
# Draws the positions of an epoch, int64 [N], from its random numbers.
Order = Callable[[np.random.Generator], np.ndarray]

# Uses of the host's random numbers; the use follows the seed in their key.
_ORDER, _CROP, _BALANCE, _VALUE = range(4)

# Maximum memory of finished batches; two batches may wait even if larger.
_WAITING_BYTES = 2**30


def train_batches(
  source: Source,
  config: ml_collections.ConfigDict,
  *,
  start_step: int,
  num_steps: int,
  host_index: int = 0,
  host_count: int = 1,
  positions_only: bool = False,
  views: Views | None = None,
) -> Batches:
  """Returns this host's part of the global batches of a run, up to `num_steps`.

  Host h of H makes rows [h * B / H, (h + 1) * B / H). A batch of b = B / H rows
  has, by name:

    images: uint8 [b, height, width, C], or uint16 if 16 bits are kept. They are
      whole if all stored images have one size, else crops as the views say
    maps of classes: uint8 or uint16 [b, height, width], unless several crops
      are taken of an image
    other features of the source: [b, ...]
    valid: bool [b]
    index: int32 [b]

  With `positions_only` nothing is read, and a batch has only `position`, int32
  [b], positions in the source; the source's length marks padding. An image that
  cannot be read raises a UserError when the iterator reaches its batch.
  """
  rows = _host_rows(config.train.batch_size, host_index, host_count)
  maker = _train_maker(source, config, rows, views)
  steps = range(start_step, num_steps)
  return _start(maker, steps, config, positions_only)


def train_rows(
  source: Source,
  config: ml_collections.ConfigDict,
  step: int,
  rows: range,
  views: Views | None = None,
) -> Batch:
  """Returns some rows of one global batch, as `train_batches` would."""
  return _train_maker(source, config, rows, views)(step)


def _train_maker(
  source: Source,
  config: ml_collections.ConfigDict,
  rows: range,
  views: Views | None,
) -> 'BatchMaker':
  balance: Order | None = None
  if config.data.balance:
    sample = config_lib.wing('vit_jax.data.balance:make')
    balance = sample(source, config.data.balance).order
  return BatchMaker(
    source,
    config.data.channels,
    views or geometry.train_views(config),
    rows,
    config.train.batch_size,
    config.seed,
    levels_lib.from_config(config),
    config.augment.repeats,
    balance,
    foreground=config.augment.volume.foreground,
  )


def eval_batches(
  source: Source,
  config: ml_collections.ConfigDict,
  *,
  batch_size: int,
  host_index: int = 0,
  host_count: int = 1,
  positions_only: bool = False,
) -> Batches:
  """Returns this host's part of batches that hold each example once.

  The last batch is padded with rows whose `valid` is False, `index` is -1, and
  other values are zero. All hosts have the same number of batches, which are as
  of `train_batches`.
  """
  rows = _host_rows(batch_size, host_index, host_count)
  maker = BatchMaker(
    source,
    config.data.channels,
    geometry.eval_views(config),
    rows,
    batch_size,
    config.seed,
    levels_lib.from_config(config),
    in_order=True,
  )
  steps = range(-(-len(source) // batch_size))
  return _start(maker, steps, config, positions_only)


def _start(
  maker: 'BatchMaker',
  steps: range,
  config: ml_collections.ConfigDict,
  positions_only: bool,
) -> Batches:
  """Returns the batches of some steps; chooses numbers of threads, workers."""
  import grain

  if positions_only or isinstance(maker.source, ArraySource):  # nothing to read
    make = maker.positions_alone if positions_only else maker
    return Batches(make, steps, grain.ReadOptions(0, 0), num_workers=0)
  num_workers = min(config.data.num_workers, len(steps))
  threads = config.data.num_threads or max(
    1, num_cores() // max(1, num_workers)
  )
  shapes = image_shapes(maker.stored, maker.views, maker.channels)
  pixels = sum(map(math.prod, shapes.values()))
  batch_bytes = len(maker.rows) * pixels * maker.levels.dtype.itemsize
  waiting = max(2, min(2 * threads, _WAITING_BYTES // batch_bytes))
  options = grain.ReadOptions(min(threads, waiting), waiting)
  make = maker.on_one_core
  return Batches(make, steps, options, num_workers, batch_bytes)


def num_cores() -> int:
  """Returns the number of cores that this process may use."""
  if hasattr(os, 'sched_getaffinity'):  # respects limits such as a job's
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1


def _host_rows(batch_size: int, host_index: int, host_count: int) -> range:
  if batch_size % host_count:
    raise UserError(
      f'a batch of {batch_size} does not divide into {host_count} hosts:'
      ' change config.train.batch_size'
    )
  share = batch_size // host_count
  return range(host_index * share, (host_index + 1) * share)


@dataclasses.dataclass(frozen=True, eq=False)
class BatchMaker:
  """Makes this host's part of a global batch; each worker has a copy."""

  source: Source
  channels: int
  views: Views  # crops of each image, by name
  rows: range  # rows of the global batch that this host makes
  batch_size: int  # size of the global batch, B
  seed: int
  levels: levels_lib.Levels  # bits of the images that are kept
  repeats: int = 1  # as `config.augment.repeats`
  # Draws the order of an epoch, as `Balance.order`; None: all examples,
  # permuted.
  balance: Order | None = None
  in_order: bool = False  # whether each example comes once, for evaluation
  foreground: float = 0.0  # as `config.augment.volume.foreground`

  @property
  def image(self) -> features.Image:
    """The feature of the images."""
    return features.image(self.source.features)

  @property
  def stored(self) -> geometry.Size | None:
    """Size of all images where the device crops them; else None."""
    return self.image.whole_size(training=not self.in_order)

  @functools.cached_property
  def map_sizes(self) -> dict[str, geometry.Size]:
    """Sizes of an example's maps of classes in a batch, by name."""
    return map_sizes(self.stored, self.views, self.source.features)

  def crop_key(self, draw: int) -> tuple[int, ...]:
    """Returns the key of the random numbers that crop an example of a draw."""
    return self.seed, _CROP, draw

  def draws(self, step: int) -> np.ndarray:
    """Returns the draws of a step, int64 [b]."""
    return step * self.batch_size + np.asarray(self.rows, np.int64)

  def positions(self, step: int) -> np.ndarray:
    """Returns the positions of a step, int64 [b]; N or more is padding."""
    if self.in_order:
      return self.draws(step)
    size = len(self.source)
    # Rows r, r + M, r + 2 M, ... share an image, so the neighbours that mixing
    # pairs are different images.
    distinct = -(-self.batch_size // self.repeats)
    turns = step * distinct + np.asarray(self.rows, np.int64) % distinct
    positions = np.empty_like(turns)
    for epoch in np.unique(turns // size):
      now = turns // size == epoch
      order = _order(self.balance, self.seed, int(epoch), size)
      positions[now] = order[turns[now] % size]
    return positions

  def positions_alone(self, step: int) -> Batch:
    """Returns a batch that only holds positions."""
    positions = np.minimum(self.positions(step), len(self.source))
    return {'position': positions.astype(np.int32)}

  def on_one_core(self, step: int) -> Batch:
    """Returns the same as a call, while other cores make other batches."""
    import cv2  # not needed for decoded sources

    cv2.setNumThreads(1)
    return self(step)

  def __call__(self, step: int) -> Batch:
    """Returns a batch: zeros, filled where `valid` is True."""
    source, draws, positions = (
      self.source,
      self.draws(step),
      self.positions(step),
    )
    valid = positions < len(source)
    shapes = example_shapes(
      source.features,
      self.views,
      self.channels,
      self.levels.dtype,
      is_training=not self.in_order,
    )
    batch = {
      name: np.zeros((len(valid), *shape), dtype)
      for name, (shape, dtype) in shapes.items()
    }
    batch |= {'valid': valid, 'index': np.full(len(valid), -1, np.int32)}
    targets = features.targets(source.features)
    rows = np.flatnonzero(valid)
    if isinstance(source, ArraySource):  # decoded, and encoded
      positions = positions[rows]
      images = source.arrays['image'][positions]
      batch['image'][rows] = self.levels.keep(images, 'the data')
      for name in (*targets, *self.map_sizes):
        batch[name][rows] = source.arrays[name][positions]
      batch['index'][rows] = source.indices[positions]
      return batch
    fill = config_lib.wing(self.image.filler)(self, draws, batch)
    rows_of: dict[int, list[int]] = {}  # an image may come several times
    for i in rows.tolist():
      rows_of.setdefault(int(positions[i]), []).append(i)
    for position, example_rows in rows_of.items():
      example = source.read(position)
      if missing := sorted({'image', *targets} - example.values.keys()):
        raise UserError(
          f'{example.origin}: the values of the example have no'
          f' {" and no ".join(missing)}, which the features of'
          f' {type(source).__name__} declare'
        )
      fill(example, example_rows)
      batch['index'][example_rows] = example.index
      for name, target in targets.items():
        for i in example_rows:  # drawn anew for each row
          key = None if self.in_order else (self.seed, _VALUE, int(draws[i]))
          value = target.draw(example.values[name], key)
          batch[name][i] = target.encode(value, example.origin)
    return batch


@functools.lru_cache(maxsize=2)  # a batch may straddle two epochs
def _order(
  balance: Order | None, seed: int, epoch: int, size: int
) -> np.ndarray:
  """Returns the order of an epoch: its positions, int64 [N]."""
  if balance is not None:
    return balance(np.random.default_rng((seed, _BALANCE, epoch)))
  # The order depends on (seed, epoch) alone, so all hosts and a resumed run
  # compute the same one. Grain's own shuffle takes 20 us for each example.
  return np.random.default_rng((seed, _ORDER, epoch)).permutation(size)


def example_shapes(
  kinds: features.Features,
  views: Views,
  channels: int,
  dtype: np.dtype,
  is_training: bool,
) -> dict[str, tuple[tuple[int, ...], Any]]:
  """Returns the shape and type of each feature of an example in a batch."""
  stored = features.image(kinds).whole_size(is_training)
  images = image_shapes(stored, views, channels)
  maps, map_kinds = map_sizes(stored, views, kinds), features.maps(kinds)
  targets = features.targets(kinds)
  return {
    **{name: (shape, dtype) for name, shape in images.items()},
    **{name: (size, map_kinds[name].dtype) for name, size in maps.items()},
    **{name: (x.shape, x.dtype) for name, x in targets.items()},
  }


def image_shapes(
  stored: geometry.Size | None, views: Views, channels: int
) -> dict[str, tuple[int, ...]]:
  """Returns the shapes of images by name: the `stored` one, or of crops."""
  if stored is not None:
    return {'image': (*stored, channels)}
  shapes = {}
  for name, view in views.items():
    count = () if view.count is None else (view.count,)
    shapes[name] = (*count, *view.crop.size, channels)
  return shapes


def map_sizes(
  stored: geometry.Size | None, views: Views, kinds: features.Features
) -> dict[str, geometry.Size]:
  """Returns the sizes of an example's maps of classes in a batch, by name.

  Maps follow the one crop of their image; they are left out of several.
  """
  if stored is None and not geometry.is_single(views):
    return {}
  size = stored or views['image'].crop.size
  return dict.fromkeys(features.maps(kinds), size)
