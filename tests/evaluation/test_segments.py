"""Measures of maps of classes; equality with mmsegmentation is golden."""

import numpy as np
import pytest

from vit_jax.evaluation import metrics
from vit_jax.evaluation import rows
from vit_jax.evaluation import segments


def test_areas_are_summed_before_they_are_divided():
  """One image with much of a class and one with little."""
  labels = np.array([[[1, 1, 1, 1]], [[1, 0, 0, 0]]])
  predicted = np.array([[[1, 1, 1, 1]], [[0, 0, 0, 0]]])
  actual = segments.overlaps(metrics.confusion(labels, predicted, 2))
  np.testing.assert_allclose(actual.iou, [3 / 4, 4 / 5])
  np.testing.assert_allclose(actual.accuracy, [1, 4 / 5])
  np.testing.assert_allclose(actual.dice, [6 / 7, 8 / 9])
  assert actual.total == 7 / 8


def test_the_names_of_the_measures():
  actual = segments.measures(np.eye(1, dtype=np.int64))
  assert segments.MEASURES == tuple(actual)


def test_ignored_places_and_absent_classes():
  labels = np.array([0, 0, 255, 1])
  matrix = metrics.confusion(labels, np.array([0, 2, 1, 1]), 4, labels != 255)
  actual = segments.overlaps(matrix)
  np.testing.assert_allclose(actual.iou, [0.5, 1, 0, np.nan])
  np.testing.assert_allclose(actual.accuracy, [0.5, 1, np.nan, np.nan])
  assert actual.mean_iou == 0.5
  assert segments.measures(matrix)['mean_accuracy'] == 0.75


def square(at, size=9):
  actual = np.zeros((size, size), bool)
  actual[at : at + 4, 2:6] = True
  return actual


def test_hausdorff_distance_of_a_shifted_square():
  for shift in (0, 1, 3):
    actual = segments.hausdorff(square(1), square(1 + shift), percentile=100)
    assert actual == shift
  actual = segments.hausdorff(
    square(1), square(3), spacing=(2.5, 1), percentile=100
  )
  assert actual == 5.0  # two rows of 2.5


def test_hausdorff_distance_needs_both():
  assert np.isnan(segments.hausdorff(square(1), np.zeros((9, 9), bool)))


def test_one_far_place_counts_little_in_the_95th_percentile():
  label = np.zeros((40, 40), bool)
  label[5:30, 5:30] = True
  predicted = label.copy()
  predicted[39, 39] = True
  assert segments.hausdorff(label, predicted) == 0
  assert segments.hausdorff(label, predicted, percentile=100) > 10


def test_distances_of_classes_and_images():
  """Of classes that a map has; a box around both changes nothing."""
  labels, predicted = np.zeros((2, 2, 9, 12), int)
  labels[0, 2:5, 3:6], predicted[0, 2:5, 4:7] = 1, 1
  labels[1, 0:2, 0:2], predicted[1, 0, 11] = 2, 1
  labels[1, 8] = 255
  actual = segments.distances(labels, predicted, 4)
  assert np.isnan(actual[:, 3]).all() and np.isnan(actual[0, 2])
  assert actual[0, 1] == 1.0
  diagonal = np.hypot(8, 12)  # without the last row, which does not count
  assert actual[1, 1] == actual[1, 2] == pytest.approx(diagonal)
  distances = segments.hausdorff(labels[0] == 1, predicted[0] == 1)
  assert distances == actual[0, 1]
  spaced = segments.distances(labels, predicted, 4, spacing=(1.0, 2.5))
  assert spaced[0, 1] == 2.5
  means, bounds = segments.mean_distances(actual, ('background', 'a', 'b', 'c'))
  assert means['hausdorff95/a'] == pytest.approx((1 + diagonal) / 2)
  assert means['hausdorff95'] == pytest.approx((1 + 3 * diagonal) / 4)
  assert np.isnan(means['hausdorff95/c'])
  assert bounds['hausdorff95/a'] == pytest.approx((1.0, diagonal))


