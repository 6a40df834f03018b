"""Images of different shapes in a batch, or several in a sequence.

NaFlex (SigLIP 2, arXiv:2502.14786) pads each image; NaViT (arXiv:2307.06304)
puts several behind each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from vit_jax.models import embedding
from vit_jax.models import refusals
from vit_jax.models.context import Context

if TYPE_CHECKING:
  from vit_jax.models import patches
  from vit_jax.models import vit

ONE_SHAPE = 'a model is initialised with images of one shape'
# Added to the scores of tokens that are not attended to: their weights are 0,
# and it is finite in all types but float16.
_HIDDEN = -1e9


def context(model: vit.ViT, context: Context, count: int) -> Context:
  """Returns a new context, which says which tokens attend to which.

  The `context` has `grids`. `count` is N, the patches of a sequence with its
  padding.
  """
  grids = context.grids
  assert grids is not None
  if context.kept_patches is not None:
    raise ValueError('no patches are left out of images of any grid')
  if grids.ndim < 3:
    is_patch = jnp.arange(count) < grids.prod(axis=1)[:, None]
    before = (0, 0), (model.prefix_length, 0)
    attended = jnp.pad(is_patch, before, constant_values=True)
    return context.replace(attended=attended)
  attention = getattr(model.block, 'attention', None)
  mlp = getattr(model.block, 'mlp', None)
  wrong = {
    f'{", ".join(model.prefix)}, of which a sequence has one': model.prefix,
    f"pool={type(model.pool).__name__}: take 'mean' or 'map'": getattr(
      model.pool, 'reads_class_token', False
    ),
    'experts, which take the tokens of a sequence together': getattr(
      mlp, 'routes_tokens', False
    ),
    'causal=True': getattr(attention, 'causal', False),
  }
  refusals.refuse(wrong, 'several images in a sequence do not go with {}')
  owner, _ = embedding.owners(grids, count)
  number = grids.shape[1]
  return context.replace(
    attended=owner[:, None] == jnp.arange(number)[:, None], segments=owner
  )


def positions(
  part: patches.Learned,
  table: jax.Array | None,
  context: Context,
  count: int,
  before: int,
) -> jax.Array:
  """Returns learned positions of images with their own grids, [B, n, D].

  Args:
    part: What has them.
    table: Those that are stored, [1, n, D]; None: the model is initialised.
    context: What the part is given.
    count: N, patches of a sequence with its padding.
    before: How many tokens before them have a position.
  """
  if table is None:
    raise ValueError(ONE_SHAPE)
  assert context.grids is not None
  return embedding.positions_of_grids(
    table[0],
    context.grids,
    count,
    before,
    grid=part.grid,
    resize=part.resize,
    is_kept=part.keep_aspect,
  )


def masked(bias: jax.Array | None, context: Context) -> jax.Array | None:
  """Adds what hides and weighs tokens to the bias of scores [B, H, R, T]."""
  masks: list[jax.Array] = []  # of keys, [B, 1, 1 or T, T] each
  segments = context.segments
  if segments is not None:  # a matrix of blocks; padding attends to itself
    is_same_image = segments[:, :, None] == segments[:, None]
    masks.append(jnp.where(is_same_image, 0.0, _HIDDEN)[:, None])
  elif context.attended is not None:
    masks.append(jnp.where(context.attended, 0.0, _HIDDEN)[:, None, None])
  if context.sizes is not None:
    masks.append(jnp.log(context.sizes)[:, None, None])
  for mask in masks:
    bias = mask if bias is None else mask + bias
  return bias


def mean(patches: jax.Array, context: Context) -> jax.Array:
  """Returns means of patches by size, [B, D]; of S images, [B, S, D] or 0."""
  weights = context.sizes if context.attended is None else context.attended
  if weights is None:
    return patches.mean(axis=1)
  weights = weights[..., context.prefix :].astype(patches.dtype)
  if weights.ndim == 3:
    total = jnp.einsum('bsn,bnd->bsd', weights, patches)
    return total / jnp.maximum(weights.sum(axis=-1), 1)[..., None]
  weights = weights[..., None]
  return (patches * weights).sum(axis=1) / weights.sum(axis=1)
