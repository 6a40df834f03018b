"""Rules that shard parameters over the axes of the mesh.

`fsdp` splits the train state, so that each device keeps a part of it and
gathers a layer's parameters when it needs them (ZeRO, arXiv:1910.02054; FSDP,
arXiv:2304.11277); `tensor` splits the heads and the MLP of each layer
(Megatron-LM, arXiv:1909.08053, section 3). `jit` inserts the communication.

A rule is a pair of a pattern and a spec. The pattern is searched for in the
path of a parameter of the unrolled model, as in `blocks_3/mlp/up/kernel`. The
spec has one entry for each dimension: None, the name of an axis, or several
names. Where layers are scanned, the stacked dimension is not split. The
optimizer's state and the moving average are sharded like their parameters.

Where `fsdp` does not divide the dimension that a default rule names, it splits
the largest other one that it divides, as in big_vision's rule for FSDP
(`big_vision/sharding.py`); if there is none, the parameter is replicated.
"""

from collections.abc import Callable
from collections.abc import Mapping
import dataclasses
import itertools
import math
import re
from typing import Any

import jax
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec
import ml_collections
import numpy as np

from vit_jax import config as config_lib
from vit_jax import tables
from vit_jax.parallel import mesh as mesh_lib

Entry = str | tuple[str, ...] | None
Spec = tuple[Entry, ...]

_DEFAULT = 'the default rule'
_CONVOLUTION: Spec = (None, None, None, 'fsdp')
# `fsdp` splits the largest dimension that it divides.
_BY_SHAPE: Spec = ('by shape',)

# The first rule that matches wins. Where none does, `_BY_SHAPE` splits arrays
# of several dimensions, as those of a user's own parts, and vectors are
# replicated. `tensor` splits the first matrix of an MLP by columns and the
# second by rows, so that one reduction per MLP is enough (Megatron-LM, section
# 3); likewise qkv and the output of attention, by heads. It does not split the
# classifier's head, since it need not divide the number of classes.
DEFAULT_RULES: tuple[tuple[str, Spec], ...] = (
  (r'attention/qkv/kernel$', ('fsdp', None, 'tensor', None)),  # [D, 3, H, K]
  (r'attention/qkv/bias$', (None, 'tensor', None)),
  (r'(attention|map_head)/out/kernel$', ('tensor', None, 'fsdp')),  # [H, K, D]
  (r'(map_head|qkv)/query/kernel$', ('fsdp', 'tensor', None)),  # [D, H, K]
  (r'map_head/key_value/kernel$', ('fsdp', None, 'tensor', None)),
  # Shared heads may be fewer than the parts of `tensor`.
  (r'qkv/key_value/kernel$', ('fsdp', None, None, None)),
  # [T, M] and [M, T]: axes of the mesh need not divide the number of tokens.
  (r'token_mlp/up/kernel$', (None, ('tensor', 'fsdp'))),
  (r'token_mlp/down/kernel$', (('tensor', 'fsdp'), None)),
  # [E, D, M]: `fsdp` splits the experts, so that tokens move to them.
  (r'experts/up/kernel$', ('fsdp', None, 'tensor')),
  (r'experts/up/bias$', ('fsdp', 'tensor')),
  (r'experts/down/kernel$', ('fsdp', 'tensor', None)),
  (r'experts/down/bias$', ('fsdp', None)),
  (r'mlp/up/kernel$', ('fsdp', 'tensor')),  # [D, M]
  (r'mlp/up/bias$', ('tensor',)),
  (r'mlp/down/kernel$', ('tensor', 'fsdp')),
  (r'(head|head_distillation|pre_logits|output)/kernel$', ('fsdp', None)),
  (r'(^|/)token_embedding$', (None, 'fsdp')),  # [K + 1, D]
  # [P, P, C, D], and convolutions [h, w, C, D].
  (r'(patch_embedding|conv\d*|conv_proj)/kernel$', _CONVOLUTION),
  (r'(^|_)(position_embedding|tokens?)$', (None, None, 'fsdp')),  # [1, T, D]
)


