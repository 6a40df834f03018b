"""Measures of maps of classes; equality with mmsegmentation is golden."""

import numpy as np
import pytest

from vit_jax.evaluation import segments


def test_areas_are_summed_before_they_are_divided():
  """One image with much of a class and one with little."""
  labels = np.array([[[1, 1, 1, 1]], [[1, 0, 0, 0]]])
  predicted = np.array([[[1, 1, 1, 1]], [[0, 0, 0, 0]]])
  found = segments.overlaps(segments.confusion(labels, predicted, 2))
  np.testing.assert_allclose(found.iou, [3 / 4, 4 / 5])
  np.testing.assert_allclose(found.accuracy, [1, 4 / 5])
  np.testing.assert_allclose(found.dice, [6 / 7, 8 / 9])
  assert found.total == 7 / 8


def test_ignored_places_and_absent_classes():
  labels = np.array([0, 0, 255, 1])
  found = segments.overlaps(
    segments.confusion(labels, np.array([0, 2, 1, 1]), 4)
  )
  np.testing.assert_allclose(found.iou, [0.5, 1, 0, np.nan])
  np.testing.assert_allclose(found.accuracy, [0.5, 1, np.nan, np.nan])
  assert found.mean_iou == 0.5 and found.mean_accuracy == 0.75


def square(at, size=9):
  found = np.zeros((size, size), bool)
  found[at : at + 4, 2:6] = True
  return found


def test_hausdorff_distance_of_a_shifted_square():
  for shift in (0, 1, 3):
    found = segments.hausdorff(square(1), square(1 + shift), percentile=100)
    assert found == shift
  found = segments.hausdorff(
    square(1), square(3), spacing=(2.5, 1), percentile=100
  )
  assert found == 5.0  # two rows of 2.5


def test_hausdorff_distance_needs_both():
  assert np.isnan(segments.hausdorff(square(1), np.zeros((9, 9), bool)))


def test_one_far_place_counts_little_in_the_95th_percentile():
  label = np.zeros((40, 40), bool)
  label[5:30, 5:30] = True
  predicted = label.copy()
  predicted[39, 39] = True
  assert segments.hausdorff(label, predicted) == 0
  assert segments.hausdorff(label, predicted, percentile=100) > 10


@pytest.mark.parametrize('dtype', [np.uint8, np.int32])
def test_maps_without_class_zero(dtype):
  labels = np.array([0, 1, 150, 255], dtype)
  found = segments.without_zero(labels)
  assert found.tolist() == [255, 0, 149, 255] and found.dtype == dtype
