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


def test_distances_of_classes_and_images():
  """Where both maps have a class; a box around it changes nothing."""
  labels, predicted = np.zeros((2, 2, 9, 12), int)
  labels[0, 2:5, 3:6], predicted[0, 2:5, 4:7] = 1, 1
  labels[1, 0:2, 0:2], predicted[1, 0, 11] = 2, 1
  labels[1, 8] = 255
  found = segments.distances(labels, predicted, 4)
  assert np.isnan(found[:, 3]).all() and np.isnan(found[1, 1:]).all()
  assert found[0, 1] == 1.0
  whole = segments.hausdorff(labels[0] == 1, predicted[0] == 1)
  assert whole == found[0, 1]
  spaced = segments.distances(labels, predicted, 4, spacing=(1.0, 2.5))
  assert spaced[0, 1] == 2.5
  means, bounds = segments.mean_distances(found, ('background', 'a', 'b', 'c'))
  assert means['hausdorff95'] == means['hausdorff95/a'] == 1.0
  assert np.isnan(means['hausdorff95/b'])
  assert bounds['hausdorff95/a'] == (1.0, 1.0)


def test_intervals_by_drawing_images():
  """As wide as the spread of means over draws, and none for one image."""
  rng = np.random.default_rng(0)
  labels = rng.integers(0, 3, (40, 8, 8))
  predicted = np.where(rng.random((40, 8, 8)) < 0.3, 0, labels)
  each = np.asarray(segments.areas(predicted, labels, 3, 255))
  wanted = segments.overlaps(segments.confusion(labels, predicted, 3))
  right, labelled, guessed = each.sum(axis=0)
  np.testing.assert_allclose(2 * right / (labelled + guessed), wanted.dice)
  found = segments.intervals(each, ('a', 'b', 'c'))
  by_image = (predicted == labels).mean(axis=(1, 2))
  low, high = found['accuracy']
  assert low < wanted.total < high
  spread = 2 * 1.96 * by_image.std() / np.sqrt(40)
  assert high - low == pytest.approx(spread, rel=0.1)
  assert found['iou/b'][0] < wanted.iou[1] < found['iou/b'][1]
  assert found['dice'][0] < wanted.mean_dice < found['dice'][1]
  assert segments.intervals(each[:1], ('a', 'b', 'c')) == {}
