"""Calls the functions of an objective, and checks that they keep its contract.

A user's own method is traced by JAX, whose errors about a wrong result name
neither the method nor what it should return. These checks only look at shapes
and keys while a function is traced: the compiled program stays the same.
"""

from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import inspect
import linecache
import re
import traceback
from typing import Any
from typing import TYPE_CHECKING

from clu import metrics as clu_metrics
import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.config import some
from vit_jax.config import UserError

if TYPE_CHECKING:
  from vit_jax.objectives import base

# Names of what a step measures, beside the means of the objective.
STEP_METRICS = (
  'loss',
  'grad_norm',
  'param_norm',
  'learning_rate',
  'ok',
  'signal',
)
# Names that the loop reports beside those, all below 'train/'.
LOOP_METRICS = (
  'images_per_second',
  'data_wait',
  *(f'step_seconds_{name}' for name in ('p50', 'p90', 'p99', 'max')),
  'compile_seconds',
  'goodput',
  'mfu',
  'skipped_steps',
  'checkpoint_stall',
  'useful_seconds',
)
# Key of an extra: see `base.STATISTICS`.
STATISTICS = 'statistics'
BALANCE = 'balance_loss'  # of experts, which `Objective.training_loss` adds
_RESERVED = frozenset({*STEP_METRICS, *LOOP_METRICS, BALANCE})


def loss(
  objective: 'base.Objective', params: Any, extra: Any, batch: Any, rng: Any
) -> tuple[jax.Array, dict[str, jax.Array], Any]:
  """Returns what `objective.loss` does.

  Raises:
    UserError: It takes or returns something else than `Objective.loss` says, a
      mean of a name that the loop reports itself, or reads a feature that the
      batch does not have.
  """
  name = _name(objective, 'loss')
  try:
    inspect.signature(objective.loss).bind(params, extra, batch, rng)
  except TypeError:
    given = ', '.join(inspect.signature(objective.loss).parameters)
    raise UserError(
      f'{name} takes ({given}): it must take (params, extra, batch, rng)'
    ) from None
  with _keys_explained(name, batch):
    found: Any = objective.loss(params, extra, batch, rng)
  if not isinstance(found, tuple | list) or len(found) != 3:
    what = _kind(found)
    if isinstance(found, tuple | list):
      what = f'{len(found)} values'
    raise UserError(
      f'{name} returns {what}: it must return three, the mean loss, a dict of'
      ' other means ({} if there are none), and the extra'
    )
  value, scalars, extra = found
  if isinstance(value, float | int | np.generic):
    raise UserError(
      f'{name} returns the number {value} as the loss, which has no gradient:'
      ' compute it from params'
    )
  _check_mean(f'{name} returns a loss', value)
  if not jnp.issubdtype(jnp.result_type(value), jnp.floating):
    raise UserError(
      f'{name} returns a loss of type {jnp.result_type(value)}, which has no'
      ' gradient: it must be a float'
    )
  if not isinstance(scalars, Mapping):
    raise UserError(
      f'{name} returns {_kind(scalars)} as the second value: it must be a dict'
      " of means to report, as {'accuracy': accuracy}, or {}"
    )
  for key, scalar in scalars.items():
    _check_mean_name(objective, key)
    _check_mean(f'{name} returns {key!r}', scalar)
  return value, {**scalars}, extra


def init_extra(objective: 'base.Objective', params: Any) -> Any:
  """Returns what `objective.init_extra` does.

  Raises:
    UserError: It is no dict, or its running statistics are no parameters.
  """
  name = _name(objective, 'init_extra')
  found = objective.init_extra(params)
  if not isinstance(found, Mapping):
    raise UserError(
      f'{name} returns {_kind(found)}: it must return a dict of trees of'
      ' arrays, {} if there is no extra'
    )
  if objective.moves_statistics and STATISTICS in found:
    parameters = _leaves(params)
    for path in _leaves(found[STATISTICS]):
      if path not in parameters:
        raise UserError(
          f'{name} returns {path!r} under {STATISTICS!r}, which has the running'
          ' statistics of parameters, by their paths, and no parameter is'
          ' there: put it under another key'
        )
  return found


def after_update(
  objective: 'base.Objective',
  extra: Any,
  params: Any,
  step: Any,
  before: Any,
) -> Any:
  """Returns what `objective.after_update` does.

  Args:
    objective: The objective.
    extra: As its loss returned it.
    params: After the update.
    step: Number of completed updates before this one.
    before: The extra before the step.

  Raises:
    UserError: The new extra differs in its keys, shapes or types.
  """
  found = objective.after_update(extra, params, step)
  old, new = _leaves(before), _leaves(found)
  problems = [f'has a new {path!r}' for path in new if path not in old]
  problems += [f'lacks {path!r}' for path in old if path not in new]
  problems += [
    f'has {path!r} as {_shown(new[path])}, which was {_shown(x)}'
    for path, x in old.items()
    if path in new and not _fits(new[path], x)
  ]
  trees: list[Any] = [jax.tree.structure(x) for x in (before, found)]
  if not problems and trees[0] != trees[1]:
    problems = [f'has the structure {trees[1]}, which was {trees[0]},']
  if problems:
    raise UserError(
      f'{_name(objective, "extra")} {some(problems)} after a step: what loss'
      ' returns, or after_update makes of it, must have the keys, shapes and'
      ' types of init_extra'
    )
  return found


