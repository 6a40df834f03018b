"""Balanced sampling: rare classes are drawn more often than they occur.

A class of n_c images is drawn with a probability proportional to n_c^(1 - b)
(arXiv:1910.09217, equation 1, with q = 1 - b): b = 0 keeps the frequencies of
the classes, b = 1/2 is square-root sampling, and b = 1 draws all classes
equally often. An epoch still has as many draws as there are images, so images
of a rare class come several times, and some of a frequent class do not come.
"""

from collections.abc import Sequence
import dataclasses

import ml_collections
import numpy as np

from vit_jax.config import join_first
from vit_jax.config import UserError
from vit_jax.data import base

CLASSES = 'classes'  # another name for 1


@dataclasses.dataclass(frozen=True, eq=False)
class Balance:
  """Draws the images of each epoch."""

  members: list[np.ndarray]  # positions in the source of each class, int64
  shares: np.ndarray  # fraction of the draws of each class, float64 [classes]

  def order(self, rng: np.random.Generator) -> np.ndarray:
    """Returns the positions of an epoch in order, int64 [N].

    Each class gets its share of the draws, rounded down or up. No image comes
    again before all others of its class have come.
    """
    size = sum(map(len, self.members))
    # Systematic sampling (N equidistant points from a random start): a class's
    # count differs by less than one from its expectation in every epoch.
    points = np.minimum((np.arange(size) + rng.random()) / size, 1 - 2**-53)
    ends = np.cumsum(self.shares)
    drawn = np.searchsorted(ends / ends[-1], points, side='right')
    counts = np.bincount(drawn, minlength=len(self.shares))
    positions = []
    for label in np.flatnonzero(counts):
      members = self.members[label]
      passes = -(-counts[label] // len(members))
      drawn = np.concatenate([rng.permutation(members) for _ in range(passes)])
      positions.append(drawn[: counts[label]])
    return rng.permutation(np.concatenate(positions))


def check(config: ml_collections.ConfigDict) -> None:
  """Raises a UserError if `config.data.balance` cannot be used."""
  value = config.data.balance
  is_number = isinstance(value, int | float) and not isinstance(value, bool)
  if value != CLASSES and not (is_number and 0 <= value <= 1):
    raise UserError(
      f'config.data.balance is {value!r}: write a number from 0 (images are'
      f' drawn as they are) to 1 (classes are drawn alike), or'
      f' {CLASSES!r} for 1'
    )


def show(title: str, classes: Sequence[str], values: np.ndarray) -> str:
  """Returns a line with a number for each class, and their range."""
  class_values = [f'{a} {b:.4g}' for a, b in zip(classes, values, strict=False)]
  ends = f'{values.min():.4g} to {values.max():.4g}'
  return f'{title}, {ends}: {join_first(class_values, 10)}'


def describe(source: base.Source, value: float | str) -> str:
  """Returns a line with the share of the draws that each class gets."""
  shares = make(source, value).shares
  return show('shares of draws', source.classes, shares)


def make(source: base.Source, value: float | str) -> Balance:
  """Returns the balanced sampling of a source, which needs a label."""
  if 'label' not in source.features:
    raise UserError(
      f'config.data.balance is {value!r}, but the examples have no label: leave'
      ' it at 0'
    )
  exponent = 1.0 if value == CLASSES else float(value)
  labels = source.column('label')
  counts = np.bincount(labels, minlength=len(source.classes))
  weights = np.where(counts, np.maximum(counts, 1) ** (1 - exponent), 0)
  order = np.argsort(labels, kind='stable')
  members = np.split(order, np.cumsum(counts)[:-1])
  return Balance(members, weights / weights.sum())
