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

An axis need not divide the dimension that a default rule names. `fsdp` then
splits the largest other dimension that it divides, as in big_vision's rule for
FSDP (`big_vision/sharding.py`). `tensor` splits no other one: a part of a head
would take a reduction within the attention. A line of the log says which arrays
an axis splits along no dimension. Only a rule of the config must fit as it is
written.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import itertools
import math
import re
from types import EllipsisType
from typing import Any

import jax
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec
import ml_collections
import numpy as np

from vit_jax import config as config_lib
from vit_jax.parallel import mesh as mesh_lib

Entry = str | tuple[str, ...] | None
Spec = tuple[Entry, ...]

# `...` at the start of a spec stands for dimensions that are not split.
_Rule = tuple[Entry | EllipsisType, ...]

# The first rule that matches wins. Where none does, or where the rule has other
# dimensions (a user's part may reuse a path), `fsdp` splits the largest
# dimension of an array of several, and vectors are replicated. `tensor` splits
# the first matrix of an MLP by columns and the second by rows, so that one
# reduction per MLP is enough (Megatron-LM, section 3); likewise qkv and the
# output of attention, by heads. It does not split the classifier's head, since
# it need not divide the number of classes.
DEFAULT_RULES: tuple[tuple[str, _Rule], ...] = (
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
  # [P, P, C, D], and convolutions [h, w, C, D] and [d, h, w, C, D].
  (r'(patch_embedding|conv\d*|conv_proj)/kernel$', (..., 'fsdp')),
  (r'(^|_)(position_embedding|tokens?)$', (..., 'fsdp')),  # [1, T, D]
)


def check(config: ml_collections.ConfigDict) -> None:
  """Checks the rules and the devices of `config.mesh`, and the batch size."""
  for i, rule in enumerate(config.mesh.rules):
    _check_rule(rule, f'config.mesh.rules[{i}]')
  config_lib.within(config, 'mesh.min_size', '[0, inf)')
  mesh_lib.check(config)


def _check_rule(rule: Any, key: str) -> None:
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


