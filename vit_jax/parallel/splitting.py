"""Splits what modules return over the devices of a mesh."""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

from flax import linen as nn
import jax
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec

from vit_jax.parallel.mesh import BATCH_AXES

# Axes that split a dimension of a module's output that its `split` names.
_SPLITS = {'experts': 'fsdp', 'others': 'data'}


def constrained(
  fn: Callable[..., Any], mesh: Mesh, batch_size: int
) -> Callable[..., Any]:
  """Returns what `mesh.keep_batch_split` does on a mesh of several devices."""

  def constrain(x: Any) -> Any:
    if not isinstance(x, jax.Array) or not x.ndim or x.shape[0] % batch_size:
      return x
    free_axes = [PartitionSpec.UNCONSTRAINED] * (x.ndim - 1)
    return jax.lax.with_sharding_constraint(
      x, NamedSharding(mesh, PartitionSpec(BATCH_AXES, *free_axes))
    )

  def intercept(
    call: Any, args: Any, kwargs: Any, context: nn.module.InterceptorContext
  ) -> Any:
    if context.method_name != '__call__':
      return call(*args, **kwargs)
    split = getattr(context.module, 'split', None)
    if split is None:
      return jax.tree.map(constrain, call(*args, **kwargs))
    # The compiler moves tokens to their experts, and the results back.
    result = call(*(_split(x, split, mesh) for x in args), **kwargs)
    return _split(result, split, mesh)

  def wrapped(*args: Any, **kwargs: Any) -> Any:
    with nn.intercept_methods(intercept):
      return fn(*args, **kwargs)

  return wrapped


def _split(x: jax.Array, names: Sequence[str], mesh: Mesh) -> jax.Array:
  """Splits the first dimensions of an array over axes that divide them."""
  axes = [_SPLITS[name] for name in names]
  spec = [
    axis if not n % mesh.shape[axis] else PartitionSpec.UNCONSTRAINED
    for n, axis in zip(x.shape, axes, strict=False)
  ]
  free_axes = [PartitionSpec.UNCONSTRAINED] * (x.ndim - len(spec))
  return jax.lax.with_sharding_constraint(
    x, NamedSharding(mesh, PartitionSpec(*spec, *free_axes))
  )
