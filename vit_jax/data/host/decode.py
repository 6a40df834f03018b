"""Decodes images to pixels, as an image viewer shows them.

For any stored form (grey, palette, alpha, CMYK, 16 bits, rotated by EXIF), the
result is uint8 with the requested channels, or uint16 if 16 bits are kept.
Transparent pixels are composited on white unless alpha is requested.
"""

from collections.abc import Iterator
import functools
import io
import re
import struct
from typing import Any
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
# First bytes, least length, and the form and place of (width, height).
_HEADERS = (
  (PNG, 24, '>II', 16),
  (_BMP, 26, '<ii', 18),
  (_GIF, 10, '<HH', 6),
)
# Kinds of a JPEG's segments. After the start, or the end, no others follow.
_EXIF_OR_XMP, _PIXELS, _END = b'\xe1', 0xDA, 0xD9
_NO_SIZE = (0x00, 0x01, 0xC8, *range(0xD0, 0xD9), *range(0xF0, 0xFE))
_EXIF = b'Exif\0\0'
_XMP, _XMP_OF_PNG = b'http://ns.adobe.com/xap/1.0/\0', b'XML:com.adobe.xmp\0'
_ORIENTATION = 0x0112  # EXIF's tag
_XMP_ORIENTATION = re.compile(rb'tiff:Orientation(?:="|>)([0-9])')
# Formats of `struct` for EXIF's types of numbers. Those of BYTE are no numbers
# to Pillow.
_NUMBERS = {3: 'H', 4: 'I', 6: 'b', 8: 'h', 9: 'i', 11: 'f', 12: 'd'}
# Bytes to read of a file: in a PNG they hold the number of bits.
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
  """Returns the pixels of an image file, uint8 or uint16 [h, w, channels].

  It is a JPEG, PNG, WebP, TIFF, BMP or GIF, or another kind that OpenCV reads.
  Channels are 1 (grey, the luma), 3 (RGB) or 4 (RGB and alpha). To save time, a
  larger JPEG may be decoded at a smaller size, but not below `at_least`; (0, 0)
  stands for its own size.
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
  """Returns pixels as stored, uint8 or uint16, [h, w] or [h, w, 1 to 4]."""
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
  """Returns 16 for a PNG (its first 32 bytes do) or TIFF of 16 bits; else 8."""
  if data.startswith(PNG):
    return 16 if data[24:25] == b'\x10' else 8
  try:
    is_deep = data.startswith(TIFF) and _tiff().read(data).bits == 16
  except ValueError:  # decoding reports the damage
    is_deep = False
  return 16 if is_deep else 8


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
  """Converts [h, w] or [h, w, 1 to 4], grey or RGB, with or without alpha."""
  if pixels.ndim == 2:
    pixels = pixels[..., None]
  if pixels.shape[-1] == channels:
    return np.ascontiguousarray(pixels)
  if pixels.shape[-1] in (2, 4):
    pixels, alpha = pixels[..., :-1], pixels[..., -1:]
    if channels == 4:  # grey and alpha
      return np.concatenate([pixels, pixels, pixels, alpha], axis=-1)
    # On white. A product of two uint8, at most 65,152 with what is added, fits
    # uint16. In place, since a large image takes several hundred MB.
    dtype, most = pixels.dtype, np.iinfo(pixels.dtype).max
    wide = np.uint16 if dtype == np.uint8 else np.uint32
    mixed = pixels * alpha.astype(wide)
    mixed += (most - alpha) * wide(most) + wide(most // 2)
    mixed //= most
    pixels = mixed.astype(dtype)
  if channels == 1 and pixels.shape[-1] == 3:
    pixels = np.ascontiguousarray(pixels)
    return cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY)[..., None]
  if channels >= 3 and pixels.shape[-1] == 1:
    pixels = np.repeat(pixels, 3, axis=-1)
  if channels == 4:
    opaque = np.full_like(pixels[..., :1], np.iinfo(pixels.dtype).max)
    pixels = np.concatenate([pixels, opaque], axis=-1)
  return np.ascontiguousarray(pixels)


def _stored(data: bytes) -> tuple[tuple[int, int] | None, str]:
  """Returns (height, width) before rotation, or None, and a JPEG's colours."""
  try:
    if data.startswith(_JPEG):
      height, width, colors, _ = _jpeg_header(data)
      return (height, width), colors
    if data.startswith(TIFF):
      return _tiff().read(data).size, ''
  except ValueError:  # decoding reports the damage
    return None, ''
  for start, least, form, at in _HEADERS:
    if data.startswith(start) and len(data) >= least:
      if start != _BMP or data[14] >= 40:
        width, height = struct.unpack_from(form, data, at)
        return (abs(height), abs(width)), ''
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
  """Returns the first frame, uint8 [h, w, 3 or 4]; OpenCV would read all."""
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
    return _tiff().mend(pixels, header)
  levels = _contents(data, b'tRNS') if data.startswith(PNG) else []
  if pixels.ndim == 2 and levels and len(levels[0]) == 2:
    # One level of grey is transparent. OpenCV scales few bits up to 8.
    (level,) = struct.unpack('>H', levels[0])
    if (bits := data[24]) < 8:
      level = level * 255 // (2**bits - 1)
    opaque = 2 ** (8 * pixels.itemsize) - 1
    alpha = np.where(pixels == level, 0, opaque).astype(pixels.dtype)
    return np.stack([pixels, alpha], axis=-1)
  return pixels


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
  """Returns the orientation of EXIF, else of XMP, 1 (upright) to 8."""
  is_jpeg, is_png = data.startswith(_JPEG), data.startswith(PNG)
  exif = data  # itself in TIFF format
  if not data.startswith(TIFF):
    kind = _EXIF_OR_XMP if is_jpeg else b'eXIf' if is_png else b'EXIF'
    parts = _contents(data, kind, _EXIF if is_jpeg else b'')
    exif = b''.join(parts if is_jpeg else parts[:1])
    exif = exif.removeprefix(_EXIF).removeprefix(_EXIF)
  value = _exif_orientation(exif)
  if value is None:
    kind = _EXIF_OR_XMP if is_jpeg else b'iTXt' if is_png else b'XMP '
    start = _XMP if is_jpeg else _XMP_OF_PNG if is_png else b''
    xmp = _contents(data, kind, start) or [b'']
    match = _XMP_ORIENTATION.search(xmp[-1 if is_jpeg else 0])
    value = int(match[1]) if match else None
  return int(value) if value is not None and value in range(1, 9) else 1


