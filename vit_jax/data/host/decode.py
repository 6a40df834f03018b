"""Decodes images to pixels, as an image viewer shows them.

For any stored form (grey, palette, alpha, CMYK, 16 bits, rotated by EXIF), the
result is uint8 with the requested channels, or uint16 if 16 bits are kept.
Transparent pixels are composited on white unless alpha is requested.
"""

import functools
import io
import re
import struct
from typing import Any
from typing import cast
import zlib

from absl import logging
import cv2
import numpy as np
import simplejpeg

from vit_jax import config as config_lib
from vit_jax.config import one_line
from vit_jax.data.base import DamagedError
from vit_jax.data.host import levels as levels_lib
from vit_jax.runs import safe_io

MAX_PIXELS = 2**28  # about the most that a WebP file can hold
PNG = b'\x89PNG\r\n\x1a\n'  # the first bytes of such a file
TIFF = b'II*\0', b'MM\0*', b'II+\0', b'MM\0+'  # + is BigTIFF
_JPEG, _BMP = b'\xff\xd8\xff', b'BM'
_GIF = b'GIF87a', b'GIF89a'
# Kinds of a JPEG's segments. After the start, or the end, no others follow.
_EXIF_OR_XMP, _PIXELS, _END = 0xE1, 0xDA, 0xD9
_NO_SIZE = (0x00, 0x01, 0xC8, *range(0xD0, 0xD9), *range(0xF0, 0xFE))
_EXIF = b'Exif\0\0'
_XMP, _XMP_OF_PNG = b'http://ns.adobe.com/xap/1.0/\0', b'XML:com.adobe.xmp\0'
_ORIENTATION = 0x0112  # EXIF's tag
_XMP_ORIENTATION = re.compile(rb'tiff:Orientation(?:="|>)([0-9])')
# Formats of `struct` for EXIF's types of numbers. Those of BYTE are no numbers
# to Pillow.
_NUMBERS = {3: 'H', 4: 'I', 6: 'b', 8: 'h', 9: 'i', 11: 'f', 12: 'd'}
# Bytes to read of a file: those of a PNG hold the number of bits.
_HEADER = 64

# Warnings of libjpeg that leave the pixels intact; many files of the web cause
# them. All others mean that data is missing or wrong.
_HARMLESS = (
  'extraneous bytes before marker',
  'unknown JFIF revision number',
  'Unknown Adobe color transform code',
  'Invalid SOS parameters for sequential JPEG',
)


def decode(
  data: bytes,
  channels: int,
  *,
  origin: str = 'the image',
  at_least: tuple[int, int] = (0, 0),
  levels: levels_lib.Levels = levels_lib.EIGHT_BITS,
) -> np.ndarray:
  """Returns the pixels of an image, uint8 or uint16 [h, w, channels].

  Args:
    data: A JPEG, PNG, WebP, TIFF, BMP or GIF file, or another kind that OpenCV
      reads.
    channels: 1 (grey, the luma), 3 (RGB) or 4 (RGB and alpha).
    origin: Name of the image, for errors.
    at_least: (height, width). To save time, a larger JPEG may be decoded at a
      smaller size, but not below this one. (0, 0): its own size.
    levels: Levels of the result, with the bits to keep.

  Raises:
    UserError: The image is empty, damaged, truncated, too large or of no known
      kind; or its bits do not fit the intensity window.
  """
  pixels = as_stored(data, channels, origin=origin, at_least=at_least)
  return to_channels(levels.keep(pixels, origin), channels)


