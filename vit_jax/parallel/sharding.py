"""Where arrays live: a mesh of devices, and rules that lay arrays out on it.

The mesh has three axes. `data` and `fsdp` split the batch; `fsdp` splits the
train state too, so that each device keeps a part of it and gathers a layer's
parameters where it needs them (ZeRO, arXiv:1910.02054; FSDP,
arXiv:2304.11277); `tensor` splits the heads and the MLP of each layer
(Megatron-LM, arXiv:1909.08053, section 3). `jit` inserts the communication.

Which axis of the mesh splits which dimension of a parameter is said by rules,
pairs of a pattern and a spec: one entry for each dimension, None or the name of
an axis, or several. They speak of the parameters of an unrolled model, as
`blocks_3/mlp/up/kernel`; where layers are scanned, the stacked dimension comes
before and is not split. The optimizer's state and the average follow their
parameters.
"""

from collections.abc import Callable
from collections.abc import Mapping
import dataclasses
import functools
import itertools
import math
import re
from typing import Any

from clu import parameter_overview
from flax import linen as nn
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

# An entry of a spec, and a spec.
Entry = str | tuple[str, ...] | None
Spec = tuple[Entry, ...]

_DEFAULT = 'the default rule'

# The first that matches counts; what none matches is on every device. Heads
# have any number of classes, so that `tensor` does not split them.
DEFAULT_RULES: tuple[tuple[str, Spec], ...] = (
  (r'attention/qkv/kernel$', ('fsdp', None, 'tensor', None)),  # [D, 3, H, K]
  (r'attention/qkv/bias$', (None, 'tensor', None)),
  (r'(attention|map_head)/out/kernel$', ('tensor', None, 'fsdp')),  # [H, K, D]
  (r'map_head/query/kernel$', ('fsdp', 'tensor', None)),  # [D, H, K]
  (r'map_head/key_value/kernel$', ('fsdp', None, 'tensor', None)),
  # [T, M] and [M, T]: the number of tokens need not divide.
  (r'token_mlp/up/kernel$', (None, ('tensor', 'fsdp'))),
  (r'token_mlp/down/kernel$', (('tensor', 'fsdp'), None)),
  (r'mlp/up/kernel$', ('fsdp', 'tensor')),  # [D, M]
  (r'mlp/up/bias$', ('tensor',)),
  (r'mlp/down/kernel$', ('tensor', 'fsdp')),
  (r'(head|head_distillation|pre_logits)/kernel$', ('fsdp', None)),
  # [P, P, C, D], and convolutions [h, w, C, D].
  (
    r'(patch_embedding|conv\d*|conv_proj)/kernel$',
    (None, None, None, 'fsdp'),
  ),
  (r'(^|_)(position_embedding|tokens?)$', (None, None, 'fsdp')),  # [1, T, D]
)


def check(config: ml_collections.ConfigDict) -> None:
  """Checks `config.mesh`, that the devices are there, and divide the batch.

  Raises:
    UserError: They are not, or do not.
  """
  for i, rule in enumerate(config.mesh.rules):
    _check_rule(rule, f'config.mesh.rules[{i}]')
  config_lib.at_least(config, 'mesh.min_size', 0)
  shape = mesh_shape(config.mesh, jax.device_count())
  devices = math.prod(shape.values())
  if jax.process_count() > 1 and devices != jax.device_count():
    raise config_lib.UserError(
      f'config.mesh has {devices} devices, of {jax.device_count()} in'
      f' {jax.process_count()} processes: with several processes the mesh must'
      ' have them all; set config.mesh.data=-1'
    )
  host_part(make_mesh(config.mesh))
  batch_size, parts = config.train.batch_size, config_lib.num_parts(config)
  ways = shape['data'] * shape['fsdp']
  if batch_size // parts % ways:
    raise config_lib.UserError(
      f'config.train.batch_size={batch_size} in {parts} part(s) does not divide'
      f' over {ways} devices (mesh: {show_shape(shape)}): choose a multiple of'
      f' {ways * parts}, or fewer devices with config.mesh.data'
    )


def _check_rule(rule: Any, key: str) -> None:
  """Raises a UserError where a rule is not a pattern and a spec."""
  example = "as in --config.mesh.rules=\"(('^head/kernel$', (None, 'fsdp')),)\""
  is_pair = isinstance(rule, tuple | list) and len(rule) == 2
  if not is_pair or not isinstance(rule[1], tuple | list):
    raise config_lib.UserError(
      f'{key} is {rule!r}: it must be a pattern and, for each dimension, None'
      f' or an axis of the mesh, {example}'
    )
  try:
    re.compile(rule[0])
  except (re.error, TypeError) as e:
    raise config_lib.UserError(
      f'{key}: {rule[0]!r} is no regular expression: {e}'
    ) from None
  axes = [axis for entry in rule[1] for axis in entry_axes(entry)]
  for axis in axes:
    if axis not in AXES:
      raise config_lib.UserError(
        f'{key}: the mesh has no axis {axis!r}: choose of {", ".join(AXES)}'
      )
  if len(set(axes)) < len(axes):
    raise config_lib.UserError(
      f'{key}: {rule[1]!r} names an axis twice; one splits one dimension'
    )


