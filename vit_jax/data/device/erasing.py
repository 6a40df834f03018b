"""Random erasing (arXiv:1708.04896): a rectangle becomes noise."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.config import options
from vit_jax.data.host.geometry import Fractions
from vit_jax.data.host.geometry import Range
from vit_jax.data.host.geometry import Size
from vit_jax.data.host.geometry import TRIES

# Purposes of random numbers from an image's key.
_BOX, _NOISE = range(2)


@dataclasses.dataclass(frozen=True)
class Erase:
  """Fills a rectangle of some images with normal noise, as timm's mode 'pixel'.

  Attributes:
    probability: Probability that an image has such a rectangle.
    area: Range of the area, as a fraction of the image; drawn uniformly.
    ratio: Range of height / width; its logarithm is drawn uniformly.
  """

  probability: options.Share
  area: Fractions = (0.02, 1 / 3)
  ratio: Range = (0.3, 10 / 3)

  def __post_init__(self) -> None:
    options.check_growing(self)

  def __call__(self, images: jax.Array, keys: jax.Array) -> jax.Array:
    """Erases rectangles of normalised images, float32 [B, H, W, C].

    An image does not change if none of ten drawn rectangles is smaller than the
    image in both directions.
    """

    def erase(image: jax.Array, key: jax.Array) -> jax.Array:
      key_box, key_noise = (jax.random.fold_in(key, i) for i in (_BOX, _NOISE))
      size = image.shape[0], image.shape[1]
      top, left, height, width = self._box(key_box, size)
      y, x = np.ogrid[: size[0], : size[1]]
      is_erased = (y >= top) & (y < top + height)
      is_erased &= (x >= left) & (x < left + width)
      noise = jax.random.normal(key_noise, image.shape, image.dtype)
      return jnp.where(is_erased[..., None], noise, image)

    return jax.vmap(erase)(images, keys)

  def _box(self, key: jax.Array, size: Size) -> jax.Array:
    """Returns float32 [4]: top, left, height, width; 0 x 0: no rectangle."""
    draws = jax.random.uniform(key, (2 * TRIES + 3,))
    areas, ratios = draws[:TRIES], draws[TRIES : 2 * TRIES]
    low, high = self.area
    areas = (low + (high - low) * areas) * (size[0] * size[1])
    low, high = np.log(self.ratio)
    ratios = jnp.exp(low + (high - low) * ratios)
    sides = jnp.stack([jnp.sqrt(areas * ratios), jnp.sqrt(areas / ratios)])
    sides = jnp.round(sides)  # [2, TRIES]
    image_size = np.array(size, np.float32)
    fits = (sides < image_size[:, None]).all(axis=0)
    sides = sides[:, jnp.argmax(fits)]
    offsets = jnp.floor(draws[-3:-1] * (image_size - sides + 1))
    is_erased = fits.any() & (draws[-1] < self.probability)
    return jnp.concatenate([offsets, jnp.where(is_erased, sides, 0.0)])
