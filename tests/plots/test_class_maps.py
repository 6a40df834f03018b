"""Maps of classes in colours."""

import numpy as np

from vit_jax.plots import class_colours
from vit_jax.plots import class_maps
from vit_jax.plots import sheet
from vit_jax.plots import style

NAMES = ['background', 'cat', 'dog']
COLOURS = class_colours.label_colours(NAMES)
IMAGE = np.random.default_rng(0).integers(0, 256, (2, 3, 3), np.uint8)
LABELS = np.array([[0, 1, 2], [1, 255, 0]])
PREDICTED = np.array([[0, 1, 1], [0, 2, 0]])


def test_colours_are_those_of_the_legend():
  """They are not mixed with the image; void is neither class nor background."""
  maps = {'map': LABELS, 'segments': PREDICTED}
  truth, guess, errors = class_maps.compared(IMAGE, maps, COLOURS, 255)
  counts = LABELS != 255
  void = style.rgb(style.VOID)
  assert len({tuple(x) for x in [*COLOURS.tolist(), void]}) == 4
  np.testing.assert_array_equal(truth[counts], COLOURS[LABELS[counts]])
  np.testing.assert_array_equal(guess[counts], COLOURS[PREDICTED[counts]])
  for picture in (truth, guess, errors):
    assert tuple(picture[1, 1]) == void
  is_red = (errors == class_maps.WRONG).all(axis=-1)
  np.testing.assert_array_equal(is_red, counts & (LABELS != PREDICTED))
  (alone,) = class_maps.compared(IMAGE, {'segments': PREDICTED}, COLOURS, 255)
  np.testing.assert_array_equal(alone, COLOURS[PREDICTED])


def test_the_background_of_an_overlay_is_the_image():
  overlay = class_maps.overlay(IMAGE, PREDICTED, COLOURS)
  is_background = PREDICTED == 0
  np.testing.assert_array_equal(overlay[is_background], IMAGE[is_background])
  assert (overlay != IMAGE)[~is_background].any(axis=-1).all()


def test_a_map_is_resized_without_new_colours():
  large = sheet.fit(COLOURS[PREDICTED], (35, 50), mixes=False)
  assert large.shape == (35, 50, 3)
  assert {*map(tuple, large.reshape(-1, 3).tolist())} <= {
    *map(tuple, COLOURS.tolist())
  }
