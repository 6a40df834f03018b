"""The mesh of devices, and how batches are split over it.

The mesh has three axes. `data` and `fsdp` split the batch; `fsdp` also splits
the train state, and `tensor` splits the heads and the MLP of each layer. The
module `sharding` says which dimension of each parameter is split.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import functools
import math
from typing import Any
from typing import cast

import jax
from jax.sharding import AxisType
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec
import ml_collections
import numpy as np

from vit_jax import config as config_lib

AXES = ('data', 'fsdp', 'tensor')
BATCH_AXES = ('data', 'fsdp')
# On CPUs each device would run independent collectives concurrently, in any
# order, on threads that all devices share. With too few threads that is a
# deadlock.
_IN_ORDER = {'xla_cpu_enable_concurrency_optimized_scheduler': False}
# On CPUs, matrix products are Eigen's: two of them, or one and what does not
# depend on it, share the cores better than YNNPACK's, the default of JAX 0.10.
# The list is of what stays with YNNPACK. Later versions are not measured.
_EIGEN = {
  'xla_cpu_experimental_ynn_fusion_type': (
    'LIBRARY_FUSION_TYPE_REDUCE,LIBRARY_FUSION_TYPE_INDIVIDUAL_CONVOLUTION'
  )
}
_HAS_EIGEN = (0, 10) <= jax.__version_info__ < (0, 11)


def check(config: ml_collections.ConfigDict) -> None:
  """Checks that the devices of `config.mesh` exist and divide the batch."""
  shape = mesh_shape(config.mesh, jax.device_count())
  devices = math.prod(shape.values())
  if jax.process_count() > 1 and devices != jax.device_count():
    raise config_lib.UserError(
      f'config.mesh has {devices} devices, of {jax.device_count()} in'
      f' {jax.process_count()} processes: with several processes the mesh must'
      ' have them all; set config.mesh.data=-1'
    )
  host_part(make_mesh(config.mesh))
  ways = shape['data'] * shape['fsdp']
  batch_size = config.train.batch_size
  microbatches = config_lib.num_microbatches(config)
  if batch_size // microbatches % ways:
    raise config_lib.UserError(
      f'config.train.batch_size={batch_size} in'
      f' {config_lib.counted(microbatches, "microbatch")} does not'
      f' divide over {ways} devices (mesh: {show_shape(shape)}):'
      f' choose a multiple of {ways * microbatches}, or fewer devices with'
      ' config.mesh.data'
    )


def mesh_shape(
  config: ml_collections.ConfigDict, device_count: int
) -> dict[str, int]:
  """Returns the size of each axis of the mesh.

  Args:
    config: `config.mesh`; one axis may be -1, which takes all remaining
      devices.
    device_count: Number of devices of all processes.
  """
  shape = {axis: config[axis] for axis in AXES}
  open_axes = [axis for axis, size in shape.items() if size == -1]
  fixed = math.prod(size for size in shape.values() if size != -1)
  if len(open_axes) > 1 or min(shape.values()) < -1 or 0 in shape.values():
    raise config_lib.UserError(
      f'config.mesh is {show_shape(shape)}: sizes must be positive, and one'
      ' alone may be -1, all devices that are left'
    )
  if open_axes and not device_count % fixed:
    shape[open_axes[0]] = device_count // fixed
  elif open_axes or fixed > device_count:
    axes = ', '.join(f'{k}={v}' for k, v in shape.items() if v != -1)
    raise config_lib.UserError(
      f'config.mesh has {axes}: the platform has'
      f' {config_lib.counted(device_count, "device")}, and'
      f' {fixed} must {"divide them" if open_axes else "be at most that"}; -1'
      ' for one axis takes all that are left'
    )
  return shape


def show_shape(shape: Mapping[str, int]) -> str:
  """Returns a mesh's shape as 'data=2, fsdp=4, tensor=1'."""
  return ', '.join(f'{axis}={size}' for axis, size in shape.items())


def make_mesh(
  config: ml_collections.ConfigDict,
  devices: Sequence[jax.Device] | None = None,
) -> Mesh:
  """Returns the mesh that `config.mesh` describes: `data`, `fsdp`, `tensor`.

  Devices are sorted by TPU slice, then by process. So each process has
  consecutive rows of the batch, and the last axes, which communicate most,
  connect devices that are near each other. They are chosen from `devices`;
  None: all of JAX's devices.
  """
  devices = jax.devices() if devices is None else devices
  shape = mesh_shape(config, len(devices))

  def order(device: jax.Device) -> tuple[int, int, int]:
    slice_index = getattr(device, 'slice_index', None) or 0  # TPUs have it
    return slice_index, device.process_index, device.id

  devices = sorted(devices, key=order)[: math.prod(shape.values())]
  # Auto: a Linen convolution does not type-check under Explicit axes.
  return Mesh(
    np.array(devices).reshape(tuple(shape.values())),
    AXES,
    axis_types=(AxisType.Auto,) * len(AXES),
  )


def compiler_options(mesh: Mesh) -> dict[str, Any]:
  """Returns XLA's options for programs on a mesh."""
  device = mesh.devices.flat[0]
  if device.platform == 'cpu':
    options = _IN_ORDER if mesh.size > 1 else {}
    return options | _EIGEN if _HAS_EIGEN else options
  if mesh.size > 1 and device.platform == 'tpu':
    options = config_lib.wing('vit_jax.parallel.hardware:tpu_options')
    return dict(options(device))
  return {}


