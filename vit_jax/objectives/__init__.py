"""Objectives: training methods, selected by `config.objective.name`.

A method is a subclass of `Objective` in a file of this package, selected by the
name of the file; or a class of the user's, 'my_module:MyObjective'. Classes
need no registration.
"""

import re
from typing import Any

from ml_collections import ConfigDict

from vit_jax import config as config_lib
from vit_jax import models
from vit_jax import optim
from vit_jax.config import parts
from vit_jax.data import features as features_lib
from vit_jax.evaluation import base as evaluation_base
from vit_jax.models import fields
from vit_jax.objectives.base import Batch as Batch
from vit_jax.objectives.base import Extra as Extra
from vit_jax.objectives.base import Objective as Objective
from vit_jax.objectives.base import Outputs as Outputs
from vit_jax.objectives.base import Params as Params
from vit_jax.objectives.base import Purpose as Purpose
from vit_jax.objectives.base import Scalars as Scalars

_INTERVAL = re.compile(r'[\[(][^,]+,[^,]+[\])]')  # of `options.Interval`


def objective_class(config: ConfigDict) -> type[Objective]:
  """Returns the class that `config.objective.name` names."""
  cls: type[Objective] = config_lib.find_class(
    config.objective.name, 'objective.name', Objective, __name__
  )
  return cls


def fill_options(config: ConfigDict) -> None:
  """Sets the keys of `config.objective.options` that the config leaves out.

  The objective's class lists them with their defaults.
  """
  defaults = objective_class(config).options
  options = config.objective.options
  for key, value in options.items():
    if key not in defaults:
      raise config_lib.UserError(
        f'config.objective.options has no key {key!r} for the objective'
        f' {config.objective.name}, which has'
        f' {", ".join(defaults) or "none"}'
      )
    default = defaults[key]
    is_number = isinstance(default, float) and type(value) is int
    if not is_number and not isinstance(value, type(default)):
      raise config_lib.UserError(
        f'config.objective.options.{key} is {value!r}: it must be of type'
        f' {type(default).__name__}, as its default, {default!r}'
      )
    if is_number:
      with options.ignore_type():
        options[key] = float(value)
  with options.unlocked():
    for key, value in defaults.items():
      if key not in options:
        options[key] = value


def check(config: ConfigDict) -> None:
  """Checks `config.objective`."""
  cls = objective_class(config)
  config = config.copy_and_resolve_references()
  fill_options(config)
  evaluation_base.check_directions(
    f'config.objective.name={config.objective.name}', cls.metrics
  )
  _check_limits(config, cls)
  cls.check(config)
  count = config_lib.num_microbatches(config)
  if cls.caches_gradients and config_lib.accumulation(config) == count:
    count = 1
  if cls.couples_examples and count > 1:
    raise config_lib.UserError(
      f'config.train.accumulation is {config.train.accumulation}, but the loss'
      f' of config.objective.name={config.objective.name} needs the whole batch'
      ' at once: set it to 1'
    )
  head = parts.parse(config.model.head or 'linear', 'model.head')
  if head.options.get('norm') == 'batch':
    config_lib.wing('vit_jax.objectives.trunk_checks:check_head_norm')(
      config, cls.moves_statistics
    )


def _check_limits(config: ConfigDict, cls: type[Objective]) -> None:
  """Checks options by `limits`, which a user's class may declare wrongly."""
  for names, limit in cls.limits.items():
    is_interval = isinstance(limit, str) and _INTERVAL.fullmatch(limit)
    is_choice = isinstance(limit, tuple | list)
    if not (is_interval or is_choice or limit == 'duration'):
      raise config_lib.UserError(
        f'config.objective.name={config.objective.name}: limits[{names!r}] is'
        f" {limit!r}: write an interval, as '(0, 1]', choices, as ('a', 'b'),"
        " or 'duration'"
      )
    for name in names.split():
      key = f'objective.options.{name}'
      if name not in config.objective.options:
        if names not in vars(cls).get('limits', {}):
          continue  # of a base class, which has more options
        raise config_lib.UserError(
          f'config.objective.name={config.objective.name}: limits has {name!r},'
          ' which is no option of the class'
        )
      if is_choice:
        config_lib.check_choice(config, key, tuple(limit))
      elif is_interval:
        config_lib.within(config, key, str(limit))
      else:
        config_lib.duration(config, key)


def check_best(config: ConfigDict) -> None:
  """Checks `config.checkpoint.best`."""
  best = config.checkpoint.best
  metrics = [x for x in directions(config) if not x.endswith('/')]
  if best and best not in metrics:
    name = best.partition('/')[0]
    choices = [x for x in metrics if x.startswith(f'{name}/')] or metrics
    raise config_lib.UserError(
      f'config.checkpoint.best is {best!r}: choose one of {", ".join(choices)}'
    )


def directions(config: ConfigDict) -> dict[str, str]:
  """Returns the better direction of each metric of a config's evaluations.

  It is 'max' or 'min', as {'val/accuracy': 'max'}; a name that ends with '/'
  stands for several metrics.
  """
  better: dict[str, str] = {}
  for task, task_config in config_lib.each_task(config).items():
    prefix = f'{task}_' if task else ''
    for name, spec in task_config.evals.items():
      if not spec.split:
        continue
      metrics = evaluation_base.create(f'evals.{name}', spec).metrics
      if metrics is None:
        metrics = objective_class(task_config).metrics
      better |= {f'{prefix}{name}/{metric}': x for metric, x in metrics.items()}
  return better


def lower_is_better(config: ConfigDict) -> bool:
  """Whether lower values of the metric `config.checkpoint.best` are better."""
  best = config.checkpoint.best
  return bool(best) and directions(config)[best] == 'min'


def create(
  config: ConfigDict,
  features: features_lib.Features,
  lengths: optim.Lengths | None = None,
) -> Objective:
  """Returns the objective of a full config, for examples with these features.

  `lengths` are the steps of the run; None: not known, and only shapes matter.
  """
  make: Any = objective_class(config)
  objective: Objective = make(config, features)
  if lengths is not None:
    objective.lengths = lengths
  extensions = []
  if config_lib.is_own(config.objective.name):
    extensions.append('vit_jax.objectives.extensions.contract:Checked')
  if adds_loss(objective.model):
    extensions.append('vit_jax.objectives.extensions.balancing:Balanced')
  if config.train.dtype == 'float16':  # the last one, for the whole loss
    extensions.append('vit_jax.objectives.extensions.loss_scaling:Scaled')
  for name in extensions:
    config_lib.extend(objective, config_lib.wing(name))
  return objective


def adds_loss(model: models.Model) -> bool:
  """Whether a part of a model has a loss of its own, as experts do."""
  parts = fields.inner_parts(getattr(model, 'block', None))
  return any(getattr(part, 'has_loss', False) for part in parts)
