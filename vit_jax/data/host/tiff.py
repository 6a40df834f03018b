"""Headers of TIFF files, and checks that OpenCV reads a file correctly.

This covers TIFF 6.0 (Adobe, 1992) and BigTIFF. OpenCV's reader gives no error
when it drops channels, inverts grey or finds damage in a compressed part. The
header is parsed here because Pillow refuses kinds that it cannot decode, and
reports 8 bits for 16-bit colours, which it reduces.
"""

import dataclasses
import struct
import zlib

import numpy as np

_ORDERS = {b'II': '<', b'MM': '>'}
# Codes of `struct` for the types of numbers in a header.
_KINDS = {1: 'B', 3: 'H', 4: 'I', 13: 'I', 16: 'Q'}
_MOST_NUMBERS = 2**20  # maximum in one entry, such as the parts of an image
_MOST_PADDING = 2**24  # maximum bytes of a tile beyond the image

_DEFLATE = (8, 32946)
_WHITE_IS_ZERO, _BLACK_IS_ZERO, _RGB, _PALETTE, _YCBCR = 0, 1, 2, 3, 6
_CHANNELS = {
  _WHITE_IS_ZERO: (1,),
  _BLACK_IS_ZERO: (1,),
  _RGB: (3, 4),
  _PALETTE: (1,),
  _YCBCR: (3,),
}
_ASSOCIATED, _UNASSOCIATED = 1, 2  # alpha; 1: colours are multiplied by it


@dataclasses.dataclass(frozen=True)
class Header:
  """Header of the first image in a file."""

  size: tuple[int, int]  # (height, width), as stored
  bits: int
  channels: int  # number of values of a pixel
  colors: int  # kind of colours, TIFF's PhotometricInterpretation
  kind: int  # kind of numbers, TIFF's SampleFormat: 1 is unsigned
  is_planar: bool  # whether channels are stored separately
  compression: int  # method of compression, TIFF's Compression
  alpha: int  # kind of the fourth channel, TIFF's ExtraSamples
  # (start, length) of the stored parts, in bytes.
  parts: tuple[tuple[int, int], ...]
  has_more: bool  # whether other images follow


def read(data: bytes) -> Header:
  """Reads a header; one that is cut off or damaged is a ValueError."""
  try:
    entries, following = _directory(data)
    bits, kinds = entries.get(258, (1,)), entries.get(339, (1,))
    tags = (324, 325) if 324 in entries else (273, 279)  # tiles, or strips
    starts, lengths = (entries[tag] for tag in tags)
    if len(starts) != len(lengths):
      raise ValueError('the header of a TIFF is damaged')
    return Header(
      size=(entries[257][0], entries[256][0]),
      # 0 if the channels differ, which `check` refuses.
      bits=bits[0] if len(set(bits)) == 1 else 0,
      channels=entries.get(277, (1,))[0],
      colors=entries[262][0],
      kind=kinds[0] if len(set(kinds)) == 1 else 0,
      is_planar=entries.get(284, (1,))[0] == 2,
      compression=entries.get(259, (1,))[0],
      alpha=entries.get(338, (0,))[0],
      parts=tuple(zip(starts, lengths, strict=True)),
      has_more=following > 0,
    )
  except (struct.error, KeyError, IndexError, OverflowError):
    raise ValueError('the header of a TIFF is damaged or cut off') from None


def check(header: Header, data: bytes) -> None:
  """Raises a ValueError if a file is damaged, or would be read wrongly."""
  channel_counts = _CHANNELS.get(header.colors, ())
  good = (
    header.channels in channel_counts
    and header.bits in (1, 4, 8, 16)
    and header.kind == 1
    and not (header.is_planar and header.bits == 16 and header.channels > 1)
  )
  if not good:
    raise ValueError(
      f'a TIFF of {header.channels} channels of {header.bits} bits (colours'
      f' {header.colors}, numbers of kind {header.kind}) is not read: save it'
      ' as grey, RGB or RGBA, of 8 or 16 whole bits, pixel by pixel'
    )
  most = header.size[0] * header.size[1] * header.channels * 2 + _MOST_PADDING
  for start, length in header.parts:
    if start + length > len(data):
      raise ValueError('a TIFF is cut off')
    if header.compression in _DEFLATE:
      stream = zlib.decompressobj()
      try:
        stream.decompress(data[start : start + length], most)
      except zlib.error:
        raise ValueError('the checksum of a TIFF is wrong') from None
      if not stream.eof:
        raise ValueError('a compressed part of a TIFF is damaged')


def mend(pixels: np.ndarray, header: Header) -> np.ndarray:
  """Corrects what OpenCV reads: inverted grey and premultiplied colours."""
  if header.colors == _WHITE_IS_ZERO and pixels.dtype == np.uint16:
    return np.uint16(65535) - pixels
  # OpenCV returns all 8-bit colours multiplied by alpha.
  is_8 = pixels.dtype == np.uint8
  multiplied = (_ASSOCIATED, _UNASSOCIATED) if is_8 else (_ASSOCIATED,)
  if pixels.ndim < 3 or pixels.shape[-1] < 4 or header.alpha not in multiplied:
    return pixels
  alpha, most = pixels[..., 3:].astype(np.float32), np.iinfo(pixels.dtype).max
  colors = np.rint(pixels[..., :3] * (most / np.maximum(alpha, 1)))
  colors = np.minimum(colors, most).astype(pixels.dtype)
  return np.concatenate([colors, pixels[..., 3:]], axis=-1)


def _directory(data: bytes) -> tuple[dict[int, tuple[int, ...]], int]:
  """Returns the entries of the first image, and where the next one begins."""
  order = _ORDERS[data[:2]]
  is_big = struct.unpack_from(f'{order}H', data, 2)[0] == 43
  offset, count = ('Q', 'Q') if is_big else ('I', 'H')
  (at,) = struct.unpack_from(order + offset, data, 8 if is_big else 4)
  (entries,) = struct.unpack_from(order + count, data, at)
  at += struct.calcsize(order + count)
  form = f'{order}HH{offset}'
  room = struct.calcsize(order + offset)  # bytes of a value or its offset
  tags: dict[int, tuple[int, ...]] = {}
  for _ in range(min(entries, 2**16)):
    tag, kind, number = struct.unpack_from(form, data, at)
    at += struct.calcsize(form)
    if kind in _KINDS and number <= _MOST_NUMBERS:
      numbers = f'{order}{number}{_KINDS[kind]}'
      fits = struct.calcsize(numbers) <= room
      start = at if fits else struct.unpack_from(order + offset, data, at)[0]
      tags[tag] = struct.unpack_from(numbers, data, start)
    at += room
  return tags, struct.unpack_from(order + offset, data, at)[0]
