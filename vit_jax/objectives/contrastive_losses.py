"""Losses of image-text pairs: CLIP's softmax and SigLIP's sigmoid.

Both compare every image with every text of the global batch. Each is a mean
over pairs of the loss of one row, an image and its text against all others. On
a mesh each device has the similarities of its own rows; it can compute them in
parts, so that the [B, B] similarities never exist at once.

In comments: B pairs of the global batch, R rows of a part, D the width of the
embeddings.
"""

from collections.abc import Callable
import functools

import jax
import jax.numpy as jnp
import optax

from vit_jax.parallel import mesh as mesh_lib

Pairs = tuple[jax.Array, jax.Array]  # images and texts, [B, D] of unit length


def softmax_rows(
  rows: Pairs, batch: Pairs, scale: jax.typing.ArrayLike, positions: jax.Array
) -> jax.Array:
  """Returns CLIP's loss of pairs, float32 [R] (arXiv:2103.00020, figure 3).

  It is the mean of two cross-entropies: the image's over all texts, and the
  text's over all images.

  Args:
    rows: Images and texts of the pairs, float32 [R, D] each, of unit length.
    batch: Those of the global batch, [B, D] each.
    scale: The inverse of the temperature.
    positions: Positions of the pairs in the global batch, int32 [R].
  """
  (image, text), (images, texts) = rows, batch
  cross_entropy = optax.softmax_cross_entropy_with_integer_labels
  of_image = cross_entropy(scale * _similarity(image, texts), positions)
  of_text = cross_entropy(scale * _similarity(text, images), positions)
  return (of_image + of_text) / 2


def sigmoid_rows(
  rows: Pairs,
  batch: Pairs,
  scale: jax.typing.ArrayLike,
  bias: jax.typing.ArrayLike,
  positions: jax.Array,
) -> jax.Array:
  """Returns SigLIP's loss of some images (arXiv:2303.15343, algorithm 1).

  It is the sum over all texts of a binary cross-entropy: whether the text is
  the image's own. `bias` is added to the logits; most pairs do not belong
  together, and it starts negative. All else is as in `softmax_rows`.
  """
  logits = scale * _similarity(rows[0], batch[1]) + bias
  target = positions[:, None] == jnp.arange(logits.shape[1])
  return optax.sigmoid_binary_cross_entropy(logits, target).sum(axis=1)


def softmax_loss(
  images: jax.Array,
  texts: jax.Array,
  scale: jax.typing.ArrayLike,
  parts: int = 1,
) -> jax.Array:
  """Returns the mean of `softmax_rows` over a batch, computed in `parts`."""
  return _mean(softmax_rows, (images, texts), scale, parts)


def sigmoid_loss(
  images: jax.Array,
  texts: jax.Array,
  scale: jax.typing.ArrayLike,
  bias: jax.typing.ArrayLike,
  parts: int = 1,
) -> jax.Array:
  """Returns the mean of `sigmoid_rows`; arguments as of `softmax_loss`."""
  rows_loss = functools.partial(sigmoid_rows, bias=bias)
  return _mean(rows_loss, (images, texts), scale, parts)


def _mean(
  rows_loss: Callable[..., jax.Array],
  batch: Pairs,
  scale: jax.typing.ArrayLike,
  parts: int,
) -> jax.Array:
  count = len(batch[0])
  if count % parts:
    raise ValueError(f'{parts} parts do not divide {count} pairs')

  def loss(rows: tuple[jax.Array, ...]) -> jax.Array:
    image, text, positions = rows
    losses = rows_loss((image, text), batch, scale, positions=positions)
    return losses.mean()

  rows = *batch, jnp.arange(count)
  if parts == 1:
    return loss(rows)
  # Otherwise the backward pass would keep the similarities of all parts.
  again = jax.checkpoint(loss, prevent_cse=False)
  return jax.lax.map(again, mesh_lib.split_rows(rows, parts)).mean()


def _similarity(x: jax.Array, y: jax.Array) -> jax.Array:
  """Returns the products of [R, D] and [B, D], [R, B]."""
  return jnp.matmul(x, y.T, precision=jax.lax.Precision.HIGHEST)