def entry_axes(entry: Any) -> tuple[str, ...]:
  """Returns the axes that an entry of a spec names."""
  if entry is None:
    return ()
  return tuple(entry) if isinstance(entry, tuple | list) else (entry,)


def _ways(entry: Entry, sizes: Mapping[str, int]) -> int:
  """Returns in how many parts an entry of a spec splits its dimension."""
  return math.prod(sizes[axis] for axis in entry_axes(entry))


def mesh_shape(
  config: ml_collections.ConfigDict, device_count: int
) -> dict[str, int]:
  """Returns the size of each axis of the mesh.

  Args:
    config: `config.mesh`; one axis may be -1, which takes the devices that the
      others leave.
    device_count: How many there are.

  Raises:
    UserError: There are too few devices, or the axes do not divide them.
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
      f'config.mesh has {axes}: there are {device_count} devices, and'
      f' {fixed} must {"divide them" if open_axes else "be at most that"}; -1'
      ' for one axis takes all that are left'
    )
  return shape


def show_shape(shape: Mapping[str, int]) -> str:
  """Returns a mesh's shape as 'data=2, fsdp=4, tensor=1'."""
  return ', '.join(f'{axis}={size}' for axis, size in shape.items())


def make_mesh(config: ml_collections.ConfigDict) -> Mesh:
  """Returns the mesh that `config.mesh` describes: `data`, `fsdp`, `tensor`.

  Devices are in order of their processes, and these of their slices: so that
  each process has consecutive rows of the batch, and that what communicates
  most, along the last axes, is near.
  """
  shape = mesh_shape(config, jax.device_count())
  devices = sorted(jax.devices(), key=_place_of)[: math.prod(shape.values())]
  # Auto: a Linen convolution does not type-check under Explicit axes.
  return Mesh(
    np.array(devices).reshape(tuple(shape.values())),
    AXES,
    axis_types=(AxisType.Auto,) * len(AXES),
  )


def _place_of(device: jax.Device) -> tuple[int, int, int]:
  slice_index = getattr(device, 'slice_index', None) or 0  # of TPUs
  return slice_index, device.process_index, device.id


def batch_sharding(mesh: Mesh, stacked: bool = False) -> NamedSharding:
  """Splits a dimension over `data` and `fsdp`.

  Args:
    mesh: Of devices.
    stacked: Whether it is the second, [steps, B, ...], and not the first.
  """
  steps = (None,) if stacked else ()
  return NamedSharding(mesh, PartitionSpec(*steps, BATCH_AXES))


def replicated(mesh: Mesh) -> NamedSharding:
  """Keeps the same array on every device."""
  return NamedSharding(mesh, PartitionSpec())


@functools.lru_cache
def host_part(mesh: Mesh) -> tuple[int, int]:
  """Returns which part of each batch is this process's: (index, count).

  Processes that hold different parts of the same layers, by `tensor`, have the
  same part of the batch.

  Raises:
    UserError: A process has parts that do not follow each other.
  """
  ways = mesh.shape['data'] * mesh.shape['fsdp']
  rows = batch_sharding(mesh).addressable_devices_indices_map((ways,))
  mine = sorted({i[0].indices(ways)[0] for i in rows.values() if i is not None})
  count, rest = divmod(ways, len(mine))
  index = mine[0] // len(mine)
  first = index * len(mine)
  if rest or mine != list(range(first, first + len(mine))):
    raise config_lib.UserError(
      f'config.mesh gives process {jax.process_index()} the parts {mine} of'
      f' {ways} of each batch, which do not follow each other: make'
      ' config.mesh.tensor a divisor or a multiple of the devices of a process'
    )
  return index, count


def global_batch(
  batch: Mapping[str, np.ndarray], mesh: Mesh, stacked: bool = False
) -> dict[str, jax.Array]:
  """Puts this process's rows of a batch into global arrays on the devices.

  Returns at once; the copy goes on in the background.

  Args:
    batch: Arrays [b, ...].
    mesh: Of devices.
    stacked: Whether they are [steps, b, ...], batches of several steps.
  """
  sharding = batch_sharding(mesh, stacked)
  _, count = host_part(mesh)

  def whole(shape: tuple[int, ...]) -> tuple[int, ...]:
    *steps, rows = shape[: 1 + stacked]
    return (*steps, rows * count, *shape[1 + stacked :])

  return {
    name: jax.make_array_from_process_local_data(
      sharding, rows, whole(rows.shape)
    )
    for name, rows in batch.items()
  }