def _exif_orientation(exif: bytes) -> float | None:
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


def _contents(data: bytes, kind: bytes, start: bytes = b'') -> list[bytes]:
  """Returns what follows `start` in the parts of a kind of a file."""
  return [
    data[first + len(start) : end]
    for name, first, end in _parts(data)
    if name == kind and data.startswith(start, first)
  ]


def _parts(data: bytes) -> Iterator[tuple[bytes, int, int]]:
  """Yields the kind, first byte and end of the parts of a JPEG, PNG or WebP."""
  if data.startswith(_JPEG):
    at = data.find(b'\xff', 2)
    while 0 <= at < len(data) - 3 and data[at + 1] not in (_PIXELS, _END):
      kind = data[at + 1]
      end = at + 1  # of a byte that only fills
      if kind in _NO_SIZE:
        end = at + 2
      elif kind != 0xFF:
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], 'big')
        yield data[at + 1 : at + 2], at + 4, end
      at = data.find(b'\xff', end)  # decoders skip what lies between
  elif data.startswith((PNG, b'RIFF')):
    is_png = data.startswith(PNG)
    at = 8 if is_png else 12
    while at + 8 <= len(data):
      words = data[at : at + 4], data[at + 4 : at + 8]
      size, kind_name = words if is_png else words[::-1]
      length = int.from_bytes(size, 'big' if is_png else 'little')
      yield kind_name, at + 8, at + 8 + length
      at += 8 + length + (4 if is_png else length % 2)