@dataclasses.dataclass(frozen=True)
class ParamSharding:
  """The sharding of one parameter.

  Attributes:
    shape: The shape of the whole parameter.
    spec: One entry for each dimension; () if it is replicated.
    bytes_per_device: The size of one device's shard.
    unsplit: Axes of its default rule that divide no dimension for it.
  """

  shape: tuple[int, ...]
  spec: Spec
  bytes_per_device: int
  unsplit: frozenset[str] = frozenset()


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
  """
  shardings: dict[str, ParamSharding] = {}
  used: set[int | None] = set()  # the rules that matched
  for name, x in leaves(params).items():
    shape = tuple(x.shape)
    # The paths of its layers in the unrolled model.
    layers = [name]
    if match := re.match(r'(|.*?/)blocks/', name):
      suffix = name[match.end() :]
      layers = [f'{match[1]}blocks_{i}/{suffix}' for i in range(shape[0])]
    numbers: set[int | None] = {
      next(
        (i for i, (key, _) in enumerate(config.rules) if re.search(key, layer)),
        None,
      )
      for layer in layers
    }
    if len(numbers) > 1:
      raise config_lib.UserError(
        f'config.mesh.rules treat the layers of {name} differently, but they'
        ' are one array: let a pattern match all of them, or set'
        ' config.model.scan=False'
      )
    used |= numbers
    (number,) = numbers
    stacked = (None,) if match else ()
    inner = shape[len(stacked) :]
    unsplit: frozenset[str] = frozenset()
    if number is None:
      spec, unsplit = _default_spec(layers[0], inner, config.min_size, sizes)
    else:
      spec = _config_spec(config, number, layers[0], inner, sizes)
    axes = [[a for a in entry_axes(e) if sizes[a] > 1] for e in spec]
    spec = (*stacked, *map(_entry, axes)) if any(axes) else ()
    shards = math.prod(sizes[a] for a in itertools.chain(*axes))
    size = math.prod(shape) * np.dtype(x.dtype).itemsize // shards
    shardings[name] = ParamSharding(shape, spec, size, unsplit)
  for i, (pattern, _) in enumerate(config.rules):
    if i not in used:
      raise config_lib.UserError(
        f'config.mesh.rules[{i}] {pattern!r} matches no parameter that no rule'
        ' before it matches; there are'
        f' {config_lib.join_first(list(shardings), 6)}'
      )
  return shardings


def _config_spec(
  config: ml_collections.ConfigDict,
  number: int,
  name: str,
  shape: tuple[int, ...],
  sizes: Mapping[str, int],
) -> Spec:
  """Returns the spec of a rule of the config; a UserError: it does not fit."""
  spec = tuple(config.rules[number][1])
  label = f'config.mesh.rules[{number}] for {name}'
  if spec and len(spec) != len(shape):
    raise config_lib.UserError(
      f'{label} has {len(spec)} entries, but its shape is {list(shape)}: write'
      ' one for each dimension'
    )
  for size, entry in zip(shape, spec, strict=False):
    if size % _ways(entry, sizes):
      by = ' x '.join(f'{axis}={sizes[axis]}' for axis in entry_axes(entry))
      raise config_lib.UserError(
        f'{label}: {by} does not divide {size} of {list(shape)}: write None for'
        ' this dimension, or choose another config.mesh'
      )
  return spec


def _default_spec(
  name: str, shape: tuple[int, ...], min_size: int, sizes: Mapping[str, int]
) -> tuple[Spec, frozenset[str]]:
  """Returns the spec of a default rule, and the axes that it cannot use."""
  if math.prod(shape) < min_size:
    return (), frozenset()
  matches = (rule for key, rule in DEFAULT_RULES if re.search(key, name))
  rule = next(matches, ())
  if rule[:1] == (...,):
    rule = (*[None] * (len(shape) - len(rule) + 1), *rule[1:])
  if len(rule) != len(shape):
    largest = shape.index(max(shape)) if len(shape) > 1 else None
    rule = tuple('fsdp' if i == largest else None for i in range(len(shape)))
  named = [entry_axes(entry) for entry in rule]
  axes = [
    tuple(a for a in entry if a != 'fsdp' and not size % sizes[a])
    for size, entry in zip(shape, named, strict=True)
  ]
  if any('fsdp' in entry for entry in named):
    # First the dimension of the rule, then those that no other axis splits,
    # from the largest on.
    def rank(i: int) -> tuple[bool, int, int]:
      return 'fsdp' not in named[i], _ways(axes[i], sizes), -shape[i]

    for i in sorted(range(len(shape)), key=rank):
      if shape[i] % (_ways(axes[i], sizes) * sizes['fsdp']) == 0:
        axes[i] = (*axes[i], 'fsdp')
        break
  unsplit = {*itertools.chain(*named)} - {*itertools.chain(*axes)}
  return tuple(map(_entry, axes)), frozenset(unsplit)


def _ways(entry: Entry, sizes: Mapping[str, int]) -> int:
  """Returns the number of shards into which an entry splits its dimension."""
  return math.prod(sizes[axis] for axis in entry_axes(entry))


def _entry(axes: Sequence[str]) -> Entry:
  return tuple(axes) if len(axes) > 1 else axes[0] if axes else None


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
  """Returns the sharding of each array in a tree of arrays or their shapes.

  An array is sharded like a parameter if it has the same shape and its path
  ends with the parameter's path. This holds for the optimizer's moments and the
  moving average. All other arrays are replicated.
  """

  def array_sharding(path: tuple[Any, ...], x: Any) -> NamedSharding:
    parts = path_name(path).split('/')
    for start in range(len(parts)):
      param = shardings.get('/'.join(parts[start:]))
      if param is not None:
        spec = param.spec if param.shape == tuple(x.shape) else ()
        return NamedSharding(mesh, PartitionSpec(*spec))
    return mesh_lib.replicated(mesh)

  return jax.tree_util.tree_map_with_path(array_sharding, tree)


def bytes_per_device(tree: Any) -> int:
  """Returns the bytes of one device's shards of all arrays of a tree."""
  return sum(
    math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
    for x in jax.tree.leaves(tree)
  )
