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
from typing import Any

import ml_collections
import numpy as np

from vit_jax.config import counted
from vit_jax.config import options
from vit_jax.config import UserError
from vit_jax.evaluation import base
from vit_jax.evaluation import intervals
from vit_jax.evaluation import linear
from vit_jax.evaluation import probes
from vit_jax.evaluation.embedded import Embedded

SEEDS = (0, 1, 2, 3, 4)
SHOTS = (1, 5, 10, 25)
PENALTY = 2.0**10

_LEAST_STD = 1e-5  # as in big_vision


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


def fit(features: np.ndarray, labels: np.ndarray) -> Any:
  """Fits a classifier to features [N, D] and labels [N] of a few examples."""
  from sklearn import linear_model  # here, since its import is slow

  model = linear_model.RidgeClassifier(alpha=PENALTY)
  return linear.fit_standardised(model, features, labels, _LEAST_STD)


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

  They are drawn from embeddings [N, D] with labels [N], and the classifiers are
  tested on `test`, [M, D], with `test_labels`, [M]. `shots` are the numbers of
  examples. With the same seed, a draw of more shots includes the examples of a
  draw of fewer shots. `after_block` is called between the parts of the work.

  Returns:
    By shots: for each seed, the fraction of the M test examples that are
    classified correctly.
  """
  counts = np.ones(int(train_labels.max()) + 1, int)
  accuracies_by_shots: dict[int, list[float]] = {number: [] for number in shots}
  for number, values in accuracies_by_shots.items():
    for seed in seeds:
      rows = probes.draw(train_labels, number * counts, seed)
      model = fit(train[rows], train_labels[rows])
      right = linear.predict(model, test) == test_labels
      values.append(float(right.mean()))
      after_block()
  return accuracies_by_shots