def as_stored(
  data: bytes,
  channels: int = 3,
  *,
  origin: str = 'the image',
  at_least: tuple[int, int] = (0, 0),
) -> np.ndarray:
  """Returns pixels with the bits and channels that are stored.

  Args:
    data: As for `decode`.
    channels: Channels that the caller needs; with 1, a JPEG is decoded as grey.
    origin: As for `decode`.
    at_least: As for `decode`.

  Returns:
    uint8 or uint16, [h, w] or [h, w, 1 to 4].

  Raises:
    DamagedError: The image is empty, damaged, truncated, too large or of no
      known kind.
  """
  if not data:
    raise DamagedError(f'{origin} is empty: the file has no bytes')
  size, colors = _stored(data)
  if size is not None and size[0] * size[1] > MAX_PIXELS:
    raise DamagedError(
      f'{origin} has {size[0]} x {size[1]} pixels: at most {MAX_PIXELS} are'
      ' read, make it smaller'
    )
  # OpenCV turns what a TIFF holds.
  turn = 1 if data.startswith(TIFF) else orientation(data)
  if turn >= 5:
    at_least = at_least[::-1]
  try:
    if data.startswith(_JPEG):
      colors = colors or _jpeg_header(data)[2]  # raises the error again
      pixels = _decode_jpeg(data, colors, channels, at_least)
    elif data.startswith(_GIF):
      pixels = _decode_gif(data, size)
    else:
      pixels = _decode_other(data)
  except (ValueError, cv2.error) as e:
    raise DamagedError(
      f'{origin} is damaged or no image: {one_line(e)}'
    ) from None
  return turned(pixels, turn)


def stored_bits(data: bytes) -> int:
  """Returns 16 for a PNG or TIFF file of 16 bits, by its header; else 8.

  Args:
    data: The file; the first 32 bytes are enough for a PNG.
  """
  bits = 8
  if data.startswith(PNG) and len(data) > 24:
    bits = data[24]
  elif data.startswith(TIFF):
    try:
      bits = _tiff().read(data).bits
    except ValueError:  # decoding reports the damage
      bits = 8
  return 16 if bits == 16 else 8


def file_bits(path: str) -> int:
  """Returns the bits of an image, 8 where its header cannot be read."""
  try:
    with safe_io.open_regular(path) as file:
      data = file.read(_HEADER)
      if data.startswith(TIFF):  # the header may be at the end of the file
        data += file.read()
  except OSError:  # reported when the file is read
    return 8
  return stored_bits(data)


def jpeg_size(data: bytes) -> tuple[int, int] | None:
  """Returns (height, width) of a JPEG after rotation, from its header."""
  return upright_size(data) if data.startswith(_JPEG) else None


def upright_size(data: bytes) -> tuple[int, int] | None:
  """Returns (height, width) after rotation, if the header tells it."""
  size = stored_size(data)
  return size[::-1] if size and orientation(data) >= 5 else size


def stored_size(data: bytes) -> tuple[int, int] | None:
  """Returns (height, width) before rotation, if the header tells it."""
  return _stored(data)[0]


def to_channels(pixels: np.ndarray, channels: int) -> np.ndarray:
  """Converts grey, grey and alpha, RGB or RGBA.

  Args:
    pixels: uint8 or uint16, [h, w] or [h, w, 1 to 4].
    channels: 1, 3 or 4.

  Returns:
    [h, w, channels], of the same type.
  """
  if pixels.ndim == 2:
    pixels = pixels[..., None]
  if pixels.shape[-1] == channels:
    return np.ascontiguousarray(pixels)
  if pixels.shape[-1] in (2, 4):
    pixels, alpha = pixels[..., :-1], pixels[..., -1:]
    if channels == 4:  # grey and alpha
      return np.concatenate([pixels, pixels, pixels, alpha], axis=-1)
    pixels = _on_white(pixels, alpha)
  if channels == 1 and pixels.shape[-1] == 3:
    return cv2.cvtColor(np.ascontiguousarray(pixels), cv2.COLOR_RGB2GRAY)[
      ..., None
    ]
  if channels >= 3 and pixels.shape[-1] == 1:
    pixels = np.repeat(pixels, 3, axis=-1)
  if channels == 4:
    opaque = np.full_like(pixels[..., :1], np.iinfo(pixels.dtype).max)
    pixels = np.concatenate([pixels, opaque], axis=-1)
  return np.ascontiguousarray(pixels)