@pytest.mark.parametrize('share', [0.0, 0.3, 0.9, 1.0])
@pytest.mark.parametrize('is_found', [True, False], ids=['missed', 'false'])
@pytest.mark.parametrize('size', [(12, 20), (6, 8, 10)])
def test_images_with_missed_objects_make_a_distance_worse(
  size, is_found, share
):
  """And not better, however many there are; padding changes nothing."""
  rng = np.random.default_rng(0)
  labels, count = np.zeros((10, *size), np.uint8), 10
  box = tuple(slice(2, 5) for _ in size)
  labels[(slice(None), *box)] = 1
  predicted = labels.copy()
  missed = rng.permutation(count)[: round(share * count)]
  predicted[missed] = 0
  maps = (labels, predicted) if is_found else (predicted, labels)
  names = 'background', 'organ'
  actual, _ = segments.mean_distances(segments.distances(*maps, 2), names)
  diagonal = np.linalg.norm(size)
  assert actual['hausdorff95'] == pytest.approx(share * diagonal)
  padding = [(0, 0)] + [(0, 3)] * len(size)
  padded = [
    np.pad(x, padding, constant_values=y)
    for x, y in zip(maps, (255, 1), strict=True)
  ]
  np.testing.assert_allclose(
    segments.distances(*padded, 2), segments.distances(*maps, 2)
  )
  totals = segments.total_objects(segments.objects(*padded, 2), names)
  expected = (count, len(missed), 0)
  if not is_found:
    expected = (count - len(missed), 0, len(missed))
  assert tuple(totals[k] for k in segments.OBJECTS) == expected
  assert totals['objects/organ'] == totals['objects']


def test_small_objects_are_counted_though_a_percentile_misses_them():
  labels = np.zeros((1, 60, 60), int)
  labels[0, 5:40, 5:40] = 1
  predicted = labels.copy()
  labels[0, 50, [44, 50, 56]] = 1  # one of them is found
  predicted[0, 50, 44] = predicted[0, 58, 2] = predicted[0, 59, 3] = 1
  assert segments.distances(labels, predicted, 2)[0, 1] == 0
  actual = segments.objects(labels, predicted, 2)
  np.testing.assert_array_equal(actual[0, :, 1], [4, 2, 1])


def test_means_say_how_many_classes_they_average():
  """A class that is only predicted counts against the overlap."""
  labels = np.array([0, 0, 1, 1, 255])
  for predicted, iou, measured in (
    ([0, 0, 1, 1, 3], 1.0, 2),
    ([0, 0, 1, 2, 3], 0.5, 3),
    ([0, 0, 2, 2, 3], 1 / 3, 3),
  ):
    matrix = metrics.confusion(labels, np.array(predicted), 4, labels != 255)
    actual = segments.measures(matrix)
    assert actual['miou'] == pytest.approx(iou)
    assert actual['miou_classes'] == measured
    assert actual['labelled_classes'] == 2


def test_intervals_by_drawing_images():
  """As wide as the spread of means over draws, and none for one image."""
  rng = np.random.default_rng(0)
  labels = rng.integers(0, 3, (40, 8, 8))
  predicted = np.where(rng.random((40, 8, 8)) < 0.3, 0, labels)
  each = np.asarray(segments.areas(predicted, labels, 3, 255))
  matrix = metrics.confusion(labels, predicted, 3)
  expected = segments.overlaps(matrix)
  right, labelled, guessed = each.sum(axis=0)
  np.testing.assert_allclose(2 * right / (labelled + guessed), expected.dice)
  actual = segments.intervals(each, ('a', 'b', 'c'))
  by_image = (predicted == labels).mean(axis=(1, 2))
  low, high = actual['accuracy']
  assert low < expected.total < high
  spread = 2 * 1.96 * by_image.std() / np.sqrt(40)
  assert high - low == pytest.approx(spread, rel=0.1)
  assert actual['iou/b'][0] < expected.iou[1] < actual['iou/b'][1]
  assert (
    actual['dice'][0] < segments.measures(matrix)['dice'] < actual['dice'][1]
  )
  assert segments.intervals(each[:1], ('a', 'b', 'c')) == {}


@pytest.mark.parametrize('absent', [(), ('c',), ('b', 'c')])
def test_classes_that_means_leave_out_are_named(absent, warnings_logged):
  """As in masks of 0 and 255, whose mean overlap is 1."""
  names = 'a', 'b', 'c'
  count = len(names) - len(absent)
  labels = np.random.default_rng(0).integers(0, count, (4, 8, 8))
  labels[:, 0] = 255
  areas = np.asarray(segments.areas(labels % 255, labels, 3, 255))
  rows.add_intervals({}, {'areas': areas}, names)
  assert len(warnings_logged) == bool(absent)
  if absent:
    assert f'average {count} of 3 classes' in warnings_logged[0]
    assert warnings_logged[0].endswith(f'has {", ".join(absent)}')
