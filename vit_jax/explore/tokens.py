"""Patches, and norms, similarity and principal components of tokens.

Functions of a model and images come first. Functions of arrays follow, with
which several pictures share one forward pass (`features.reduced`). A model
`vit` is a ViT, hybrid or Mixer; `images` are what `vit.preprocess` accepts, or
its output.

In comments: B images, N tokens (the patches come last), D hidden size, L
layers, (h, w) the grid of patches.
"""

import functools
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax import models
from vit_jax import weights
from vit_jax.explore import components
from vit_jax.models import embedding
from vit_jax.weights import batched
from vit_jax.weights import features

# Values outside these percentiles get the end colours of the scale, since a few
# outliers (arXiv:2309.16588) would leave the rest without contrast.
_PERCENTILES = (1, 99)
# Minimum range of a component, as a fraction of the first one's; smaller ranges
# are rounding noise.
_LEAST_RANGE = 1e-4
_BATCH = 16  # maximum number of images at a time


def image_patches(vit: weights.Loaded, images: Any) -> np.ndarray:
  """Cuts images into the sequence of patches that a model reads.

  See the ViT paper (arXiv:2010.11929, section 3.1). The patches of p x q pixels
  and C channels are row by row, in the units of `vit.preprocess`, float32
  [B, h * w, p, q, C].
  """
  h, w = features.patch_grid(vit)
  x = features.prepared(vit, images)
  b, height, width, channels = x.shape
  size = height // h, width // w
  return embedding.patches(x, size).reshape(b, h * w, *size, channels)


def token_norms(vit: weights.Loaded, images: Any) -> np.ndarray:
  """Returns the L2 norms of the tokens after each layer, float32 [L, B, N].

  Patches with large norms are outliers that hold global information instead of
  the patch (Vision Transformers Need Registers, arXiv:2309.16588, section 2).
  """
  return features.reduced_array(vit, images, 'tokens', norms, axis=1)


def patch_similarity(
  vit: weights.Loaded, images: Any, patch: tuple[int, int], layer: int = -1
) -> np.ndarray:
  """Returns the similarity of each patch's token to the one of a chosen patch.

  It is the cosine of the outputs of a layer, float32 [B, h, w], and 1 at the
  patch itself. DINOv3 (arXiv:2508.10104) shows such maps. `patch` is a
  (row, column), from 0, and `layer` an index; -1 is the last layer.
  """
  grid, index = features.patch_grid(vit), features.patch_index(vit, patch)
  layer = features.layer_index(vit, layer)
  return features.reduced_array(
    vit,
    images,
    'tokens',
    lambda x: similarity_to(x[layer], grid, index),
    axis=0,
  )


def token_pca(vit: weights.Loaded, images: Any, layer: int = -1) -> np.ndarray:
  """Returns the principal components of patch tokens as colours.

  This follows DINOv2 (arXiv:2304.07193, figure 1), but keeps the background.
  The components are computed from all patches of all images together, so that
  similar colours mean similar tokens, also in different images. The first three
  are red, green and blue, float32 [B, h, w, 3] in [0, 1]. The range of a
  component is its 1st to 99th percentile. `layer` is an index; -1 is the last
  layer.
  """
  grid, layer = features.patch_grid(vit), features.layer_index(vit, layer)
  return pca(features.features(vit, images, [layer])[0], grid)


class Foreground(NamedTuple):
  """Principal components of patch features, twice."""

  # First component of all patches of all images, float32 [B, h, w]; positive in
  # the foreground.
  score: np.ndarray
  # First three components of the foreground's patches, as red, green and blue,
  # float32 [B, h, w, 3] in [0, 1]; 0 in the background.
  colors: np.ndarray


