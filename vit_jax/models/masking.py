"""Patches that a learned token replaces, those left out, and their grids.

In comments: B images, N patches, D hidden size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from vit_jax.models import initializers as initializers_lib
from vit_jax.models import packing
from vit_jax.models.context import Context
from vit_jax.models.dropout import Purpose

if TYPE_CHECKING:
  from vit_jax.models import vit


def choose(
  model: vit.ViT, x: jax.Array, masked: jax.Array | None, context: Context
) -> tuple[jax.Array, Context]:
  """Returns patches [B, N, D], some masked, and which of them the layers see.

  Args:
    model: The model, in its compact method.
    x: Patches [B, N, D].
    masked: bool [B, N], those that the mask token replaces; None: none.
    context: Its `kept_patches` and `grids` are those that the model was given.
  """
  if masked is not None and not model.mask_token:
    raise ValueError('patches are masked, but mask_token is False')
  if model.mask_token:
    starts = initializers_lib.INITIALIZERS[model.initializers]
    shape = 1, 1, model.hidden_size
    token = model.param('mask_token', starts.position, shape)
    if masked is not None:
      x = jnp.where(masked[..., None], token.astype(x.dtype), x)
  key = context.dropout_key
  if context.kept_patches is None and model.patch_dropout and key is not None:
    # The depth is folded in as for dropout of embeddings.
    keys = key.fold(model.depth).fold(Purpose.PATCHES).per_row()
    noise = jax.vmap(lambda k: jax.random.uniform(k, x.shape[1:2]))(keys)
    context = context.replace(kept_patches=least(noise, model.patch_dropout))
  if context.grids is not None:
    context = packing.context(model, context, x.shape[1])
  return x, context


def least(noise: jax.Array, rate: float) -> jax.Array:
  """Returns the max(1, int((1 - rate) N)) least of noise [B, N], in order."""
  count = max(1, int(noise.shape[1] * (1 - rate)))
  return jnp.argsort(noise, axis=1)[:, :count]
