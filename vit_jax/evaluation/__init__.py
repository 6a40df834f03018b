"""Evaluators, selected by kind, and their metrics and reports.

jax is imported only when a function needs it, since commands that only read
intervals do not.
"""

from collections.abc import Mapping
from typing import Any
from typing import TYPE_CHECKING

import ml_collections

from vit_jax import config as config_lib
from vit_jax.config import UserError
from vit_jax.data import splits

if TYPE_CHECKING:
  from vit_jax.evaluation.base import Evaluator


def create(key: str, spec: ml_collections.ConfigDict) -> 'Evaluator':
  """Returns the evaluator of an entry of `config.evals`.

  Args:
    key: Key of the entry, for errors: 'evals.val'.
    spec: From `config.evaluation`; its kind is a file of this package, or
      'my_module:MyEvaluator'.

  Raises:
    UserError: There is no such kind.
  """
  from vit_jax.evaluation.base import Evaluator

  make: Any = config_lib.find_class(
    spec.kind, f'{key}.kind', Evaluator, __name__
  )
  return make(spec)


def check(config: ml_collections.ConfigDict) -> None:
  """Checks the kinds of all evaluations in `config.evals`, and their keys.

  Raises:
    UserError: A value cannot work, or the evaluation does not use it.
  """
  for name, spec in config.evals.items():
    evaluator = create(f'evals.{name}', spec)
    check_directions(f'config.evals.{name}.kind={spec.kind}', evaluator.metrics)
    if spec.split:
      _check_keys(f'config.evals.{name}', evaluator)


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
    raise UserError(
      f'{name}: its `metrics` are {metrics!r}, and must be a dict of names,'
      " each with 'max' or 'min' for the better direction, as"
      " {'accuracy': 'max'}"
    )


def _check_keys(key: str, evaluator: 'Evaluator') -> None:
  spec, default = evaluator.spec, config_lib.evaluation()
  for name in ('train_split', 'k', 'shots', 'templates', 'class_names'):
    if name not in evaluator.keys and spec[name] != default[name]:
      raise UserError(
        f'{key}.{name} is {spec[name]!r}, but {key}.kind is {spec.kind!r},'
        f' which has no {name}: leave it out'
      )
  if 'train_split' in evaluator.keys:
    if not spec.train_split:
      raise UserError(
        f"{key}.train_split is '', but {key}.kind is {spec.kind!r}, which"
        " learns from one: name it, as 'train[:80%]'"
      )
    with config_lib.explained(f'{key}.train_split'):
      splits.parse(spec.train_split)
  try:
    evaluator.check()
  except UserError as e:
    raise UserError(f'{key}.{e}') from None
