"""Augmentation policies: which operations an image gets, and how strong.

Each policy draws like the code it follows; all operations are Pillow's.
"""

from collections.abc import Callable
from collections.abc import Mapping
import dataclasses
from typing import Annotated
from typing import Literal
from typing import NamedTuple

import jax
import jax.numpy as jnp

from vit_jax.config.options import Interval
from vit_jax.config.options import Share
from vit_jax.data.device import operations
from vit_jax.data.device import shapes
from vit_jax.data.device.operations import Draw
from vit_jax.data.host.geometry import Size


class _Chance(NamedTuple):
  """Random numbers of an image in a layer, in [0, 1) but for the last three."""

  common: jax.Array  # the same in all layers
  op: jax.Array
  level: jax.Array
  done: jax.Array  # decides whether the operation is applied
  sign: jax.Array  # -1 or 1
  normal: jax.Array  # standard normal
  spot: jax.Array  # float32 [2], for `Draw.spot`


# (level, sign, size) -> the amount of an operation. Levels are from 0 to 1,
# unless the policy says otherwise.
_Amount = Callable[[jax.Array, jax.Array, Size], jax.Array]
# Index of the operation in the policy, its level, and whether it is applied.
_Chosen = tuple[jax.Array, jax.Array | float, jax.Array | bool]


@dataclasses.dataclass(frozen=True, eq=False)
class Policy:
  """Maps images, uint8 [B, H, W, C], and keys [B] to augmented images."""

  # Operations by name, each with a function from a level to an amount.
  amounts: Mapping[str, _Amount]
  level: Callable[[_Chance], jax.Array | float]
  probability: float = 1.0  # of an operation that was drawn to be applied
  layers: int = 1  # number of operations, applied one after the other
  # Interpolation of shears, rotations and translations.
  interpolation: str = 'nearest'
  fill: int = 128  # value of pixels from outside the image

  @property
  def moves(self) -> tuple[str, ...]:
    """Names of its operations that move pixels."""
    return tuple(name for name in self.amounts if name in shapes.MAPS)

  def choose(self, chance: _Chance, layer: jax.Array) -> _Chosen:
    """Draws an operation; all are equally likely."""
    del layer
    place = _place(chance.op, len(self.amounts))
    return place, self.level(chance), chance.done < self.probability

  def draw(self, keys: jax.Array, size: Size) -> Draw:
    """Draws the operations for keys [B], as arrays [layers, B, ...].

    The `size` of the images is (height, width).
    """
    names = [operations.NAMES.index(name) for name in self.amounts]
    identity = operations.NAMES.index('identity')

    def draw_one(key: jax.Array, layer: jax.Array) -> Draw:
      common = jax.random.uniform(jax.random.fold_in(key, 0))
      key = jax.random.fold_in(key, 1 + layer)
      op, level, done, sign, *spot = jax.random.uniform(key, (6,))
      chance = _Chance(
        common=common,
        op=op,
        level=level,
        done=done,
        sign=jnp.where(sign < 0.5, -1.0, 1.0),
        normal=jax.random.normal(jax.random.fold_in(key, 0)),
        spot=jnp.stack(spot),
      )
      place, level, done = self.choose(chance, layer)
      level = jnp.asarray(level, jnp.float32)
      amounts = [f(level, chance.sign, size) for f in self.amounts.values()]
      op = jnp.where(done, jnp.array(names)[place], identity)
      return Draw(op, jnp.stack(amounts)[place], chance.spot)

    images = jax.vmap(draw_one, (0, None))
    return jax.vmap(images, (None, 0))(keys, jnp.arange(self.layers))

  def __call__(self, images: jax.Array, keys: jax.Array) -> jax.Array:
    """Augments images; see the class."""
    draws = self.draw(keys, (images.shape[1], images.shape[2]))
    names = tuple(self.amounts)
    return operations.apply_all(
      images, draws, names, self.interpolation, self.fill
    )


def _place(share: jax.Array, length: int) -> jax.Array:
  """Returns an integer in [0, length), from a random share in [0, 1)."""
  return (share * length).astype(jnp.int32)


def _no_amount(level: jax.Array, sign: jax.Array, size: Size) -> jax.Array:
  del sign, size
  return jnp.zeros_like(level)


