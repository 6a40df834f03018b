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
from vit_jax.models.dropout import DropoutKey
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

  Raises:
    ValueError: The model has no mask token, or cannot have such grids.
  """
  if model.mask_token or masked is not None:
    x = _mask(model, x, masked)
  key = context.dropout_key
  if context.kept_patches is None and model.patch_dropout and key is not None:
    key = key.fold(model.depth)  # as for dropout of embeddings
    patches = kept_patches(key, x.shape[1], model.patch_dropout)
    context = context.replace(kept_patches=patches)
  if context.grids is not None:
    context = packing.context(model, context, x.shape[1])
  return x, context


def _mask(model: vit.ViT, x: jax.Array, masked: jax.Array | None) -> jax.Array:
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


def kept_patches(key: DropoutKey, count: int, rate: float) -> jax.Array:
  """Draws the patches that training keeps, int32 [B, K], in random order.

  Args:
    key: Key and rows.
    count: Number of patches.
    rate: Share of the patches that are left out.
  """
  keys = key.fold(Purpose.PATCHES).per_row()
  return least(jax.vmap(lambda k: jax.random.uniform(k, (count,)))(keys), rate)


def least(noise: jax.Array, rate: float) -> jax.Array:
  """Returns the max(1, int((1 - rate) N)) least of noise [B, N], in order."""
  count = max(1, int(noise.shape[1] * (1 - rate)))
  return jnp.argsort(noise, axis=1)[:, :count]
