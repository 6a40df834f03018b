"""Losses of image-text pairs: CLIP's softmax and SigLIP's sigmoid.

Both compare every image with every text of the global batch. Each is a mean
over pairs of the loss of one row, an image and its text against all others; so
the rows can be cut into chunks, and the [B, B] similarities never exist at
once.

In comments: B pairs of the global batch, R rows of a chunk, D the width of the
embeddings.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax


def softmax_rows(
  rows: tuple[jax.Array, jax.Array],
  whole: tuple[jax.Array, jax.Array],
  scale: jax.typing.ArrayLike,
  start: jax.typing.ArrayLike = 0,
) -> jax.Array:
  """Returns CLIP's loss of some pairs (arXiv:2103.00020, figure 3).

  It is the mean of two cross-entropies: the image's over all texts, and the
  text's over all images.

  Args:
    rows: Images and texts of the pairs, float32 [R, D] each, of unit length.
    whole: Those of the global batch, [B, D] each.
    scale: The inverse of the temperature.
    start: Position of the first pair in the global batch.

  Returns:
    float32 [R].
  """
  (image, text), (images, texts) = rows, whole
  own = start + jnp.arange(len(image))
  cross_entropy = optax.softmax_cross_entropy_with_integer_labels
  of_image = cross_entropy(scale * _similarity(image, texts), own)
  of_text = cross_entropy(scale * _similarity(text, images), own)
  return (of_image + of_text) / 2


def sigmoid_rows(
  rows: tuple[jax.Array, jax.Array],
  whole: tuple[jax.Array, jax.Array],
  scale: jax.typing.ArrayLike,
  bias: jax.typing.ArrayLike,
  start: jax.typing.ArrayLike = 0,
) -> jax.Array:
  """Returns SigLIP's loss of some images (arXiv:2303.15343, algorithm 1).

  It is the sum over all texts of a binary cross-entropy: whether the text is
  the image's own.

  Args:
    rows: Images and texts of the pairs, float32 [R, D] each, of unit length.
    whole: Those of the global batch, [B, D] each.
    scale: The inverse of the temperature.
    bias: Added to the logits; most pairs do not belong together, and it starts
      negative.
    start: Position of the first pair in the global batch.

  Returns:
    float32 [R].
  """
  logits = scale * _similarity(rows[0], whole[1]) + bias
  own = start + jnp.arange(len(logits))
  target = own[:, None] == jnp.arange(logits.shape[1])
  return optax.sigmoid_binary_cross_entropy(logits, target).sum(axis=1)


def softmax_loss(
  images: jax.Array,
  texts: jax.Array,
  scale: jax.typing.ArrayLike,
  chunk: int | None = None,
) -> jax.Array:
  """Returns the mean of `softmax_rows` over a batch.

  Args:
    images: float32 [B, D], of unit length.
    texts: float32 [B, D], of unit length.
    scale: The inverse of the temperature.
    chunk: Number of rows that are compared at a time, which divides B; None:
      all of them.

  Raises:
    ValueError: The chunk does not divide the batch.
  """

  def loss(part: tuple[jax.Array, jax.Array], start: jax.Array) -> jax.Array:
    return softmax_rows(part, (images, texts), scale, start)

  return _mean(loss, images, texts, chunk)


def sigmoid_loss(
  images: jax.Array,
  texts: jax.Array,
  scale: jax.typing.ArrayLike,
  bias: jax.typing.ArrayLike,
  chunk: int | None = None,
) -> jax.Array:
  """Returns the mean of `sigmoid_rows` over a batch.

  Args:
    images: float32 [B, D], of unit length.
    texts: float32 [B, D], of unit length.
    scale: The inverse of the temperature.
    bias: Added to the logits.
    chunk: As `softmax_loss`.

  Raises:
    ValueError: The chunk does not divide the batch.
  """

  def loss(part: tuple[jax.Array, jax.Array], start: jax.Array) -> jax.Array:
    return sigmoid_rows(part, (images, texts), scale, bias, start)

  return _mean(loss, images, texts, chunk)


def _mean(
  loss: Callable[[tuple[jax.Array, jax.Array], jax.Array], jax.Array],
  images: jax.Array,
  texts: jax.Array,
  chunk: int | None,
) -> jax.Array:
  batch = len(images)
  chunk = chunk or batch
  if batch % chunk:
    raise ValueError(f'chunks of {chunk} rows do not divide {batch} pairs')
  if chunk == batch:
    return loss((images, texts), jnp.int32(0)).mean()
  parts = images.reshape(-1, chunk, images.shape[1])
  others = texts.reshape(-1, chunk, texts.shape[1])
  starts = jnp.arange(0, batch, chunk, dtype=jnp.int32)
  # Otherwise the backward pass would keep the similarities of all chunks.
  again = jax.checkpoint(lambda x: loss((x[0], x[1]), x[2]).mean())
  return jax.lax.map(again, (parts, others, starts)).mean()


def _similarity(x: jax.Array, y: jax.Array) -> jax.Array:
  """Returns the products of [R, D] and [B, D], [R, B]."""
  return jnp.matmul(x, y.T, precision=jax.lax.Precision.HIGHEST)
