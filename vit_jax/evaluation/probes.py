"""Probes: how good embeddings are, as simple classifiers of them tell.

A probe is an entry of `config.evals` (`config.evaluation`) whose kind is one of
`KINDS`: it learns from the embedded examples of `train_split`, and its metrics
are those of `split`:

    knn        knn_accuracy
    few_shot   few_shot_N_accuracy for each of the shots, the mean over draws,
               and few_shot_N_accuracy_margin, half of its 95% interval
    linear     linear_accuracy, and linear_penalty, the strength of its L2

and examples, the number of these. They are nan where embeddings are not finite.
"""

from collections.abc import Callable
import math

import ml_collections
import numpy as np

from vit_jax import config as config_lib
from vit_jax import data
from vit_jax.config import UserError
from vit_jax.data import base
from vit_jax.data import splits
from vit_jax.evaluation import few_shot
from vit_jax.evaluation import linear_probe
from vit_jax.evaluation import neighbors
from vit_jax.evaluation.embedded import Embedded

Scalars = dict[str, float]

KINDS = ('knn', 'few_shot', 'linear')

_MANY = 10**15  # images, so that no bound lies outside


def check(config: ml_collections.ConfigDict) -> None:
  """Checks the kinds of all evaluations in `config.evals`, and their keys.

  Raises:
    UserError: A value cannot work, or nothing would read it.
  """
  for name, spec in config.evals.items():
    config_lib.one_of(config, f'evals.{name}.kind', ('accuracy', *KINDS))
    if spec.split:
      _check_spec(f'config.evals.{name}', spec)
  _check_best(config)


def _check_spec(key: str, spec: ml_collections.ConfigDict) -> None:
  if (spec.kind == 'accuracy') == bool(spec.train_split):
    raise UserError(
      f'{key}.train_split is {spec.train_split!r}, but {key}.kind is'
      f' {spec.kind!r}: the kinds {", ".join(KINDS)} learn from a train_split,'
      " as 'train[:80%]', and 'accuracy' has none"
    )
  if spec.train_split:
    try:
      splits.parse(spec.train_split)
    except UserError as e:
      raise UserError(f'{key}.train_split: {e}') from None
  default = config_lib.evaluation()
  for name, kind in (('k', 'knn'), ('shots', 'few_shot')):
    if spec.kind != kind and spec[name] != default[name]:
      raise UserError(
        f'{key}.{name} is {spec[name]}, but {key}.kind is {spec.kind!r}, and'
        f' only {kind!r} has {name}: leave it out'
      )
  if spec.k < 1:
    raise UserError(f'{key}.k is {spec.k}: it must be at least 1')
  shots = spec.shots
  good = shots and all(type(x) is int and x > 0 for x in shots)
  if not good or len(set(shots)) < len(shots):
    raise UserError(
      f'{key}.shots is {tuple(shots)}: write different whole numbers of images'
      ' of a class, as (1, 5, 10, 25)'
    )


def _check_best(config: ml_collections.ConfigDict) -> None:
  """Checks that `config.checkpoint.best`, of a probe, is one of its metrics."""
  name, _, metric = config.checkpoint.best.partition('/')
  spec = config.evals.get(name)
  if not spec or spec.kind == 'accuracy' or metric in metric_names(spec):
    return
  names = ', '.join(f'{name}/{x}' for x in metric_names(spec))
  raise UserError(
    f'config.checkpoint.best is {config.checkpoint.best!r}, but'
    f' config.evals.{name}.kind is {spec.kind!r}: choose one of {names}'
  )


def check_sources(
  spec: ml_collections.ConfigDict,
  source: data.Source,
  train_source: data.Source,
) -> None:
  """Checks what is known of a probe's data before any of it is read.

  Args:
    spec: Of the probe.
    source: Its split.
    train_source: Its train_split.

  Raises:
    UserError: There are too few examples, or some are in both.
  """
  if isinstance(source, base.ArraySource) and isinstance(
    train_source, base.ArraySource
  ):
    check_examples(
      spec,
      *(train_source.column('label'), train_source.indices),
      *(source.column('label'), source.indices),
      train_source.classes,
    )
  _check_apart(spec)
  images, classes = len(train_source), len(train_source.classes)
  if spec.kind == 'few_shot' and images < max(spec.shots) * classes:
    raise UserError(
      f'{spec.train_split!r} has {images} images of {classes} classes, fewer'
      f' than {max(spec.shots)} of each: give a larger train_split, or smaller'
      ' shots'
    )
  _check_k(spec, images)


def check_examples(
  spec: ml_collections.ConfigDict,
  train_labels: np.ndarray,
  train_index: np.ndarray,
  labels: np.ndarray,
  index: np.ndarray,
  classes: tuple[str, ...],
) -> None:
  """Checks a probe's data.

  Args:
    spec: Of the probe.
    train_labels: int [N], of its train_split.
    train_index: int [N], their positions in the unsliced split.
    labels: int [M], those of its split.
    index: int [M], likewise.
    classes: Of the data.

  Raises:
    UserError: There are too few examples, or some are in both.
  """
  shared = int(np.isin(index, train_index).sum())
  if shared and _numbers_of(spec.split) == _numbers_of(spec.train_split):
    raise UserError(
      f'{shared} images of {spec.split!r} are in {spec.train_split!r} as well:'
      ' a probe is to be measured on others than it learns from; change its'
      ' split or its train_split'
    )
  _check_k(spec, len(train_labels))
  if spec.kind == 'linear':
    linear_probe.check(train_labels)
  if spec.kind == 'few_shot':
    _check_shots(spec, train_labels, labels, classes)


