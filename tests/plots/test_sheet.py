"""Sheets: tiles are whole, texts are there, and one value has one colour."""

import cv2
import lettering
import numpy as np
import pytest

from vit_jax.config import UserError
from vit_jax.plots import class_colours
from vit_jax.plots import paper
from vit_jax.plots import scales
from vit_jax.plots import sheet
from vit_jax.plots import style
from vit_jax.plots import tiles

NAMES = [f'photo_of_a_handwritten_digit_{i:02d}.png' for i in range(4)]


def noise(seed, shape=(96, 128)):
  random = np.random.default_rng(seed)
  return random.integers(0, 255, (*shape, 3)).astype(np.uint8)


def count(pixels, colour):
  return int((pixels == np.array(style.rgb(colour))).all(axis=-1).sum())


def test_tiles_are_there_pixel_for_pixel():
  one, two = noise(0), noise(1)
  pixels = sheet.draw(
    [[sheet.Tile(one, 'x'), None], [None, sheet.Tile(two, 'a longer text')]],
    names=['first', 'second'],
    heads=['a', 'b'],
  )
  for tile in (one, two):
    assert cv2.matchTemplate(pixels, tile, cv2.TM_SQDIFF_NORMED).min() < 1e-6


def test_heads_captions_names_and_scale_are_written():
  groups = [
    [sheet.Tile(noise(0), name), sheet.Tile(noise(1), 'six\n79%')]
    for name in ('cat', 'dog')
  ]
  colours = class_colours.class_colours(2)
  pixels = sheet.draw(
    sheet.grouped(groups, 4),
    title='Title',
    heads=['image', 'head 1'],
    names=['row 3'],
    group=2,
    scale=sheet.Scale(0.0, 4.0, 'multiples of uniform', exceeded=True),
    legend=[('sky', colours[0]), ('tree', colours[1])],
  )
  assert len(lettering.places(pixels, 'image')) == 2  # for each group
  (row, left), (same, right) = lettering.places(pixels, 'head 1')
  assert row == same and left < right
  assert lettering.shows(pixels, 'Title', bold=True)
  for text in ('cat', 'dog', 'six', '79%', 'row 3', 'sky', 'tree', '0', '≥ 4'):
    assert lettering.shows(pixels, text), text
  assert lettering.shows(pixels, 'multiples of uniform')
  assert count(pixels, style.BLUE) > 400  # a swatch of the legend


def test_a_value_has_one_colour_whatever_is_beside_it():
  """A map is not mixed with its image, nor scaled by its own values."""
  first, second = np.array([[1.0, 0.0], [2.0, 3.0]]), np.array([[1.0, 9.0]])
  drawn = [tiles.color(x, (64, 64), (0.0, 4.0)) for x in (first, second)]
  np.testing.assert_array_equal(drawn[0][0, 0], drawn[1][0, 0])
  np.testing.assert_array_equal(
    drawn[1][0, -1], style.colour_table(style.HEAT)[-1]
  )
  assert len(np.unique(drawn[0].reshape(-1, 3), axis=0)) == 4
  for image in (np.full((64, 64, 3), grey, np.uint8) for grey in (3, 250)):
    pixels = sheet.draw([[sheet.Tile(image), sheet.Tile(drawn[0])]])
    match = cv2.matchTemplate(pixels, drawn[0], cv2.TM_SQDIFF_NORMED)
    assert match.min() < 1e-6
  # Zero is white where values have signs.
  (white,) = tiles.color(np.zeros((1, 1)), (1, 1), (-2, 2), style.SIGNED)[0]
  assert white.min() > 240


def test_marked_tiles_have_frames_in_their_colour():
  black = np.zeros((96, 96, 3), np.uint8)
  plain = [sheet.Tile(black, 'right')] * 3
  assert count(sheet.draw([plain]), style.WRONG) == 0
  pixels = sheet.draw([[*plain, sheet.Tile(black, 'wrong', style.WRONG)]])
  rows, columns = np.nonzero(
    (pixels == np.array(style.rgb(style.WRONG))).all(axis=-1)
  )
  assert len(rows) > 4 * 96 * 3 and columns.min() > 0.7 * pixels.shape[1]
  assert lettering.shows(pixels, 'wrong', colour=style.WRONG)


