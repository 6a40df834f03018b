"""Few-shot classification: a linear model of a few examples of each class.

As in the ViT paper (arXiv:2010.11929, section 4.1), it is regularised least
squares from embeddings to targets of -1 and 1, which has a closed form. Shots,
penalty and standardised features are as in big_vision, the successor of the
paper's code (`evaluators/fewshot_lsr.py` and `configs/common_fewshot.py`).

In comments: N examples, D the size of an embedding, K classes.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import math
from typing import Annotated
from typing import NamedTuple

import ml_collections
import numpy as np

from vit_jax.config import counted
from vit_jax.config import options
from vit_jax.config import UserError
from vit_jax.evaluation import base
from vit_jax.evaluation import intervals
from vit_jax.evaluation import probes
from vit_jax.evaluation.embedded import Embedded

SEEDS = (0, 1, 2, 3, 4)
SHOTS = (1, 5, 10, 25)
PENALTY = 2.0**10

_LEAST_STD = 1e-5  # a feature may be constant over a few examples
_ROWS = 4096  # rows that are predicted at a time


class FewShot(probes.Probe):
  """Mean accuracy over draws of a few images of each class.

  For N shots the metrics are few_shot_N_accuracy, and
  few_shot_N_accuracy_margin, half the width of its 95% interval (Student's,
  over the draws).
  """

  def __init__(
    self,
    spec: ml_collections.ConfigDict,
    train_split: str,
    features: str = 'head',
    shots: Annotated[tuple[int, ...], options.Interval('[1, inf)')] = SHOTS,
  ):
    """Takes the options of a probe, and the numbers of images of each class."""
    super().__init__(spec, train_split, features)
    if not shots or len(set(shots)) < len(shots):
      raise UserError(
        f'shots is {shots}: write different whole numbers of images of a class,'
        f' as {SHOTS}'
      )
    self.shots = shots
    names = [f'few_shot_{count}_accuracy' for count in shots]
    margins = {f'{name}_margin': 'min' for name in names}
    self.metrics = {**dict.fromkeys([*names, 'examples'], 'max'), **margins}

  def check_count(self, images: int, classes: int = 0) -> None:
    """Checks that there are enough images for the largest number of shots."""
    most = max(self.shots)
    if images < most * classes:
      raise base.EvaluationError(
        f'{self.train_split!r} has {counted(images, "image")} of'
        f' {counted(classes, "class")}, fewer than {most} of each: give a'
        ' larger train_split, or smaller shots'
      )

  def check_examples(
    self,
    train: probes.Labelled,
    test: probes.Labelled,
    classes: tuple[str, ...],
  ) -> None:
    """Also checks that each class that occurs has enough images."""
    super().check_examples(train, test, classes)
    most = max(self.shots)
    counts, tested = (
      np.bincount(labels, minlength=len(classes)) for labels, _ in (train, test)
    )
    few = np.flatnonzero((counts + tested > 0) & (counts < most))
    if len(few):
      label = int(few[0])
      raise base.EvaluationError(
        f'class {classes[label]!r} has {counted(counts[label], "image")} in'
        f' {self.train_split!r}, but few_shot draws {most} of each: give a'
        ' larger train_split, or smaller shots'
      )

  def measure(
    self, train: Embedded, test: Embedded, after_block: Callable[[], object]
  ) -> base.Scalars:
    """Fits and measures one classifier for each number of shots and draw."""
    results: base.Scalars = {}
    for shots, values in accuracies(
      *(train.features, train.labels, test.features, test.labels),
      shots=self.shots,
      after_block=after_block,
    ).items():
      mean, margin = intervals.mean_interval(values)
      name = f'few_shot_{shots}_accuracy'
      results |= {name: mean, f'{name}_margin': margin}
    return results

  def intervals(
    self, results: Mapping[str, float]
  ) -> dict[str, tuple[float, float] | None]:
    """Returns Student's intervals of the accuracies, over draws."""
    bounds: dict[str, tuple[float, float] | None] = {}
    for name, x in results.items():
      if (margin := results.get(f'{name}_margin')) is not None:
        ends = max(x - margin, 0.0), min(x + margin, 1.0)
        bounds[name] = ends if math.isfinite(x) else None
    return bounds


