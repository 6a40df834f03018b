"""Keeps decoded images in memory, on the host or on the devices.

`config.data.cache` turns it on. Batches hold the same images in the same order
with and without a cache.
"""

from collections.abc import Callable
import dataclasses
import functools
import math
import time
from typing import TypeVar

from absl import logging
import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from vit_jax import config as config_lib
from vit_jax import data
from vit_jax.data import base
from vit_jax.data import features
from vit_jax.data import skipping
from vit_jax.data import sources
from vit_jax.data.host import batches as batches_lib
from vit_jax.data.host import levels as levels_lib
from vit_jax.parallel import memory
from vit_jax.parallel import mesh as mesh_lib

Batch = dict[str, jax.Array]
_T = TypeVar('_T')

_READ_SIZE = 256  # number of images that are decoded as one batch


@dataclasses.dataclass(frozen=True)
class Cache(sources.Splits):
  """The splits of an experiment, decoded and kept as `data.cache` says.

  'host' replaces the sources by arrays in memory. With 'device' the sources
  stay, and each device of the mesh holds all examples: the host sends
  positions, and `take` gathers the batch on the devices.
  """

  def load(self) -> 'Cache':
    """Returns a cache that holds all images, read and decoded."""
    self.check()
    if self.config.data.cache == 'host':
      return dataclasses.replace(self, splits=self._decode(lambda x: x))
    sharding = mesh_lib.replicated(self.mesh)

    def place(source: base.ArraySource) -> Batch:
      arrays = {**source.arrays, 'index': source.indices}
      examples = {
        name: jax.make_array_from_process_local_data(sharding, x, x.shape)
        for name, x in arrays.items()
      }
      return jax.block_until_ready(examples)  # on each device

    return dataclasses.replace(self, on_devices=self._decode(place))

  def take(self, split: str, batch: Batch) -> Batch:
    """Returns the batch of a step, gathered on the devices.

    `batch` has `position`, int32 [B] or [steps, B]: positions in the source;
    the source's length marks padding. The result has the features, valid and
    index, as in `data.train_batches`, sharded over the mesh.
    """
    position = batch['position']
    return self._take[position.ndim - 1](self.on_devices[split], position)

  def check(self) -> None:
    """Checks that the images fit where they are to be kept."""
    cache_kind = self.config.data.cache
    for name, source in self.splits.items():
      if source.image_shape is None:
        raise config_lib.UserError(
          f'config.data.cache={cache_kind} keeps images of one size, but'
          f' those for {name} differ: say config.data.source_size=(height,'
          ' width) if they do not, or set config.data.cache=none'
        )
    for place, free, needed in self._rooms():
      if needed > free:
        raise config_lib.UserError(
          f'config.data.cache={cache_kind}: the images take'
          f' {needed / 2**30:.1f} GiB of {place}, {(needed - free) / 2**30:.1f}'
          ' GiB more than is free: set config.data.cache=none, or train on a'
          ' slice, as config.data.split=train[:10%]'
        )

  def bytes_on_device(self) -> int:
    """Returns the bytes of a device's memory that the images take."""
    size = sum(map(self._num_bytes, self._distinct.values()))
    on_host = self.mesh.devices.flat[0].platform == 'cpu'
    if self.config.data.cache == 'device':
      return size
    # The devices of a CPU share the host's memory.
    return size // len(self.mesh.local_devices) if on_host else 0

  def _decode(self, place: Callable[[base.ArraySource], _T]) -> dict[str, _T]:
    decoded = {
      key: place(decode_split(source, self.config))
      for key, source in self._distinct.items()
    }
    return {name: decoded[id(source)] for name, source in self.splits.items()}

  @property
  def _distinct(self) -> dict[int, base.Source]:
    """Sources by identity, so that a split with several uses is kept once."""
    return {id(source): source for source in self.splits.values()}

  @functools.cached_property
  def _take(self) -> list[Callable[[Batch, jax.Array], Batch]]:
    """Compiled `_take_rows`, for one step and for several."""
    shardings = [mesh_lib.batch_sharding(self.mesh, x) for x in (False, True)]
    return [jax.jit(_take_rows, out_shardings=x) for x in shardings]

  def _num_bytes(self, source: base.Source) -> int:
    """Returns the size of decoded images; 0 if they are not kept."""
    if source.image_shape is None:
      return 0
    itemsize = levels_lib.from_config(self.config).dtype.itemsize
    pixels = len(source) * math.prod(source.image_shape)
    maps = features.maps(source.features).values()
    pixel_bytes = self.config.data.channels * itemsize
    return pixels * (pixel_bytes + sum(x.dtype.itemsize for x in maps))

  def _rooms(self) -> list[tuple[str, int, int]]:
    """Returns (name, free bytes, needed bytes) of each memory to check."""
    sizes = {key: self._num_bytes(x) for key, x in self._distinct.items()}
    decoded = [  # the others are in memory already
      sizes[key]
      for key, source in self._distinct.items()
      if not isinstance(source, base.ArraySource)
    ]
    free = memory.free_on_host()
    if self.config.data.cache == 'host':
      return [('memory', free, sum(decoded))]
    # The host holds one split at a time while it is copied.
    size, passing = sum(sizes.values()), max(decoded, default=0)
    devices = self.mesh.local_devices
    rooms = [
      (f'{d.device_kind} {d.id}', s['bytes_limit'] - s['bytes_in_use'], size)
      for d in devices
      if 'bytes_limit' in (s := d.memory_stats() or {})
    ]
    if rooms:
      return [('memory', free, passing), *rooms]
    # CPU devices have the host's memory.
    return [('memory', free, size * len(devices) + passing)]