def test_long_texts_stay_different_and_within_their_tiles():
  cells = [[sheet.Tile(noise(0), name) for name in NAMES]]
  pixels = sheet.draw(cells, names=['a name of a row in many words'])
  gap = paper.GAP
  for i in range(4):  # the gaps between tiles are empty below them
    left = pixels.shape[1] - (4 - i) * (128 + gap) - gap + 1
    assert (pixels[-paper.LINE :, left : left + gap - 4] == 255).all()
  lines = [pixels[110:, -x - 140 :][:, :140] for x in range(0, 560, 140)]
  assert len({line.tobytes() for line in lines}) == 4


def test_any_channels_values_and_sizes():
  assert sheet.readable(np.zeros((1, 2, 3), np.uint8)).shape == (96, 192, 3)
  assert sheet.readable(noise(0, (900, 450))).shape == (448, 224, 3)
  for pixel, expected in (
    ([0.2], (51, 51, 51)),
    ([0.0, 1.5, -1.0], (0, 255, 0)),
    ([0.2, 0.4, 0.6, 0.5], (153, 178, 204)),  # on white
    ([0.2, np.nan, 0.6], style.rgb(style.NOT_FINITE)),
  ):
    image = np.full((96, 96, len(pixel)), pixel, np.float32)
    assert (sheet.readable(image) == expected).all()
  heights = [sheet.Tile(noise(0, (h, 150)), 'Küche') for h in (97, 224, 1)]
  assert sheet.draw([heights]).shape[1] < 3 * 180
  assert sheet.draw([]).size


def test_names_in_any_script():
  """Each is its own picture; what the font lacks is an escape."""

  def drawn(text):
    return sheet.draw([[sheet.Tile(noise(0, (9, 600)), text)]]).tobytes()

  names = ('?', 'été', 'ete', 'Straße', '猫', '犬', 'Кошка', '고양이', 'हिन्दी')
  assert len({drawn(name) for name in names}) == len(names)
  assert drawn('e\u0301te\u0301') == drawn('été')  # as macOS names folders
  assert drawn('नि') == drawn(r'\u0928\u093f')


@pytest.mark.parametrize(
  'limits, numbers',
  [
    ((0.0, 4.1), '0 1 2 3 4.1'),
    ((0.577, 1.0), '0.577 0.7 0.8 0.9 1'),
    ((-7.4321, 7.4321), '−7.43 −5 −2.5 0 2.5 5 7.43'),
    ((1.0, 1.0), '1'),
  ],
)
def test_a_scale_has_round_numbers_and_its_ends(limits, numbers):
  places = scales.ticks(*limits)
  assert ' '.join(map(scales.number, places)) == numbers


def test_colours_of_classes():
  few, many = class_colours.class_colours(3), class_colours.class_colours(150)
  np.testing.assert_array_equal(few, many[:3])
  taken = [*many.tolist(), list(style.rgb(style.BACKGROUND))]
  assert len({*map(tuple, taken)}) == 151
  colours = class_colours.label_colours(['background', 'cat', 'dog'])
  np.testing.assert_array_equal(colours[1:], few[:2])
  assert tuple(colours[0]) == style.rgb(style.BACKGROUND)


def test_files_have_twice_the_density_of_pages(tmp_path):
  from PIL import Image

  path = tmp_path / 'new' / 'sheet.png'
  paper.save(path, noise(0))
  with Image.open(path) as image:
    assert image.size == (128, 96)
    assert image.info['dpi'] == pytest.approx((192, 192), abs=0.1)
  (tmp_path / 'file').write_text('')
  with pytest.raises(UserError, match='cannot write'):
    paper.save(tmp_path / 'file' / 'sheet.png', noise(0))
