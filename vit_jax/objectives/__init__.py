"""What is learned: the object that `config.objective` stands for.

Each method is a file here that defines a subclass of `Objective`, and
`config.objective.name` is the name of the file; or it is a class of the user's,
'my_module:MyObjective'. Nothing has to be registered.
"""

import importlib
import pkgutil
from typing import Any

import ml_collections

from vit_jax import config as config_lib
from vit_jax import weights
from vit_jax.data import features as features_lib
from vit_jax.evaluation import probes
from vit_jax.objectives.base import Batch
from vit_jax.objectives.base import Extra
from vit_jax.objectives.base import Objective
from vit_jax.objectives.base import Outputs
from vit_jax.objectives.base import Params
from vit_jax.objectives.base import Purpose
from vit_jax.objectives.base import Scalars
from vit_jax.objectives.base import trunk_path

__all__ = [
  'Batch',
  'Extra',
  'Objective',
  'Outputs',
  'Params',
  'Purpose',
  'Scalars',
  'check',
  'class_of',
  'create',
  'fill_options',
  'lower_is_better',
  'of_loaded',
  'trunk_path',
]

_NO_METHODS = ('base', 'evaluated', 'losses')  # modules that methods share


def names() -> tuple[str, ...]:
  """Returns the names of the methods that come with vit_jax."""
  found = [module.name for module in pkgutil.iter_modules(__path__)]
  return tuple(name for name in found if name not in _NO_METHODS)


def class_of(config: ml_collections.ConfigDict) -> type[Objective]:
  """Returns the class that `config.objective.name` names.

  Raises:
    UserError: There is no such objective.
  """
  name = config.objective.name
  if config_lib.is_own(name):
    return config_lib.load_own(name, 'objective.name', Objective)
  if name not in names():
    raise config_lib.UserError(
      f'config.objective.name is {name!r}: choose one of {", ".join(names())},'
      " or a class of your own, as 'my_module:MyObjective'"
    )
  module = importlib.import_module(f'{__name__}.{name}')
  (found,) = [
    x
    for x in vars(module).values()
    if isinstance(x, type)
    and issubclass(x, Objective)
    and x.__module__ == module.__name__
  ]
  return found


def fill_options(config: ml_collections.ConfigDict) -> None:
  """Sets the objective's own keys that the config leaves out.

  They are `config.objective.options`, and the objective says what they are.

  Args:
    config: The full config; is changed.

  Raises:
    UserError: The objective has no such key, or its value has another type.
  """
  known = class_of(config).options
  given = config.objective.options
  for key, value in given.items():
    if key not in known:
      raise config_lib.UserError(
        f'config.objective.options has no key {key!r} for the objective'
        f' {config.objective.name}, which has'
        f' {", ".join(known) or "none"}'
      )
    default = known[key]
    is_number = isinstance(default, float) and type(value) is int
    if not is_number and not isinstance(value, type(default)):
      raise config_lib.UserError(
        f'config.objective.options.{key} is {value!r}: it must be of type'
        f' {type(default).__name__}, as its default, {default!r}'
      )
    if is_number:
      with given.ignore_type():
        given[key] = float(value)
  with given.unlocked():
    for key, value in known.items():
      if key not in given:
        given[key] = value


def check(config: ml_collections.ConfigDict) -> None:
  """Checks `config.objective`, and the metric that the best is chosen by.

  Raises:
    UserError: A value cannot work, or there is no such metric.
  """
  cls = class_of(config)
  config = config.copy_and_resolve_references()
  fill_options(config)
  objective = config.objective
  for key in ('label_smoothing', 'teacher_weight'):
    if not 0 <= objective[key] <= 1:
      raise config_lib.UserError(
        f'config.objective.{key} is {objective[key]}: it must be in [0, 1]'
      )
  if not objective.temperature > 0:
    raise config_lib.UserError(
      f'config.objective.temperature is {objective.temperature}: it must be'
      ' more than 0'
    )
  if objective.name != 'distillation' and objective.teacher:
    raise config_lib.UserError(
      f'config.objective.teacher is {objective.teacher!r}, but nobody listens:'
      " set config.objective.name to 'distillation'"
    )
  if (
    objective.name == 'classification'
    and config.model.distillation_token
    and not config.init_from.path
  ):
    raise config_lib.UserError(
      'config.model.distillation_token is True, but nobody teaches: set'
      " config.objective.name to 'distillation', and its teacher"
    )
  cls.check(config)
  if cls.couples_examples and config_lib.num_microbatches(config) > 1:
    raise config_lib.UserError(
      f'config.train.accumulation is {config.train.accumulation}, but the loss'
      f' of config.objective.name={objective.name} needs the whole batch at'
      ' once: set it to 1'
    )
  best = config.checkpoint.best
  name, _, metric = best.partition('/')
  metrics = directions(config, name) if best else {}
  if best and metric not in metrics:
    raise config_lib.UserError(
      f'config.checkpoint.best is {best!r}: choose one of'
      f' {", ".join(f"{name}/{metric}" for metric in metrics)}'
    )


def directions(config: ml_collections.ConfigDict, name: str) -> dict[str, str]:
  """Returns what an evaluation measures, each with 'max' or 'min'.

  Args:
    config: The full config.
    name: Of the evaluation.
  """
  spec = config.evals[name]
  if spec.kind == 'accuracy':
    return dict(class_of(config).metrics)
  return dict.fromkeys(probes.metric_names(spec), 'max')


def of_loaded(
  loaded: weights.Loaded,
  config: ml_collections.ConfigDict,
  features: features_lib.Features,
) -> Objective:
  """Returns the objective that a model of a work directory was trained with.

  Args:
    loaded: The model; its parameters are all of the objective's.
    config: How images are prepared for it.
    features: What the examples have on which it is measured.

  Raises:
    UserError: It is of no work directory, its objective has more parameters
      than the model, or the examples are of another kind.
  """
  stored, trained = loaded.trained_with, loaded.preprocess
  if stored is None or trained.trunk:
    raise config_lib.UserError(
      f'{loaded.origin.path} does not say how it is measured: measure its'
      ' features, with --probe'
    )
  config = config.copy_and_resolve_references()
  config.objective = stored.objective.copy_and_resolve_references()
  config.model = stored.model.copy_and_resolve_references()
  names = trained.target.names
  made = create(config, features)
  assert made.target is not None
  found = features[made.target[0]].names
  if found != names:
    raise config_lib.UserError(
      f'the model predicts {config_lib.some(names)}, but {config.data.name} has'
      f' {config_lib.some(found)}'
    )
  made.model = loaded.model
  return made


def lower_is_better(config: ml_collections.ConfigDict) -> bool:
  """Whether the metric of `config.checkpoint.best` is to fall."""
  name, _, metric = config.checkpoint.best.partition('/')
  return bool(name) and directions(config, name)[metric] == 'min'


def create(
  config: ml_collections.ConfigDict, features: features_lib.Features
) -> Objective:
  """Returns the objective of a config.

  Args:
    config: The full config, with nothing open.
    features: What the examples have, by name.

  Raises:
    UserError: The examples have not what the objective needs.
  """
  make: Any = class_of(config)
  return make(config, features)
