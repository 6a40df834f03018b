"""Relevance: which patches speak for a class, by the gradients of its logit.

Functions of a model and images come first; that of arrays below them.

In comments: B images, N tokens (those before the patches come first), H heads,
L layers, (h, w) the grid of patches.
"""

from collections.abc import Sequence
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax import weights
from vit_jax.config import UserError
from vit_jax.explore import attention as attention_lib
from vit_jax.models import vit as vit_lib
from vit_jax.weights import batched
from vit_jax.weights import features

# Images at a time where gradients are computed, which holds all activations.
_GRADIENT_BATCH = 8


def class_relevance(
  vit: weights.Loaded,
  images: Any,
  classes: int | Sequence[int] | None = None,
) -> np.ndarray:
  """Returns how much each patch speaks for a class.

  Attention is weighted by the gradient of the class's logit, and followed
  through all layers (Chefer et al., 2021, arXiv:2103.15679, equations 5 and 6).
  The rows are those of the tokens that the head reads.

  Args:
    vit: A ViT or hybrid with a head.
    images: What `vit.preprocess` takes, or what it made already.
    classes: Index of the class, one for all images or one for each; None: the
      one that the model predicts.

  Returns:
    Relevance, float32 [B, h, w], at least 0; its scale is that of the logits.

  Raises:
    UserError: The model has no attention, no head or no such class, or an image
      cannot be read.
  """

  def follow(attention: jax.Array, gradients: jax.Array) -> jax.Array:
    return attention_lib.read_out(vit, relevance(attention, gradients))

  return _with_gradients(vit, images, classes, follow, axis=0)


def attention_gradients(
  vit: weights.Loaded,
  images: Any,
  classes: int | Sequence[int] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
  """Returns attention weights, and the gradients of a class's logit to them.

  Args:
    vit: A ViT or hybrid with a head.
    images: What `vit.preprocess` takes, or what it made already.
    classes: As of `class_relevance`.

  Returns:
    Attention and gradients, each float32 [L, B, H, N, N].

  Raises:
    UserError: As `class_relevance`.
  """
  return _with_gradients(vit, images, classes, lambda *both: both, axis=1)


@jax.jit
def relevance(attention: jax.Array, gradients: jax.Array) -> jax.Array:
  """Returns how relevant each input token is in each token.

  Args:
    attention: [L, B, H, N, N].
    gradients: Of a logit to the attention, [L, B, H, N, N].

  Returns:
    [B, N, N]: R, which starts as the identity and becomes R + A R in each
    layer, A being the mean over heads of the positive part of gradient times
    attention. The identity is taken off at the end: a token's own start says
    nothing of the class.
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
  """Returns what `reduce` makes of attention and gradients, by batches."""
  model = attention_lib.attentive(vit)
  if not model.num_classes:
    raise UserError(
      'the model has no head, so there is no class to be relevant for: load it'
      ' without num_classes=0'
    )
  inputs = features.prepared(vit, images)
  chosen = _checked_classes(model.num_classes, classes, len(inputs))
  params = jax.tree.map(jnp.asarray, vit.params)
  shape = _attention_shape(vit)

  def apply(x: np.ndarray, y: np.ndarray) -> Any:
    return reduce(*_gradients(model, shape, params, x, y))

  batch_size = min(features.attention_batch(vit), _GRADIENT_BATCH)
  return batched.in_batches(apply, [inputs, chosen], batch_size, axis)


def _checked_classes(
  count: int, classes: int | Sequence[int] | None, images: int
) -> np.ndarray:
  """Returns int32 [images]; -1 stands for the predicted class."""
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


def _attention_shape(vit: weights.Loaded) -> tuple[int, int, int, int]:
  """Returns what is seen of one image: (L, H, N, N)."""
  model, tokens = attention_lib.attentive(vit), features.num_tokens(vit)
  return model.depth, model.num_heads, tokens, tokens


@functools.partial(jax.jit, static_argnums=(0, 1))
def _gradients(
  model: vit_lib.ViT,
  shape: tuple[int, int, int, int],
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
    # An image's logit depends on its own attention alone.
    return chosen.sum(), state['intermediates']['attention']

  added = jnp.zeros((shape[0], len(images), *shape[1:]))
  gradients, attention = jax.grad(chosen_logits, has_aux=True)(added)
  return attention, gradients