def _on_white(pixels: np.ndarray, alpha: np.ndarray) -> np.ndarray:
  # A product of two uint8, at most 65,152 with what is added, fits uint16.
  wide = np.uint16 if pixels.dtype == np.uint8 else np.uint32
  most = np.iinfo(pixels.dtype).max
  mixed = pixels * alpha.astype(wide)
  # In place, since a large image takes several hundred MB.
  mixed += (most - alpha) * wide(most) + wide(most // 2)
  mixed //= most
  return mixed.astype(pixels.dtype)


def _stored(data: bytes) -> tuple[tuple[int, int] | None, str]:
  """Returns (height, width) before rotation, and a JPEG's colour space.

  They are None and '' if the header is not read.
  """
  if data.startswith(_JPEG):
    try:
      height, width, colors, _ = _jpeg_header(data)
    except ValueError:
      return None, ''
    return (height, width), colors
  if data.startswith(PNG) and len(data) >= 24:
    width, height = struct.unpack_from('>II', data, 16)
    return (height, width), ''
  if data.startswith(_BMP) and len(data) >= 26 and data[14] >= 40:
    width, height = struct.unpack_from('<ii', data, 18)
    return (abs(height), abs(width)), ''
  if data.startswith(_GIF) and len(data) >= 10:
    width, height = struct.unpack_from('<HH', data, 6)
    return (height, width), ''
  if data.startswith(TIFF):
    try:
      size: tuple[int, int] = _tiff().read(data).size
      return size, ''
    except ValueError:  # decoding reports the damage
      return None, ''
  return None, ''


def _decode_jpeg(
  data: bytes, colors: str, channels: int, at_least: tuple[int, int]
) -> np.ndarray:
  """Returns uint8 [h, w, 1 or 3], before rotation."""
  is_cmyk = colors in ('CMYK', 'YCCK')
  is_grey = colors == 'Gray' or channels == 1

  def read(strict: bool) -> np.ndarray:
    return simplejpeg.decode_jpeg(
      data,
      'CMYK' if is_cmyk else 'GRAY' if is_grey else 'RGB',
      min_height=at_least[0],
      min_width=at_least[1],
      min_factor=2,  # smaller reductions take longer than none
      strict=strict,
    )

  try:
    pixels = read(strict=True)
  except ValueError as e:
    if not any(warning in str(e) for warning in _HARMLESS):
      raise
    pixels = read(strict=False)
  if is_cmyk:  # Adobe stores ink inverted
    ink = pixels.astype(np.uint16)
    return ((ink[..., :3] * ink[..., 3:] + 127) // 255).astype(np.uint8)
  return pixels


def _jpeg_header(data: bytes) -> tuple[int, int, str, str]:
  """Returns height, width, colour space and subsampling."""
  try:
    return simplejpeg.decode_jpeg_header(data, strict=False)
  except KeyError:
    raise ValueError('the header of a JPEG is damaged') from None


def _decode_gif(data: bytes, size: tuple[int, int] | None) -> np.ndarray:
  """Returns the first frame, uint8 [h, w, 3 or 4].

  Pillow reads it: OpenCV reads all frames first, and fails if any is cut off.
  """
  from PIL import Image  # rarely needed
  from PIL import UnidentifiedImageError

  try:
    with Image.open(io.BytesIO(data), formats=['GIF']) as image:
      if size != image.size[::-1]:  # Pillow enlarges the image to the frame
        raise ValueError('the frame of a GIF lies outside of it')
      image.load()
      has_alpha = 'transparency' in image.info
      pixels = np.asarray(image.convert('RGBA' if has_alpha else 'RGB'))
      has_more = getattr(image, 'is_animated', False)
  except UnidentifiedImageError:
    raise ValueError('the header of a GIF is damaged') from None
  except (Image.DecompressionBombError, OSError, EOFError, IndexError) as e:
    raise ValueError(one_line(e)) from None
  if has_more:
    say_more('GIF')
  return pixels


def _decode_other(data: bytes) -> np.ndarray:
  """Returns uint8 or uint16, [h, w] or [h, w, 3 or 4], before rotation."""
  header = None
  if data.startswith(PNG):
    check_png(data)
  elif data.startswith(TIFF):
    header = _tiff().read(data)
    _tiff().check(header, data)
    if header.has_more:
      say_more('TIFF')
  _quiet_opencv()
  buffer = np.frombuffer(data, np.uint8)
  # Unchanged: otherwise OpenCV drops alpha, and rotates only some formats.
  pixels = cv2.imdecode(buffer, cv2.IMREAD_UNCHANGED)
  if pixels is None:
    raise ValueError(
      'no JPEG, PNG, WebP, TIFF, BMP or GIF can be read from it: convert it to'
      ' one of these'
    )
  if pixels.dtype not in (np.uint8, np.uint16):
    raise ValueError(f'it holds numbers of type {pixels.dtype}')
  if pixels.ndim == 3:
    has_alpha = pixels.shape[-1] == 4
    pixels = cv2.cvtColor(
      pixels, cv2.COLOR_BGRA2RGBA if has_alpha else cv2.COLOR_BGR2RGB
    )
  if header is not None:
    return cast(np.ndarray, _tiff().mend(pixels, header))
  return _with_transparent_grey(pixels, data) if pixels.ndim == 2 else pixels


def _tiff() -> Any:
  """Returns the module that reads headers of TIFF files."""
  return config_lib.wing('vit_jax.data.host.tiff')


@functools.cache  # once for each kind
def say_more(kind: str) -> None:
  """Logs that only the first of several images in a file is read."""
  logging.warning('of %s files with several images the first is read', kind)


def check_png(data: bytes) -> None:
  """Raises a ValueError if a PNG is damaged; OpenCV would read it silently."""
  at = len(PNG)
  name = b''
  while name != b'IEND':
    size = int.from_bytes(data[at : at + 4], 'big')
    name, end = data[at + 4 : at + 8], at + 8 + size
    if end + 4 > len(data):
      raise ValueError('a PNG is cut off')
    checksum = int.from_bytes(data[end : end + 4], 'big')
    # A lower-case letter marks a chunk that is not needed for the pixels.
    if name.isupper() and zlib.crc32(data[at + 4 : end]) != checksum:
      raise ValueError('the checksum of a PNG is wrong')
    at = end + 4


@functools.cache
def _quiet_opencv() -> None:
  """Keeps OpenCV from logging problems that are raised as errors anyway."""
  if hasattr(cv2, 'setLogLevel'):  # before OpenCV 5
    cv2.setLogLevel(0)
  else:
    logging = cv2.utils.logging
    logging.setLogLevel(logging.LOG_LEVEL_SILENT)


def _with_transparent_grey(pixels: np.ndarray, data: bytes) -> np.ndarray:
  """Adds alpha if a PNG declares one level of grey transparent."""
  declared = _chunk(data, b'tRNS') if data.startswith(PNG) else b''
  if len(declared) != 2:
    return pixels
  (level,) = struct.unpack('>H', declared)
  bits = data[24]  # bits of a stored pixel; OpenCV scales fewer up to 8
  if bits < 8:
    level = level * 255 // (2**bits - 1)
  opaque = np.iinfo(pixels.dtype).max
  alpha = np.where(pixels == level, 0, opaque).astype(pixels.dtype)
  return np.stack([pixels, alpha], axis=-1)


def turned(pixels: np.ndarray, orientation: int) -> np.ndarray:
  """Rotates and mirrors stored pixels [h, w, ...] by EXIF's orientation."""
  if orientation >= 5:
    pixels = pixels.swapaxes(0, 1)
  if orientation in (3, 4, 7, 8):
    pixels = pixels[::-1]
  if orientation in (2, 3, 6, 7):
    pixels = pixels[:, ::-1]
  return pixels


def orientation(data: bytes) -> int:
  """Returns the orientation that a file says, 1 (upright) to 8.

  EXIF has it, and XMP where EXIF has none, as for Pillow.
  """
  value = _exif_orientation(data if data.startswith(TIFF) else _exif(data))
  if value is None and (match := _XMP_ORIENTATION.search(_xmp(data))):
    value = int(match[1])
  return int(value) if value is not None and value in range(1, 9) else 1


def _exif_orientation(exif: bytes) -> float | None:
  """Returns the number that EXIF has; None where it has none."""
  order = {b'II': '<', b'MM': '>'}.get(exif[:2])
  if order is None:
    return None
  try:
    (start,) = struct.unpack_from(f'{order}I', exif, 4)
    (count,) = struct.unpack_from(f'{order}H', exif, start)
    for at in range(start + 2, start + 2 + 12 * count, 12):
      tag, kind, length = struct.unpack_from(f'{order}HHI', exif, at)
      if tag == _ORIENTATION and kind in _NUMBERS and length:
        numbers = f'{order}{_NUMBERS[kind]}'
        place = at + 8
        if struct.calcsize(numbers) * length > 4:
          (place,) = struct.unpack_from(f'{order}I', exif, place)
        return struct.unpack_from(numbers, exif, place)[0]
  except struct.error:  # EXIF is cut off, which does not affect the pixels
    pass
  return None


def _exif(data: bytes) -> bytes:
  """Returns the EXIF part of a file, itself in TIFF format; b'' if none."""
  if data.startswith(_JPEG):
    exif = b''.join(_jpeg_parts(data, _EXIF))
  elif data.startswith(PNG):
    exif = _chunk(data, b'eXIf')
  elif data.startswith(b'RIFF'):
    exif = _chunk(data, b'EXIF')
  else:
    exif = b''
  return exif.removeprefix(_EXIF).removeprefix(_EXIF)


def _xmp(data: bytes) -> bytes:
  """Returns the XMP part of a file, XML; b'' if there is none."""
  if data.startswith(_JPEG):
    return next(reversed(_jpeg_parts(data, _XMP)), b'')
  if data.startswith(PNG):
    return _chunk(data, b'iTXt', _XMP_OF_PNG)
  return _chunk(data, b'XMP ') if data.startswith(b'RIFF') else b''


def _jpeg_parts(data: bytes, name: bytes) -> list[bytes]:
  """Returns the contents of all APP1 segments of a name, without it."""
  parts = []
  at = data.find(b'\xff', 2)
  while 0 <= at < len(data) - 3:
    kind = data[at + 1]
    if kind in (_PIXELS, _END):
      break
    after = at + 1  # of a byte that only fills
    if kind in _NO_SIZE:
      after = at + 2
    elif kind != 0xFF:
      size = int.from_bytes(data[at + 2 : at + 4], 'big')
      after = at + 2 + size
      if kind == _EXIF_OR_XMP and data.startswith(name, at + 4):
        parts.append(data[at + 4 + len(name) : after])
    at = data.find(b'\xff', after)  # decoders skip what lies between
  return parts


def _chunk(data: bytes, kind: bytes, start: bytes = b'') -> bytes:
  """Returns the content of a chunk of a PNG or WebP file; b'' if none.

  Args:
    data: The file.
    kind: Name of the chunk.
    start: What its content starts with.
  """
  is_png = data.startswith(PNG)
  at = 8 if is_png else 12
  while at + 8 <= len(data):
    if is_png:
      size = int.from_bytes(data[at : at + 4], 'big')
      name, step = data[at + 4 : at + 8], 12 + size
    else:
      size = int.from_bytes(data[at + 4 : at + 8], 'little')
      name, step = data[at : at + 4], 8 + size + size % 2
    if name == kind and data.startswith(start, at + 8):
      return data[at + 8 : at + 8 + size]
    at += step
  return b''
