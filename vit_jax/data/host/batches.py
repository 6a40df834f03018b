"""Batches as a pure function of (seed, step).

    step      number of a global batch, from 0
    row       place of an example in its global batch, 0 to B - 1
    draw      step * B + row: counts the examples of a whole run, and keys
              what is random about each
    turn      step * M + row % M: counts its images, of which a batch has
              M = ceil(B / R), each up to R times (`config.augment.repeats`);
              without repeats it is the draw
    epoch     turn // N; each is a permutation of its own of the N examples
    position  place of an example in the source, 0 to N - 1

Nothing else decides what a batch holds: not the number of hosts, workers or
threads, nor where a run was interrupted. Each host makes its rows alone. The
lengths of time in a config count draws: '1 epochs' are N draws, and with
repeats N / R images. With `config.data.balance` an epoch is no permutation, but
has images of rare classes several times, and of others not all (`balance.py`).
"""

import abc
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses
import functools
import gc
import math
import multiprocessing
import os
import signal
import threading
from typing import TYPE_CHECKING

from absl import flags
import cv2
import ml_collections
import numpy as np

from vit_jax.config import UserError
from vit_jax.data import balance as balance_lib
from vit_jax.data import features
from vit_jax.data.base import ArraySource
from vit_jax.data.base import Example
from vit_jax.data.base import Source
from vit_jax.data.host import decode
from vit_jax.data.host import geometry
from vit_jax.data.host import levels as levels_lib
from vit_jax.data.host import transforms

if TYPE_CHECKING:  # where it is used it is imported: prediction does without
  import grain

Batch = dict[str, np.ndarray]
Views = Mapping[str, geometry.View]

# What the host's random numbers are for; follows the seed.
_ORDER, _CROP, _BALANCE = range(3)