def patch_foreground(vit: weights.Loaded, images: Any) -> Foreground:
  """Returns the principal components of the foreground's patch features.

  This follows DINOv2 (arXiv:2304.07193, figure 1). A first PCA is over the
  patches of all images. Patches whose first component is positive are the
  foreground. A second PCA is over the foreground. The sign of a component means
  nothing; here the foreground is the side with fewer patches at the borders of
  images. The features are the trunk's output, after its last norm.
  """
  return foreground(patch_features(vit, images), features.patch_grid(vit))


def patch_features(vit: weights.Loaded, images: Any) -> np.ndarray:
  """Returns the trunk's output for patches, [B, h * w, D], after its norm."""
  h, w = features.patch_grid(vit)
  params = jax.tree.map(jnp.asarray, vit.params)
  return batched.in_batches(
    lambda x: _trunk_tokens(vit.model, params, x)[:, -h * w :],
    [features.prepared(vit, images)],
    _BATCH,
  )


@functools.partial(jax.jit, static_argnums=0)
def _trunk_tokens(
  model: models.Model, params: Any, images: jax.Array
) -> jax.Array:
  outputs: Any = model.apply({'params': params}, images, method='trunk')
  return outputs['tokens'].astype(jnp.float32)


@jax.jit
def norms(tokens: jax.Array) -> jax.Array:
  """Returns the L2 norms [...] of tokens [..., D]."""
  return jnp.linalg.norm(tokens, axis=-1)


@functools.partial(jax.jit, static_argnums=1)
def similarity_to(
  tokens: jax.Array, grid: tuple[int, int], index: jax.typing.ArrayLike
) -> jax.Array:
  """Returns the cosine similarity of patches to a chosen patch, [B, h, w].

  `tokens` are the output of a layer, [B, N, D], `grid` is (h, w), and `index`
  counts the patches row by row.
  """
  h, w = grid
  patches = tokens[:, -h * w :]
  length = jnp.maximum(norms(patches), jnp.finfo(jnp.float32).tiny)
  unit = patches / length[..., None]
  chosen = jnp.take(unit, index, axis=1)
  return jnp.einsum('bnd,bd->bn', unit, chosen).reshape(-1, h, w)


def pca(tokens: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
  """Returns tokens [B, N, D] of a layer as colours; see `token_pca`."""
  h, w = grid
  x = np.asarray(tokens)[:, -h * w :].reshape(-1, tokens.shape[-1])
  return _stretched(_components(x)).reshape(-1, h, w, 3)


def foreground(tokens: np.ndarray, grid: tuple[int, int]) -> Foreground:
  """Returns the components of features [B, N, D]; see `patch_foreground`."""
  h, w = grid
  x = np.asarray(tokens)[:, -h * w :].reshape(-1, tokens.shape[-1])
  score = _components(x)[:, 0]
  border = np.ones(grid, bool)
  border[1:-1, 1:-1] = False
  at_border = np.tile(border.ravel(), len(tokens))
  sides = [
    at_border[side].mean() for side in (score > 0, score < 0) if side.any()
  ]
  if len(sides) == 2 and sides[0] > sides[1]:
    score = -score
  is_front = score > 0
  colors = np.zeros((len(x), 3), np.float32)
  if is_front.any():
    colors[is_front] = _stretched(_components(x[is_front]))
  return Foreground(score.reshape(-1, h, w), colors.reshape(-1, h, w, 3))


def _components(x: np.ndarray) -> np.ndarray:
  """Returns three principal components of x [n, D], float32 [n, 3].

  Where x has fewer, the last ones are 0.
  """
  points = components.principal_components(x, 3).points
  missing = 3 - points.shape[1]
  return np.pad(points.astype(np.float32), ((0, 0), (0, missing)))


def _stretched(points: np.ndarray) -> np.ndarray:
  """Returns components [n, 3] as colours, float32 [n, 3] in [0, 1]."""
  low, high = np.percentile(points, _PERCENTILES, axis=0)
  least = np.maximum(_LEAST_RANGE * (high - low)[0], np.finfo(np.float32).tiny)
  scaled = (points - low) / np.maximum(high - low, least)
  return scaled.clip(0, 1).astype(np.float32)
