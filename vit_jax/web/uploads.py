"""Checks uploaded images by their headers, and takes texts off them.

No image is decoded here, so that a few bytes cannot allocate much memory.
"""

from collections.abc import Sequence
import json
import struct

from vit_jax.config import UserError
from vit_jax.data.host import decode

MOST_BYTES = 20 * 2**20
MOST_TEXT = 2**16  # bytes of the JSON before an image
MOST_PIXELS = 2**26  # 67 million, more than cameras have
_MOST_RATIO = 64  # maximum ratio of the long side to the short one
_NO_IMAGE = (
  'it is no image that can be read here, or its start is damaged: send a JPEG,'
  ' PNG, WebP, GIF or BMP file'
)


def parse(data: bytes, names: Sequence[str]) -> tuple[list[str], bytes]:
  """Returns texts by their names, and the image file behind them.

  Args:
    data: The length of the JSON, in 4 bytes, little-endian; a JSON object; the
      image.
    names: Keys of the object, each of a text.
  """
  length = int.from_bytes(data[:4], 'little')
  if length > MOST_TEXT:
    raise UserError(
      f'the texts have more than {MOST_TEXT // 2**10} KiB: leave some out'
    )
  try:
    fields = json.loads(data[4 : 4 + length])
    texts = [fields[name] for name in names]
  except (ValueError, LookupError, TypeError, RecursionError):
    texts = [None]
  if not all(isinstance(x, str) for x in texts):
    raise UserError(f'it must start with JSON of {" and ".join(names)}')
  return texts, data[4 + length :]


def check(data: bytes) -> int:
  """Checks that a file is an image of a supported format and size.

  Returns:
    The number of its pixels.
  """
  try:
    size = image_size(data)
  except struct.error:  # it ends within its header
    size = None
  if size is None or min(size) < 1:
    raise UserError(_NO_IMAGE)
  size_text = f'it has {size[1]} x {size[0]} pixels'
  if size[0] * size[1] > MOST_PIXELS:
    raise UserError(
      f'{size_text}, and at most {MOST_PIXELS / 1e6:.0f} million are read: make'
      ' it smaller'
    )
  if max(size) > _MOST_RATIO * min(size):
    raise UserError(
      f'{size_text}: one side may be at most {_MOST_RATIO} times the other'
    )
  return size[0] * size[1]


def image_size(data: bytes) -> tuple[int, int] | None:
  """Returns the stored (height, width); None if the format is unknown."""
  if data.startswith(b'RIFF') and data[8:12] == b'WEBP':
    return _webp_size(data)
  if data.startswith(decode.TIFF):
    return None
  return decode.jpeg_size(data) or decode.stored_size(data)


def _webp_size(data: bytes) -> tuple[int, int] | None:
  """Returns (height, width) of a WebP file (RFC 9649)."""
  kind = data[12:16]
  if kind == b'VP8X':  # 24 bits each
    (width,) = struct.unpack_from('<I', data, 24)
    (height,) = struct.unpack('<I', data[27:30] + b'\0')
    return height + 1, (width & 0xFFFFFF) + 1
  if kind == b'VP8L':
    (bits,) = struct.unpack_from('<I', data, 21)
    return (bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1
  if kind == b'VP8 ':
    width, height = struct.unpack_from('<HH', data, 26)
    return height & 0x3FFF, width & 0x3FFF
  return None