_MIN_SHARED_BYTES = 2**20  # workers send smaller arrays through a pipe
_WAITING_BYTES = 2**30  # of finished batches, at most (but two are allowed)


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
) -> 'Batches':
  """Returns this host's part of the global batches of a run.

  Args:
    source: What to train on.
    config: The full config.
    start_step: First batch.
    num_steps: One past the last batch: the length of the whole run.
    host_index: Which part: rows [h * B / H, (h + 1) * B / H).
    host_count: Number of parts, H.
    positions_only: Whether to say which examples alone, and read none.
    views: Crops of each image, by name, where images differ in size; None:
      one, `image`, as `config.data` says.

  Returns:
    An iterator of batches: image (uint8 [B / H, H, W, C], or uint16 where 16
    bits are kept, of the size that is stored where all images have one size,
    else of `data.image_size`), the source's other features ([B / H, ...], by
    name), valid (bool [B / H]) and index (int32 [B / H]). With
    `positions_only` of `position` (int32 [B / H]) instead: places in the
    source; its length is padding.

  Raises:
    UserError: The batch does not divide into the hosts. An image that cannot
      be read raises one when its batch is due.
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
  """Returns some rows of one global batch of a run, as `train_batches` would.

  Raises:
    UserError: An image cannot be read.
  """
  return _train_maker(source, config, rows, views)(step)


def _train_maker(
  source: Source,
  config: ml_collections.ConfigDict,
  rows: range,
  views: Views | None,
) -> '_TrainBatch':
  return _TrainBatch(
    source,
    config.data.channels,
    views or {'image': geometry.View(geometry.train_crop(config))},
    rows,
    config.train.batch_size,
    config.seed,
    levels_lib.of(config),
    config.augment.repeats,
    balance_lib.make(source, config.data.balance),
  )


def eval_batches(
  source: Source,
  config: ml_collections.ConfigDict,
  *,
  batch_size: int,
  host_index: int = 0,
  host_count: int = 1,
  positions_only: bool = False,
) -> 'Batches':
  """Returns this host's part of the batches that hold each example once.

  The last batch is padded: there `valid` is False, `index` is -1, and the rest
  is zero. All hosts have the same number of batches.

  Args:
    source: What to evaluate on.
    config: The full config.
    batch_size: Of all hosts together.
    host_index: Which part: rows [h * B / H, (h + 1) * B / H).
    host_count: Number of parts, H.
    positions_only: As `train_batches`.

  Returns:
    An iterator of batches, as `train_batches`.

  Raises:
    UserError: As `train_batches`.
  """
  rows = _host_rows(batch_size, host_index, host_count)
  maker = _EvalBatch(
    source,
    config.data.channels,
    {'image': geometry.View(geometry.eval_crop(config))},
    rows,
    batch_size,
    config.seed,
    levels_lib.of(config),
  )
  steps = range(-(-len(source) // batch_size))
  return _start(maker, steps, config, positions_only)


def _start(
  maker: '_TrainBatch | _EvalBatch',
  steps: range,
  config: ml_collections.ConfigDict,
  positions_only: bool,
) -> 'Batches':
  """Returns the batches of some steps, made by as many hands as fit."""
  import grain

  alone = grain.ReadOptions(0, 0)
  if positions_only:
    return Batches(maker.positions_alone, steps, alone, num_workers=0)
  if isinstance(maker.source, ArraySource):  # no waiting, no decoding
    return Batches(maker, steps, alone, num_workers=0)
  num_workers = min(config.data.num_workers, len(steps))
  threads = config.data.num_threads or max(
    1, num_cores() // max(1, num_workers)
  )
  pixels = sum(map(math.prod, maker.image_shapes.values()))
  batch_bytes = len(maker.rows) * pixels * maker.levels.dtype.itemsize
  waiting = max(2, min(2 * threads, _WAITING_BYTES // batch_bytes))
  options = grain.ReadOptions(min(threads, waiting), waiting)
  return Batches(maker, steps, options, num_workers)


def image_shapes(
  stored: geometry.Size | None, views: Views, channels: int
) -> dict[str, tuple[int, ...]]:
  """Returns the shapes of an example's images in a batch, by name.

  Args:
    stored: (height, width) of all stored images, which then come whole; None:
      they differ, and come cropped.
    views: Crops of each image, by name.
    channels: Of the images.
  """
  if stored is not None:
    return {'image': (*stored, channels)}
  return {
    name: (
      *(() if view.count is None else (view.count,)),
      *view.crop.size,
      channels,
    )
    for name, view in views.items()
  }


def num_cores() -> int:
  """Returns the number of cores that this process may use."""
  if hasattr(os, 'sched_getaffinity'):  # not all of the machine may be ours
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
class _BatchMaker(abc.ABC):
  """Makes this host's part of a global batch; each worker has a copy."""

  source: Source
  channels: int
  views: Views
  rows: range
  batch_size: int
  seed: int
  levels: levels_lib.Levels
  repeats: int = 1
  balance: balance_lib.Balance | None = None

  @functools.cached_property
  def image_shapes(self) -> dict[str, tuple[int, ...]]:
    """Shapes of an example's images in a batch, by name."""
    return image_shapes(self.source.image_shape, self.views, self.channels)

  def draws(self, step: int) -> np.ndarray:
    """Returns the draws of a step, int64 [b]."""
    return step * self.batch_size + np.asarray(self.rows, np.int64)

  @abc.abstractmethod
  def positions(self, step: int) -> np.ndarray:
    """Returns which examples a step has, int64 [b]; others are padding."""

  def positions_alone(self, step: int) -> Batch:
    """Returns a batch that says which examples it has."""
    positions = np.minimum(self.positions(step), len(self.source))
    return {'position': positions.astype(np.int32)}

  def __call__(self, step: int) -> Batch:
    """Returns a batch."""
    source, draws = self.source, self.draws(step)
    positions = self.positions(step)
    n = len(positions)
    targets = features.targets(source.features)
    batch: Batch = {
      name: np.zeros((n, *shape), self.levels.dtype)
      for name, shape in self.image_shapes.items()
    }
    batch |= {
      **features.empty(source.features, n),
      'valid': positions < len(source),
      'index': np.full(n, -1, np.int32),
    }
    real = np.flatnonzero(batch['valid'])
    if isinstance(source, ArraySource):
      chosen = positions[real]
      images = source.arrays['image'][chosen]
      batch['image'][real] = self.levels.keep(images, 'the data')
      for name in targets:
        batch[name][real] = source.arrays[name][chosen]
      batch['index'][real] = source.indices[chosen]
      return batch
    cv2.setNumThreads(1)  # other cores make other batches
    for i in real.tolist():
      example = source.read(int(positions[i]))
      for name, pixels in self._pixels(example, int(draws[i])):
        batch[name][i] = pixels
      batch['index'][i] = example.index
      for name, target in targets.items():
        batch[name][i] = target.encode(example.values[name], example.where)
    return batch

  def _pixels(
    self, example: Example, draw: int
  ) -> Iterator[tuple[str, np.ndarray]]:
    """Yields an example's images by name, cropped unless the device does."""
    if self.source.image_shape is not None:
      yield 'image', self._whole(example)
      return
    number = 0
    for name, view in self.views.items():
      crops = []
      for _ in range(view.count or 1):
        seed = (self.seed, _CROP, draw, *([number] if number else []))
        crops.append(self._cut(example, view.crop, np.random.default_rng(seed)))
        number += 1
      yield name, crops[0] if view.count is None else np.stack(crops)

  def _cut(
    self, example: Example, crop: geometry.Crop, rng: np.random.Generator
  ) -> np.ndarray:
    return transforms.transform(
      example.image, self.channels, crop, rng, example.where, self.levels
    )

  def _whole(self, example: Example) -> np.ndarray:
    """Returns an image of the one size that all have."""
    assert isinstance(example.image, bytes)
    pixels = decode.decode(
      example.image, self.channels, where=example.where, levels=self.levels
    )
    if pixels.shape[:2] != self.source.image_shape:
      raise UserError(
        f'{example.where} has (height, width) {pixels.shape[:2]}, not the'
        f' {self.source.image_shape} of config.data.source_size'
      )
    return pixels