def outputs(
  objective: 'base.Objective', params: Any, batch: Any
) -> dict[str, jax.Array]:
  """Returns what `objective.outputs` does.

  Raises:
    UserError: It is no dict, or a feature is read that the batch does not have.
  """
  name = _name(objective, 'outputs')
  with _keys_explained(name, batch):
    found: Any = objective.outputs(params, batch)
  if not isinstance(found, Mapping):
    raise UserError(
      f'{name} returns {_kind(found)}: it must return a dict of arrays, as'
      " {'logits': logits}"
    )
  return {**found}


def measure(objective: 'base.Objective', found: Any, batch: Any) -> Any:
  """Returns what `objective.measure` does.

  Args:
    objective: The objective.
    found: From `outputs`.
    batch: As for `outputs`.

  Raises:
    UserError: It returns something else than metrics, or reads a feature that
      the batch, or an output that `found` does not have.
  """
  name = _name(objective, 'measure')
  with (
    _keys_explained(name, batch),
    _keys_explained(name, found, 'the outputs have'),
  ):
    measured = objective.measure(found, batch)
  if not isinstance(measured, clu_metrics.Collection):
    raise UserError(
      f'{name} returns {_kind(measured)}: it must return a'
      ' clu.metrics.Collection, as vit_jax.evaluation.metrics has them'
    )
  return measured


def check_rows(
  objective: 'base.Objective', key: str, value: jax.Array, valid: jax.Array
) -> None:
  """Raises a UserError if an output is not one number for each example."""
  if value.shape != valid.shape:
    raise UserError(
      f'{_name(objective, "outputs")} returns {key!r} of the shape'
      f' {value.shape}: it must be [B], one number for each example'
    )


def _name(objective: 'base.Objective', what: str) -> str:
  return f'config.objective.name={objective.config.objective.name}: {what}'


def _kind(value: Any) -> str:
  """Returns the kind of a value in words."""
  if isinstance(value, jax.Array):
    return f'an array of the shape {value.shape}'
  return 'None' if value is None else f'a {type(value).__name__}'


def _check_mean(what: str, value: Any) -> None:
  """Raises a UserError if a value is not one number."""
  if not isinstance(value, (jax.Array, np.ndarray, np.generic, float, int)):
    raise UserError(f'{what} that is {_kind(value)}: it must be one number')
  if shape := jnp.shape(value):
    raise UserError(
      f'{what} of the shape {shape}: it must be one number, so take the mean'
    )


def _check_mean_name(objective: 'base.Objective', key: Any) -> None:
  """Raises a UserError if a mean to report cannot have a name."""
  if isinstance(key, str) and key not in _RESERVED:
    return
  problem = "as the name of a mean: it must be a text, as 'accuracy'"
  if isinstance(key, str):
    problem = f'which the run reports itself: rename it, as to {f"my_{key}"!r}'
  raise UserError(
    f'{_name(objective, "loss")} ({_code_place(objective.loss)}) returns'
    f' {key!r}, {problem}'
  )


def _code_place(function: Any) -> str:
  """Returns a function's class or name, its file and its line."""
  code = getattr(inspect.unwrap(function), '__code__', None)
  name = getattr(function, '__qualname__', type(function).__name__)
  if code is None:
    return str(name)
  return f'{name}, {code.co_filename}, line {code.co_firstlineno}'


def _leaves(tree: Any) -> dict[str, Any]:
  """Returns the leaves of a tree, by path."""
  return {
    jax.tree_util.keystr(path, simple=True, separator='/'): x
    for path, x in jax.tree_util.tree_leaves_with_path(tree)
  }


def _shown(leaf: Any) -> str:
  return f'{jnp.result_type(leaf)}{list(jnp.shape(leaf))}'


def _fits(new: Any, old: Any) -> bool:
  """Whether a leaf can take the place of another, whose type it then gets."""
  same_shape = jnp.shape(new) == jnp.shape(old)
  return same_shape and jnp.result_type(new, old) == jnp.result_type(old)


@contextlib.contextmanager
def _keys_explained(
  name: str, values: Mapping[str, Any], what: str = 'the batch has'
) -> Iterator[None]:
  """Explains the KeyError of a key that a dict does not have.

  Other errors stay as they are, with their traceback.

  Args:
    name: Names the function that reads it.
    values: The dict.
    what: What it is called, and the verb.
  """
  try:
    yield
  except KeyError as e:
    place = _place_of(e, values)
    if not place:
      raise
    raise UserError(
      f'{name} reads {e} ({place}), but {what} only {", ".join(sorted(values))}'
    ) from None


def _place_of(error: KeyError, values: Any) -> str:
  """Returns the line that reads a dict, as `batch['x']`; '' for another one."""
  *_, (frame, _) = traceback.walk_tb(error.__traceback__)
  (*_, at) = traceback.extract_tb(error.__traceback__)
  if at.lineno is None or at.colno is None:  # Python does not keep columns
    return ''
  line = linecache.getline(at.filename, at.lineno).encode()
  end = at.end_colno if at.end_lineno == at.lineno else None
  read = re.match(r'(\w+)\[', line[at.colno : end].decode(errors='replace'))
  is_it = read and frame.f_locals.get(read[1]) is values
  return f'{at.filename}, line {at.lineno}' if is_it else ''
