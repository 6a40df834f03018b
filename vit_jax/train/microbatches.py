"""Computes a step in several parts, so that it needs less memory."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from vit_jax import objectives
from vit_jax.data.device.rng import Rng
from vit_jax.parallel import mesh as mesh_lib


def mean(
  compute: Callable[..., Any],
  batch: objectives.Batch,
  key: jax.Array,
  parts: int,
) -> Any:
  """Returns the mean of `compute` over microbatches, computed one by one.

  Integers in the tree must be equal for all microbatches, and are kept.

  Args:
    compute: (microbatch, rng) -> a tree of arrays.
    batch: Global arrays [B, ...].
    key: Random key of the step.
    parts: Number of microbatches.
  """
  rows = jnp.arange(len(batch['index']), dtype=jnp.int32)
  if parts == 1:
    return compute(batch, Rng(key, rows))
  stacked = mesh_lib.split_rows((batch, rows), parts)

  def compute_part(part: tuple[objectives.Batch, jax.Array]) -> Any:
    return compute(part[0], Rng(key, part[1]))

  one = jax.tree.map(lambda x: x[0], stacked)
  zeros = optax.tree.zeros_like(jax.eval_shape(compute_part, one))
  total, _ = jax.lax.scan(
    lambda total, part: (optax.tree.add(total, compute_part(part)), None),
    zeros,
    stacked,
  )
  return jax.tree.map(
    lambda x: (
      x * (1 / parts) if jnp.issubdtype(x.dtype, jnp.inexact) else x // parts
    ),
    total,
  )
