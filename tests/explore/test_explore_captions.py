"""Captions of images: one form in all pictures, whatever is known."""

import cv2
import lettering
import numpy as np
import planted
import pytest

from vit_jax.explore import examples as examples_lib
from vit_jax.explore import kinds
from vit_jax.explore import subject as subject_lib
from vit_jax.plots import style
from vit_jax.plots import tiles

NAMES = tuple(f'photo_of_a_handwritten_digit_{i:04d}.png' for i in range(4))
UNIFORM = 'attention / uniform attention (1 = all tokens alike)'
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


def make_subject(vit, truths=('',) * 4):
  inputs = planted.images(len(NAMES))
  sources = list(np.zeros((len(NAMES), 8, 16, 3), np.uint8))
  images = examples_lib.Images(NAMES, truths, inputs, sources, len(NAMES))
  layers = tuple(range(vit.model.depth))
  options = subject_lib.Options((1, 1), layers, (), None, False)
  return subject_lib.Subject(vit, 'it', images, None, options)


def pixels(folder, name):
  """Returns a picture, uint8 [h, w, 3]."""
  return cv2.imread(str(folder / f'{name}.png'))[..., ::-1].copy()


@pytest.mark.slow
def test_they_have_one_form_in_all_pictures(tmp_path):
  subject = make_subject(planted.loaded(planted.tiny()), tuple('eeab'))
  best = subject.probabilities.max(axis=1)
  order = subject.probabilities.argmax(axis=1)
  lines = [f'{"abcde"[i]}, {p:.0%}' for i, p in zip(order, best, strict=True)]
  kinds.draw(subject, [*OF_IMAGES, 'attention'], tmp_path, lambda _: None)
  for name in OF_IMAGES:
    picture = pixels(tmp_path, 'norms-2' if name == 'norms' else name)
    for line in (*lines, 'photo_of_a_', 'label e', 'label a', 'label b'):
      assert lettering.shows(picture, line), (name, line)
  # In that of one image they are its title.
  title = f'{NAMES[2]} – {lines[2]} – label a'
  assert lettering.shows(pixels(tmp_path, 'attention-3'), title, bold=True)


@pytest.mark.slow
def test_columns_and_scales_are_named(tmp_path):
  subject = make_subject(planted.loaded(planted.tiny()))
  names = ('attention', 'query', 'norms', 'similarity', 'positions', 'rollout')
  _, _, numbers = kinds.draw(subject, names, tmp_path, lambda _: None)
  for file, texts in {
    'attention-1': ['image', 'mean', 'head 1', 'layer 2', UNIFORM],
    'query': ['image', 'layer 0', 'layer 2', UNIFORM],
    'norms-2': ['image', 'layer 2', 'L2 norm of the token'],
    'similarity': ['image', 'layer 2', 'cosine similarity'],
    'positions-1': ['column 3', 'row 1', 'cosine similarity', '−1', '1'],
    'rollout': ['image', 'rollout'],
  }.items():
    picture = pixels(tmp_path, file)
    for text in texts:
      assert lettering.shows(picture, text), (file, text)
  tokens = 1 / numbers['attention']['uniform_attention']
  assert tokens == pytest.approx(
    9, rel=1e-4
  )  # 2 x 4 patches and the class token


@pytest.mark.slow
def test_equal_attention_has_equal_colours(tmp_path):
  """One scale holds for all heads, layers and images of the pictures."""
  subject = make_subject(planted.loaded(planted.tiny()))
  _, _, numbers = kinds.draw(subject, ['attention'], tmp_path, lambda _: None)
  high = numbers['attention']['last_colour']
  values = subject.captured.maps * 9  # of 9 tokens
  table = style.colour_table(style.HEAT)
  for image in (0, 3):
    picture = pixels(tmp_path, f'attention-{image + 1}')
    for layer, head in ((0, 1), (2, 0)):
      share = np.clip(values[layer, image, head] / high, 0, 1)
      expected = table[np.round(share * 255).astype(int)]
      side = tiles.tile_shape((8, 16), (2, 4), 4)[0] // 2
      tile = expected.repeat(side, axis=0).repeat(side, axis=1)
      unlike = cv2.matchTemplate(picture, tile, cv2.TM_SQDIFF_NORMED)
      assert unlike.min() < 1e-6, (image, layer, head)


def test_what_is_not_known_is_left_out():
  vit = planted.loaded(planted.tiny(num_classes=0))
  assert make_subject(vit).captions == NAMES
  vit = planted.loaded(planted.tiny())
  vit.params['head']['bias'][0] = np.nan
  assert make_subject(vit).captions == NAMES
  assert subject_lib.caption('a.png', label='cat') == 'a.png\nlabel cat'
  text = subject_lib.caption('a.png', 'dog', 0.934, 'cat')
  assert subject_lib.one_line(text) == 'a.png – dog, 93% – label cat'
