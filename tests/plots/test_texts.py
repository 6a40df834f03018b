"""Texts that are cut: they fit, and stay different."""

import functools

import pytest

from vit_jax.plots import paper

PHOTOS = [f'photo_of_a_handwritten_digit_{i:04d}.png' for i in range(16)]
WIDTH = paper.width
IN_FOLDERS = [f'{x}/image_of_the_collection_{x}.jpg' for x in ('ant', 'bee')]
IN_THE_MIDDLE = [f'a_photo_of_the_camera_{i:02d}_at_the_gate' for i in range(9)]


@pytest.mark.parametrize('bold', [False, True])
@pytest.mark.parametrize('names', [PHOTOS, IN_FOLDERS, IN_THE_MIDDLE])
@pytest.mark.parametrize('most', [140, 220, 364])
def test_names_stay_different_and_fit(names, most, bold):
  measure = functools.partial(paper.width, bold=bold)
  short = paper.shorten(names, most, measure)
  assert len(set(short)) == len(names)
  assert all('…' in text for text in short)
  assert max(map(measure, short)) <= most


def test_both_ends_are_kept_where_they_suffice():
  assert paper.shorten(PHOTOS, 220, WIDTH)[7] == 'photo_…007.png'
  (text,) = paper.shorten(['a very long name of a class, 43%'], 220, WIDTH)
  assert text.startswith('a very') and text.endswith(', 43%')


def test_what_fits_is_not_touched():
  assert paper.shorten(['a', PHOTOS[0], 'a'], 600, WIDTH) == [
    'a',
    PHOTOS[0],
    'a',
  ]
  short = paper.shorten([*PHOTOS, 'cat.png', PHOTOS[0]], 220, WIDTH)
  assert short[-2] == 'cat.png' and short[-1] == short[0]
  assert paper.shorten([], 100, WIDTH) == []


def test_no_room_at_all():
  assert len(paper.shorten(PHOTOS, 1, WIDTH)) == len(PHOTOS)


def test_lines_end_between_words():
  def wrap(text, most, limit=3):
    return paper.wrap([text], most, limit, len)[0]

  assert wrap('automobile/0036.jpg', 12) == ['automobile/', '0036.jpg']
  assert wrap('a long name of a row', 8) == ['a long', 'name of', 'a row']
  assert wrap('a long name of a row', 8, 2) == ['a long', 'nam… row']
  assert wrap('fits', 4) == ['fits'] and wrap('', 4) == ['']
  assert paper.wrap(['unbreakable'], 6, 2, len) == [['un…ble']]
