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

if TYPE_CHECKING:
  from vit_jax.evaluation.base import Evaluator


def create(key: str, spec: ml_collections.ConfigDict) -> 'Evaluator':
  """Returns the evaluator of an entry of `config.evals`.

  Args:
    key: Key of the entry, for errors: 'evals.val'.
    spec: From `config.evaluation`; its kind is the name of a file of this
      package, or 'my_module:MyEvaluator', with options.

  Raises:
    UserError: There is no such kind or option, or a value cannot work.
  """
  made: Evaluator = config_lib.build(spec.kind, f'{key}.kind', find, spec=spec)
  return made


def find(name: str, key: str) -> Any:
  """Returns the class of an evaluator.

  Args:
    name: Name of a file of this package, or 'my_module:MyEvaluator'.
    key: Key of the config that holds it, for errors.

  Raises:
    UserError: There is no such class.
  """
  from vit_jax.evaluation.base import Evaluator

  return config_lib.find_class(name, key, Evaluator, __name__)


def check(config: ml_collections.ConfigDict) -> None:
  """Checks the kinds of all evaluations in `config.evals`, and their options.

  Raises:
    UserError: A value cannot work.
  """
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
    raise UserError(
      f'{name}: its `metrics` are {metrics!r}, and must be a dict of names,'
      " each with 'max' or 'min' for the better direction, as"
      " {'accuracy': 'max'}"
    )
