"""Codebooks of image patches, found by k-means.

In comments: B images, N patches, F = height * width * C values of a patch, K
codes.
"""

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict
import numpy as np

from vit_jax import config as config_lib
from vit_jax.data import base as data_base
from vit_jax.data import preprocess
from vit_jax.models import embedding

_MOST_IMAGES = 2_048
_MOST_PATCHES = 2**16  # on which the centres are found
_ROUNDS = 20
_AT_ONCE = 4_096  # points whose distances are in memory


def nearest(codes: jax.Array, points: jax.Array) -> jax.Array:
  """Returns the row of the nearest code, int32 [...].

  Codes are float32 [K, F], and points [..., F].
  """
  # |x - c|^2 = |x|^2 - 2 x c + |c|^2, and |x|^2 is the same for all codes.
  products = jnp.einsum(
    '...f,kf->...k',
    points.astype(jnp.float32),
    codes,
    precision=jax.lax.Precision.HIGHEST,
  )
  distances = (codes**2).sum(axis=-1) - 2 * products
  return distances.argmin(axis=-1).astype(jnp.int32)


def find_codes(
  config: ConfigDict,
  source: data_base.Source,
  size: tuple[int, int],
  count: int,
) -> np.ndarray:
  """Finds a codebook of the patches of a training split, float32 [K, F].

  The images are at most 2,048, drawn with a fixed seed and prepared as for
  evaluation, so that it depends on the split alone. A patch has the `size`
  (height, width), and `count` is K.
  """
  rng = np.random.default_rng(0)
  number = min(len(source), _MOST_IMAGES)
  chosen = np.sort(rng.choice(len(source), number, replace=False))
  prepare = preprocess.Preprocess.from_config(config, source.features)
  per_image = max(_MOST_PATCHES // number, 1)
  chosen_patches = []
  for i in chosen.tolist():
    cut = np.asarray(
      embedding.patches(prepare([source.read(i).image]), size)[0]
    )
    chosen_patches.append(cut[rng.permutation(len(cut))[:per_image]])
  points = np.concatenate(chosen_patches)
  different = len(np.unique(points, axis=0))
  if different < count:
    raise config_lib.UserError(
      f'config.objective.options.tokens is {count}, but {number} images of'
      f' {config.data.split} have {different} different patches: set it to at'
      ' most that'
    )
  return k_means(points, count, rng)


def k_means(
  points: np.ndarray, count: int, rng: np.random.Generator
) -> np.ndarray:
  """Returns the centres of k-means, float32 [K, F].

  Centres start at points that are drawn with a probability proportional to the
  squared distance to the centres before (k-means++, Arthur and Vassilvitskii,
  2007), and are then the means of the nearest points for some rounds. Points
  are [n, F], at least `count` of them different.
  """
  points = points.astype(np.float32)
  centres = np.empty((count, points.shape[1]), np.float32)
  centres[0] = points[rng.integers(len(points))]
  distance = ((points - centres[0]) ** 2).sum(axis=1)
  for k in range(1, count):
    share = np.cumsum(distance, dtype=np.float64)
    drawn = np.searchsorted(share, rng.random() * share[-1], side='right')
    centres[k] = points[min(drawn, len(points) - 1)]
    distance = np.minimum(distance, ((points - centres[k]) ** 2).sum(axis=1))
  for _ in range(_ROUNDS):
    owner = _owners(centres, points)
    counts = np.bincount(owner, minlength=count)
    sums = np.zeros(centres.shape, np.float64)
    np.add.at(sums, owner, points)
    has_points = counts > 0  # a centre without points stays where it is
    means = sums[has_points] / counts[has_points, None]
    centres[has_points] = means.astype(np.float32)
  return centres


def _owners(centres: np.ndarray, points: np.ndarray) -> np.ndarray:
  """Returns the nearest centre of each point, int [n]; as `nearest`."""
  squares = (centres**2).sum(axis=1)
  parts = np.array_split(points, -(-len(points) // _AT_ONCE))
  return np.concatenate(
    [(squares - 2 * part @ centres.T).argmin(axis=1) for part in parts]
  )
