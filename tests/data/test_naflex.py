"""Sizes and patches of images of their own shapes."""

import numpy as np
import pytest

from vit_jax.data import naflex


@pytest.mark.parametrize('patch', [14, 16])
@pytest.mark.parametrize('most', [1, 64, 256, 1024])
def test_a_size_is_the_largest_that_fits(patch, most):
  rng = np.random.default_rng(0)
  for image in rng.integers(1, 4_000, (50, 2)).tolist():
    height, width = naflex.size(tuple(image), patch, most)
    assert height % patch == 0 and width % patch == 0
    rows, columns = height // patch, width // patch
    assert rows * columns <= most
    # One more row and column would be too many, or the image is a strip.
    assert (rows + 1) * (columns + 1) > most or 1 in (rows, columns)


def test_the_shape_is_nearly_kept():
  height, width = naflex.size((480, 640), 16, 256)
  assert abs(height / width - 0.75) < 0.05


def test_patches_come_row_by_row_with_zeros_behind():
  image = np.arange(4 * 6 * 3).reshape(4, 6, 3)
  actual, grid = naflex.padded(image, (2, 3), 7)
  assert grid == (2, 2) and actual.shape == (7, 18)
  np.testing.assert_array_equal(actual[1], image[:2, 3:].reshape(-1))
  np.testing.assert_array_equal(actual[2], image[2:, :3].reshape(-1))
  assert not actual[4:].any()
