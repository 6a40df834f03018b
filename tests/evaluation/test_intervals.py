"""Means of several runs with their intervals."""

import math

import pytest

from vit_jax.evaluation import intervals


def test_students_interval():
  mean, half = intervals.mean_interval([1.0, 2.0, 3.0])
  assert mean == 2 and half == pytest.approx(4.302653 / math.sqrt(3))
  mean, half = intervals.mean_interval([0.5, 0.5])
  assert (mean, half) == (0.5, 0)


def test_without_a_spread_to_measure():
  mean, half = intervals.mean_interval([0.25])
  assert mean == 0.25 and math.isnan(half)
  assert all(map(math.isnan, intervals.mean_interval([1.0, math.nan])))
