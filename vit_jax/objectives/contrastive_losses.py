"""Losses of image-text pairs: CLIP's softmax and SigLIP's sigmoid.

Both compare every image with every text of the global batch. Each is a mean
over pairs of the loss of one row, an image and its text against all others. On
a mesh each device has the similarities of its own rows; it can compute them in
parts, so that the [B, B] similarities never exist at once.

In comments: B pairs of the global batch, R rows of a part, D the width of the
embeddings.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from vit_jax.parallel import mesh as mesh_lib


def softmax_rows(
  rows: tuple[jax.Array, jax.Array],
  batch: tuple[jax.Array, jax.Array],
  scale: jax.typing.ArrayLike,
  positions: jax.Array,
) -> jax.Array:
  """Returns CLIP's loss of some pairs (arXiv:2103.00020, figure 3).

  It is the mean of two cross-entropies: the image's over all texts, and the
  text's over all images.

  Args:
    rows: Images and texts of the pairs, float32 [R, D] each, of unit length.
    batch: Those of the global batch, [B, D] each.
    scale: The inverse of the temperature.
    positions: Positions of the pairs in the global batch, int32 [R].

  Returns:
    float32 [R].
  """
  (image, text), (images, texts) = rows, batch
  cross_entropy = optax.softmax_cross_entropy_with_integer_labels
  of_image = cross_entropy(scale * _similarity(image, texts), positions)
  of_text = cross_entropy(scale * _similarity(text, images), positions)
  return (of_image + of_text) / 2


def sigmoid_rows(
  rows: tuple[jax.Array, jax.Array],
  batch: tuple[jax.Array, jax.Array],
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
  """Returns the mean of `softmax_rows` over a batch.

  Args:
    images: float32 [B, D], of unit length.
    texts: float32 [B, D], of unit length.
    scale: The inverse of the temperature.
    parts: Number of parts of the rows, which divides B.

  Raises:
    ValueError: It does not divide B.
  """

  def loss(
    image: jax.Array, text: jax.Array, positions: jax.Array
  ) -> jax.Array:
    return softmax_rows((image, text), (images, texts), scale, positions)

  return _mean(loss, images, texts, parts)


def sigmoid_loss(
  images: jax.Array,
  texts: jax.Array,
  scale: jax.typing.ArrayLike,
  bias: jax.typing.ArrayLike,
  parts: int = 1,
) -> jax.Array:
  """Returns the mean of `sigmoid_rows`; arguments as of `softmax_loss`."""

  def loss(
    image: jax.Array, text: jax.Array, positions: jax.Array
  ) -> jax.Array:
    return sigmoid_rows((image, text), (images, texts), scale, bias, positions)

  return _mean(loss, images, texts, parts)


def _mean(
  loss: Callable[[jax.Array, jax.Array, jax.Array], jax.Array],
  images: jax.Array,
  texts: jax.Array,
  parts: int,
) -> jax.Array:
  batch = len(images)
  if batch % parts:
    raise ValueError(f'{parts} parts do not divide {batch} pairs')
  rows = images, texts, jnp.arange(batch)
  if parts == 1:
    return loss(*rows).mean()
  # Otherwise the backward pass would keep the similarities of all parts.
  again = jax.checkpoint(lambda x: loss(*x).mean(), prevent_cse=False)
  return jax.lax.map(again, mesh_lib.split_rows(rows, parts)).mean()


def _similarity(x: jax.Array, y: jax.Array) -> jax.Array:
  """Returns the products of [R, D] and [B, D], [R, B]."""
  return jnp.matmul(x, y.T, precision=jax.lax.Precision.HIGHEST)