def _enhance(amount: _Amount) -> dict[str, _Amount]:
  names = 'color', 'contrast', 'brightness', 'sharpness'
  return dict.fromkeys(names, amount)


def _signed(most: float) -> _Amount:
  return lambda level, sign, size: most * level * sign


def _rotate_and_shear(degrees: float, shear: float) -> dict[str, _Amount]:
  shears = dict.fromkeys(('shear_x', 'shear_y'), _signed(shear))
  return {'rotate': _signed(degrees), **shears}


_INVERT = dict.fromkeys(('auto_contrast', 'equalize', 'invert'), _no_amount)
_PLAIN: dict[str, _Amount] = {
  'posterize': lambda level, sign, size: jnp.floor(4 * level),
  'solarize': lambda level, sign, size: jnp.floor(256 * level),
}
_PLAIN_ENHANCE = _enhance(lambda level, sign, size: 1.8 * level + 0.1)
_SOLARIZE_ADD: dict[str, _Amount] = {
  'solarize_add': lambda level, sign, size: jnp.floor(110 * level)
}


def randaugment(
  layers: Annotated[int, Interval('[1, 100]')],
  magnitude: Annotated[int, Interval('[0, 30]')],
) -> Policy:
  """RandAugment (arXiv:1909.13719) as in TensorFlow's models and AugReg.

  A level is magnitude / 10, which may exceed 1: posterize does nothing from
  level 2 on, and solarize from level 1 on. Translations and cutouts are given
  in pixels of 224 x 224 images and scale with the short side. Contrast is
  Pillow's, relative to the mean grey; TensorFlow's is relative to another grey.
  """

  def translate(level: jax.Array, sign: jax.Array, size: Size) -> jax.Array:
    return 100 * (min(size) / 224) * level * sign

  amounts: dict[str, _Amount] = {
    **_INVERT,
    **_PLAIN,
    **_SOLARIZE_ADD,
    **_PLAIN_ENHANCE,
    **_rotate_and_shear(30, 0.3),
    'translate_x': translate,
    'translate_y': translate,
    'cutout': lambda level, sign, size: jnp.floor(
      40 * (min(size) / 224) * level
    ),
  }
  return Policy(amounts, lambda chance: magnitude / 10, layers=layers)


def rand(
  m: Annotated[int, Interval('[0, 1000]')] = 10,
  n: Annotated[int, Interval('[1, 100]')] = 2,
  mstd: Annotated[float, Interval('[0, 100]')] = 0.0,
  inc: Literal[0, 1] = 0,
  p: Share = 0.5,
) -> Policy:
  """RandAugment as in timm: magnitudes vary, and layers may be left out.

  Interpolation is always bilinear, while timm draws bilinear or bicubic (or
  takes that of the crops). Empty corners are filled with timm's default, grey.

  Args:
    m: Magnitude, of which at most 10 is used.
    n: Number of layers.
    mstd: Standard deviation of the magnitude.
    inc: Whether all operations grow stronger with the magnitude, 0 or 1.
    p: Probability that a layer changes an image.
  """
  levels: dict[str, _Amount] = {**_PLAIN, **_PLAIN_ENHANCE}
  if inc:
    levels = {
      'posterize': lambda level, sign, size: 4 - jnp.floor(4 * level),
      'solarize': lambda level, sign, size: 256 - jnp.floor(256 * level),
      **_enhance(
        lambda level, sign, size: jnp.maximum(0.1, 1 + 0.9 * level * sign)
      ),
    }
  amounts: dict[str, _Amount] = {
    **_INVERT,
    **_SOLARIZE_ADD,
    **_rotate_and_shear(30, 0.3),
    'translate_x': lambda level, sign, size: 0.45 * size[1] * level * sign,
    'translate_y': lambda level, sign, size: 0.45 * size[0] * level * sign,
    **levels,
  }
  return Policy(
    amounts,
    lambda chance: jnp.clip(m + mstd * chance.normal, 0, 10) / 10,
    probability=p,
    layers=n,
    interpolation='bilinear',
  )


