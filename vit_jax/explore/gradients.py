"""Class relevance of patches, by attention and the gradients of a logit.

Functions of a model and images come first, then that of arrays.

In comments: B images, N tokens (those before the patches come first), H heads,
L layers, (h, w) the grid of patches.
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
from vit_jax.explore import attention as attention_lib
from vit_jax.models import registry
from vit_jax.models import vit as vit_lib
from vit_jax.weights import batched
from vit_jax.weights import features

# Images at a time: computing gradients keeps all activations in memory.
_GRADIENT_BATCH = 8


def class_relevance(
  vit: weights.Loaded,
  images: Any,
  classes: int | Sequence[int] | None = None,
) -> np.ndarray:
  """Returns the relevance of each patch for a class, float32 [B, h, w].

  Attention is weighted by the gradient of the class's logit and accumulated
  over all layers (Chefer et al., 2021, arXiv:2103.15679, equations 5 and 6).
  The result is read at the tokens that the head reads. It is at least 0, in the
  scale of the logits.

  classes: Index of the class, one for all images or one for each; None: the
  predicted class.
  """

  def follow(attention: jax.Array, gradients: jax.Array) -> jax.Array:
    return attention_lib.read_out(vit, relevance(attention, gradients))

  return _with_gradients(vit, images, classes, follow, axis=0)


def attention_gradients(
  vit: weights.Loaded,
  images: Any,
  classes: int | Sequence[int] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
  """Returns attention, and the gradients of a class's logit to it.

  Each is float32 [L, B, H, N, N]. Arguments are those of `class_relevance`.
  """
  return _with_gradients(vit, images, classes, lambda *pair: pair, axis=1)


@jax.jit
def relevance(attention: jax.Array, gradients: jax.Array) -> jax.Array:
  """Returns the relevance of each input token for each token, [B, N, N].

  The relevance R starts as the identity and becomes R + A R in each layer,
  where A is the mean over heads of the positive part of gradient times
  attention. The identity is subtracted at the end, as it says nothing about
  the class.

  gradients: Those of a logit to the attention; both are [L, B, H, N, N].
  """
  weighted = jnp.maximum(attention * gradients, 0).mean(axis=2)  # [L, B, N, N]
  eye = jnp.eye(attention.shape[-1])

  def step(joint: jax.Array, layer: jax.Array) -> tuple[jax.Array, None]:
    return joint + layer @ (joint + eye), None

  return jax.lax.scan(step, jnp.zeros_like(weighted[0]), weighted)[0]


def _with_gradients(
  vit: weights.Loaded,
  images: Any,
  classes: int | Sequence[int] | None,
  reduce: Any,
  axis: int,
) -> Any:
  """Applies `reduce` to attention and gradients, batch by batch."""
  model = attention_lib.attentive(vit)
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
  """Returns int32 [images], with -1 for the predicted class."""
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
  """Returns attention, and the gradients of the classes' logits to it."""

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
