"""The interface of evaluators, which measure a model on a split.

A kind is one file: a subclass of `Evaluator`, in this package or in a module of
the user's, named as 'my_module:MyEvaluator'. The same class runs during
training (`config.evals`) and in `python -m vit_jax.evaluate`; each of these has
its own `Context`.
"""

import abc
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any
from typing import ClassVar

import jax
import ml_collections

from vit_jax import config as config_lib
from vit_jax import data
from vit_jax import models
from vit_jax.config import parts
from vit_jax.data import features as features_lib
from vit_jax.evaluation import embedded

Scalars = dict[str, float]
# (objective, parameters, batch) -> a tree of arrays; traced by jit. The batch
# has the features of the source as arrays [B, ...] (images are float32
# [B, H, W, C]), and `index` and `valid` (False on padding).
Function = Callable[[Any, Any, dict[str, jax.Array]], Any]

# (objective, parameters, inputs) -> a tree of arrays; traced by jit.
Compute = Callable[[Any, Any, Any], Any]


class EvaluationError(config_lib.UserError):
  """An evaluator cannot measure these examples."""


class Context(abc.ABC):
  """A model, and the splits that it is measured on.

  Attributes:
    features: Features of the examples, by name.
    target: Name of the feature that the objective learns; None: it learns none.
  """

  def __init__(
    self, features: features_lib.Features, target: str | None = None
  ):
    self.features, self.target = features, target
    self._embedded: dict[tuple[str, str], embedded.Embedded] = {}

  @abc.abstractmethod
  def apply(self, function: Function, split: str) -> Iterator[Any]:
    """Applies a function to each batch of a split, in order.

    The function is compiled once if it is always the same object: a function of
    a module, or a method of the evaluator.

    Args:
      function: (objective, parameters, batch) -> a tree of arrays. The
        objective has `outputs`, `measure` and `trunk`, as
        `objectives.Objective`.
      split: its `spec.split` or its `train_split` of the evaluator.

    Yields:
      The function's result, as NumPy arrays.

    Raises:
      UserError: An image cannot be read, or the device has too little memory.
    """

  @abc.abstractmethod
  def compute(self, function: Compute, inputs: Any) -> Any:
    """Applies a function to arrays that are no batch of examples, as prompts.

    Args:
      function: (objective, parameters, inputs) -> a tree of arrays; compiled
        once for each shape, as by `apply`.
      inputs: A tree of NumPy arrays.

    Returns:
      The function's result, as NumPy arrays.

    Raises:
      UserError: The device has too little memory.
    """

  def alive(self) -> None:
    """Reports progress in long work; a signal may end the evaluation here."""

  def embed(self, split: str, read: str = 'head') -> embedded.Embedded:
    """Returns all embeddings of a split; they are computed once.

    Args:
      split: its `spec.split` or its `train_split` of the evaluator.
      read: One of `embedded.READS`.
    """
    key = split, read
    if key not in self._embedded:
      found = self.apply(embedded.READS[read], split)
      parts = [embedded.Embedded.of_batch(x) for x in found]
      self._embedded[key] = embedded.join(parts)
    return self._embedded[key]


class Evaluator(abc.ABC):
  """A way to measure a model.

  Attributes:
    uses_outputs: Whether it reads the outputs of the objective. `evaluate` then
      matches the classes of the data with those of the model. If False, as for
      embeddings, it can measure any model on any data.
    metrics: The better direction, 'max' or 'min', of each metric that `run`
      returns. `config.checkpoint.best` may name one. A name that ends with '/'
      stands for several metrics, such as one per class. None: the metrics are
      those of the objective.
    spec: Its entry of `config.evals`.
    train_split: The split that it learns from; '': none.
  """

  uses_outputs: ClassVar[bool] = True
  metrics: Mapping[str, str] | None = {}
  train_split: str = ''

  def __init__(self, spec: ml_collections.ConfigDict):
    """Keeps the entry.

    A subclass has further arguments for its options. It checks them, before
    anything slow.

    Args:
      spec: The entry of `config.evals`.

    Raises:
      UserError: An option cannot work. The message starts with its name.
    """
    self.spec = spec

  @property
  def kind(self) -> str:
    """Its name in the config, without options."""
    return parts.parse(self.spec.kind, 'evals.NAME.kind').name

  def check_model(self, model: models.Model) -> None:
    """Checks the model before anything is measured.

    Args:
      model: The trunk.

    Raises:
      UserError: The evaluator cannot measure it.
    """

  def check_sources(
    self, source: data.Source, train_source: data.Source | None
  ) -> None:
    """Checks the data before any image is read.

    Args:
      source: The split that the model is measured on.
      train_source: The split that the evaluator learns from; None: none.

    Raises:
      EvaluationError: The evaluator cannot use these data.
    """

  @abc.abstractmethod
  def run(self, context: Context) -> dict[str, Any]:
    """Measures the model.

    Args:
      context: Applies functions to a split.

    Returns:
      Metrics by name: numbers, and optionally `confusion`, int [K, K], which is
      shown as a picture.

    Raises:
      EvaluationError: It cannot measure these examples.
    """

  def results(self, context: Context) -> dict[str, Any]:
    """Returns what `run` does, after a check that it is what `metrics` says.

    Raises:
      EvaluationError: It is no dict of numbers, it lacks a metric or has one
        that is not declared, or `run` raises it.
    """
    found: Any = self.run(context)
    if not isinstance(found, Mapping):
      raise EvaluationError(
        f'run() of {self.kind} returns a {type(found).__name__}: it must'
        " return a dict of metrics, as {'accuracy': 0.9}"
      )
    for name, value in found.items():
      shape = getattr(value, 'shape', ())
      is_number = hasattr(value, '__float__') and not shape
      if name != 'confusion' and not is_number:
        of = f' of the shape {shape}' if shape else ''
        raise EvaluationError(
          f'run() of {self.kind} returns {name!r}, a'
          f' {type(value).__name__}{of}: it must be one number'
        )
    if self.metrics is not None:
      self._check_names(self.metrics, found)
    return {**found}

  def _check_names(
    self, declared: Mapping[str, str], results: Mapping[str, Any]
  ) -> None:
    """Raises an EvaluationError if results have other names than declared."""
    groups = tuple(name for name in declared if name.endswith('/'))
    undeclared = [
      name
      for name in results
      if name not in declared
      and name != 'confusion'
      and not str(name).startswith(groups)
    ]
    missing = [x for x in declared if x not in results and x not in groups]
    problems = []
    if undeclared:
      names = ', '.join(map(repr, undeclared))
      problems.append(f'returns {names}, which `metrics` does not declare')
    if missing:
      names = ', '.join(map(repr, missing))
      problems.append(f'does not return {names}, which `metrics` declares')
    if problems:
      declares = ', '.join(declared) or 'nothing'
      raise EvaluationError(
        f'run() of {self.kind} {", and ".join(problems)}: `metrics` has'
        f' {declares}; give each metric that run() returns, with the better'
        f" direction, as metrics = {{'accuracy': 'max'}}"
      )

  def intervals(
    self, found: Mapping[str, float]
  ) -> dict[str, tuple[float, float] | None]:
    """Returns 95% intervals of some metrics, by name; None: not known.

    A metric NAME_margin is half the width of NAME's interval, and is not shown.

    Args:
      found: Results of `run`.
    """
    del found
    return {}
