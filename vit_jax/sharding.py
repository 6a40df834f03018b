"""Where arrays live: a mesh of devices, and global arrays over it.

The batch is split over the mesh's `data` axis and the train state is on every
device; `jit` inserts the communication.
"""

from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import AxisType
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec
import ml_collections
import numpy as np

from vit_jax import config as config_lib


def check(config: ml_collections.ConfigDict) -> None:
  """Checks that the devices are there and divide the batch.

  Raises:
    UserError: They are not, or do not.
  """
  available, wanted = jax.device_count(), config.mesh.data
  if wanted != -1 and not 1 <= wanted <= available:
    raise config_lib.UserError(
      f'config.mesh.data is {wanted}: there are {available} devices; -1 takes'
      ' all of them'
    )
  devices = available if wanted == -1 else wanted
  train = config.train
  part = train.batch_size // train.accumulation
  if part % devices:
    raise config_lib.UserError(
      f'config.train.batch_size={train.batch_size} in'
      f' {train.accumulation} part(s) does not divide over {devices} devices:'
      f' choose a multiple of {devices * train.accumulation}, or fewer devices'
      ' with config.mesh.data'
    )


def make_mesh(config: ml_collections.ConfigDict) -> Mesh:
  """Returns the mesh of `config.mesh`, with one axis, `data`."""
  devices = jax.devices()
  if config.mesh.data != -1:
    devices = devices[: config.mesh.data]
  # Auto: a Linen convolution does not type-check under Explicit axes.
  return jax.make_mesh(
    (len(devices),), ('data',), axis_types=(AxisType.Auto,), devices=devices
  )


def batch_sharding(mesh: Mesh) -> NamedSharding:
  """Splits the leading axis over the devices."""
  return NamedSharding(mesh, PartitionSpec('data'))


def state_sharding(mesh: Mesh) -> NamedSharding:
  """Keeps the same array on every device."""
  return NamedSharding(mesh, PartitionSpec())


def global_batch(
  batch: Mapping[str, np.ndarray], mesh: Mesh
) -> dict[str, jax.Array]:
  """Puts this host's rows of a batch into global arrays on the devices.

  Returns at once; the copy goes on in the background.
  """
  sharding = batch_sharding(mesh)
  return {
    name: jax.make_array_from_process_local_data(sharding, rows)
    for name, rows in batch.items()
  }


def split_rows(tree: Any, parts: int) -> Any:
  """Cuts global arrays [B, ...] into [parts, B / parts, ...].

  Part i takes rows i, i + parts, ...: each device keeps the rows that it has.
  """
  return jax.tree.map(
    lambda x: x.reshape(-1, parts, *x.shape[1:]).swapaxes(0, 1), tree
  )