class Linear(NamedTuple):
  """A linear model of standardised features."""

  mean: np.ndarray  # float64 [D], mean of the features
  std: np.ndarray  # float64 [D], their standard deviation
  kernel: np.ndarray  # float64 [D, K]
  bias: np.ndarray  # float64 [K]

  def predict(self, features: np.ndarray) -> np.ndarray:
    """Returns the classes of features [M, D], int [M]."""
    parts = [
      (features[start : start + _ROWS] - self.mean) / self.std @ self.kernel
      for start in range(0, len(features), _ROWS)
    ]
    return np.concatenate([(x + self.bias).argmax(axis=1) for x in parts])


def fit(features: np.ndarray, labels: np.ndarray, num_classes: int) -> Linear:
  """Fits a classifier to a few examples.

  Args:
    features: float [N, D].
    labels: int [N], each below K.
    num_classes: K.
  """
  x = features.astype(np.float64)
  mean, std = x.mean(axis=0), x.std(axis=0) + _LEAST_STD
  targets = np.where(labels[:, None] == np.arange(num_classes), 1.0, -1.0)
  kernel, bias = ridge((x - mean) / std, targets, PENALTY)
  return Linear(mean, std, kernel, bias)


def ridge(
  x: np.ndarray, y: np.ndarray, penalty: float
) -> tuple[np.ndarray, np.ndarray]:
  """Minimises |x W + b - y|^2 + penalty |W|^2; returns W [D, K] and b [K].

  Args:
    x: float64 [N, D].
    y: float64 [N, K].
    penalty: More than 0; it applies to the kernel W, not to the bias b.
  """
  from scipy import linalg  # here, since its import is slow

  mean_x, mean_y = x.mean(axis=0), y.mean(axis=0)
  # For any W, the best bias makes the mean residual 0. So W is fitted to
  # centred data, and the bias follows from it.
  x, y = x - mean_x, y - mean_y
  n, d = x.shape
  if n >= d:  # (x^T x + penalty I) W = x^T y
    gram = x.T @ x + penalty * np.eye(d)
    kernel = linalg.solve(gram, x.T @ y, assume_a='pos')
  else:  # W = x^T (x x^T + penalty I)^-1 y: the same, with a smaller matrix
    gram = x @ x.T + penalty * np.eye(n)
    kernel = x.T @ linalg.solve(gram, y, assume_a='pos')
  return kernel, mean_y - mean_x @ kernel


def accuracies(
  train: np.ndarray,
  train_labels: np.ndarray,
  test: np.ndarray,
  test_labels: np.ndarray,
  shots: Sequence[int],
  seeds: Sequence[int] = SEEDS,
  after_block: Callable[[], object] = lambda: None,
) -> dict[int, list[float]]:
  """Measures classifiers that are fitted to a few examples of each class.

  Args:
    train: float [N, D], embeddings to draw from.
    train_labels: int [N].
    test: float [M, D].
    test_labels: int [M].
    shots: Numbers of examples of each class.
    seeds: Seeds of the draws. With the same seed, a draw of more shots includes
      the examples of a draw of fewer shots.
    after_block: Called between the parts of the work.

  Returns:
    By shots: for each seed, the fraction of the M test examples that are
    classified correctly.
  """
  num_classes = int(train_labels.max()) + 1
  accuracies_by_shots: dict[int, list[float]] = {number: [] for number in shots}
  for number, values in accuracies_by_shots.items():
    for seed in seeds:
      rows = probes.draw(train_labels, np.full(num_classes, number), seed)
      model = fit(train[rows], train_labels[rows], num_classes)
      right = model.predict(test) == test_labels
      values.append(float(right.mean()))
      after_block()
  return accuracies_by_shots
