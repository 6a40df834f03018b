"""Further parts of a ViT: a class each, which nothing else pays for."""

import dataclasses
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp

from vit_jax.models.initializers import Initializer


def as_class(part: nn.Module, kind: Any, **values: Any) -> Any:
  """Returns a part of another class with a part's values of its fields.

  Args:
    part: A part.
    kind: The class.
    **values: Values of other fields.
  """
  shared = {
    field.name: getattr(part, field.name)
    for field in dataclasses.fields(kind)
    if field.name not in ('parent', 'name') and hasattr(part, field.name)
  }
  return kind(**shared | {'parent': None} | values)


def separate(init: Initializer, count: int) -> Initializer:
  """Initialises `count` matrices side by side in the last axis of a kernel.

  The bounds of Xavier's and LeCun's initializers depend on the matrix shape.
  They must use the shape of one query, key or value matrix, not of all three
  together.
  """

  def init_each(
    key: jax.Array, shape: tuple[int, ...], *options: Any
  ) -> jax.Array:
    part_shape = (*shape[:-1], shape[-1] // count)
    keys = jax.random.split(key, count)
    return jnp.concatenate(
      [init(k, part_shape, *options) for k in keys], axis=-1
    )

  return init_each
