"""One operation for each image of a batch, and colour jitter, on the device.

Each image has its own operation. All images run the same code whichever was
drawn: every operation is computed for every image, and the drawn one is kept.
So the result does not depend on how a batch is split.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from vit_jax.data.device import color
from vit_jax.data.device import shapes

# `Draw.op` is an index into this list. `color.py` and `shapes.py` define the
# operations and what their amounts mean.
NAMES = (
  'identity',
  *color.TABLES,
  *color.FILTERS,
  'gaussian_blur',
  *shapes.MAPS,
  'cutout',
)
JITTER = ('brightness', 'contrast', 'color', 'hue')
# What `sometimes` applies: the least and the largest amount of each (MoCo v3,
# arXiv:2104.02057, its code; DINO and BYOL have the same).
SOMETIMES = {
  'grayscale': (0.0, 0.0),
  'gaussian_blur': (0.1, 2.0),
  'solarize': (128.0, 128.0),
}
_IDENTITY = NAMES.index('identity')


class Draw(NamedTuple):
  """Drawn operations, one for each image."""

  op: jax.Array  # int32 [B], index into NAMES
  amount: jax.Array  # float32 [B], how strong the operation is
  spot: jax.Array  # float32 [B, 2], centre of a cutout: (y, x) in [0, 1)


def apply(
  images: jax.Array,
  draw: Draw,
  op_names: Sequence[str] = NAMES,
  interpolation: str = 'nearest',
  fill: int = 128,
) -> jax.Array:
  """Applies one operation to each image, uint8 [B, H, W, C].

  Results equal Pillow's within one grey level. Images are grey (C = 1), RGB or
  RGBA, and colour operations do not change alpha. Only the operations of
  `op_names` are computed. Shears, rotations and translations use
  `interpolation`, 'nearest' or 'bilinear', and `fill` outside of the image.
  """
  map_names = [name for name in shapes.MAPS if name in op_names]

  def apply_one(image: jax.Array, draw: Draw) -> jax.Array:
    colors = _recolor(image[..., :3], draw, op_names)
    result = jnp.concatenate([colors, image[..., 3:]], axis=-1)
    if 'gaussian_blur' in op_names:
      blurred = color.gaussian_blur(image, draw.amount)
      result = jnp.where(_is(draw, 'gaussian_blur'), blurred, result)
    if map_names:
      size = image.shape[0], image.shape[1]
      matrices = [shapes.MAPS[name](draw.amount, size) for name in map_names]
      chosen = [_is(draw, name) for name in map_names]
      matrix = jnp.select(chosen, matrices)
      warped = shapes.warp(image, matrix, interpolation, fill)
      result = jnp.where(jnp.stack(chosen).any(), warped, result)
    if 'cutout' in op_names:
      cut = shapes.cutout(image, draw.amount, draw.spot, fill)
      result = jnp.where(_is(draw, 'cutout'), cut, result)
    return result

  return jax.vmap(apply_one)(images, draw)


def apply_all(
  images: jax.Array,
  draws: Draw,
  op_names: Sequence[str] = NAMES,
  interpolation: str = 'nearest',
  fill: int = 128,
) -> jax.Array:
  """Applies operations one after the other, of `draws` [operations, B, ...]."""

  def step(images: jax.Array, draw: Draw) -> tuple[jax.Array, None]:
    return apply(images, draw, op_names, interpolation, fill), None

  # A scan: unrolled, XLA would fuse the operations and recompute a pixel each
  # time the next operation reads it.
  return jax.lax.scan(step, images, draws)[0]


def _is(draw: Draw, name: str) -> jax.Array:
  return draw.op == NAMES.index(name)


def _recolor(
  image: jax.Array, draw: Draw, op_names: Sequence[str]
) -> jax.Array:
  """Applies a colour operation to one image, [H, W, 1 or 3]."""
  result = image
  tables = [name for name in color.TABLES if name in op_names]
  if tables:
    shape = (256, image.shape[-1])
    table = jnp.broadcast_to(jnp.arange(256)[:, None], shape)
    for name in tables:
      new_table = color.TABLES[name](image, draw.amount)
      table = jnp.where(_is(draw, name), new_table, table)
    table = jnp.clip(table, 0, 255).astype(jnp.uint8)
    result = jax.vmap(lambda x, i: x[i], -1, -1)(table, image)
  for name, change in color.FILTERS.items():
    if name in op_names:
      filtered = change(image, draw.amount)
      result = jnp.where(_is(draw, name), filtered, result)
  return result


def jitter(
  images: jax.Array,
  keys: jax.Array,
  strengths: Sequence[float],
  probability: float = 1.0,
) -> jax.Array:
  """Changes uint8 [B, H, W, C] by JITTER in random order, with keys [B].

  This follows `torchvision.transforms.ColorJitter`. The strengths s are those
  of brightness, contrast, saturation and hue. Amounts of the first three are
  drawn from [max(0, 1 - s), 1 + s]; that of hue is from [-s, s], with s at most
  0.5. An operation of strength 0 is left out.
  """
  if not any(strengths) or not probability:
    return images
  op_names = [n for n, s in zip(JITTER, strengths, strict=True) if s]
  draws = draw_jitter(keys, strengths)
  if probability < 1:
    done = jax.vmap(_chance)(keys) < probability
    draws = draws._replace(op=jnp.where(done, draws.op, _IDENTITY))
  return apply_all(images, draws, op_names)


def sometimes(
  images: jax.Array, keys: jax.Array, name: str, probability: float
) -> jax.Array:
  """Applies one of SOMETIMES to some of uint8 [B, H, W, C], with keys [B].

  The amount is drawn from its range.
  """
  if not probability:
    return images
  low, high = SOMETIMES[name]
  done = jax.vmap(_chance)(keys) < probability
  draw = Draw(
    op=jnp.where(done, NAMES.index(name), _IDENTITY),
    amount=low + (high - low) * jax.vmap(jax.random.uniform)(keys),
    spot=jnp.zeros((len(keys), 2)),
  )
  return apply(images, draw, (name,))


def _chance(key: jax.Array) -> jax.Array:
  """Draws from [0, 1) whether an operation is applied."""
  return jax.random.uniform(jax.random.fold_in(key, 1))


def draw_jitter(keys: jax.Array, strengths: Sequence[float]) -> Draw:
  """Draws the order and amounts of JITTER, as arrays [operations, B, ...]."""
  used = [(n, s) for n, s in zip(JITTER, strengths, strict=True) if s]
  ops = jnp.array([NAMES.index(name) for name, _ in used])
  low = jnp.array([-s if n == 'hue' else max(0.0, 1 - s) for n, s in used])
  high = jnp.array([s if n == 'hue' else 1.0 + s for n, s in used])

  def draw_one(key: jax.Array) -> Draw:
    places, shares = jax.random.uniform(key, (2, len(used)))
    order = jnp.argsort(places)
    amounts = low + (high - low) * shares
    return Draw(ops[order], amounts[order], jnp.zeros((len(used), 2)))

  return jax.vmap(draw_one, out_axes=1)(keys)
