"""Reads maps of classes as labels, and not as the colours that viewers show."""

import io

import numpy as np

from vit_jax.config import one_line
from vit_jax.config import UserError
from vit_jax.data import features
from vit_jax.data.base import DamagedError
from vit_jax.data.base import Example
from vit_jax.data.host import decode
from vit_jax.data.host.geometry import Size

_PNG_BITS, _PNG_COLORS = 24, 25  # bytes of a PNG's header; colours 0: grey


def read(
  example: Example, name: str, feature: features.Map, size: Size
) -> np.ndarray:
  """Returns a map [H, W] of the feature's type, upright as its image is.

  `size` is that of the upright image. A map that says no orientation of its own
  is turned as its image, if it has the size of the image's stored pixels.
  """
  value, origin = example.values[name], example.feature_origin(name)
  image = example.values['image']
  turn = decode.orientation(image) if isinstance(image, bytes) else 1
  if isinstance(value, bytes):
    labels = decode_map(value, origin)
    if decode.orientation(value) != 1:
      turn = 1
  else:
    labels = value
  if turn >= 5 and size[0] != size[1]:
    if labels.shape == size[::-1]:
      labels = np.ascontiguousarray(decode.turned(labels, turn))
  elif turn != 1 and labels.shape == size:
    raise UserError(
      f'{example.origin} is turned by its EXIF orientation {turn}, and {origin}'
      ' has none, so that both may differ: save the image upright if the map'
      ' is, else give the map the same orientation'
    )
  if labels.shape != size:
    raise UserError(
      f'{origin} has (height, width) {labels.shape}, but its image'
      f' {example.origin} has {size}: both must have one size'
    )
  return feature.encode(labels, origin)


def decode_map(data: bytes, origin: str) -> np.ndarray:
  """Returns the labels of an encoded map, upright, uint8 or uint16 [H, W].

  In a PNG with a palette labels are positions in it. In a grey image they are
  the stored numbers, also of 1, 2, 4 or 16 bits.
  """
  if data.startswith(decode.PNG):
    labels = np.ascontiguousarray(
      decode.turned(_decode_png(data, origin), decode.orientation(data))
    )
  else:
    labels = decode.as_stored(data, origin=origin)
  if labels.ndim != 2:
    raise UserError(
      f'{origin} holds colours, and not a label for each pixel: save it as a'
      ' PNG with a palette, or as grey'
    )
  return labels


def _decode_png(data: bytes, origin: str) -> np.ndarray:
  """Returns labels [H, W], or colours; OpenCV would look up a palette."""
  from PIL import Image  # only maps need it

  try:
    decode.check_png(data)
    with Image.open(io.BytesIO(data), formats=['PNG']) as image:
      labels = np.asarray(image)
  except (
    Image.DecompressionBombError,
    ValueError,
    OSError,
    SyntaxError,
  ) as e:
    raise DamagedError(
      f'{origin} is damaged or no image: {one_line(e)}'
    ) from None
  if labels.dtype == bool:  # grey of 1 bit
    return labels.astype(np.uint8)
  bits = data[_PNG_BITS]
  if bits < 8 and data[_PNG_COLORS] == 0:  # Pillow scales them up to 8 bits
    return labels // np.uint8(255 // (2**bits - 1))
  return labels.astype(np.uint16) if bits == 16 else labels