def on_each_device(value: int, mesh: Mesh) -> jax.Array:
  """Returns int32 [devices]; those of this process hold `value`."""
  sharding = NamedSharding(mesh, PartitionSpec(AXES))
  return jax.make_array_from_callback(
    (mesh.size,), sharding, lambda _: np.full((1,), value, np.int32)
  )


def split_rows(tree: Any, parts: int) -> Any:
  """Cuts global arrays [B, ...] into [parts, B / parts, ...].

  Part i takes pairs of rows i, i + parts, ...: each device keeps the rows that
  it has, and images that are mixed with each other stay together. Where the
  parts are odd it takes single rows.
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


def keep_batch_split(
  fn: Callable[..., Any], mesh: Mesh, batch_size: int
) -> Callable[..., Any]:
  """Wraps a function that applies Linen modules to a batch.

  What each module returns is constrained to be split over the batch, so that
  the compiler gathers parameters and not activations.

  Args:
    fn: To be traced.
    mesh: Of devices.
    batch_size: B; outputs whose leading dimension is another are left alone.
  """
  if mesh.size == 1:
    return fn

  def constrain(x: Any) -> Any:
    if not isinstance(x, jax.Array) or not x.ndim or x.shape[0] != batch_size:
      return x
    rest = [PartitionSpec.UNCONSTRAINED] * (x.ndim - 1)
    return jax.lax.with_sharding_constraint(
      x, NamedSharding(mesh, PartitionSpec(BATCH_AXES, *rest))
    )

  def intercept(
    call: Any, args: Any, kwargs: Any, context: nn.module.InterceptorContext
  ) -> Any:
    result = call(*args, **kwargs)
    is_call = context.method_name == '__call__'
    return jax.tree.map(constrain, result) if is_call else result

  def wrapped(*args: Any, **kwargs: Any) -> Any:
    with nn.intercept_methods(intercept):
      return fn(*args, **kwargs)

  return wrapped


@dataclasses.dataclass(frozen=True)
class Placement:
  """Where one array is.

  Attributes:
    shape: Of the array.
    spec: An entry for each dimension; () on every device.
    bytes_per_device: Of its part.
  """

  shape: tuple[int, ...]
  spec: Spec
  bytes_per_device: int


def place(
  config: ml_collections.ConfigDict, sizes: Mapping[str, int], params: Any
) -> dict[str, Placement]:
  """Applies the rules to the parameters of a model.

  Args:
    config: `config.mesh`, checked.
    sizes: Of the axes of the mesh.
    params: Arrays, or shapes; layers may be scanned, or cut into runs.

  Returns:
    Where each parameter is, by its path.

  Raises:
    UserError: A rule of the config matches nothing or does not fit, or an axis
      of the mesh does not divide a dimension; names the parameter.
  """
  reached: set[str] = set()
  placed: dict[str, Placement] = {}
  for path, x in jax.tree_util.tree_leaves_with_path(params):
    name, shape = _name(path), tuple(x.shape)
    layers = _unrolled(name, x)
    found = {_rule(config, layer) for layer in layers}
    if len(found) > 1:
      raise config_lib.UserError(
        f'config.mesh.rules treat the layers of {name} differently, but they'
        ' are one array: let a pattern match all of them, or set'
        ' config.model.scan=False'
      )
    ((spec, where),) = found
    reached.add(where)
    is_stacked = layers != [name]
    layer_shape = shape[1:] if is_stacked else shape
    is_small = math.prod(layer_shape) < config.min_size
    if is_small and where == _DEFAULT:
      spec = ()
    _check_fits(layers[0], layer_shape, spec, sizes, where)
    spec = _only_split(spec, sizes)
    if spec and is_stacked:
      spec = (None, *spec)
    ways = math.prod(_ways(entry, sizes) for entry in spec)
    size = math.prod(shape) * np.dtype(x.dtype).itemsize
    placed[name] = Placement(shape, spec, size // ways)
  for i, (pattern, _) in enumerate(config.rules):
    if f'config.mesh.rules[{i}]' not in reached:
      raise config_lib.UserError(
        f'config.mesh.rules[{i}] {pattern!r} matches no parameter that no rule'
        f' before it matches; there are {config_lib.some(list(placed), 6)}'
      )
  return placed


def _rule(config: ml_collections.ConfigDict, name: str) -> tuple[Spec, str]:
  """Returns the spec of an unrolled parameter, and what says so."""
  for i, (pattern, spec) in enumerate(config.rules):
    if re.search(pattern, name):
      return tuple(spec), f'config.mesh.rules[{i}]'
  found = (spec for pattern, spec in DEFAULT_RULES if re.search(pattern, name))
  return next(found, ()), _DEFAULT


def _only_split(spec: Spec, sizes: Mapping[str, int]) -> Spec:
  """Leaves out the axes of size 1; () where nothing is left."""
  entries = [
    tuple(axis for axis in entry_axes(entry) if sizes[axis] > 1)
    for entry in spec
  ]
  return tuple(
    None if not axes else axes[0] if len(axes) == 1 else axes
    for axes in (entries if any(entries) else ())
  )


def _check_fits(
  name: str,
  shape: tuple[int, ...],
  spec: Spec,
  sizes: Mapping[str, int],
  where: str,
) -> None:
  """Raises a UserError where a spec does not fit a parameter."""
  if spec and len(spec) != len(shape):
    raise config_lib.UserError(
      f'{where} for {name} has {len(spec)} entries, but its shape is'
      f' {list(shape)}: write one for each dimension'
    )
  for size, entry in zip(shape, spec, strict=False):
    ways = _ways(entry, sizes)
    if size % ways:
      by = ' x '.join(f'{axis}={sizes[axis]}' for axis in entry_axes(entry))
      whole = ', '.join(['None'] * len(shape)) + ',' * (len(shape) == 1)
      pattern = re.sub(r'^blocks_\d+/', '', name)
      raise config_lib.UserError(
        f'config.mesh: {by} does not divide {size} of {name} {list(shape)}'
        f' ({where}: {spec}); choose another size, or keep such parameters'
        f' whole: --config.mesh.rules="((\'{pattern}$\', ({whole})),)"'
      )


def _unrolled(name: str, x: Any) -> list[str]:
  """Returns what an array's path is in the unrolled model, by layer."""
  match = re.match(r'blocks(?:_(\d+)-\d+)?/', name)
  if match is None:
    return [name]
  first, rest = int(match[1] or 0), name[match.end() :]
  return [f'blocks_{first + i}/{rest}' for i in range(x.shape[0])]