class _TrainBatch(_BatchMaker):
  def positions(self, step: int) -> np.ndarray:
    size = len(self.source)
    distinct = -(-self.batch_size // self.repeats)
    turns = step * distinct + np.asarray(self.rows, np.int64) % distinct
    positions = np.empty_like(turns)
    for epoch in np.unique(turns // size):
      now = turns // size == epoch
      order = _order(self.balance, self.seed, int(epoch), size)
      positions[now] = order[turns[now] % size]
    return positions


class _EvalBatch(_BatchMaker):
  def positions(self, step: int) -> np.ndarray:
    return self.draws(step)


@functools.lru_cache(maxsize=2)  # a batch may straddle two epochs
def _order(
  balance: balance_lib.Balance | None, seed: int, epoch: int, size: int
) -> np.ndarray:
  """Returns the order of an epoch: its positions, int64 [N]."""
  if balance is not None:
    return balance.order(np.random.default_rng((seed, _BALANCE, epoch)))
  # One lookup an example; Grain's own shuffle takes 20 us for each.
  return np.random.default_rng((seed, _ORDER, epoch)).permutation(size)


class Batches(Iterator[Batch]):
  """Batches that are made in the background, until `close` or the end."""

  def __init__(
    self,
    maker: Callable[[int], Batch],
    steps: range,
    options: 'grain.ReadOptions',
    num_workers: int,
  ):
    import grain

    # Elements are whole batches, so workers hand them over in order.
    dataset = (
      grain.MapDataset.range(steps.start, steps.stop)
      .map(maker)
      .to_iter_dataset(options)
    )
    if num_workers:
      if not flags.FLAGS.is_parsed():  # in a notebook; Grain asks for its flags
        flags.FLAGS.mark_as_parsed()
      dataset = grain.experimental.WithOptionsIterDataset(
        dataset.mp_prefetch(
          grain.MultiprocessingOptions(num_workers), _end_with_parent
        ),
        grain.experimental.DatasetOptions(min_shm_size=_MIN_SHARED_BYTES),
      )
    self._has_workers = num_workers > 0
    self._iterator: grain.DatasetIterator[Batch] | None = iter(dataset)

  def __next__(self) -> Batch:
    if self._iterator is None:
      raise StopIteration
    try:
      batch = next(self._iterator)
    except Exception:  # or the end
      self.close()
      raise
    if self._has_workers:  # frees the shared memory that it came in
      batch = {key: np.array(x, subok=False) for key, x in batch.items()}
    return batch

  def close(self) -> None:
    """Stops the threads and processes; there are no batches after that."""
    if self._iterator is None:
      return
    self._iterator.close()
    self._iterator = None
    if self._has_workers:
      gc.collect()  # Grain keeps shared memory in cycles of references


def _end_with_parent(*_: int) -> None:
  """Sees to it that a worker ends when its parent does, and not before."""
  # Terminals and launchers send these to all processes; the parent still needs
  # batches, or closes its workers, when it has decided what to do.
  for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
  parent = multiprocessing.parent_process()
  assert parent is not None

  def wait() -> None:
    parent.join()
    os._exit(1)  # its other threads wait for a queue that nobody reads

  threading.Thread(target=wait, daemon=True).start()
