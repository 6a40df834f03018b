"""A linear probe: logistic regression on embeddings.

It follows CLIP (arXiv:2103.00020, appendix A.3). scikit-learn's L-BFGS fits the
probe. The strength of the L2 penalty is chosen on a held-out part of the
training data, by a coarse search and a finer one around its best. The probe is
then fitted again on all training data. Features are standardised, so that one
range of penalties suits all models.

Other linear classifiers of embeddings come from `fit_standardised`. They differ
by the model of scikit-learn, since each follows its source:

  this probe  LogisticRegression, which is trained. It is the best measure of
    features, and takes minutes.
  `few_shot`  RidgeClassifier, least squares to -1 and 1 in closed form. The
    penalty is fixed, since a few examples leave none to choose it with.
  `explore.similarity.decodability`  RidgeClassifierCV, the same with a penalty
    chosen by leave-one-out, which has a closed form, too. A report has a
    classifier for each layer, and nobody waits for minutes.
"""

from collections.abc import Callable
from collections.abc import Mapping
import math
from typing import Any
import warnings

import numpy as np

from vit_jax.evaluation import base
from vit_jax.evaluation import probes
from vit_jax.evaluation.embedded import Embedded

# The objective is the mean loss + penalty / 2 * squared norm of the weights.
_COARSE = (1e2, 1.0, 1e-2, 1e-4, 1e-6)
_FINER = (10.0, math.sqrt(10.0))  # factors around the best
_HELD_OUT = 0.2  # of each class
_ITERATIONS, _MOST_PARTS = 50, 20  # at most 1,000 iterations, as in CLIP
_ROWS = 4096  # examples that are classified at a time
# Numbers in the features below which one thread fits the probe: several would
# wait for each other longer than they compute, above all on busy cores.
_SMALL = 2**20


class Linear(probes.Probe):
  """Accuracy of a linear probe, and the strength of its L2 penalty."""

  metrics: Mapping[str, str] = {
    'accuracy': 'max',
    'penalty': 'max',
    'examples': 'max',
  }

  def check_examples(
    self,
    train: probes.Labelled,
    test: probes.Labelled,
    classes: tuple[str, ...],
  ) -> None:
    """Also checks that a probe can be fitted to these classes."""
    super().check_examples(train, test, classes)
    _checked_held_out(train[0])

  def measure(
    self, train: Embedded, test: Embedded, after_block: Callable[[], object]
  ) -> base.Scalars:
    """Fits the probe, which may take minutes."""
    model, penalty = fit(train.features, train.labels, after_block)
    accuracy = probes.accuracy(predict(model, test.features), test)
    return {'accuracy': accuracy, 'penalty': penalty}


def fit(
  features: np.ndarray,
  labels: np.ndarray,
  after_block: Callable[[], object] = lambda: None,
) -> tuple[Any, float]:
  """Fits a probe, and chooses its penalty; returns both.

  Features are float [N, D], and labels int [N], of at least two classes.
  `after_block` is called between the parts of the work.
  """
  held = _checked_held_out(labels)
  accuracies: dict[float, float] = {}

  def try_penalty(penalty: float) -> None:
    model = _fit(features[~held], labels[~held], penalty, after_block)
    right = model.predict(features[held]) == labels[held]
    accuracies[penalty] = float(right.mean())

  def best() -> float:  # with ties, the largest penalty
    return max(accuracies, key=lambda penalty: (accuracies[penalty], penalty))

  for penalty in _COARSE:
    try_penalty(penalty)
  for factor in _FINER:
    middle = best()
    for penalty in (middle * factor, middle / factor):
      try_penalty(penalty)
  return _fit(features, labels, best(), after_block), best()


def _checked_held_out(labels: np.ndarray) -> np.ndarray:
  held = held_out(labels)
  if not held.any() or len(np.unique(labels[~held])) < 2:
    raise base.EvaluationError(
      'a linear probe needs two classes at least, and two images of one: give'
      ' a larger train_split'
    )
  return held


def held_out(labels: np.ndarray) -> np.ndarray:
  """Returns which examples are held out to choose the penalty, bool [N].

  They are a random fifth of each class of labels, int [N]: at least one of two
  examples, and none of a single example.
  """
  sizes = np.bincount(labels)
  fifth = np.maximum(np.round(_HELD_OUT * sizes), 1)
  held = np.zeros(len(labels), bool)
  held[probes.draw(labels, np.where(sizes > 1, fifth, 0), seed=0)] = True
  return held


def _fit(
  features: np.ndarray,
  labels: np.ndarray,
  penalty: float,
  after_block: Callable[[], object],
) -> Any:
  """Returns scikit-learn's model, with the features standardised."""
  # Imported here, since it takes a second.
  from sklearn import exceptions
  from sklearn import linear_model
  from sklearn import pipeline
  import threadpoolctl

  model = linear_model.LogisticRegression(
    C=1 / (penalty * len(labels)),  # C weights the sum of the losses
    max_iter=_ITERATIONS,
    warm_start=True,
  )
  scaler, x = _standardised(features)
  threads = 1 if x.size < _SMALL else None
  with threadpoolctl.threadpool_limits(threads), warnings.catch_warnings():
    # If the classes are separable, a small penalty does not converge in time.
    warnings.simplefilter('ignore', exceptions.ConvergenceWarning)
    for _ in range(_MOST_PARTS):
      model.fit(x, labels)
      after_block()
      if model.n_iter_.max() < _ITERATIONS:
        break
  return pipeline.make_pipeline(scaler, model)


def fit_standardised(
  model: Any, features: np.ndarray, labels: np.ndarray, least_std: float = 0.0
) -> Any:
  """Fits a linear model of scikit-learn to standardised features, in float64.

  Args:
    model: The classifier, which is fitted in place.
    features: float [N, D].
    labels: int [N].
    least_std: Added to the standard deviation of each feature.

  Returns:
    A pipeline of scikit-learn that standardises features and classifies them.
  """
  from sklearn import pipeline

  scaler, x = _standardised(features, least_std)
  model.fit(x, labels)
  return pipeline.make_pipeline(scaler, model)


def _standardised(
  features: np.ndarray, least_std: float = 0.0
) -> tuple[Any, np.ndarray]:
  """Returns scikit-learn's scaler, and features [N, D] scaled, in float64."""
  from sklearn import preprocessing

  x = features.astype(np.float64)
  scaler = preprocessing.StandardScaler().fit(x)
  scaler.scale_ += least_std
  return scaler, scaler.transform(x, copy=False)


def predict(model: Any, features: np.ndarray) -> np.ndarray:
  """Returns the classes of features [M, D] by one of these classifiers."""
  classes = [
    model.predict(features[start : start + _ROWS].astype(np.float64))
    for start in range(0, len(features), _ROWS)
  ]
  return np.concatenate([np.empty(0, model.classes_.dtype), *classes])