def _check_shots(
  spec: ml_collections.ConfigDict,
  train_labels: np.ndarray,
  labels: np.ndarray,
  classes: tuple[str, ...],
) -> None:
  """Checks that there are enough images of all classes that there are."""
  counts, tested = (
    np.bincount(x, minlength=len(classes)) for x in (train_labels, labels)
  )
  few = np.flatnonzero((counts + tested > 0) & (counts < max(spec.shots)))
  if len(few):
    label = int(few[0])
    raise UserError(
      f'class {classes[label]!r} has {counts[label]} images in'
      f' {spec.train_split!r}, but few_shot draws {max(spec.shots)} of each:'
      ' give a larger train_split, or smaller shots'
    )


def _check_apart(spec: ml_collections.ConfigDict) -> None:
  """Checks what the splits' names say, before any image is read."""
  for part in splits.parse(spec.split):
    for other in splits.parse(spec.train_split):
      if _overlap(part, other):
        raise UserError(
          f"images of '{part}' are in '{other}' as well: a probe is to be"
          ' measured on others than it learns from; change its split or its'
          ' train_split'
        )


def _overlap(part: splits.Part, other: splits.Part) -> bool:
  """Whether two terms have images in common, however many there are."""
  if 'all' in (part.name, other.name):
    return True
  wholes = sum(x.start is None and x.stop is None for x in (part, other))
  if part.name != other.name or (part.percent != other.percent and not wholes):
    return False  # or not to be told without the data
  bounds = [x.bounds(_MANY) for x in (part, other)]
  return max(start for start, _ in bounds) < min(stop for _, stop in bounds)


def _numbers_of(split: str) -> tuple[str, ...]:
  """Returns what the examples' positions are counted over."""
  return tuple(dict.fromkeys(part.name for part in splits.parse(split)))


def _check_k(spec: ml_collections.ConfigDict, images: int) -> None:
  if spec.kind == 'knn' and images < spec.k:
    raise UserError(
      f'{spec.train_split!r} has {images} images, fewer than the {spec.k}'
      ' neighbours that vote: give a larger train_split, or a smaller k'
    )


def measure(
  spec: ml_collections.ConfigDict,
  train: Embedded,
  test: Embedded,
  between: Callable[[], object] = lambda: None,
) -> Scalars:
  """Measures a probe.

  Args:
    spec: Which one.
    train: What it learns from.
    test: What it is measured on.
    between: Called between the parts of the work, which may take long.

  Returns:
    Its metrics, by name.

  Raises:
    UserError: It cannot learn from these examples.
  """
  examples = {'examples': float(len(test))}
  features = train.features, test.features
  if not all(np.isfinite(x).all() for x in features):
    return dict.fromkeys(metric_names(spec), math.nan) | examples
  return _MEASURES[spec.kind](spec, train, test, between) | examples


def metric_names(spec: ml_collections.ConfigDict) -> tuple[str, ...]:
  """Returns the names of a probe's metrics."""
  if spec.kind == 'few_shot':
    names = [f'few_shot_{shots}_accuracy' for shots in spec.shots]
    return *(x for name in names for x in (name, f'{name}_margin')), 'examples'
  penalty = ('linear_penalty',) if spec.kind == 'linear' else ()
  return f'{spec.kind}_accuracy', *penalty, 'examples'


def _knn(
  spec: ml_collections.ConfigDict,
  train: Embedded,
  test: Embedded,
  between: Callable[[], object],
) -> Scalars:
  found = neighbors.predict(
    train.features, train.labels, test.features, spec.k, between=between
  )
  return {'knn_accuracy': _rate(found, test)}


def _few_shot(
  spec: ml_collections.ConfigDict,
  train: Embedded,
  test: Embedded,
  between: Callable[[], object],
) -> Scalars:
  from vit_jax.evaluation import intervals  # SciPy takes its time

  accuracies = few_shot.accuracies(
    train.features,
    train.labels,
    test.features,
    test.labels,
    spec.shots,
    between=between,
  )
  found: Scalars = {}
  for shots, values in accuracies.items():
    mean, margin = intervals.mean_interval(values)
    name = f'few_shot_{shots}_accuracy'
    found |= {name: mean, f'{name}_margin': margin}
  return found


def _linear(
  spec: ml_collections.ConfigDict,
  train: Embedded,
  test: Embedded,
  between: Callable[[], object],
) -> Scalars:
  del spec
  probe = linear_probe.fit(train.features, train.labels, between)
  accuracy = _rate(probe.predict(test.features), test)
  return {'linear_accuracy': accuracy, 'linear_penalty': probe.penalty}


_MEASURES = {'knn': _knn, 'few_shot': _few_shot, 'linear': _linear}


def _rate(found: np.ndarray, test: Embedded) -> float:
  return float((found == test.labels).mean())
