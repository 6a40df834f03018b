"""Captions of images: one form in all pictures, whatever is known."""

import re

import numpy as np
import planted
import pytest

from vit_jax.explore import kinds
from vit_jax.explore import subject as subject_lib

NAMES = tuple(f'photo_of_a_handwritten_digit_{i:04d}.png' for i in range(4))
OF_IMAGES = (
  'segments',
  'rollout',
  'relevance',
  'query',
  'norms',
  'similarity',
  'pca',
  'foreground',
  'neighbors',
)


def subject_of(vit, truths=('',) * 4):
  inputs = planted.images(len(NAMES))
  sources = list(np.zeros((len(NAMES), 8, 16, 3), np.uint8))
  images = subject_lib.Images(NAMES, truths, inputs, sources, len(NAMES))
  layers = tuple(range(vit.model.depth))
  options = subject_lib.Options((1, 1), layers, (), None, False)
  return subject_lib.Subject(vit, 'it', images, None, options)


def texts(folder, name):
  """Returns the texts of a picture of many images."""
  file = folder / ('norms-2.svg' if name == 'norms' else f'{name}.svg')
  return re.findall(r'<text[^>]*>([^<]*)</text>', file.read_text())


@pytest.mark.slow
def test_they_have_one_form_in_all_pictures(tmp_path):
  subject = subject_of(planted.loaded(planted.tiny()), tuple('eeab'))
  best = subject.probabilities.max(axis=1)
  order = subject.probabilities.argmax(axis=1)
  lines = [f'{"abcde"[i]}, {p:.0%}' for i, p in zip(order, best, strict=True)]
  kinds.draw(subject, [*OF_IMAGES, 'attention'], tmp_path, lambda _: None)
  for name in OF_IMAGES:
    found = texts(tmp_path, name)
    shown = [x for x in found if x.startswith('photo')]
    assert len({*shown}) >= len(NAMES), name
    assert all('…' in x and x.endswith('.png') for x in shown), name
    assert {*lines, 'label e', 'label a', 'label b'} <= {*found}, name
  # In that of one image they are its title.
  titles = texts(tmp_path, 'attention-3')
  assert f'{NAMES[2]} – {lines[2]} – label a' in titles


@pytest.mark.slow
def test_no_layer_is_above_the_image(tmp_path):
  """Columns are the image and the layers; what numbers mean is beside them."""
  subject = subject_of(planted.loaded(planted.tiny()))
  names = ('attention', 'query', 'norms', 'similarity')
  kinds.draw(subject, names, tmp_path, lambda _: None)
  place = r'<text [^>]*x="([\d.]+)"[^>]*>([^<]*)</text>'
  for file in ('attention-1', 'query', 'norms-2', 'similarity'):
    svg = (tmp_path / f'{file}.svg').read_text()
    at = {text: float(x) for x, text in re.findall(place, svg)}
    assert at['layer'] < at['image'] < at['2'], file


def test_what_is_not_known_is_left_out():
  vit = planted.loaded(planted.tiny(num_classes=None))
  assert subject_of(vit).captions == NAMES
  vit = planted.loaded(planted.tiny())
  vit.params['head']['bias'][0] = np.nan
  assert subject_of(vit).captions == NAMES
  assert subject_lib.caption('a.png', label='cat') == 'a.png\nlabel cat'
  text = subject_lib.caption('a.png', 'dog', 0.934, 'cat')
  assert subject_lib.one_line(text) == 'a.png – dog, 93% – label cat'