def trivialaugment() -> Policy:
  """TrivialAugment Wide (arXiv:2103.10158), as in torchvision.

  There are 31 levels. Translations are up to 32 pixels for all image sizes.
  """
  highest = 30

  def shift(level: jax.Array, sign: jax.Array, size: Size) -> jax.Array:
    del size
    return jnp.floor(32 * level) * sign

  amounts: dict[str, _Amount] = {
    **dict.fromkeys(('identity', 'auto_contrast', 'equalize'), _no_amount),
    'posterize': lambda level, sign, size: 8 - jnp.round(6 * level),
    'solarize': lambda level, sign, size: 255 - 255 * level,
    **_enhance(lambda level, sign, size: 1 + 0.99 * level * sign),
    **_rotate_and_shear(135, 0.99),
    'translate_x': shift,
    'translate_y': shift,
  }
  return Policy(
    amounts,
    lambda chance: _place(chance.level, highest + 1) / highest,
    fill=0,
  )


def autoaugment() -> Policy:
  """AutoAugment (arXiv:1805.09501) with torchvision's policy for CIFAR-10."""
  amounts: dict[str, _Amount] = {
    **_INVERT,
    'posterize': lambda level, sign, size: 8 - jnp.round(4 * level),
    'solarize': lambda level, sign, size: 255 - 255 * level,
    **_enhance(lambda level, sign, size: 1 + 0.9 * level * sign),
    **_rotate_and_shear(30, 0.3),
    'translate_x': lambda level, sign, size: (
      jnp.floor(150 / 331 * size[1] * level) * sign
    ),
    'translate_y': lambda level, sign, size: (
      jnp.floor(150 / 331 * size[0] * level) * sign
    ),
  }
  return _Pairs(amounts, lambda chance: chance.level, layers=2, fill=0)


class _Pairs(Policy):
  """Draws one line of _AUTOAUGMENT, of which each layer applies a part."""

  def choose(self, chance: _Chance, layer: jax.Array) -> _Chosen:
    """Returns a part of the line that is common to all layers."""
    names = list(self.amounts)
    pairs = [line.split(',') for line in _AUTOAUGMENT.strip().splitlines()]
    steps = [[step.split() for step in pair] for pair in pairs]
    places = [[names.index(name) for name, _, _ in pair] for pair in steps]
    probabilities = [[float(p) for _, p, _ in pair] for pair in steps]
    levels = [[int(x) / _MOST_LEVEL for _, _, x in pair] for pair in steps]
    pair = _place(chance.common, len(steps))
    place, probability, level = (
      jnp.array(table)[pair, layer] for table in (places, probabilities, levels)
    )
    return place, level, chance.done <= probability


_MOST_LEVEL = 9
# One line is drawn: two operations with probabilities and levels.
_AUTOAUGMENT = """
invert .1 0, contrast .2 6
rotate .7 2, translate_x .3 9
sharpness .8 1, sharpness .9 3
shear_y .5 8, translate_y .7 9
auto_contrast .5 0, equalize .9 0
shear_y .2 7, posterize .3 7
color .4 3, brightness .6 7
sharpness .3 9, brightness .7 9
equalize .6 0, equalize .5 0
contrast .6 7, sharpness .6 5
color .7 7, translate_x .5 8
equalize .3 0, auto_contrast .4 0
translate_y .4 3, sharpness .2 6
brightness .9 6, color .2 8
solarize .5 2, invert .0 0
equalize .2 0, auto_contrast .6 0
equalize .2 0, equalize .6 0
color .9 9, equalize .6 0
auto_contrast .8 0, solarize .2 8
brightness .1 3, color .7 0
solarize .4 5, auto_contrast .9 0
translate_y .9 9, translate_y .7 9
auto_contrast .9 0, solarize .8 3
equalize .8 0, invert .1 0
translate_y .7 9, auto_contrast .9 0
"""


def three_augment() -> Policy:
  """3-Augment (DeiT III, arXiv:2204.07118), without its colour jitter."""
  amounts: dict[str, _Amount] = {
    'grayscale': _no_amount,
    'solarize': lambda level, sign, size: jnp.full_like(level, 128),
    'gaussian_blur': lambda level, sign, size: 0.1 + 1.9 * level,
  }
  return Policy(amounts, lambda chance: chance.level)