def check(config: ml_collections.ConfigDict) -> None:
  """Checks the rules and the devices of `config.mesh`, and the batch size.

  Raises:
    UserError: A check failed.
  """
  for i, rule in enumerate(config.mesh.rules):
    _check_rule(rule, f'config.mesh.rules[{i}]')
  config_lib.at_least(config, 'mesh.min_size', 0)
  mesh_lib.check(config)


def _check_rule(rule: Any, key: str) -> None:
  """Raises a UserError if a rule is not a pattern and a spec."""
  example = "as in --config.mesh.rules=\"(('^head/kernel$', (None, 'fsdp')),)\""
  is_pair = isinstance(rule, tuple | list) and len(rule) == 2
  if not is_pair or not isinstance(rule[1], tuple | list):
    raise config_lib.UserError(
      f'{key} is {rule!r}: it must be a pattern and, for each dimension, None'
      f' or an axis of the mesh, {example}'
    )
  with config_lib.explained(
    f'{key}: {rule[0]!r} is no regular expression', re.error, TypeError
  ):
    re.compile(rule[0])
  axes = [axis for entry in rule[1] for axis in entry_axes(entry)]
  for axis in axes:
    if axis not in mesh_lib.AXES:
      raise config_lib.UserError(
        f'{key}: the mesh has no axis {axis!r}: choose of'
        f' {", ".join(mesh_lib.AXES)}'
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
  """Returns the number of shards into which an entry splits its dimension."""
  return math.prod(sizes[axis] for axis in entry_axes(entry))


@dataclasses.dataclass(frozen=True)
class ParamSharding:
  """The sharding of one parameter.

  Attributes:
    shape: The shape of the whole parameter.
    spec: One entry for each dimension; () if it is replicated.
    bytes_per_device: The size of one device's shard.
    lacks_fsdp: Whether a default rule splits it by `fsdp`, which divides none
      of its dimensions.
  """

  shape: tuple[int, ...]
  spec: Spec
  bytes_per_device: int
  lacks_fsdp: bool = False


def shard_params(
  config: ml_collections.ConfigDict, sizes: Mapping[str, int], params: Any
) -> dict[str, ParamSharding]:
  """Applies the rules to the parameters of a model.

  Args:
    config: `config.mesh`, checked.
    sizes: The size of each axis of the mesh.
    params: Arrays or their shapes; layers may be scanned.

  Returns:
    The sharding of each parameter by its path.

  Raises:
    UserError: A rule of the config matches nothing or does not fit, or another
      axis than `fsdp` does not divide a dimension of a parameter.
  """
  shardings: dict[str, ParamSharding] = {}
  used: set[str] = set()  # the rules that matched
  for name, x in leaves(params).items():
    shape = tuple(x.shape)
    spec, rule, lacks_fsdp = _spec(config, sizes, name, shape)
    used.add(rule)
    ways = math.prod(_ways(entry, sizes) for entry in spec)
    size = math.prod(shape) * np.dtype(x.dtype).itemsize
    shardings[name] = ParamSharding(shape, spec, size // ways, lacks_fsdp)
  for i, (pattern, _) in enumerate(config.rules):
    if f'config.mesh.rules[{i}]' not in used:
      raise config_lib.UserError(
        f'config.mesh.rules[{i}] {pattern!r} matches no parameter that no rule'
        f' before it matches; there are {config_lib.some(list(shardings), 6)}'
      )
  return shardings


def _spec(
  config: ml_collections.ConfigDict,
  sizes: Mapping[str, int],
  name: str,
  shape: tuple[int, ...],
) -> tuple[Spec, str, bool]:
  """Returns a parameter's spec, its rule, and whether it lacks `fsdp`."""
  layers = _unrolled(name, shape)
  found = {_rule(config, layer) for layer in layers}
  if len(found) > 1:
    raise config_lib.UserError(
      f'config.mesh.rules treat the layers of {name} differently, but they are'
      ' one array: let a pattern match all of them, or set'
      ' config.model.scan=False'
    )
  ((spec, rule),) = found
  is_stacked = layers != [name]
  layer_shape = shape[1:] if is_stacked else shape
  if math.prod(layer_shape) < config.min_size and rule == _DEFAULT:
    spec = ()
  if rule == _DEFAULT and spec == _CONVOLUTION and len(layer_shape) == 5:
    spec = (None, *spec)  # [d, h, w, C, D], of volumes
  # An array of a user's own part may have the path of one of ours.
  is_other = rule == _DEFAULT and spec and len(spec) != len(layer_shape)
  if spec == _BY_SHAPE or is_other:
    spec = _by_shape(layer_shape)
  lacks_fsdp = False
  if rule == _DEFAULT and len(spec) == len(layer_shape):
    fitted = _with_fsdp(layer_shape, spec, sizes)
    lacks_fsdp = _has_fsdp(spec) and not _has_fsdp(fitted)
    spec = fitted
  _check_fits(layers[0], layer_shape, spec, sizes, rule)
  spec = _only_split(spec, sizes)
  return (None, *spec) if spec and is_stacked else spec, rule, lacks_fsdp


def _by_shape(shape: tuple[int, ...]) -> Spec:
  """Returns a spec that splits the largest dimension; () of a vector."""
  if len(shape) < 2:
    return ()
  largest = shape.index(max(shape))
  return tuple('fsdp' if i == largest else None for i in range(len(shape)))


def _has_fsdp(spec: Spec) -> bool:
  return any('fsdp' in entry_axes(entry) for entry in spec)


def _with_fsdp(
  shape: tuple[int, ...], spec: Spec, sizes: Mapping[str, int]
) -> Spec:
  """Moves `fsdp` to a dimension that it divides, or leaves it out.

  It stays where it divides the dimension. Otherwise the largest dimension that
  no other axis splits comes first.
  """
  others = [
    tuple(axis for axis in entry_axes(entry) if axis != 'fsdp')
    for entry in spec
  ]

  def is_divided(i: int) -> bool:
    return shape[i] % (_ways(others[i], sizes) * sizes['fsdp']) == 0

  named = [i for i, entry in enumerate(spec) if 'fsdp' in entry_axes(entry)]
  if not named or is_divided(named[0]):
    return spec
  order = sorted(
    range(len(shape)), key=lambda i: (_ways(others[i], sizes), -shape[i])
  )
  chosen = next((i for i in order if is_divided(i)), None)
  return tuple(
    _entry((*axes, 'fsdp') if i == chosen else axes)
    for i, axes in enumerate(others)
  )


def _rule(config: ml_collections.ConfigDict, name: str) -> tuple[Spec, str]:
  """Returns the spec of an unrolled parameter, and the rule that gives it."""
  for i, (pattern, spec) in enumerate(config.rules):
    if re.search(pattern, name):
      return tuple(spec), f'config.mesh.rules[{i}]'
  specs = (spec for pattern, spec in DEFAULT_RULES if re.search(pattern, name))
  return next(specs, _BY_SHAPE), _DEFAULT


def _only_split(spec: Spec, sizes: Mapping[str, int]) -> Spec:
  """Leaves out the axes of size 1; returns () if nothing is left."""
  entries = [
    tuple(axis for axis in entry_axes(entry) if sizes[axis] > 1)
    for entry in spec
  ]
  return tuple(map(_entry, entries)) if any(entries) else ()


def _entry(axes: tuple[str, ...]) -> Entry:
  """Returns the entry that names some axes."""
  return axes if len(axes) > 1 else axes[0] if axes else None


def _check_fits(
  name: str,
  shape: tuple[int, ...],
  spec: Spec,
  sizes: Mapping[str, int],
  where: str,
) -> None:
  """Raises a UserError if a spec does not fit a parameter."""
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
      pattern = re.sub(r'^.*\bblocks_\d+/', '', name)
      raise config_lib.UserError(
        f'config.mesh: {by} does not divide {size} of {name} {list(shape)}'
        f' ({where}: {spec}); choose another size, or keep such parameters'
        f' whole: --config.mesh.rules="((\'{pattern}$\', ({whole})),)"'
      )


def _unrolled(name: str, shape: tuple[int, ...]) -> list[str]:
  """Returns the paths of a parameter's layers in the unrolled model."""
  match = re.match(r'(|.*?/)blocks/', name)
  if not match:
    return [name]
  rest = name[match.end() :]
  return [f'{match[1]}blocks_{i}/{rest}' for i in range(shape[0])]


def path_name(path: tuple[Any, ...]) -> str:
  """Returns a path as a string, such as `blocks_3/norm1/scale`."""
  return jax.tree_util.keystr(path, simple=True, separator='/')


def leaves(tree: Any) -> dict[str, Any]:
  """Returns the arrays of a tree by their paths."""
  return {
    path_name(path): x for path, x in jax.tree_util.tree_leaves_with_path(tree)
  }


def constrain(
  mesh: Mesh, shardings: Mapping[str, ParamSharding]
) -> Callable[[Any], Any]:
  """Returns a function that constrains a tree to its shardings under jit."""
  if mesh.size == 1:
    return lambda tree: tree
  return lambda tree: jax.lax.with_sharding_constraint(
    tree, tree_shardings(mesh, shardings, tree)
  )


def tree_shardings(
  mesh: Mesh, shardings: Mapping[str, ParamSharding], tree: Any
) -> Any:
  """Returns the sharding of each array in a tree.

  An array is sharded like a parameter if it has the same shape and its path
  ends with the parameter's path. This holds for the optimizer's moments and the
  moving average. All other arrays are replicated.

  Args:
    mesh: The mesh of devices.
    shardings: The shardings of parameters, from `shard_params`.
    tree: Arrays or their shapes.
  """

  def of_array(path: tuple[Any, ...], x: Any) -> NamedSharding:
    parts = path_name(path).split('/')
    for start in range(len(parts)):
      found = shardings.get('/'.join(parts[start:]))
      if found is not None:
        spec = found.spec if found.shape == tuple(x.shape) else ()
        return NamedSharding(mesh, PartitionSpec(*spec))
    return mesh_lib.replicated(mesh)

  return jax.tree_util.tree_map_with_path(of_array, tree)


def bytes_per_device(tree: Any) -> int:
  """Returns the bytes of one device's shards of all arrays of a tree."""
  return sum(
    math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
    for x in jax.tree.leaves(tree)
  )


def table(shardings: Mapping[str, ParamSharding]) -> tables.Table:
  """Returns the shardings of parameters.

  Layers with the same shardings share a row, `blocks_0..11`, which shows their
  total bytes.
  """
  groups: dict[str, dict[str, ParamSharding]] = {}
  for name, sharding in shardings.items():
    top, rest = split_layer(name)
    groups.setdefault(top, {})[rest] = sharding
  rows: list[tuple[str | int, ...]] = []
  tops = sorted(groups, key=_by_layer)
  for group, run in itertools.groupby(tops, key=lambda top: groups[top]):
    layers = list(run)
    label = layers[0]
    if len(layers) > 1:
      label += f'..{layers[-1].rpartition("_")[2]}'
    rows += [
      (
        f'{label}/{rest}'.rstrip('/'),
        str(list(p.shape)),
        ' '.join('+'.join(entry_axes(x)) or '.' for x in p.spec)
        or 'on every device',
        len(layers),
        len(layers) * p.bytes_per_device,
      )
      for rest, p in group.items()
    ]
  names = 'parameter', 'shape', 'sharding', 'arrays', 'bytes a device'
  return tables.Table(names, rows)


def unsplit(
  shardings: Mapping[str, ParamSharding], sizes: Mapping[str, int]
) -> str:
  """Returns a line on the parameters that `fsdp` does not split; '': it does.

  Args:
    shardings: From `shard_params`.
    sizes: The size of each axis of the mesh.
  """
  names = [name for name, x in shardings.items() if x.lacks_fsdp]
  if not names:
    return ''
  size = sum(shardings[name].bytes_per_device for name in names)
  return (
    f'config.mesh.fsdp={sizes["fsdp"]} divides no dimension of'
    f' {config_lib.counted(len(names), "array")}, {size:,} bytes of which are'
    f' on every device: {config_lib.some(names)}'
  )


def split_layer(name: str) -> tuple[str, str]:
  """Splits a path into its layer (or topmost module) and the rest."""
  match = re.match(r'(?:.*?/)?blocks_\d+(?=/)', name)
  top = match[0] if match else name.partition('/')[0]
  return top, name[len(top) + 1 :]


def _by_layer(top: str) -> tuple[str, int]:
  stem, _, number = top.rpartition('_')
  return (stem, int(number)) if number.isdecimal() else (top, -1)
