"""Attention maps, rollout, class relevance, attention distance and entropy.

A function `attention_...` takes a model and images. The function of arrays that
it applies has the definition and the paper. Several pictures share one forward
pass with these (`features.reduced`). A model `vit` is a ViT or hybrid; `images`
are what `vit.preprocess` accepts, or its output.

In comments: B images, N tokens (P before the patches), H heads, L layers,
(h, w) the grid of patches.
"""

from collections.abc import Sequence
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax import models
from vit_jax import weights
from vit_jax.config import UserError
from vit_jax.models import registry
from vit_jax.models import vit as vit_lib
from vit_jax.weights import batched
from vit_jax.weights import features

_ROUNDING = 1e-6  # of a map's sum
# Images at a time: computing gradients keeps all activations in memory.
_GRADIENT_BATCH = 8


def attention_maps(
  vit: weights.Loaded, images: Any, query: tuple[int, int] | None = None
) -> np.ndarray:
  """Returns the attention of one query to all patches, float32 [L, B, H, h, w].

  The attention is the softmax of the products of queries and keys (ViT paper,
  arXiv:2010.11929, appendix A). `query` is the (row, column) of the querying
  patch, from 0; None stands for the class token, or for the mean over all
  patches if there is no class token. A map sums to at most one, as the rest
  goes to tokens that are not patches.
  """
  queries, grid = shown_queries(vit, query), features.patch_grid(vit)
  return features.reduced_array(
    vit, images, 'attention', lambda x: maps(x, grid, queries), axis=1
  )


@functools.partial(jax.jit, static_argnums=(1, 2))
def maps(
  attention: jax.Array, grid: tuple[int, int], queries: range
) -> jax.Array:
  """Returns the mean attention of the tokens `queries` to each patch.

  The maps are [..., h, w] for attention [..., N, N] and the `grid` (h, w).
  """
  h, w = grid
  rows = attention[..., queries.start : queries.stop, -h * w :]
  return rows.mean(axis=-2).reshape(*rows.shape[:-2], h, w)


def attention_segments(
  vit: weights.Loaded, images: Any, mass: float = 0.6
) -> np.ndarray:
  """Returns the patches that hold most of the class token's attention.

  DINO shows the heads of the last layer in this way (arXiv:2104.14294, section
  4.2.2 and figure 4). The `segments` of images and heads are bool [B, H, h, w].
  `mass` is the share of the attention that they hold, above 0 and at most 1.
  """
  check_class_token(vit)
  return segments(attention_maps(vit, images)[-1], mass)


def segments(maps: np.ndarray, mass: float) -> np.ndarray:
  """Returns the smallest sets of patches with a share of the attention.

  Where patches have the same attention, the first ones are in the set.

  Args:
    maps: Attention to patches, float [..., h, w].
    mass: Share of each map's sum, above 0 and at most 1.

  Returns:
    A set for each map, bool [..., h, w].
  """
  flat = np.asarray(maps, np.float64).reshape(
    -1, maps.shape[-2] * maps.shape[-1]
  )
  order = np.argsort(-flat, axis=1, kind='stable')
  largest = np.take_along_axis(flat, order, axis=1)
  total = np.cumsum(largest, axis=1)
  before = total - largest
  # Attention is float32: without the tolerance rounding could add a patch.
  selected = before < mass * total[:, -1:] * (1 - _ROUNDING)
  mask = np.zeros(flat.shape, bool)
  np.put_along_axis(mask, order, selected, axis=1)
  return mask.reshape(maps.shape)


def attention_rollout(vit: weights.Loaded, images: Any) -> np.ndarray:
  """Returns the contribution of each patch to the output, float32 [B, h, w].

  It is `rollout`, read at the tokens that the head reads. A map sums to at most
  one, as the rest comes from tokens that are not patches.
  """
  return features.reduced_array(
    vit, images, 'attention', lambda x: read_out(vit, rollout(x)), axis=0
  )


@jax.jit
def rollout(attention: jax.Array) -> jax.Array:
  """Returns the contribution of each input token to each token, by rollout.

  The attention matrices of all layers are multiplied, each averaged with the
  identity to account for the residual connection (Abnar and Zuidema, 2020,
  arXiv:2005.00928, section 3). `attention` is [L, B, H, N, N]. The result is
  [B, N, N], with input tokens on the last axis, and its rows sum to one.
  """
  mixed = (attention.mean(axis=2) + jnp.eye(attention.shape[-1])) / 2

  def step(joint: jax.Array, layer: jax.Array) -> tuple[jax.Array, None]:
    return layer @ joint, None

  return jax.lax.scan(step, mixed[0], mixed[1:])[0]


def attention_distance(vit: weights.Loaded, images: Any) -> np.ndarray:
  """Returns the mean attention distance of each head, float32 [L, H].

  It is the mean of `distances` over images.
  """
  geometry = features.patch_grid(vit), patch_size(vit)
  prefix = features.prefix_length(vit)
  return features.reduced_array(
    vit, images, 'attention', lambda x: distances(x, *geometry, prefix), axis=1
  ).mean(axis=1)