def peak_flops(mesh: Mesh) -> float | None:
  """Returns the peak of all devices' bfloat16 matrix products, in FLOP/s.

  It is None if their maker states none, as for CPUs.
  """
  device = mesh.devices.flat[0]
  if device.platform == 'cpu':
    return None
  peak = config_lib.wing('vit_jax.parallel.hardware:peak_flops')(device)
  return peak and float(peak * mesh.size)


def batch_sharding(mesh: Mesh, stacked: bool = False) -> NamedSharding:
  """Returns the sharding of a batch, which `data` and `fsdp` split.

  Stacked arrays are [steps, B, ...], batches of several steps.
  """
  steps = (None,) if stacked else ()
  return NamedSharding(mesh, PartitionSpec(*steps, BATCH_AXES))


def replicated(mesh: Mesh) -> NamedSharding:
  """Returns the sharding of an array that is replicated on every device."""
  return NamedSharding(mesh, PartitionSpec())


@functools.lru_cache
def host_part(mesh: Mesh) -> tuple[int, int]:
  """Returns which part of each batch this process reads: (index, count).

  If `tensor` splits a layer between processes, these processes read the same
  part of the batch.
  """
  ways = mesh.shape['data'] * mesh.shape['fsdp']
  rows = batch_sharding(mesh).addressable_devices_indices_map((ways,))
  indices = [x[0] for x in rows.values() if x is not None]
  parts = sorted({x.indices(ways)[0] for x in indices})
  count, remainder = divmod(ways, len(parts))
  index = parts[0] // len(parts)
  first = index * len(parts)
  if remainder or parts != list(range(first, first + len(parts))):
    raise config_lib.UserError(
      f'config.mesh gives process {jax.process_index()} the parts {parts} of'
      f' {ways} of each batch, which do not follow each other: make'
      ' config.mesh.tensor a divisor or a multiple of the devices of a process'
    )
  return index, count


def global_batch(
  batch: Mapping[str, np.ndarray], mesh: Mesh, stacked: bool = False
) -> dict[str, jax.Array]:
  """Puts this process's rows of a batch into global arrays on the devices.

  Returns at once; the arrays are copied in the background.

  Args:
    batch: Arrays [b, ...], the rows of this process; stacked [steps, b, ...].
    mesh: The mesh of devices.
    stacked: Whether the arrays are batches of several steps.
  """
  sharding = batch_sharding(mesh, stacked)
  _, count = host_part(mesh)

  def global_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    *steps, rows = shape[: 1 + stacked]
    return (*steps, rows * count, *shape[1 + stacked :])

  return {
    name: jax.make_array_from_process_local_data(
      sharding, rows, global_shape(rows.shape)
    )
    for name, rows in batch.items()
  }


def on_each_device(value: int, mesh: Mesh) -> jax.Array:
  """Returns int32 [devices]; this process's devices hold its `value`."""
  sharding = NamedSharding(mesh, PartitionSpec(AXES))
  return jax.make_array_from_callback(
    (mesh.size,), sharding, lambda _: np.full((1,), value, np.int32)
  )


def split_rows(tree: Any, parts: int) -> Any:
  """Splits global arrays [B, ...] into microbatches [parts, B / parts, ...].

  Microbatch i takes pairs of rows: the pairs i, i + parts, and so on. With this
  stride no device needs rows of another one, and the two images of a mixed pair
  stay together. If B / parts is odd, the microbatch takes single rows instead.
  """

  def split(x: jax.Array) -> jax.Array:
    unit = 1 if len(x) // parts % 2 else 2
    cut = x.reshape(-1, parts, unit, *x.shape[1:]).swapaxes(0, 1)
    return cut.reshape(parts, -1, *x.shape[1:])

  return jax.tree.map(split, tree)


def join_rows(x: jax.Array) -> jax.Array:
  """The inverse of `split_rows`: [parts, B / parts, ...] -> [B, ...]."""
  parts, unit = x.shape[0], 1 if x.shape[1] % 2 else 2
  cut = x.reshape(parts, -1, unit, *x.shape[2:]).swapaxes(0, 1)
  return cut.reshape(-1, *x.shape[2:])


def in_context(fn: Callable[..., Any], mesh: Mesh) -> Callable[..., Any]:
  """Wraps a function that jit traces, so that kernels see the mesh.

  The compiler cannot split a kernel, so a kernel asks the context for the mesh.
  """

  @functools.wraps(fn)
  def wrapped(*args: Any, **kwargs: Any) -> Any:
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
      return fn(*args, **kwargs)

  return wrapped


def keep_batch_split(
  fn: Callable[..., Any], mesh: Mesh, batch_size: int
) -> Callable[..., Any]:
  """Wraps a function that applies Linen modules to a batch.

  The output of each module is constrained to be split over the batch. Otherwise
  the compiler might gather activations instead of parameters. Inputs and output
  of a module with experts are split by these. The mesh is in the context.

  Args:
    fn: The function, which jit traces.
    mesh: The mesh of devices.
    batch_size: B; only outputs of shape [B, ...] are constrained, and outputs
      of several crops of each image, [B crops, ...].
  """
  fn = in_context(fn, mesh)
  if mesh.size == 1:
    return fn
  constrained = config_lib.wing('vit_jax.parallel.splitting:constrained')
  return cast(Callable[..., Any], constrained(fn, mesh, batch_size))