def _name(path: tuple[Any, ...]) -> str:
  return jax.tree_util.keystr(path, simple=True, separator='/')


def constrain(
  mesh: Mesh, placed: Mapping[str, Placement]
) -> Callable[[Any], Any]:
  """Returns what keeps a tree where `follow` says, under jit."""
  if mesh.size == 1:
    return lambda tree: tree
  return lambda tree: jax.lax.with_sharding_constraint(
    tree, follow(mesh, placed, tree)
  )


def follow(mesh: Mesh, placed: Mapping[str, Placement], tree: Any) -> Any:
  """Returns the sharding of each array in a tree.

  An array whose path ends as a parameter's does, and that has its shape, as
  the optimizer's moments and the average have, is where that parameter is; all
  others are on every device.

  Args:
    mesh: Of devices.
    placed: From `place`.
    tree: Arrays, or shapes.
  """

  def of_array(path: tuple[Any, ...], x: Any) -> NamedSharding:
    parts = _name(path).split('/')
    for start in range(len(parts)):
      found = placed.get('/'.join(parts[start:]))
      if found is not None:
        spec = found.spec if found.shape == tuple(x.shape) else ()
        return NamedSharding(mesh, PartitionSpec(*spec))
    return replicated(mesh)

  return jax.tree_util.tree_map_with_path(of_array, tree)


def bytes_per_device(tree: Any) -> int:
  """Returns the size of one device's part of arrays that have shardings."""
  return sum(
    math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
    for x in jax.tree.leaves(tree)
  )


@dataclasses.dataclass(frozen=True)
class _Row:
  parameter: str
  shape: str
  spec: str
  arrays: int
  bytes_per_device: int


def table(placed: Mapping[str, Placement]) -> str:
  """Returns where the parameters are, as a table for people.

  Layers whose parameters are alike share their lines: `blocks_0..11`. The bytes
  are those of all arrays of a line.
  """
  groups: dict[str, dict[str, Placement]] = {}
  for name, placement in placed.items():
    top, _, rest = name.partition('/')
    groups.setdefault(top, {})[rest] = placement
  rows = []
  tops = sorted(groups, key=_by_layer)
  for group, run in itertools.groupby(tops, key=lambda top: groups[top]):
    names = list(run)
    label = names[0]
    if len(names) > 1:
      label += f'..{names[-1].rpartition("_")[2]}'
    rows += [
      _Row(
        f'{label}/{rest}'.rstrip('/'),
        str(list(p.shape)),
        ' '.join(map(_show_entry, p.spec)) or 'on every device',
        len(names),
        len(names) * p.bytes_per_device,
      )
      for rest, p in group.items()
    ]
  return parameter_overview.make_table(rows)


def _by_layer(top: str) -> tuple[str, int]:
  stem, _, number = top.partition('_')
  return (stem, int(number)) if number.isdecimal() else (top, -1)


def _show_entry(entry: Entry) -> str:
  return '+'.join(entry_axes(entry)) or '.'