def mean_distance(
  attention: jax.Array,
  grid: tuple[int, int],
  patch: tuple[int, int],
  prefix: int,
) -> jax.Array:
  """Returns the mean of `distances` over images, in pixels, [L, H]."""
  return distances(attention, grid, patch, prefix).mean(axis=1)


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def distances(
  attention: jax.Array,
  grid: tuple[int, int],
  patch: tuple[int, int],
  prefix: int,
) -> jax.Array:
  """Returns the attention distance for each image and head, [L, B, H].

  The distance between the centres of two patches, in pixels of the model's
  input, is weighted by attention; the result is the mean over queries (ViT
  paper, arXiv:2010.11929, figure 7 right and appendix D.7). Tokens that are not
  patches are left out.

  Args:
    attention: [L, B, H, N, N].
    grid: (h, w).
    patch: (height, width) of a patch, in pixels.
    prefix: Number of tokens before the patches.
  """
  centres = np.indices(grid).reshape(2, -1).T * patch  # [h * w, 2], in pixels
  gaps = np.linalg.norm(centres[:, None] - centres, axis=-1)
  patches = attention[..., prefix:, prefix:]
  reach = jnp.einsum('lbhqk,qk->lbhq', patches, gaps.astype(np.float32))
  # A query may attend to no patch at all.
  total = jnp.maximum(patches.sum(axis=-1), jnp.finfo(jnp.float32).tiny)
  return (reach / total).mean(axis=-1)


def attention_entropy(vit: weights.Loaded, images: Any) -> np.ndarray:
  """Returns the attention entropy of each head, float32 [L, H].

  It is the mean of `entropies` over images.
  """
  return features.reduced_array(
    vit, images, 'attention', entropies, axis=1
  ).mean(axis=1)


def entropy(attention: jax.Array) -> jax.Array:
  """Returns the mean of `entropies` over images, in nats, [L, H]."""
  return entropies(attention).mean(axis=1)


@jax.jit
def entropies(attention: jax.Array) -> jax.Array:
  """Returns the attention entropy for each image and head, in nats, [L, B, H].

  It measures the spread of attention [L, B, H, N, N] over all tokens, and is
  the mean over queries: 0 if each query attends to one token, and at most ln N.
  """
  return jax.scipy.special.entr(attention).sum(axis=-1).mean(axis=-1)


def class_relevance(
  vit: weights.Loaded,
  images: Any,
  classes: int | Sequence[int] | None = None,
) -> np.ndarray:
  """Returns the relevance of each patch for a class, float32 [B, h, w].

  It is `relevance`, read at the tokens that the head reads: at least 0, in the
  scale of the logits. `classes` is the index of the class, one for all images
  or one for each; None stands for the predicted class.
  """

  def follow(attention: jax.Array, gradients: jax.Array) -> jax.Array:
    return read_out(vit, relevance(attention, gradients))

  return _with_gradients(vit, images, classes, follow, axis=0)


@jax.jit
def relevance(attention: jax.Array, gradients: jax.Array) -> jax.Array:
  """Returns the relevance of each input token for each token, [B, N, N].

  The relevance R starts as the identity and becomes R + A R in each layer,
  where A is the mean over heads of the positive part of gradient times
  attention (Chefer et al., 2021, arXiv:2103.15679, equations 5 and 6). The
  identity is subtracted at the end, as it says nothing about the class. Input
  tokens are on the last axis. `attention`, and the `gradients` of a logit to
  it, are [L, B, H, N, N].
  """
  weighted = jnp.maximum(attention * gradients, 0).mean(axis=2)  # [L, B, N, N]
  eye = jnp.eye(attention.shape[-1])

  def step(joint: jax.Array, layer: jax.Array) -> tuple[jax.Array, None]:
    return joint + layer @ (joint + eye), None

  return jax.lax.scan(step, jnp.zeros_like(weighted[0]), weighted)[0]


