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

  Attributes:
    features: Features of the examples, by name.
    target: Name of the feature that the objective learns; None: it learns none.
    shared_results: What evaluators share, as embeddings, by keys of their own.
  """

  def __init__(
    self, features: features_lib.Features, target: str | None = None
  ):
    self.features, self.target = features, target
    self.shared_results: dict[Any, Any] = {}

  @abc.abstractmethod
  def apply(self, function: Function, split: str) -> Iterator[Any]:
    """Applies a function to each batch of a split, in order.

    The function is compiled once if it is always the same object: a function of
    a module, or a method of the evaluator.

    Args:
      function: (objective, parameters, batch) -> a tree of arrays. The
        objective has `outputs`, `measure` and `trunk`, as
        `objectives.Objective`.
      split: `spec.split` or `train_split` of the evaluator.

    Yields:
      What the function returns for a batch, as NumPy arrays.

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
      What the function returns, as NumPy arrays.

    Raises:
      UserError: The device has too little memory.
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
    self, source: data_base.Source, train_source: data_base.Source | None
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
    del context
    raise NotImplementedError

  def intervals(
    self, results: Mapping[str, float]
  ) -> dict[str, tuple[float, float] | None]:
    """Returns 95% intervals of some metrics, by name; None: not known.

    A metric NAME_margin is half the width of NAME's interval, and is not shown.

    Args:
      results: Results of `run`.
    """
    del results
    return {}


def create(key: str, spec: ml_collections.ConfigDict) -> Evaluator:
  """Returns the evaluator of an entry of `config.evals`.

  Args:
    key: Key of the entry, for errors: 'evals.val'.
    spec: From `config.evaluation`; its kind is the name of a file of this
      package, or 'my_module:MyEvaluator', with options.

  Raises:
    UserError: There is no such kind or option, or a value cannot work.
  """
  evaluator: Evaluator = config_lib.build(
    spec.kind, f'{key}.kind', find, spec=spec
  )
  if config_lib.is_own(evaluator.kind):
    checked = config_lib.wing('vit_jax.evaluation.extensions.contract:Checked')
    config_lib.extend(evaluator, checked)
  return evaluator


def find(name: str, key: str) -> Any:
  """Returns the class of an evaluator.

  Args:
    name: Name of a file of this package, or 'my_module:MyEvaluator'.
    key: Key of the config that holds it, for errors.

  Raises:
    UserError: There is no such class.
  """
  return config_lib.find_class(name, key, Evaluator, __package__)


def check(config: ml_collections.ConfigDict) -> None:
  """Checks the kinds of all entries of `config.evals`, and their options."""
  for name, spec in config.evals.items():
    evaluator = create(f'evals.{name}', spec)
    check_directions(f'config.evals.{name}.kind={spec.kind}', evaluator.metrics)


def check_directions(name: str, metrics: Any) -> None:
  """Checks the `metrics` that a class declares.

  Args:
    name: Names the class, for errors.
    metrics: Its attribute; None: there are none of its own.

  Raises:
    UserError: They are no dict of names with the better directions.
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
