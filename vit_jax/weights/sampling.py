"""Draws images from an iGPT, or completes their lower halves.

In comments: B images, (H, W) their size, C channels, N = H * W pixels.
"""

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax import weights
from vit_jax.config import UserError
from vit_jax.models import igpt
from vit_jax.models import pixel_cache
from vit_jax.weights import batched
from vit_jax.weights import features

_BATCH = 64  # maximum number of images at a time


def sample(
  vit: weights.Loaded, count: int, temperature: float = 1.0, seed: int = 0
) -> np.ndarray:
  """Returns new images as an iGPT takes them, float32 [count, H, W, C].

  `temperature` divides the logits of colours: below 1, likely colours become
  more likely; 0: each pixel is the most probable colour. Image i of a seed is
  the same for any count.
  """
  check(vit)
  height, width = vit.position_size
  unknown = np.full((count, height * width), -1, np.int32)
  return _drawn(vit, unknown, temperature, seed)


def complete(
  vit: weights.Loaded,
  images: object,
  count: int = 1,
  temperature: float = 1.0,
  seed: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
  """Draws `count` lower halves of images; the other options as of `sample`.

  Returns the images in the colours of the model, float32 [B, H, W, C], and with
  other lower halves, [B, count, H, W, C], both as the model takes them. With an
  odd number of rows the middle one is drawn.
  """
  check(vit)
  clusters = jnp.asarray(vit.params['clusters'])
  inputs = features.prepared(vit, images)
  ids = np.asarray(igpt.nearest(jnp.asarray(inputs), clusters))
  halves = np.repeat(ids, count, axis=0)
  halves[:, ids.shape[1] // 2 :] = -1
  drawn = _drawn(vit, halves.reshape(len(halves), -1), temperature, seed)
  return np.asarray(clusters)[ids], drawn.reshape(
    len(ids), count, *drawn.shape[1:]
  )


def check(vit: weights.Loaded) -> None:
  """Checks that a model can draw images."""
  if not isinstance(vit.model, igpt.IGPT):
    raise UserError(
      f'the model is a {type(vit.model).__name__}, which predicts no pixels:'
      ' choose an iGPT, trained with config.objective.name=igpt'
    )
  if not vit.model.has_clusters:
    raise UserError(
      'the model has no clusters of colours, so that what it draws cannot be'
      ' shown: write them into preprocessor_config.json beside its weights'
    )


def _drawn(
  vit: weights.Loaded, fixed_colours: np.ndarray, temperature: float, seed: int
) -> np.ndarray:
  """Returns images [B, H, W, C] with `fixed_colours` [B, N], the rest drawn."""
  model, params = vit.model, jax.tree.map(jnp.asarray, vit.params)
  assert isinstance(model, igpt.IGPT)
  key = jax.random.key(seed)

  def draw(fixed_colours: np.ndarray, rows: np.ndarray) -> jax.Array:
    return pixel_cache.draw(
      model,
      params,
      key,
      jnp.asarray(fixed_colours),
      jnp.asarray(rows),
      temperature,
    )[0]

  rows = np.arange(len(fixed_colours), dtype=np.int32)
  ids = batched.in_batches(draw, [fixed_colours, rows], _BATCH)
  colours = np.asarray(vit.params['clusters'])[ids]
  return colours.reshape(len(ids), *vit.position_size, -1)
