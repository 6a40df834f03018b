import io
import struct
import warnings
import zlib

import cv2
import numpy as np
from PIL import Image
from PIL import ImageOps
from PIL import PngImagePlugin
import pytest
import stand_in

from vit_jax.config import UserError
from vit_jax.data.host import bits
from vit_jax.data.host import decode
from vit_jax.data.host import levels

COLOUR = Image.fromarray(stand_in.pixels(0, 19, 26))
ALPHA = Image.fromarray(stand_in.pixels(7, 19, 26)[..., 0] // 3 * 3)
RGBA = Image.merge('RGBA', [*COLOUR.split(), ALPHA])
PALETTE = COLOUR.quantize(16)
GREY_ROWS = [bytes([0x0F, 0x37])] * 2  # of 4 bits


def encoded(image: Image.Image, kind: str, **options) -> bytes:
  file = io.BytesIO()
  image.save(file, kind, **options)
  return file.getvalue()


def pillow_pixels(data: bytes, channels: int) -> np.ndarray:
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
  'png 4 bits': stand_in.raw_png(GREY_ROWS, (2, 4), 4),
  'png 16 bits': stand_in.png(
    np.arange(0, 65536, 113, np.uint16)[:576].reshape(18, 32)
  ),
  'png 16 bits, colour': stand_in.png(
    stand_in.pixels(1, 9, 8).astype(np.uint16) * 257
  ),
  'png 16 bits, grey with alpha': stand_in.raw_png(
    [bytes([0x80, 0x80, 0x40, 0x40, 0xFF, 0xFF, 0xFF, 0xFF])] * 2, (2, 2), 16, 4
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
  'gif': encoded(COLOUR, 'GIF'),
  'gif grey': encoded(COLOUR.convert('L'), 'GIF'),
  'gif interlaced': encoded(PALETTE, 'GIF', interlace=True),
  'gif, one colour transparent': encoded(PALETTE, 'GIF', transparency=3),
  'gif animated': encoded(
    PALETTE, 'GIF', save_all=True, append_images=[COLOUR.rotate(180)]
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


def tiff(image: np.ndarray, colors: int, order: str = '<', **tags: int):
  """A TIFF file [h, w, C], also of kinds that Pillow does not write."""
  height, width, channels = image.shape
  planar = tags.get('planar', 1)
  pixels = image if planar == 1 else image.transpose(2, 0, 1)
  data = pixels.astype(image.dtype.newbyteorder(order)).tobytes()
  if tags.get('compression') == 8:
    data = zlib.compress(data)
  data += b'\0' * (len(data) % 2)
  part = len(data) // (channels if planar == 2 else 1)
  starts = range(8, 8 + len(data), part)
  entries = {
    256: ('I', [width]),
    257: ('I', [height]),
    258: ('H', [image.itemsize * 8] * channels),
    259: ('H', [tags.get('compression', 1)]),
    262: ('H', [colors]),
    273: ('I', [*starts]),
    274: ('H', [tags.get('orientation', 1)]),
    277: ('H', [channels]),
    278: ('I', [height]),
    279: ('I', [part] * len(starts)),
    284: ('H', [planar]),
    338: ('H', [tags.get('alpha', 0)]),
    339: ('H', [tags.get('kind', 1)] * channels),
  }
  if channels in (1, 3):
    del entries[338]
  at = 8 + len(data)
  body, tail, end = b'', b'', at + 2 + 12 * len(entries) + 4
  for tag, (kind, values) in entries.items():
    raw = struct.pack(f'{order}{len(values)}{kind}', *values)
    number = {'H': 3, 'I': 4}[kind]
    body += struct.pack(f'{order}HHI', tag, number, len(values))
    if len(raw) > 4:
      raw, tail = struct.pack(f'{order}I', end + len(tail)), tail + raw
    body += raw.ljust(4, b'\0')
  head = b'II' if order == '<' else b'MM'
  head += struct.pack(f'{order}HI', 42, at)
  count, following = struct.pack(f'{order}H', len(entries)), bytes(4)
  return head + data + count + body + following + tail


DEEP = stand_in.pixels(1, 9, 8).astype(np.uint16) * 257
RGBA_PIXELS = np.asarray(RGBA)
FILES |= {
  'tiff': encoded(COLOUR, 'TIFF'),
  'tiff grey': encoded(COLOUR.convert('L'), 'TIFF'),
  'tiff lzw': encoded(COLOUR, 'TIFF', compression='tiff_lzw'),
  'tiff deflate': encoded(COLOUR, 'TIFF', compression='tiff_adobe_deflate'),
  'tiff 1 bit': encoded(COLOUR.convert('1'), 'TIFF', compression='group4'),
  'tiff palette': encoded(PALETTE, 'TIFF'),
  'tiff with alpha': encoded(RGBA, 'TIFF'),
  'tiff 16 bits': encoded(Image.fromarray(DEEP[..., 0]), 'TIFF'),
  'tiff big': encoded(COLOUR, 'TIFF', big_tiff=True),
}


for _i in range(1, 9):
  FILES[f'jpeg turned {_i}'] = turned('JPEG', _i, subsampling=0)
FILES['png turned'] = turned('PNG', 6)
FILES['webp turned'] = turned('WEBP', 8, lossless=True)
FILES['jpeg turned by nonsense'] = turned('JPEG', 77, subsampling=0)


@pytest.mark.parametrize('channels', [1, 3, 4])
@pytest.mark.parametrize('name', FILES)
def test_shows_what_pillow_shows(name, channels):
  pixels = decode.decode(FILES[name], channels)
  expected = pillow_pixels(FILES[name], channels)
  assert pixels.dtype == np.uint8 and pixels.flags.c_contiguous
  assert pixels.shape == expected.shape
  difference = np.abs(pixels - expected)
  if channels == 4:  # the colour of what is transparent does not matter
    alpha = expected[..., 3:]
    # OpenCV multiplies those of a TIFF by it, and rounds them.
    difference[..., :3] *= alpha / 255 if 'tiff' in name else alpha > 0
  # Decoders round colours differently, and upsample them.
  assert difference.max() <= (4 if 'lossy' in name else 2)


def test_few_levels_of_grey_may_have_a_transparent_one():
  data = stand_in.raw_png(GREY_ROWS, (2, 4), 4, transparent=b'\0\7')
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


@pytest.mark.parametrize(
  'name',
  (
    *('png', 'webp', 'webp lossy', 'bmp', 'gif', 'jpeg', 'tiff', 'tiff big'),
    *('tiff lzw', 'tiff deflate', 'tiff 16 bits'),
  ),
)
@pytest.mark.parametrize('part', [0, 0.02, 0.5, 0.9, 0.99])
def test_truncated_file_is_refused_by_name(name, part, capfd):
  data = FILES[name][: int(part * len(FILES[name]))]
  with pytest.raises(UserError, match=r'^a/b\.png is (damaged|empty)') as e:
    decode.decode(data, 3, origin='a/b.png')
  assert '\n' not in str(e.value)
  assert not capfd.readouterr().err


def test_empty_file_is_said_to_be_empty():
  with pytest.raises(UserError, match=r'^a\.png is empty'):
    decode.decode(b'', 3, origin='a.png')


@pytest.mark.parametrize('data', [b'hello', bytes(100), FILES['jpeg'][9:]])
def test_what_is_no_image_is_refused(data):
  with pytest.raises(UserError, match='no image'):
    decode.decode(data, 3)


@pytest.fixture
def lines(warnings_logged):
  """The warnings that are logged, as in a new process."""
  decode.say_more.cache_clear()
  bits.say_reduced.cache_clear()
  return warnings_logged


@pytest.mark.parametrize('kind', ['GIF', 'TIFF'])
def test_the_first_of_several_images_is_read_which_is_said_once(kind, lines):
  image = PALETTE if kind == 'GIF' else COLOUR
  several = {'save_all': True, 'append_images': [image.rotate(180)]}
  for _ in range(2):
    pixels = decode.decode(encoded(image, kind, **several), 3)
    np.testing.assert_array_equal(pixels, image.convert('RGB'))
    decode.decode(encoded(image, kind), 3)
  assert lines == [f'of {kind} files with several images the first is read']


def test_that_16_bits_become_8_is_said_once(lines):
  for name in ('tiff 16 bits', 'png 16 bits', 'tiff', 'gif', 'tiff 16 bits'):
    assert decode.decode(FILES[name], 3).dtype == np.uint8
  (line,) = lines
  assert 'only the upper 8 are kept' in line
  kept = levels.Levels(bits=16)
  pixels = decode.decode(FILES['tiff 16 bits'], 1, levels=kept)
  np.testing.assert_array_equal(pixels[..., 0], DEEP[..., 0])


def test_opencv_shows_the_same_of_a_gif():
  buffer = np.frombuffer(FILES['gif'], np.uint8)
  expected = cv2.cvtColor(cv2.imdecode(buffer, 1), cv2.COLOR_BGR2RGB)
  np.testing.assert_array_equal(decode.decode(FILES['gif'], 3), expected)


def test_a_gif_cut_off_after_its_first_frame_is_read():
  whole = FILES['gif animated']
  first = decode.decode(whole, 3)
  np.testing.assert_array_equal(decode.decode(whole[:-40], 3), first)


@pytest.mark.parametrize(
  'size, line',
  [((4, 4), 'lies outside of it'), ((40_000, 40_000), '40000 x 40000 pixels')],
)
def test_the_size_of_a_gif_is_the_one_that_is_checked(size, line):
  data = bytearray(FILES['gif'])
  struct.pack_into('<HH', data, 6, *size)
  with pytest.raises(UserError, match=line):
    decode.decode(bytes(data), 3)


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
  deep = bytearray(tiff(DEEP, 2))
  for tag, size in ((256, 100_000), (257, 50_000)):
    entry = deep.index(struct.pack('<HHI', tag, 4, 1))
    deep[entry + 8 : entry + 12] = struct.pack('<I', size)
  jpeg = bytearray(FILES['jpeg'])
  frame = jpeg.find(b'\xff\xc0')
  jpeg[frame + 5 : frame + 9] = struct.pack('>HH', 50_000, 60_000)
  for data in (png, bmp, jpeg, deep):
    with pytest.raises(UserError, match=r'50000 x .*: at most .* make it smal'):
      decode.decode(bytes(data), 3)


def test_damaged_part_of_a_tiff_is_refused():
  data = bytearray(FILES['tiff deflate'])
  data[len(data) // 2] ^= 1
  with pytest.raises(UserError, match=r'of a TIFF is (wrong|damaged)'):
    decode.decode(bytes(data), 3)


@pytest.mark.parametrize('order', '<>')
@pytest.mark.parametrize('colors', [0, 1, 2])
@pytest.mark.parametrize('dtype', [np.uint8, np.uint16])
def test_tiff_keeps_its_values(dtype, colors, order):
  image = (DEEP if colors == 2 else DEEP[..., :1]).astype(dtype)
  kept = levels.Levels(bits=8 * image.itemsize)
  pixels = decode.decode(
    tiff(image, colors, order), image.shape[-1], levels=kept
  )
  white_is_zero = np.iinfo(dtype).max - image
  expected = white_is_zero if colors == 0 else image
  np.testing.assert_array_equal(pixels, expected, strict=True)


@pytest.mark.parametrize('alpha', [0, 1, 2])
@pytest.mark.parametrize('bits', [8, 16])
def test_alpha_of_a_tiff(bits, alpha):
  """Not said what it is (0), multiplied into the colours (1), or not (2)."""
  scale = 257 if bits == 16 else 1
  image = RGBA_PIXELS.astype(np.uint16 if bits == 16 else np.uint8) * scale
  if alpha == 1:
    image = image.copy()
    share = image[..., 3:] / np.iinfo(image.dtype).max
    image[..., :3] = np.round(image[..., :3] * share)
  pixels = decode.decode(tiff(image.astype(image.dtype), 2, alpha=alpha), 3)
  expected = decode.decode(FILES['png with alpha'], 3)
  assert np.abs(pixels.astype(int) - expected).max() <= 2


def exif_bytes(value, kind='H', order='<', count=1, tags=(0x010F, 0x0132)):
  """EXIF with an orientation of some type, between other tags."""
  number = {'B': 1, 'H': 3, 'I': 4, 'b': 6, 'h': 8, 'i': 9, 'f': 11, 'd': 12}
  head = (b'II' if order == '<' else b'MM') + struct.pack(f'{order}HI', 42, 8)
  first = struct.pack(f'{order}HHI4s', tags[0], 2, 4, b'abc\0')
  last = struct.pack(f'{order}HHI4s', tags[1], 2, 4, b'abc\0')
  raw, after = struct.pack(f'{order}{kind}', value) * count, b''
  entry = struct.pack(f'{order}HHI', 0x0112, number[kind], count)
  if len(raw) > 4:
    raw, after = struct.pack(f'{order}I', 8 + 2 + 36 + 4), raw
  entries = first + entry + raw.ljust(4, b'\0') + last
  return head + struct.pack(f'{order}H', 3) + entries + bytes(4) + after


def xmp_bytes(value, form='attribute'):
  text = f'tiff:Orientation="{value}"'
  if form == 'element':
    text = f'><tiff:Orientation>{value}</tiff:Orientation'
  return f'<x:xmpmeta xmlns:tiff="a"><a {text}/></x:xmpmeta>'.encode()


def segment(content, kind=0xE1, fill=0):
  size = struct.pack('>H', len(content) + 2)
  return b'\xff' * (fill + 1) + bytes([kind]) + size + content


UPRIGHT = encoded(COLOUR, 'JPEG', subsampling=0)
EXIF, XMP = b'Exif\0\0', b'http://ns.adobe.com/xap/1.0/\0'


def with_segments(*parts):
  return UPRIGHT[:2] + b''.join(parts) + UPRIGHT[2:]


@pytest.mark.parametrize('order', ['<', '>'])
@pytest.mark.parametrize('kind', 'BHIbhifd')
def test_orientations_of_all_types_are_as_pillow_has_them(kind, order):
  for value in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9):
    for count in (1, 3) if kind in 'HI' else (1,):
      exif = exif_bytes(value, kind, order, count)
      data = with_segments(segment(EXIF + exif))
      with warnings.catch_warnings(action='ignore'):  # of counts of 3
        expected = pillow_pixels(data, 3)
      pixels = decode.decode(data, 3)
      assert pixels.shape == expected.shape, (value, count)
      assert np.abs(pixels - expected).max() <= 2, (value, count)


APP0, COMMENT = UPRIGHT[2:20], segment(b'a comment', 0xFE)
PARTS = {
  'filled': [segment(EXIF + exif_bytes(6), fill=3)],
  'filled, after the first': [APP0, segment(EXIF + exif_bytes(6, 'I'), fill=1)],
  'filled comment first': [
    segment(b'a', 0xFE, 5),
    segment(EXIF + exif_bytes(8)),
  ],
  'big-endian': [APP0, segment(EXIF + exif_bytes(6, order='>'))],
  'xmp first': [segment(XMP + xmp_bytes(3)), segment(EXIF + exif_bytes(6))],
  'xmp last': [segment(EXIF + exif_bytes(6)), segment(XMP + xmp_bytes(3))],
  'xmp alone': [segment(XMP + xmp_bytes(6))],
  'xmp element': [COMMENT, segment(XMP + xmp_bytes(5, 'element'), fill=2)],
  'two of xmp': [segment(XMP + xmp_bytes(6)), segment(XMP + xmp_bytes(3))],
  'exif without it': [
    segment(EXIF + exif_bytes(6)[:8] + bytes(6)),
    segment(XMP + xmp_bytes(8)),
  ],
  'exif in two': [
    segment(EXIF + exif_bytes(6)[:20]),
    segment(XMP + xmp_bytes(3)),
    segment(EXIF + exif_bytes(6)[20:]),
  ],
  'exif with its name twice': [segment(EXIF + EXIF + exif_bytes(7))],
  'other of the kind first': [
    segment(b'other\0'),
    segment(EXIF + exif_bytes(2)),
  ],
  'in a comment': [segment(EXIF + exif_bytes(6), 0xFE)],
  'nonsense, with xmp': [
    segment(EXIF + exif_bytes(77)),
    segment(XMP + xmp_bytes(6)),
  ],
}


@pytest.mark.parametrize('name', PARTS)
def test_segments_before_the_orientation(name):
  data = with_segments(*PARTS[name])
  actual, expected = decode.decode(data, 3), pillow_pixels(data, 3)
  assert actual.shape == expected.shape
  assert np.abs(actual - expected).max() <= 2
  assert decode.jpeg_size(data) == expected.shape[:2]


@pytest.mark.parametrize('kind', ['PNG', 'WEBP'])
def test_orientation_in_the_xmp_of_other_formats(kind):
  options = {'xmp': xmp_bytes(6), 'lossless': True}
  if kind == 'PNG':
    info = PngImagePlugin.PngInfo()
    info.add_itxt('Comment', 'none')
    info.add_itxt('XML:com.adobe.xmp', xmp_bytes(6).decode())
    options = {'pnginfo': info}
  data = encoded(COLOUR, kind, **options)
  np.testing.assert_array_equal(decode.decode(data, 3), pillow_pixels(data, 3))


def test_the_first_exif_of_a_png_counts():
  data = turned('PNG', 6)
  assert decode.orientation(data) == 6
  header = 8 + 12 + 13  # bytes before the other parts
  empty = b'\0\0\0\0eXIf' + zlib.crc32(b'eXIf').to_bytes(4)
  data = data[:header] + empty + data[header:]
  assert decode.orientation(data) == 1


@pytest.mark.parametrize('orientation', [1, 3, 6, 8])
def test_turned_tiff(orientation):
  pixels = decode.decode(tiff(DEEP, 2, orientation=orientation), 3)
  turns = {1: 0, 3: 2, 6: 3, 8: 1}[orientation]
  np.testing.assert_array_equal(
    pixels, np.rot90(levels.EIGHT_BITS.keep(DEEP, ''), turns)
  )


@pytest.mark.parametrize(
  'data, text',
  [
    (tiff(DEEP[..., :2], 1, alpha=2), '2 channels of 16 bits'),
    (tiff(np.tile(DEEP, 2)[..., :5], 2), '5 channels of 16 bits'),
    (tiff(DEEP, 2, planar=2), 'pixel by pixel'),
    (tiff(DEEP[..., :1].astype(np.int16), 1, kind=2), 'numbers of kind 2'),
    (tiff(DEEP[..., :1].astype(np.float32), 1, kind=3), '1 channels of 32'),
    (encoded(COLOUR.convert('CMYK'), 'TIFF'), 'colours 5'),
    (encoded(COLOUR.convert('LAB'), 'TIFF'), 'colours 8'),
  ],
)
def test_tiff_that_would_be_read_wrongly_is_refused(data, text):
  with pytest.raises(UserError, match=text):
    decode.decode(data, 3)


@pytest.mark.parametrize('channels', [1, 3, 4])
def test_sixteen_bits_are_kept(channels):
  """As 8 bits would be seen, but finer: also grey, alpha and smaller types."""
  kept = levels.Levels(16)
  for name in ('png 16 bits', 'png 16 bits, grey with alpha', 'png', 'jpeg'):
    pixels = decode.decode(FILES[name], channels, levels=kept)
    assert pixels.dtype == np.uint16
    coarse = decode.decode(FILES[name], channels)
    assert np.abs(pixels / 257 - coarse).max() <= 1.01
  grey = np.arange(1000, 1576, dtype=np.uint16).reshape(18, 32)
  pixels = decode.decode(stand_in.png(grey), channels, levels=kept)
  np.testing.assert_array_equal(pixels[..., 0], grey)


def test_bits_are_told_by_the_header():
  for name, data in FILES.items():
    expected = 16 if '16 bits' in name else 8
    assert decode.stored_bits(data) == expected, name
    assert decode.stored_bits(data[:20]) == 8
