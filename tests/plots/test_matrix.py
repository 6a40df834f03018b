"""Confusion matrices as pictures, of TensorBoard and of reports."""

import numpy as np
import pytest

from vit_jax.plots import matrix


def test_a_single_error_is_seen_and_zeros_are_empty():
  counts = np.diag([1000, 1000, 1000])
  picture = matrix.confusion(counts, 'abc')
  one = counts.copy()
  one[0, 2] = 1
  with_error = matrix.confusion(one, 'abc')
  assert with_error.shape == picture.shape
  changed = (with_error != picture).any(axis=-1)
  rows, columns = changed.nonzero()
  cell = with_error[rows.min() : rows.max(), columns.min() : columns.max()]
  # White before, and then a blue with a number in ink.
  assert (picture[changed] == 255).all(axis=-1).mean() > 0.9
  background = np.median(cell.reshape(-1, 3), axis=0)
  assert background.sum() < 3 * 255 - 40
  assert cell.min() < 100


@pytest.mark.parametrize('count', [2, 11, 40, 300])
def test_of_many_classes_the_most_confused_are_shown(count):
  """A picture stays small, whatever the number of classes."""
  names = ['a long name of a class', *map(str, range(count - 1))]
  counts = np.diag(np.arange(count))
  counts[count - 1, 0] = 7
  chosen = matrix.most_confused(counts)
  assert len(chosen) == min(count, 40) and {0, count - 1} <= {*chosen}
  assert (np.diff(chosen) > 0).all()
  picture = matrix.confusion(counts, names, 'val, step 5')
  assert picture.dtype == np.uint8 and max(picture.shape) < 2000


def test_axes_have_the_names_of_the_classes():
  """Columns are named as rows are, and not by their numbers."""
  counts = np.eye(3, dtype=int)
  pictures = [
    matrix.confusion(counts, names)
    for names in ('abc', ['background', 'b', 'c'])
  ]
  # A name that is wider than its column is turned, and so takes height.
  short, long = (len(picture) for picture in pictures)
  assert long > short + 50
