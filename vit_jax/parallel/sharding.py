"""Where each part of the train state is on the mesh.

`fsdp` splits the train state, so that each device keeps a part of it and
gathers a layer's parameters when it needs them (ZeRO, arXiv:1910.02054; FSDP,
arXiv:2304.11277); `tensor` splits the heads and the MLP of each layer
(Megatron-LM, arXiv:1909.08053, section 3). `jit` inserts the communication.

`sharding_rules` says which dimensions of a parameter are split. The optimizer's
state and the moving average are sharded like their parameters.
"""

from collections.abc import Callable
from collections.abc import Mapping
import dataclasses
import itertools
import math
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


def check(config: ml_collections.ConfigDict) -> None:
  """Checks the rules and the devices of `config.mesh`, and the batch size."""
  if config.mesh.rules:
    config_lib.wing('vit_jax.parallel.sharding_rules:check')(config)
  config_lib.within(config, 'mesh.min_size', '[0, inf)')
  mesh_lib.check(config)


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
  arrays = leaves(params)
  specs: dict[str, tuple[Spec, frozenset[str]]] = {}
  if config.rules or max(sizes.values()) > 1:  # else nothing is split
    find_specs = config_lib.wing('vit_jax.parallel.sharding_rules:specs')
    specs = find_specs(config, arrays, sizes)
  shardings: dict[str, ParamSharding] = {}
  for name, x in arrays.items():
    spec, unsplit = specs.get(name, ((), frozenset[str]()))
    axes = itertools.chain(*map(entry_axes, spec))
    shards = math.prod(sizes[axis] for axis in axes)
    size = math.prod(x.shape) * np.dtype(x.dtype).itemsize // shards
    shardings[name] = ParamSharding(tuple(x.shape), spec, size, unsplit)
  return shardings


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
