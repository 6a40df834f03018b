"""Keeps decoded images in memory, on the host or on the devices.

`config.data.cache` asks for it. A batch has the same images in the same order
as without: only where they are taken from differs.
"""

from collections.abc import Mapping
import math
import time

from absl import logging
import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from vit_jax import config as config_lib
from vit_jax import data
from vit_jax.data import base
from vit_jax.data import features
from vit_jax.data.host import levels as levels_lib
from vit_jax.parallel import memory
from vit_jax.parallel import mesh as mesh_lib

Batch = dict[str, jax.Array]

_READ_SIZE = 256  # images that are decoded as one batch


class OnDevices:
  """The examples of a split, on each device of a mesh."""

  def __init__(self, source: base.ArraySource, mesh: jax.sharding.Mesh):
    """Copies the examples to the devices, and waits until they are there.

    Args:
      source: Holds them; needed no more after that.
      mesh: Of devices.
    """
    arrays = {**source.arrays, 'index': source.indices}
    where = mesh_lib.replicated(mesh)
    self._examples = {
      name: jax.make_array_from_process_local_data(where, x, x.shape)
      for name, x in arrays.items()
    }
    jax.block_until_ready(self._examples)
    self._take = [
      jax.jit(_take, out_shardings=mesh_lib.batch_sharding(mesh, stacked))
      for stacked in (False, True)
    ]

  def take(self, position: jax.Array) -> Batch:
    """Returns batches.

    Args:
      position: Of examples in the source, int32 [B] or [steps, B]; its length:
        padding.

    Returns:
      The features, valid and index, as `data.train_batches` has them.
    """
    return self._take[position.ndim - 1](self._examples, position)


def _take(examples: Mapping[str, jax.Array], position: jax.Array) -> Batch:
  valid = position < len(examples['index'])
  batch = {
    name: jnp.take(x, position, axis=0, mode='fill', fill_value=0)
    for name, x in examples.items()
  }
  return batch | {'valid': valid, 'index': jnp.where(valid, batch['index'], -1)}


def check(
  config: ml_collections.ConfigDict,
  splits: Mapping[str, data.Source],
  mesh: jax.sharding.Mesh,
) -> None:
  """Checks that there is room for what `config.data.cache` asks for.

  Args:
    config: The full config.
    splits: To be kept, by what they are for.
    mesh: Of devices.

  Raises:
    UserError: The images of one differ in size, or there is too little memory:
      says by how much.
  """
  if config.data.cache == 'none':
    return
  for name, source in splits.items():
    if source.image_shape is None:
      raise config_lib.UserError(
        f'config.data.cache={config.data.cache} keeps images of one size, but'
        f' those for {name} differ: say config.data.source_size=(height,'
        ' width) if they do not, or set config.data.cache=none'
      )
  # A split that has several uses is kept once.
  sources = {id(source): source for source in splits.values()}
  sizes = {key: _num_bytes(source, config) for key, source in sources.items()}
  decoded = [  # others are in memory already
    sizes[key]
    for key, source in sources.items()
    if not isinstance(source, base.ArraySource)
  ]
  if config.data.cache == 'host':
    rooms = [('memory', memory.free_on_host(), sum(decoded))]
  else:  # on the host there is one split at a time
    passing = max(decoded, default=0)
    rooms = _rooms(mesh, sum(sizes.values()), passing)
  for place, free, needed in rooms:
    if needed > free:
      raise config_lib.UserError(
        f'config.data.cache={config.data.cache}: the images take'
        f' {needed / 2**30:.1f} GiB of {place}, {(needed - free) / 2**30:.1f}'
        ' GiB more than is free: set config.data.cache=none, or train on a'
        ' slice, as config.data.split=train[:10%]'
      )


def bytes_on_device(
  config: ml_collections.ConfigDict,
  splits: Mapping[str, data.Source],
  mesh: jax.sharding.Mesh,
) -> int:
  """Returns what the images that are kept take of each device, in bytes.

  Args:
    config: The full config.
    splits: To be kept, by what they are for.
    mesh: Of devices; those of a CPU share the host's memory.
  """
  sources = {id(x): x for x in splits.values() if x.image_shape is not None}
  size = sum(_num_bytes(x, config) for x in sources.values())
  on_host = mesh.devices.flat[0].platform == 'cpu'
  return {
    'none': 0,
    'host': size // len(mesh.local_devices) if on_host else 0,
    'device': size,
  }[config.data.cache]


def _num_bytes(source: data.Source, config: ml_collections.ConfigDict) -> int:
  assert source.image_shape is not None
  size = config.data.channels * levels_lib.of(config).dtype.itemsize
  return len(source) * size * math.prod(source.image_shape)


def _rooms(
  mesh: jax.sharding.Mesh, size: int, passing: int
) -> list[tuple[str, int, int]]:
  """Returns what images take: (place, free bytes, needed).

  Args:
    mesh: Of devices, each of which gets all images.
    size: Of these, in bytes.
    passing: What the host needs while they are copied, in bytes.
  """
  free, devices = memory.free_on_host(), mesh.local_devices
  stats = {d: d.memory_stats() or {} for d in devices}
  rooms = [
    (f'{d.device_kind} {d.id}', s['bytes_limit'] - s['bytes_in_use'], size)
    for d, s in stats.items()
    if 'bytes_limit' in s
  ]
  if rooms:
    return [('memory', free, passing), *rooms]
  # CPU devices have the host's memory.
  return [('memory', free, size * len(devices) + passing)]


def load(
  source: data.Source, config: ml_collections.ConfigDict
) -> base.ArraySource:
  """Reads and decodes all images of a split.

  Args:
    source: Its images have one size.
    config: The full config.

  Raises:
    UserError: An image cannot be read.
  """
  levels = levels_lib.of(config)
  targets = features.targets(source.features)
  if isinstance(source, base.ArraySource):
    images = levels.keep(source.arrays['image'], config.data.name)
    if images is source.arrays['image']:
      return source
    arrays = source.arrays | {'image': images}
    return base.ArraySource(arrays, source.indices, targets)
  assert source.image_shape is not None
  start, size = time.perf_counter(), len(source)
  shape = (size, *source.image_shape, config.data.channels)
  arrays = {
    'image': np.empty(shape, levels.dtype),
    'index': np.empty(size, np.int32),
    **features.empty(source.features, size),
  }
  first = 0
  for batch in data.eval_batches(source, config, batch_size=_READ_SIZE):
    rows = slice(first, min(first + _READ_SIZE, size))
    first, count = rows.stop, rows.stop - rows.start
    for name, array in arrays.items():
      array[rows] = batch[name][:count]
  logging.info(
    'decoded %d images of %s in %.1f s: %.1f MiB',
    size,
    config.data.name,
    time.perf_counter() - start,
    arrays['image'].nbytes / 2**20,
  )
  return base.ArraySource(arrays, arrays['index'], targets)
