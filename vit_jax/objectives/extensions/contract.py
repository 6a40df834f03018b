"""Checks that a user's own objective keeps the contract of `base.Objective`.

JAX's errors about a wrong result name neither the method nor what it should
return. These checks look at shapes and keys while a function is traced: the
compiled program stays the same.
"""

from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import functools
import inspect
import linecache
import re
import traceback
from typing import Any

from clu import metrics as clu_metrics
import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.config import join_first
from vit_jax.config import UserError
from vit_jax.data.device.rng import Rng
from vit_jax.objectives import base
from vit_jax.parallel import sharding

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
BALANCE = 'balance_loss'  # which `balancing` reports
LOSS_SCALE = 'loss_scale'  # which `loss_scaling` reports
_RESERVED = frozenset({*STEP_METRICS, *LOOP_METRICS, BALANCE, LOSS_SCALE})


class Checked(base.Objective):
  """Extends an objective by checks of what its functions take and return."""

  def init_extra(self, params: base.Params) -> base.Extra:
    """Returns the extra, a dict."""
    name = self._name('init_extra')
    needed = 'a dict of trees of arrays, {} if there is no extra'
    extra = _checked(name, super().init_extra(params), Mapping, needed)
    if self.moves_statistics and base.STATISTICS in extra:
      parameters = sharding.leaves(params)
      for path in sharding.leaves(extra[base.STATISTICS]):
        if path not in parameters:
          raise UserError(
            f'{name} returns {path!r} under {base.STATISTICS!r}, which has the'
            ' running statistics of parameters, by their paths, and no'
            ' parameter is there: put it under another key'
          )
    return extra

  def loss(
    self, params: base.Params, extra: base.Extra, batch: base.Batch, rng: Rng
  ) -> tuple[jax.Array, base.Scalars, base.Extra]:
    """Returns the loss, other means, and the new extra."""
    name, loss = self._name('loss'), super().loss
    arguments = inspect.signature(loss)
    try:
      arguments.bind(params, extra, batch, rng)
    except TypeError:
      raise UserError(
        f'{name} takes ({", ".join(arguments.parameters)}): it must take'
        ' (params, extra, batch, rng)'
      ) from None
    with _keys_explained(name, batch):
      returned: Any = loss(params, extra, batch, rng)
    is_sequence = isinstance(returned, tuple | list)
    if not is_sequence or len(returned) != 3:
      kind = f'{len(returned)} values' if is_sequence else _kind(returned)
      raise UserError(
        f'{name} returns {kind}: it must return three, the mean loss, a dict of'
        ' other means ({} if there are none), and the extra'
      )
    value, scalars, extra = returned
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
        f'{name} returns {_kind(scalars)} as the second value: it must be a'
        " dict of means to report, as {'accuracy': accuracy}, or {}"
      )
    for key, scalar in scalars.items():
      claim = f'{name} ({_code_place(loss)}) returns {key!r}'
      if not isinstance(key, str):
        raise UserError(
          f"{claim}, as the name of a mean: it must be a text, as 'accuracy'"
        )
      if key in _RESERVED:
        raise UserError(
          f"{claim}, which the run reports itself: rename it, as to 'my_{key}'"
        )
      _check_mean(f'{name} returns {key!r}', scalar)
    return value, {**scalars}, extra

  def after_update(
    self, extra: base.Extra, params: base.Params, step: jax.Array
  ) -> base.Extra:
    """Returns the extra after the update."""
    updated = super().after_update(extra, params, step)
    old, new = sharding.leaves(self._first_extra), sharding.leaves(updated)
    problems = [f'has a new {path!r}' for path in new if path not in old]
    problems += [f'lacks {path!r}' for path in old if path not in new]
    for path, x in old.items():
      y = new.get(path, x)  # it takes the place of x, and then gets its type
      fits = jnp.result_type(y, x) == jnp.result_type(x)
      if jnp.shape(y) != jnp.shape(x) or not fits:
        problems.append(f'has {path!r} as {_shape(y)}, which was {_shape(x)}')
    structure: Any = jax.tree.structure
    trees = [structure(x) for x in (self._first_extra, updated)]
    if not problems and trees[0] != trees[1]:
      problems = [f'has the structure {trees[1]}, which was {trees[0]},']
    if problems:
      raise UserError(
        f'{self._name("extra")} {join_first(problems)} after a step: what loss'
        ' returns, or after_update makes of it, must have the keys, shapes and'
        ' types of init_extra'
      )
    return updated

  @functools.cached_property
  def _first_extra(self) -> base.Extra:
    """Shapes and types of the extra before the first step."""
    return jax.eval_shape(
      lambda key: Checked.init_extra(self, self.init(key)), jax.random.key(0)
    )

  def outputs(self, params: base.Params, batch: base.Batch) -> base.Outputs:
    """Returns the outputs for a batch."""
    name = self._name('outputs')
    needed = "a dict of arrays, as {'logits': logits}"
    with _keys_explained(name, batch):
      outputs = super().outputs(params, batch)
    return {**_checked(name, outputs, Mapping, needed)}

  def measure(
    self, outputs: base.Outputs, batch: base.Batch
  ) -> clu_metrics.Collection:
    """Returns the metrics of a batch."""
    name = self._name('measure')
    with (
      _keys_explained(name, batch),
      _keys_explained(name, outputs, 'the outputs have'),
    ):
      measured = super().measure(outputs, batch)
    needed = 'a clu.metrics.Collection, as vit_jax.evaluation.metrics has them'
    return _checked(name, measured, clu_metrics.Collection, needed)

  def _name(self, function: str) -> str:
    return f'config.objective.name={self.config.objective.name}: {function}'


def _kind(value: Any) -> str:
  if isinstance(value, jax.Array):
    return f'an array of the shape {value.shape}'
  return 'None' if value is None else f'a {type(value).__name__}'


def _checked(name: str, value: Any, kind: type, needed: str) -> Any:
  """Returns what a function returned, if it has the type that it must have."""
  if isinstance(value, kind):
    return value
  raise UserError(f'{name} returns {_kind(value)}: it must return {needed}')


def _check_mean(claim: str, value: Any) -> None:
  if not isinstance(value, (jax.Array, np.ndarray, np.generic, float, int)):
    raise UserError(f'{claim} that is {_kind(value)}: it must be one number')
  if shape := jnp.shape(value):
    raise UserError(
      f'{claim} of the shape {shape}: it must be one number, so take the mean'
    )


def _code_place(function: Any) -> str:
  """Returns a function's class or name, its file and its line."""
  code = getattr(inspect.unwrap(function), '__code__', None)
  name = getattr(function, '__qualname__', type(function).__name__)
  if code is None:
    return str(name)
  return f'{name}, {code.co_filename}, line {code.co_firstlineno}'


def _shape(leaf: Any) -> str:
  return f'{jnp.result_type(leaf)}{list(jnp.shape(leaf))}'


@contextlib.contextmanager
def _keys_explained(
  name: str, values: Mapping[str, Any], subject: str = 'the batch has'
) -> Iterator[None]:
  """Explains the KeyError of a key that the dict `values` does not have.

  `name` is that of the function that reads it, and `subject` what the dict is
  called. Other errors stay as they are, with their traceback.
  """
  try:
    yield
  except KeyError as e:
    place = _source_line(e, values)
    if not place:
      raise
    raise UserError(
      f'{name} reads {e} ({place}), but {subject} only'
      f' {", ".join(sorted(values))}'
    ) from None


def _source_line(error: KeyError, values: Any) -> str:
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
