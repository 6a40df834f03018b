"""Patches that a learned token replaces, and those that are left out.

In comments: B images, N patches, P tokens before them, D hidden size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from vit_jax.models import initializers as initializers_lib

if TYPE_CHECKING:
  from vit_jax.models import vit


def mask(model: vit.ViT, x: jax.Array, masked: jax.Array | None) -> jax.Array:
  """Replaces masked patches by the mask token, a parameter of the model.

  Args:
    model: The model, in its compact method.
    x: Patches [B, N, D].
    masked: bool [B, N]; None: none is.

  Raises:
    ValueError: The model has no such token.
  """
  if not model.mask_token:
    raise ValueError('patches are masked, but mask_token is False')
  shape = (1, 1, model.hidden_size)
  starts = initializers_lib.INITIALIZERS[model.initializers]
  token = model.param('mask_token', starts.position, shape)
  if masked is None:
    return x
  return jnp.where(masked[..., None], token.astype(x.dtype), x)


def keep(x: jax.Array, kept: jax.Array, prefix: int) -> jax.Array:
  """Returns some patches of tokens [B, P + N, D], behind the first P tokens.

  Args:
    x: The tokens.
    kept: int32 [B, K], the patches.
    prefix: P.
  """
  patches = jnp.take_along_axis(x[:, prefix:], kept[..., None], axis=1)
  return jnp.concatenate([x[:, :prefix], patches], axis=1)
