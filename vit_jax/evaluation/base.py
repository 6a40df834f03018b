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
from vit_jax import models
from vit_jax.config import parts
from vit_jax.data import base as data_base
from vit_jax.data import features as features_lib

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

  `apply` and `compute` raise a UserError if an image cannot be read, or if the
  device has too little memory.
  """

  def __init__(
    self, features: features_lib.Features, target: str | None = None
  ):
    self.features = features  # features of the examples, by name
    # Name of the feature that the objective learns; None: it learns none.
    self.target = target
    # What evaluators share, as embeddings, by keys of their own.
    self.shared_results: dict[Any, Any] = {}

  @abc.abstractmethod
  def apply(self, function: Function, split: str) -> Iterator[Any]:
    """Yields what a function returns for each batch of a split, in order.

    The function is compiled once if it is always the same object: a function of
    a module, or a method of the evaluator.

    Its results are NumPy arrays. The objective that it gets has `outputs`,
    `measure` and `trunk`, as `objectives.Objective`. `split` is `spec.split` or
    `train_split` of the evaluator.
    """

  @abc.abstractmethod
  def compute(self, function: Compute, inputs: Any) -> Any:
    """Applies a function to arrays that are no batch of examples, as prompts.

    Inputs and results are trees of NumPy arrays. The function is compiled once
    for each shape, as by `apply`.
    """

  def alive(self) -> None:
    """Reports progress in long work; a signal may end the evaluation here."""


class Evaluator(abc.ABC):
  """A way to measure a model.

  Attributes:
    uses_outputs: Whether it reads the outputs of the objective. `evaluate` then
      matches the classes of the data with the classes of the model. If False,
      as for embeddings, it can measure any model on any data.
    metrics: The better direction, 'max' or 'min', of each metric that `run`
      returns. `config.checkpoint.best` may name one. A name that ends with '/'
      stands for several metrics, such as one per class. None: it returns the
      metrics of the objective.
    spec: Its entry of `config.evals`.
    train_split: The split that it learns from; '': none.
  """

  uses_outputs: ClassVar[bool] = True
  metrics: Mapping[str, str] | None = {}
  train_split: str = ''

  def __init__(self, spec: ml_collections.ConfigDict):
    """Keeps the entry of `config.evals`.

    A subclass has further arguments for its options. It checks them before
    anything slow, and starts the message of a UserError with the option's name.
    """
    self.spec = spec

  @property
  def kind(self) -> str:
    """Its name in the config, without options."""
    return parts.parse(self.spec.kind, 'evals.NAME.kind').name

  def check_model(self, model: models.Model) -> None:
    """Checks the trunk before anything is measured, or raises a UserError."""

  def check_sources(
    self, source: data_base.Source, train_source: data_base.Source | None
  ) -> None:
    """Checks the data before any image is read, or raises an EvaluationError.

    `source` is the split that the model is measured on, and `train_source` the
    one that the evaluator learns from, if any.
    """

  @abc.abstractmethod
  def run(self, context: Context) -> dict[str, Any]:
    """Measures the model, or raises an EvaluationError.

    Returns:
      Metrics by name: numbers, and optionally `confusion`, int [K, K], which is
      shown as a picture.
    """
    del context
    raise NotImplementedError

  def intervals(
    self, results: Mapping[str, float]
  ) -> dict[str, tuple[float, float] | None]:
    """Returns 95% intervals of some results of `run`, by name; None: not known.

    A metric NAME_margin is half the width of NAME's interval, and is not shown.
    """
    del results
    return {}


def create(key: str, spec: ml_collections.ConfigDict) -> Evaluator:
  """Returns the evaluator of an entry of `config.evals`, or says what is wrong.

  Args:
    key: Key of the entry, for errors: 'evals.val'.
    spec: From `config.evaluation`; its kind is the name of a file of this
      package, or 'my_module:MyEvaluator', with options.
  """
  evaluator: Evaluator = config_lib.build(
    spec.kind, f'{key}.kind', find, spec=spec
  )
  if config_lib.is_own(evaluator.kind):
    checked = config_lib.wing('vit_jax.evaluation.extensions.contract:Checked')
    config_lib.extend(evaluator, checked)
  return evaluator


def find(name: str, key: str) -> Any:
  """Returns the class of an evaluator: a file's, or 'my_module:MyEvaluator'.

  `key` is the key of the config that holds its name, for errors.
  """
  return config_lib.find_class(name, key, Evaluator, __package__)


def check(config: ml_collections.ConfigDict) -> None:
  """Checks the kinds of all entries of `config.evals`, and their options."""
  for name, spec in config.evals.items():
    evaluator = create(f'evals.{name}', spec)
    check_directions(f'config.evals.{name}.kind={spec.kind}', evaluator.metrics)


def check_directions(name: str, metrics: Any) -> None:
  """Checks that the `metrics` of a class are names with better directions.

  `name` names the class, for errors.
  """
  fits = metrics is None or (
    isinstance(metrics, Mapping)
    and all(isinstance(x, str) for x in metrics)
    and all(x in ('max', 'min') for x in metrics.values())
  )
  if not fits:
    raise config_lib.UserError(
      f'{name}: its `metrics` are {metrics!r}, and must be a dict of names,'
      " each with 'max' or 'min' for the better direction, as"
      " {'accuracy': 'max'}"
    )
