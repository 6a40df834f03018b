import io
import struct
import zlib

import numpy as np
from PIL import Image
from PIL import ImageOps
import pytest
import stand_in

from vit_jax.config import UserError
from vit_jax.data import decode

COLOUR = Image.fromarray(stand_in.pixels(0, 19, 26))
ALPHA = Image.fromarray(stand_in.pixels(7, 19, 26)[..., 0] // 3 * 3)
RGBA = Image.merge('RGBA', [*COLOUR.split(), ALPHA])
PALETTE = COLOUR.quantize(16)


def encoded(image: Image.Image, kind: str, **options) -> bytes:
  file = io.BytesIO()
  image.save(file, kind, **options)
  return file.getvalue()


def raw_png(bits: int, kind: int, row: bytes, size: tuple[int, int], extra=b''):
  """A PNG of equal rows, in formats that Pillow does not write."""

  def chunk(name: bytes, data: bytes) -> bytes:
    checksum = struct.pack('>I', zlib.crc32(name + data))
    return struct.pack('>I', len(data)) + name + data + checksum

  header = struct.pack('>IIBBBBB', size[1], size[0], bits, kind, 0, 0, 0)
  rows = zlib.compress((b'\0' + row) * size[0])
  parts = [chunk(b'IHDR', header), extra and chunk(b'tRNS', extra)]
  parts += [chunk(b'IDAT', rows), chunk(b'IEND', b'')]
  return b'\x89PNG\r\n\x1a\n' + b''.join(parts)


def seen(data: bytes, channels: int) -> np.ndarray:
  """What a person sees, by Pillow, float [h, w, channels]."""
  image = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
  if image.mode == 'I;16':  # Pillow would clip
    grey = np.round(np.asarray(image) / 257).astype(np.uint8)
    image = Image.fromarray(grey)
  rgba = image.convert('RGBA')
  if channels == 4:
    return np.asarray(rgba, float)
  white = Image.new('RGBA', rgba.size, 'white')
  flat = Image.alpha_composite(white, rgba).convert('RGB')
  if channels == 1:
    return np.asarray(flat.convert('L'), float)[..., None]
  return np.asarray(flat, float)


FILES = {
  'png': encoded(COLOUR, 'PNG'),
  'png grey': encoded(COLOUR.convert('L'), 'PNG'),
  'png grey with alpha': encoded(
    Image.merge('LA', [COLOUR.convert('L'), ALPHA]), 'PNG'
  ),
  'png grey, one level transparent': encoded(
    COLOUR.convert('L'), 'PNG', transparency=120
  ),
  'png with alpha': encoded(RGBA, 'PNG'),
  'png palette': encoded(PALETTE, 'PNG'),
  'png palette, one colour transparent': encoded(
    PALETTE, 'PNG', transparency=3
  ),
  'png palette with alpha': encoded(
    PALETTE, 'PNG', transparency=bytes(range(0, 256, 17))
  ),
  'png palette of 2 bits': encoded(COLOUR.quantize(4), 'PNG', bits=2),
  'png one colour transparent': encoded(
    COLOUR, 'PNG', transparency=COLOUR.getpixel((2, 3))
  ),
  'png 1 bit': encoded(COLOUR.convert('1'), 'PNG'),
  'png 4 bits': raw_png(4, 0, bytes([0x0F, 0x37]), (2, 4)),
  'png 16 bits': stand_in.png(
    np.arange(0, 65536, 113, np.uint16)[:576].reshape(18, 32)
  ),
  'png 16 bits, colour': stand_in.png(
    stand_in.pixels(1, 9, 8).astype(np.uint16) * 257
  ),
  'png 16 bits, grey with alpha': raw_png(
    16, 4, bytes([0x80, 0x80, 0x40, 0x40, 0xFF, 0xFF, 0xFF, 0xFF]), (2, 2)
  ),
  'png interlaced': encoded(COLOUR, 'PNG', interlace=1),
  'png animated': encoded(
    COLOUR, 'PNG', save_all=True, append_images=[COLOUR.rotate(180)]
  ),
  'webp': encoded(COLOUR, 'WEBP', lossless=True),
  'webp lossy': encoded(COLOUR, 'WEBP', quality=70),
  'webp with alpha': encoded(RGBA, 'WEBP', lossless=True, exact=True),
  'webp animated': encoded(
    COLOUR, 'WEBP', lossless=True, save_all=True, append_images=[RGBA]
  ),
  'bmp': encoded(COLOUR, 'BMP'),
  'bmp grey': encoded(COLOUR.convert('L'), 'BMP'),
  'bmp palette': encoded(PALETTE, 'BMP'),
  'bmp 1 bit': encoded(COLOUR.convert('1'), 'BMP'),
  'bmp 32 bits': encoded(RGBA, 'BMP'),
  'jpeg': encoded(COLOUR, 'JPEG', subsampling=0),
  'jpeg 4:2:0': encoded(COLOUR, 'JPEG', subsampling=2),
  'jpeg grey': encoded(COLOUR.convert('L'), 'JPEG'),
  'jpeg progressive': encoded(COLOUR, 'JPEG', progressive=True),
  'jpeg cmyk': encoded(COLOUR.convert('CMYK'), 'JPEG', quality=95),
  'jpeg rgb': encoded(COLOUR, 'JPEG', keep_rgb=True),
  'jpeg in a file called png': encoded(COLOUR, 'JPEG', quality=30),
}


def turned(kind: str, orientation: int, **options) -> bytes:
  exif = Image.Exif()
  exif[0x010F] = 'a maker'  # tags before and after
  exif[0x0112] = orientation
  exif[0x0132] = '2020:01:01 00:00:00'
  return encoded(COLOUR, kind, exif=exif, **options)


for _i in range(1, 9):
  FILES[f'jpeg turned {_i}'] = turned('JPEG', _i, subsampling=0)
FILES['png turned'] = turned('PNG', 6)
FILES['webp turned'] = turned('WEBP', 8, lossless=True)
FILES['jpeg turned by nonsense'] = turned('JPEG', 77, subsampling=0)


@pytest.mark.parametrize('channels', [1, 3, 4])
@pytest.mark.parametrize('name', FILES)
def test_shows_what_pillow_shows(name, channels):
  found = decode.decode(FILES[name], channels)
  wanted = seen(FILES[name], channels)
  assert found.dtype == np.uint8 and found.flags.c_contiguous
  assert found.shape == wanted.shape
  difference = np.abs(found - wanted)
  if channels == 4:  # the colour of what is transparent does not matter
    difference[..., :3] *= wanted[..., 3:] > 0
  # Decoders round colours differently, and upsample them.
  assert difference.max() <= (4 if 'lossy' in name else 2)


def test_few_levels_of_grey_may_have_a_transparent_one():
  data = raw_png(4, 0, bytes([0x0F, 0x37]), (2, 4), extra=b'\0\7')
  alpha = decode.decode(data, 4)[0, :, 3]  # Pillow takes it for a level of 256
  np.testing.assert_array_equal(alpha, [255, 255, 255, 0])


@pytest.mark.parametrize('orientation', [1, 6])
def test_large_jpeg_is_decoded_smaller_but_not_below(orientation):
  exif = Image.Exif()
  exif[0x0112] = orientation
  image = Image.fromarray(stand_in.pixels(2, 160, 240) // 2)
  data = encoded(image, 'JPEG', exif=exif)
  upright = (240, 160) if orientation == 6 else (160, 240)
  assert decode.jpeg_size(data) == upright
  small = decode.decode(data, 3, at_least=(upright[0] // 2 - 3, 10))
  assert small.shape == (upright[0] // 2, upright[1] // 2, 3)
  whole = decode.decode(data, 3, at_least=(upright[0] - 1, 10))
  assert whole.shape == (*upright, 3)


@pytest.mark.parametrize('name', ['png', 'webp', 'webp lossy', 'bmp', 'jpeg'])
@pytest.mark.parametrize('part', [0, 0.02, 0.5, 0.9, 0.99])
def test_truncated_file_is_refused_by_name(name, part, capfd):
  data = FILES[name][: int(part * len(FILES[name]))]
  with pytest.raises(UserError, match=r'^a/b\.png .*cannot be decoded') as e:
    decode.decode(data, 3, where='a/b.png')
  assert '\n' not in str(e.value)
  assert not capfd.readouterr().err


@pytest.mark.parametrize('data', [b'hello', bytes(100), FILES['jpeg'][9:]])
def test_what_is_no_image_is_refused(data):
  with pytest.raises(UserError, match='no image'):
    decode.decode(data, 3)


@pytest.mark.parametrize('name', ['png', 'png palette', 'png 16 bits'])
def test_changed_byte_is_refused(name):
  data = bytearray(FILES[name])
  data[len(data) // 2] ^= 1
  with pytest.raises(UserError, match='checksum of a PNG is wrong'):
    decode.decode(bytes(data), 3)


def test_jpeg_with_bytes_too_many_is_read():
  data = FILES['jpeg']
  for padded in (data + b'abc', data[:-2] + bytes(9) + data[-2:]):
    np.testing.assert_array_equal(
      decode.decode(padded, 3), decode.decode(data, 3)
    )


def test_huge_image_is_refused_before_it_is_decoded():
  png = bytearray(FILES['png'])
  png[16:24] = struct.pack('>II', 100_000, 50_000)
  bmp = bytearray(FILES['bmp'])
  bmp[18:26] = struct.pack('<ii', 100_000, -50_000)
  jpeg = bytearray(FILES['jpeg'])
  frame = jpeg.find(b'\xff\xc0')
  jpeg[frame + 5 : frame + 9] = struct.pack('>HH', 50_000, 60_000)
  for data in (png, bmp, jpeg):
    with pytest.raises(UserError, match=r'50000 x .*: at most .* make it smal'):
      decode.decode(bytes(data), 3)
