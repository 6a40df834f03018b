"""A contact sheet: images, captions and frames where they belong."""

import cv2
import numpy as np
import pytest

from vit_jax.config import UserError
from vit_jax.plots import contact_sheet

RED = (220, 0, 0)


def draw(tmp_path, images, **kwargs):
  """Returns the sheet that is drawn, RGB."""
  path = tmp_path / 'new' / 'sheet.png'
  captions = [f'{i}: name' for i in range(len(images))]
  contact_sheet.draw(images, captions, path, **kwargs)
  return cv2.imread(str(path))[..., ::-1]


def count(sheet, colour):
  return int((sheet == np.array(colour)).all(axis=-1).sum())


def test_small_images_are_enlarged_pixel_by_pixel(tmp_path):
  image = np.array([[[0, 200, 0], [0, 0, 200]]], np.uint8)
  sheet = draw(tmp_path, image[None])
  assert count(sheet, (0, 200, 0)) == count(sheet, (0, 0, 200)) == 48 * 48


def test_large_images_are_shrunk(tmp_path):
  sheet = draw(tmp_path, [np.full((600, 300, 3), (0, 200, 0), np.uint8)])
  assert count(sheet, (0, 200, 0)) == 224 * 112


@pytest.mark.parametrize(
  ('pixel', 'expected'),
  [
    ([0.2], (51, 51, 51)),
    ([0.0, 1.5, -1.0], (0, 255, 0)),
    ([0.2, 0.4, 0.6, 0.5], (153, 178, 204)),  # on white
    ([0.2, np.nan, 0.6], (255, 0, 255)),
  ],
)
def test_any_channels_and_values(tmp_path, pixel, expected):
  image = np.full((96, 96, len(pixel)), pixel, np.float32)
  assert count(draw(tmp_path, [image]), expected) == 96 * 96


def test_marked_images_have_a_red_frame(tmp_path):
  images = np.zeros((9, 8, 8, 1), np.uint8)
  assert count(draw(tmp_path, images), RED) == 0
  sheet = draw(tmp_path, images, marked=[8], title='a title')
  rows, columns = np.nonzero((sheet == np.array(RED)).all(axis=-1))
  assert len(rows) > 4 * 96 * 3
  assert rows.min() > sheet.shape[0] // 2  # of two rows
  assert columns.max() < sheet.shape[1] // 8 + 8


def test_rows_have_titles(tmp_path):
  """Each above its row, and as wide as the sheet."""
  images = np.full((4, 96, 96, 3), 255, np.uint8)
  titles = ['i' * 50, 'l' * 50]  # both are wider than an image
  plain, titled = (
    draw(tmp_path, images, columns=2, rows=x) for x in ([], titles)
  )
  line = (titled.shape[0] - plain.shape[0]) // 2
  gap = plain.shape[0] // 2
  for top in (0, line + gap):
    inked = (titled[top : top + line] < 255).any(axis=(0, 2))
    assert np.flatnonzero(inked).max() > 96 + 8


def test_names_in_any_script(tmp_path):
  """Each is its own picture; what the font lacks is an escape, and numbered."""
  image = np.full((1, 96, 96, 1), 255, np.uint8)

  def drawn(text):
    path = tmp_path / 'sheet.png'
    contact_sheet.draw(image, [text], path)
    return cv2.imread(str(path)).tobytes()

  names = ('?', 'été', 'ete', 'Straße', '猫', '犬', 'Кошка', '고양이', 'हिन्दी')
  assert len({drawn(name) for name in names}) == len(names)
  assert drawn('e\u0301te\u0301') == drawn('été')  # as macOS names folders
  assert drawn('नि') == drawn(r'\u0928\u093f')
  labels = np.arange(3, dtype=np.int32)
  classes = ('猫', 'e\u0301te\u0301', 'नि')
  captions = [contact_sheet.caption(label, classes) for label in labels]
  assert captions == ['猫', 'e\u0301te\u0301', '2: नि']


def test_images_of_any_size_and_long_captions(tmp_path):
  images = [np.zeros((h, 150, 3), np.uint8) for h in (97, 224, 1)]
  path = tmp_path / 'sheet.png'
  contact_sheet.draw(images, ['x' * 500, 'Küche', ''], path)
  assert cv2.imread(str(path)).shape[1] < 3 * 180
  contact_sheet.draw([], [], path)


def test_marked_ones_come_first_where_not_all_fit():
  assert contact_sheet.choose(4, [2], most=4) == [0, 1, 2, 3]
  assert contact_sheet.choose(9, [7, 2], most=4) == [2, 7, 0, 1]
  assert contact_sheet.choose(9, range(1, 9), most=4) == [1, 2, 3, 4]


def test_a_directory_that_cannot_be_made(tmp_path):
  (tmp_path / 'new').write_text('')
  with pytest.raises(UserError, match='cannot write'):
    draw(tmp_path, np.zeros((1, 8, 8, 1), np.uint8))