def _take_rows(examples: Batch, position: jax.Array) -> Batch:
  """Returns rows of arrays [N, ...]; zeros and index -1 for positions >= N."""
  valid = position < len(examples['index'])
  batch = {
    name: jnp.take(x, position, axis=0, mode='fill', fill_value=0)
    for name, x in examples.items()
  }
  return batch | {'valid': valid, 'index': jnp.where(valid, batch['index'], -1)}


def decode_split(
  source: base.Source, config: ml_collections.ConfigDict
) -> base.ArraySource:
  """Returns a split, of images of one size, decoded in the host's memory."""
  targets = features.targets(source.features) | features.maps(source.features)
  image = source.features['image']
  if not isinstance(source, base.ArraySource):
    arrays = _read_all(source, config)
    return base.ArraySource(arrays, arrays['index'], targets, image)
  levels = levels_lib.from_config(config)
  images = levels.keep(source.arrays['image'], config.data.name)
  if images is source.arrays['image']:
    return source
  arrays = source.arrays | {'image': images}
  return base.ArraySource(arrays, source.indices, targets, image)


def _read_all(
  source: base.Source, config: ml_collections.ConfigDict
) -> dict[str, np.ndarray]:
  """Returns the features and `index` of all examples, arrays [N, ...]."""
  assert source.image_shape is not None  # so views do not matter
  start, size = time.perf_counter(), len(source)
  dtype = levels_lib.from_config(config).dtype
  example = batches_lib.example_shapes(
    source.features, {}, config.data.channels, dtype, is_training=True
  )
  arrays = {
    name: np.empty((size, *shape), dtype)
    for name, (shape, dtype) in example.items()
  }
  arrays['index'] = np.empty(size, np.int32)
  first = 0
  try:
    for batch in data.eval_batches(source, config, batch_size=_READ_SIZE):
      rows = slice(first, min(first + _READ_SIZE, size))
      first, count = rows.stop, rows.stop - rows.start
      for name, array in arrays.items():
        array[rows] = batch[name][:count]
  except base.DamagedError as e:
    advice = skipping.advice(config, source.features)
    raise config_lib.UserError(f'{e}{advice}') from None
  logging.info(
    'decoded %s of %s in %.1f s: %.1f MiB',
    config_lib.counted(size, 'image'),
    config.data.name,
    time.perf_counter() - start,
    arrays['image'].nbytes / 2**20,
  )
  return arrays
