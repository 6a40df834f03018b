"""Operations on images as Pillow does them, and photographs to do them to."""

import functools
import importlib.util
import pathlib

import jax.numpy as jnp
import numpy as np
from PIL import Image
from PIL import ImageEnhance
from PIL import ImageFilter
from PIL import ImageOps

from vit_jax.data.device import operations

SHAPES = ('rotate', 'shear_x', 'shear_y', 'translate_x', 'translate_y')
# Those of one channel that change nothing, as torchvision has it.
_OF_COLOURS = ('color', 'grayscale', 'hue')


@functools.cache
def photographs(height: int, width: int, channels: int = 3) -> np.ndarray:
  """Returns uint8 [4, height, width, channels], parts of two photographs."""
  package = importlib.util.find_spec('sklearn')
  folder = pathlib.Path(package.origin).parent / 'datasets' / 'images'
  parts = []
  for name in ('china.jpg', 'flower.jpg'):
    image = Image.open(folder / name).convert('RGB')
    for corner, scale in [((0, 0), 10), ((300, 200), 2)]:
      box = (*corner, corner[0] + width * scale, corner[1] + height * scale)
      parts.append(np.asarray(image.crop(box).resize((width, height))))
  images = np.stack(parts)
  alpha = images[:, ::-1, :, :1]
  return np.concatenate([images, alpha], axis=-1)[..., :channels]


def make_draw(names, amounts, spots=None) -> operations.Draw:
  """Returns the `Draw` of a name and an amount for each image."""
  return operations.Draw(
    jnp.array([operations.NAMES.index(name) for name in names]),
    jnp.array(amounts, jnp.float32),
    jnp.zeros((len(names), 2)) if spots is None else jnp.array(spots),
  )


def apply_all(images, draws, interpolation='nearest', fill=128) -> np.ndarray:
  """Does what `operations.apply_all` does, with Pillow."""
  ops, amounts, spots = (np.asarray(x) for x in draws)
  results = []
  for i, image in enumerate(images):
    for layer, op in enumerate(ops[:, i]):
      name, amount = operations.NAMES[op], float(amounts[layer, i])
      image = apply(image, name, amount, spots[layer, i], interpolation, fill)
    results.append(image)
  return np.stack(results)


def apply(
  image: np.ndarray,
  name: str,
  amount: float,
  spot: np.ndarray | None = None,
  interpolation: str = 'nearest',
  fill: int = 128,
) -> np.ndarray:
  """Does one operation to uint8 [H, W, C]."""
  channels = image.shape[-1]
  if name == 'cutout':
    return _cutout(image, amount, spot, fill)
  if name in SHAPES:
    resample = Image.Resampling[interpolation.upper()]
    fillcolor = (fill,) * channels if channels > 1 else fill
    result = _warp(_to_pillow(image), name, amount, resample, fillcolor)
  elif name == 'gaussian_blur':
    result = _to_pillow(image).filter(ImageFilter.GaussianBlur(amount))
  elif channels == 4:
    colors = apply(image[..., :3], name, amount)
    return np.concatenate([colors, image[..., 3:]], axis=-1)
  elif channels == 1 and name in _OF_COLOURS:
    return image
  else:
    result = _recolor(_to_pillow(image), name, amount)
  return np.asarray(result).reshape(image.shape)


def _to_pillow(image: np.ndarray) -> Image.Image:
  return Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image)


def _recolor(image: Image.Image, name: str, amount: float) -> Image.Image:
  bands = len(image.getbands())
  brighter = [min(255, i + int(amount)) if i < 128 else i for i in range(256)]
  return {
    'identity': lambda: image,
    'auto_contrast': lambda: ImageOps.autocontrast(image),
    'equalize': lambda: ImageOps.equalize(image),
    'invert': lambda: ImageOps.invert(image),
    'posterize': lambda: _posterize(image, int(amount)),
    'solarize': lambda: ImageOps.solarize(image, amount),
    'solarize_add': lambda: image.point(brighter * bands),
    'brightness': lambda: ImageEnhance.Brightness(image).enhance(amount),
    'contrast': lambda: ImageEnhance.Contrast(image).enhance(amount),
    'color': lambda: ImageEnhance.Color(image).enhance(amount),
    'sharpness': lambda: ImageEnhance.Sharpness(image).enhance(amount),
    'grayscale': lambda: image.convert('L').convert('RGB'),
    'hue': lambda: _turn_hue(image, amount),
  }[name]()


def _posterize(image: Image.Image, bits: int) -> Image.Image:
  if not 1 <= bits <= 8:  # Pillow refuses
    return image if bits else image.point(lambda x: 0)
  return ImageOps.posterize(image, bits)


def _turn_hue(image: Image.Image, amount: float) -> Image.Image:
  hsv = np.array(image.convert('HSV'))
  hsv[..., 0] += np.array(int(amount * 255)).astype(np.uint8)
  return Image.frombytes('HSV', image.size, hsv.tobytes()).convert('RGB')


def _warp(image, name, amount, resample, fill) -> Image.Image:
  if name == 'rotate':
    return image.rotate(amount, resample, fillcolor=fill)
  matrix = {
    'shear_x': (1, amount, 0, 0, 1, 0),
    'shear_y': (1, 0, 0, amount, 1, 0),
    'translate_x': (1, 0, amount, 0, 1, 0),
    'translate_y': (1, 0, 0, 0, 1, amount),
  }[name]
  method = Image.Transform.AFFINE
  return image.transform(
    image.size, method, matrix, resample=resample, fillcolor=fill
  )


def _cutout(image, amount, spot, fill) -> np.ndarray:
  image = image.copy()
  row, column = (spot * image.shape[:2]).astype(int)
  top, left = max(0, row - int(amount)), max(0, column - int(amount))
  image[top : row + int(amount), left : column + int(amount)] = fill
  return image
