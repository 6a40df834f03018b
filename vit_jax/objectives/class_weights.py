"""Weights of classes in the training loss of a classifier."""

from collections.abc import Sequence
import math

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict
import numpy as np

from vit_jax import config as config_lib
from vit_jax.data import base as data_base
from vit_jax.objectives import losses

RULES = ('balanced', 'inverse')


def check(config: ConfigDict) -> None:
  """Checks `class_weights` and `class_counts` of `config.objective`."""
  choice, counts = config.objective.class_weights, config.objective.class_counts
  key = f'config.objective.class_weights is {choice!r}'
  if isinstance(choice, str):
    if choice not in ('', *RULES):
      raise config_lib.UserError(
        f'{key}: write a number for each class, or one of'
        f' {", ".join(map(repr, RULES))}'
      )
  elif not isinstance(choice, tuple | list) or not all(
    isinstance(x, int | float) and 0 < x < math.inf for x in choice
  ):
    raise config_lib.UserError(
      f'{key}: it must hold numbers that are more than 0, one for each class'
    )
  if isinstance(choice, str) and choice and config.data.balance:
    raise config_lib.UserError(
      f'config.objective.class_weights={choice!r} and'
      f' config.data.balance={config.data.balance!r} both make up for rare'
      ' classes, which would then count too much: set one of them'
    )
  if counts is not None and not (
    all(isinstance(x, int) and x >= 0 for x in counts) and any(counts)
  ):
    raise config_lib.UserError(
      f'config.objective.class_counts is {counts}: it must hold the number of'
      ' images of each class, some more than 0'
    )


def fill(config: ConfigDict, source: data_base.Source) -> None:
  """Counts the training images of each class, if the weights depend on them."""
  objective, num_classes = config.objective, len(source.classes)
  if not isinstance(objective.class_weights, str):
    return
  if objective.class_counts is None:
    counts = np.bincount(source.column('label'), minlength=num_classes)
    objective.class_counts = tuple(counts.tolist())
  if len(objective.class_counts) != num_classes:
    raise config_lib.UserError(
      f'config.objective.class_counts has {len(objective.class_counts)}'
      f' numbers, but there are {num_classes} classes: leave it out'
    )


def check_source(config: ConfigDict, source: data_base.Source) -> None:
  """Checks that weights are as many as the classes."""
  weights, classes = config.objective.class_weights, source.classes
  if not isinstance(weights, str) and len(weights) != len(classes):
    raise config_lib.UserError(
      f'config.objective.class_weights has {len(weights)} numbers: write one'
      f' for each of the {len(classes)} classes, which are in this order:'
      f' {config_lib.join_first(classes, 10)}'
    )


def values(
  choice: str | Sequence[float], counts: Sequence[int] | None, num_classes: int
) -> np.ndarray:
  """Returns the weight of each class, float32 [classes].

  `choice` is `config.objective.class_weights`. Without the `counts` of images
  of each class, as where the data are not known, all weights of a rule are 1.
  Classes without images, or that the data do not have, get the weight 1.
  """
  weights = np.ones(num_classes)
  if choice not in RULES:
    weights[: len(choice)] = choice
  elif counts is not None:
    images = np.asarray(counts, np.float64)
    has_some = np.flatnonzero(images)
    inverse = 1 / images[has_some]
    if choice == 'balanced':  # as scikit-learn
      inverse *= images.sum() / len(has_some)
    else:
      inverse /= inverse.mean()
    weights[has_some] = inverse
  return weights.astype(np.float32)


def weighted_cross_entropy(
  logits: jax.Array,
  labels: jax.Array,
  weights: np.ndarray,
  name: str = 'softmax',
  smoothing: float = 0.0,
) -> jax.Array:
  """Returns `losses.cross_entropy` of each image times the weight of its class.

  The loss of a mixed image is the sum of the weighted losses of its classes,
  times their shares. Divide the sum over a batch by the number of images, not
  by the sum of weights: an image's part then does not depend on the rest of the
  batch. `weights` are float32 [classes], more than 0.
  """
  if labels.ndim == 1:
    factor = jnp.asarray(weights)[labels]
  else:
    counted = labels * weights
    factor = counted.sum(axis=-1)
    labels = counted / factor[:, None]
  return factor * losses.cross_entropy(logits, labels, name, smoothing)
