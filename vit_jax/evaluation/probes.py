"""Probes: simple classifiers that measure the quality of embeddings.

A probe is an evaluator that is fitted to the embeddings of `train_split` and
measured on `split`. Its metrics are nan if embeddings are not finite.
"""

import abc
from collections.abc import Callable
from collections.abc import Mapping
import math
from typing import ClassVar

import ml_collections
import numpy as np

from vit_jax import data
from vit_jax import models
from vit_jax.config import counted
from vit_jax.config import explained
from vit_jax.config import UserError
from vit_jax.data import base as data_base
from vit_jax.data import shared_images
from vit_jax.data import splits
from vit_jax.evaluation import base
from vit_jax.evaluation import embedded
from vit_jax.evaluation import intervals
from vit_jax.evaluation.embedded import Embedded

# Labels int [N], and positions in the unsliced split, int [N].
Labelled = tuple[np.ndarray, np.ndarray]


class Probe(base.Evaluator):
  """A classifier of embeddings; each kind fits it in its own way."""

  uses_outputs: ClassVar[bool] = False

  def __init__(
    self,
    spec: ml_collections.ConfigDict,
    train_split: str,
    features: str = 'head',
  ):
    """Takes the options.

    Args:
      spec: The entry of `config.evals`.
      train_split: The split that the classifier is fitted on. It shares no
        example with the split of the entry.
      features: What the probe reads. 'head': the input of the head. 'tokens':
        all tokens after the last norm, concatenated. 'layers': the means of the
        patches after each layer, concatenated.
    """
    super().__init__(spec)
    self.train_split, self.features = train_split, features
    with explained('train_split'):
      splits.parse(train_split)
    if features not in embedded.READS:
      raise UserError(
        f'features is {features!r}: choose one of {", ".join(embedded.READS)}'
      )

  def check_model(self, model: models.Model) -> None:
    """Checks that the model has what the probe reads."""
    embedded.check(model, self.features)

  @abc.abstractmethod
  def measure(
    self, train: Embedded, test: Embedded, after_block: Callable[[], object]
  ) -> base.Scalars:
    """Fits and measures the classifier; returns `metrics` except `examples`.

    All examples are finite. `after_block` is called between the parts of the
    work, which may take long. An EvaluationError says that the classifier
    cannot learn from these examples.
    """

  def run(self, context: base.Context) -> base.Scalars:
    """Embeds both splits, and measures the probe."""
    train, test = (
      embedded.embeddings(context, split, self.features)
      for split in (self.train_split, self.spec.split)
    )
    self.check_examples(
      (train.labels, train.index),
      (test.labels, test.index),
      context.features['label'].names,
    )
    return self.measure_embedded(train, test, context.alive)

  def measure_embedded(
    self,
    train: Embedded,
    test: Embedded,
    after_block: Callable[[], object] = lambda: None,
  ) -> base.Scalars:
    """Returns the metrics of embeddings; nan if some are not finite."""
    results = dict.fromkeys(self.metrics or (), math.nan)
    if all(np.isfinite(x.features).all() for x in (train, test)):
      results |= self.measure(train, test, after_block)
    return results | {'examples': float(len(test))}

  def check_sources(
    self, source: data.Source, train_source: data.Source | None
  ) -> None:
    """Checks the labels if they are known, and the names of the splits."""
    assert train_source is not None
    if 'label' not in source.features:
      raise base.EvaluationError(
        f'{self.kind} classifies by labels, and these data have'
        f' {", ".join(source.features)}'
      )
    labelled = [
      (x.column('label'), x.indices)
      for x in (train_source, source)
      if isinstance(x, data_base.ArraySource)
    ]
    if len(labelled) == 2:
      train, test = labelled
      self.check_examples(train, test, source.classes)
    if shared := shared_images.shared(self.spec.split, self.train_split):
      raise base.EvaluationError(
        f"images of '{shared[0]}' are in '{shared[1]}' as well: a probe is to"
        ' be measured on others than it learns from; change its split or'
        ' its train_split'
      )
    self.check_count(len(train_source), len(train_source.classes))

  def check_examples(
    self, train: Labelled, test: Labelled, classes: tuple[str, ...]
  ) -> None:
    """Checks that there are enough examples, and that both splits share none.

    `classes` are the names of the data's classes.
    """
    del classes
    split, train_split = self.spec.split, self.train_split
    shared = int(np.isin(test[1], train[1]).sum())
    # In splits with the same names positions mean the same.
    names = [
      list(dict.fromkeys(part.name for part in splits.parse(x)))
      for x in (split, train_split)
    ]
    if shared and names[0] == names[1]:
      raise base.EvaluationError(
        f'{split!r} shares {counted(shared, "image")} with'
        f' {train_split!r}: a probe is to be measured on others than it'
        ' learns from; change its split or its train_split'
      )
    self.check_count(len(train[0]))

  def check_count(self, images: int, classes: int = 0) -> None:
    """Checks the number of images to learn from; 0 classes: not known."""

  def intervals(
    self, results: Mapping[str, float]
  ) -> dict[str, tuple[float, float] | None]:
    """Returns Wilson's intervals of the accuracies, over examples."""
    return intervals.accuracy_intervals(results)


def accuracy(predicted: np.ndarray, test: Embedded) -> float:
  """Returns the fraction of correct predictions; `predicted` is int [N]."""
  return float((predicted == test.labels).mean())


def draw(labels: np.ndarray, counts: np.ndarray, seed: int) -> np.ndarray:
  """Draws examples of each class; returns their positions, grouped by class.

  With the same seed, larger counts include the examples of smaller counts.

  Args:
    labels: int [N], each below K.
    counts: int [K], number of examples to draw from each class. All are drawn
      of a class with fewer examples.
    seed: Seed of the draw.
  """
  order = np.random.default_rng(seed).permutation(len(labels))
  order = order[np.argsort(labels[order], kind='stable')]
  grouped = labels[order]
  place = np.arange(len(labels)) - np.searchsorted(grouped, grouped)
  return order[place < counts[grouped]]