def attention_gradients(
  vit: weights.Loaded,
  images: Any,
  classes: int | Sequence[int] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
  """Returns attention, and the gradients of a class's logit to it.

  Each is float32 [L, B, H, N, N]. `class_relevance` has the same arguments.
  """
  return _with_gradients(vit, images, classes, lambda *pair: pair, axis=1)


def attentive(vit: weights.Loaded) -> vit_lib.ViT:
  """Returns the model as a ViT; refuses one that has no attention maps."""
  features.check_attention(vit)
  if not isinstance(vit.model, vit_lib.ViT):
    raise UserError(
      f'the model is an {type(vit.model).__name__}, whose pixels attend to'
      ' those before them: choose a ViT or a hybrid'
    )
  return vit.model


def check_class_token(vit: weights.Loaded) -> None:
  """Raises a UserError if the model has no attention or no class token."""
  if 'class_token' not in attentive(vit).prefix:
    raise UserError(
      'the model has no class token, whose attention could be shown: train one'
      " with config.model.pool='token'"
    )


def patch_size(vit: weights.Loaded) -> tuple[int, int]:
  """Returns the size of a patch in pixels, (height, width)."""
  features.check_attention(vit)
  return models.patch_of_images(vit.model)


def shown_queries(
  vit: weights.Loaded, query: tuple[int, int] | None = None
) -> range:
  """Returns the tokens whose attention `attention_maps` averages."""
  model, prefix = attentive(vit), features.prefix_length(vit)
  if query is not None:
    token = prefix + features.patch_index(vit, query)
    return range(token, token + 1)
  if 'class_token' in model.prefix:
    return range(1)
  return range(prefix, features.num_tokens(vit))


def read_out(vit: weights.Loaded, flow: jax.typing.ArrayLike) -> jax.Array:
  """Returns the contribution of each patch to the input of the head, [B, h, w].

  The pool decides what that input is: the class token, both tokens if there are
  two heads, the mean patch, or class token and mean patch in equal parts.
  Attention pooling ('map') is replaced by the mean patch.

  `flow` is the contribution of each input token (last axis) to each output
  token, [B, N, N], from `rollout` or `relevance`.
  """
  model, (h, w) = attentive(vit), features.patch_grid(vit)
  prefix = features.prefix_length(vit)
  read = np.zeros((features.num_tokens(vit),), np.float32)
  if getattr(model.pool, 'reads_class_token', False):
    read[: 1 + model.has_two_heads] = 1 / (1 + model.has_two_heads)
  if getattr(model.pool, 'num_read', None) is None:
    read[prefix:] = 1 / (h * w)
  maps = jnp.einsum('q,bqk->bk', read / read.sum(), flow)[:, prefix:]
  return maps.reshape(-1, h, w)


def _with_gradients(
  vit: weights.Loaded,
  images: Any,
  classes: int | Sequence[int] | None,
  reduce: Any,
  axis: int,
) -> Any:
  """Returns `reduce` of attention and gradients, batch by batch.

  `reduce` maps both, each [L, B, H, N, N], to an array or a tree of arrays,
  whose axis `axis` is B. For the classes see `class_relevance`.
  """
  model = attentive(vit)
  if not model.num_classes:
    raise UserError(
      'the model has no head, so there is no class to be relevant for: load it'
      ' without num_classes=0'
    )
  inputs = features.prepared(vit, images)
  chosen = _checked_classes(model.num_classes, classes, len(inputs))
  params = jax.tree.map(jnp.asarray, vit.params)
  shape = features.attention_shape(vit)
  # An attention or block of the user's may leave out the perturbation.
  parts = {
    'attention': getattr(model.block, 'attention', model.block),
    'block': model.block,
  }
  names = [registry.class_name(kind, type(x)) for kind, x in parts.items()]
  users_part = next((name for name in names if ':' in name), '')

  def apply(x: np.ndarray, y: np.ndarray) -> Any:
    with models.explained_parts(model):
      attention, gradients = _gradients(model, shape, params, x, y)
    if users_part and not gradients.any():
      raise UserError(
        'no logit depends on the weights of attention: the head is zero, or the'
        f' class {users_part!r} does not add context.perturbation to its'
        ' weights'
      )
    return reduce(attention, gradients)

  batch_size = min(features.attention_batch(vit), _GRADIENT_BATCH)
  return batched.in_batches(apply, [inputs, chosen], batch_size, axis)


def _checked_classes(
  count: int, classes: int | Sequence[int] | None, images: int
) -> np.ndarray:
  """Returns the class of each image, int32 [images]; -1: the predicted one."""
  if classes is None:
    return np.full((images,), -1, np.int32)
  chosen = np.asarray(classes)
  if chosen.ndim > 1 or (chosen.ndim and len(chosen) != images):
    raise UserError(
      f'classes has the shape {chosen.shape}: give one class, or one for each'
      f' of the {images} images'
    )
  if chosen.dtype.kind not in 'iu' or chosen.min() < 0 or chosen.max() >= count:
    raise UserError(
      f'classes is {classes!r}: a class is a whole number, 0 to {count - 1}'
    )
  return np.broadcast_to(chosen, (images,)).astype(np.int32)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _gradients(
  model: vit_lib.ViT,
  shape: tuple[int, ...],
  params: Any,
  images: jax.Array,
  classes: jax.Array,
) -> tuple[jax.Array, jax.Array]:
  """Returns attention, and the gradients of the classes' logits to it.

  `classes` are int32 [B]; -1 stands for the predicted class. `shape` is
  (L, H, N, N).
  """

  def chosen_logits(added: jax.Array) -> tuple[jax.Array, jax.Array]:
    variables = {'params': params, 'perturbations': {'attention': added}}
    logits, state = model.apply(variables, images, mutable=['intermediates'])
    index = jnp.where(classes < 0, logits.argmax(axis=-1), classes)
    chosen = jnp.take_along_axis(logits, index[:, None], axis=1)
    # Images are independent, so the gradient of the sum has each image's own.
    return chosen.sum(), state['intermediates']['attention']

  added = jnp.zeros((shape[0], len(images), *shape[1:]))
  gradients, attention = jax.grad(chosen_logits, has_aux=True)(added)
  return attention, gradients
