"""Texts that are cut: they fit, and stay different."""

import pytest

from vit_jax.plots import canvas
from vit_jax.plots import texts

PHOTOS = [f'photo_of_a_handwritten_digit_{i:04d}.png' for i in range(16)]
IN_FOLDERS = [f'{x}/image_of_the_collection_{x}.jpg' for x in ('ant', 'bee')]
IN_THE_MIDDLE = [f'a_photo_of_the_camera_{i:02d}_at_the_gate' for i in range(9)]


@pytest.fixture(autouse=True)
def style():
  with canvas.style():
    yield


@pytest.mark.parametrize('weight', ['normal', 'bold'])
@pytest.mark.parametrize('names', [PHOTOS, IN_FOLDERS, IN_THE_MIDDLE])
@pytest.mark.parametrize('most', [70, 110, 182])
def test_names_stay_different_and_fit(names, most, weight):
  short = texts.shorten(names, most, weight)
  assert len(set(short)) == len(names)
  assert all('…' in text for text in short)
  assert max(texts.width(text, weight) for text in short) <= most


def test_both_ends_are_kept_where_they_suffice():
  assert texts.shorten(PHOTOS, 110)[7] == 'photo_…007.png'
  (text,) = texts.shorten(['a very long name of a class, 43%'], 110)
  assert text.startswith('a very') and text.endswith(', 43%')


def test_what_fits_is_not_touched():
  assert texts.shorten(['a', PHOTOS[0], 'a'], 300) == ['a', PHOTOS[0], 'a']
  short = texts.shorten([*PHOTOS, 'cat.png', PHOTOS[0]], 110)
  assert short[-2] == 'cat.png' and short[-1] == short[0]
  assert texts.shorten([], 100) == []


def test_no_room_at_all():
  assert len(texts.shorten(PHOTOS, 1)) == len(PHOTOS)


def test_widths_are_those_that_are_drawn():
  """Of scripts with wider letters than the Latin ones, too."""
  for text in (PHOTOS[0], 'WWW iii', '手書き数字の写真'):
    for weight in ('normal', 'bold'):
      drawn = texts._line_width(text, weight)
      assert texts.width(text, weight) == pytest.approx(drawn, abs=3)
