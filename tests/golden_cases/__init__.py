"""Cases of golden files: what other implementations answer.

A module of this package checks the cases of one area. Its `CHECKS` maps a
case's name to a function that computes the answers of this code, as a dict with
the names of the expected arrays. The functions call what training and loading
call.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import functools
import importlib
import math
import pathlib
import pkgutil
import re
from typing import Any

import numpy as np

import vit_jax
from vit_jax import weights
from vit_jax.config import parts
from vit_jax.weights.files import containers


@dataclasses.dataclass(frozen=True)
class Judged:
  """The verdict on an answer that is not compared number by number.

  Attributes:
    difference: How far the answer is from what is expected.
    allowed: The largest difference that agrees.
  """

  difference: float
  allowed: float

  @property
  def is_good(self) -> bool:
    """Whether the answer agrees."""
    return self.difference <= self.allowed

  @property
  def share(self) -> float:
    """The difference as a share of what is allowed."""
    return self.difference / self.allowed if self.allowed else 0.0


Answers = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Case:
  """One case of a directory.

  Attributes:
    directory: Directory of the case's files.
    fields: Its entry in cases.json, such as 'hidden' and 'mask_ratio'.
  """

  directory: pathlib.Path
  fields: Mapping[str, Any]

  @property
  def name(self) -> str:
    """Its name in cases.json."""
    return self.fields['name']

  @property
  def dims(self) -> Mapping[str, Any]:
    """Its dimensions."""
    return self.fields.get('dims', self.fields)

  @property
  def weights(self) -> pathlib.Path | None:
    """The file or directory of weights; None if it has none."""
    name = self.fields.get('weights')
    for file in self.fields.get('files', ()):
      if not file.endswith('_expected.npz'):
        name = name or file.split('/')[0]
    return self.directory / name if name else None

  def file(self, *endings: str) -> pathlib.Path | None:
    """Returns the first of its files with one of some endings, if any."""
    for name in self.fields.get('files', ()):
      if name.endswith(endings):
        return self.directory / name
    return None

  def described(self, name: str) -> str:
    """Returns what cases.json says of an array; '' if nothing."""
    if 'arrays' in self.fields:
      # '[2, 24, 24, 3] float32: input, NHWC'
      return self.fields['arrays'].get(name, '').partition(': ')[2]
    of_all = {**self.fields.get('inputs', {}), **self.fields.get('outputs', {})}
    return of_all.get(name, {}).get('what', '')

  @functools.cached_property
  def arrays(self) -> dict[str, np.ndarray]:
    """Inputs and answers, by name."""
    names = [self.fields['expected']] if 'expected' in self.fields else []
    names += [
      x for x in self.fields.get('files', ()) if x.endswith('_expected.npz')
    ]
    arrays = {}
    for name in names:
      with np.load(self.directory / name) as file:
        arrays |= dict(file)
    return arrays

  @property
  def inputs(self) -> dict[str, np.ndarray]:
    """The inputs, by name."""
    return {k: x for k, x in self.arrays.items() if self._is_input(k)}

  @property
  def expected(self) -> dict[str, np.ndarray]:
    """The answers, by name."""
    answers = {k: x for k, x in self.arrays.items() if not self._is_input(k)}
    return answers | dict(_flat(self.fields.get('values', {})))

  def _is_input(self, name: str) -> bool:
    if 'inputs' in self.fields:
      return name in self.fields['inputs']
    return self.described(name).startswith('input')

  def judged(self, answers: Answers) -> dict[str, Judged]:
    """Compares answers with what is expected.

    Raises:
      ValueError: There is nothing to compare, an expected array has no answer,
        or an answer has another shape.
    """
    expected = self.expected
    if not expected:
      raise ValueError('there is no expected array')
    if missing := [name for name in expected if name not in answers]:
      raise ValueError(f'there is no answer for {", ".join(missing)}')
    return {
      name: self._judge(name, answers[name], x) for name, x in expected.items()
    }

  def _judge(self, name: str, answer: Any, expected: np.ndarray) -> Judged:
    if isinstance(answer, Judged):
      return answer
    answer = np.asarray(answer)
    if answer.shape != expected.shape:
      raise ValueError(
        f'{name} has the shape {answer.shape} instead of {expected.shape}'
      )
    if expected.dtype.kind != 'f':  # ids, masks and counts are exact
      return Judged(float((answer != expected).sum()), 0.0)
    wide = expected.astype(np.float64)
    answer = answer.astype(np.float64)
    allowed, is_relative = self._tolerance(name)
    # A number that does not exist must not exist here either.
    is_equal = (wide == answer) | (np.isnan(wide) & np.isnan(answer))
    with np.errstate(invalid='ignore'):
      difference = np.where(is_equal, 0.0, abs(answer - wide))
    if is_relative:
      difference = difference / np.maximum(abs(wide), np.finfo(np.float64).tiny)
    elif not isinstance(self.fields['tolerance'], Mapping):
      finite = np.abs(wide[np.isfinite(wide)])
      allowed *= max(1.0, finite.max(initial=0.0))
    worst = difference.max(initial=0.0)
    return Judged(np.inf if np.isnan(worst) else worst, allowed)

  def _tolerance(self, name: str) -> tuple[float, bool]:
    """Returns the tolerance, and whether it is relative to each number."""
    tolerance = self.fields['tolerance']
    if tolerance == 'exact':
      return 0.0, False
    if isinstance(tolerance, Mapping):  # the largest absolute difference
      return tolerance['atol'], False
    if not isinstance(tolerance, str):
      return tolerance, False
    if match := re.match(r'([\d.]+(e-?\d+)?) relative', tolerance):
      return float(match[1]), True
    raise ValueError(f'{name} must be judged by its function: {tolerance}')


def _flat(
  values: Mapping[str, Any], prefix: str = ''
) -> Iterator[tuple[str, np.ndarray]]:
  """Yields the numbers of nested dicts, with names such as 'unetr/out'."""
  for key, value in values.items():
    if isinstance(value, Mapping):
      yield from _flat(value, f'{prefix}{key}/')
    else:
      yield f'{prefix}{key}', np.asarray(value)


def pair(size: int | Sequence[int]) -> tuple[int, int]:
  """Returns (height, width) of a size in cases.json: one number, or both."""
  height, width = (size, size) if isinstance(size, int) else size
  return height, width


def load(
  case: Case, size: int | Sequence[int], **fields: Any
) -> weights.Loaded:
  """Loads a case's model, whose positions are for images of a size.

  Args:
    case: The case.
    size: In pixels. Where a square grid would have as many positions, with or
      without those of other tokens, a file does not say it.
    **fields: Fields of the model that its arrays do not show.
  """
  assert case.weights is not None
  size = pair(size)
  vit = vit_jax.load(case.weights, as_stored=True, position_size=size, **fields)
  model, positions = vit.model, vit.params.get('position_embedding')
  if size != vit.position_size and positions is not None:
    rows, cells = positions.shape[1], math.prod(weights.grid(model, size))
    tokens = {0: 'patches', 1: 'class', model.prefix_length: 'all'}
    if rows - cells not in tokens:
      raise ValueError(f'its {rows} positions are not for images of {size}')
    first, *further_positions = model.positions
    first = first.clone(tokens=tokens[rows - cells])
    model = model.clone(positions=(first, *further_positions))
  return dataclasses.replace(vit, model=model, position_size=size)


def with_rope(case: Case, **options: Any) -> str:
  """Returns the positions of a case's model in a file of timm, with `rope`."""
  assert case.weights is not None
  rope = str(parts.Part('rope', (), options))
  with containers.open_arrays(case.weights) as arrays:
    return f'learned + {rope}' if 'pos_embed' in arrays.shapes else rope


Check = Callable[[Case], Answers]


def checks() -> dict[str, Check]:
  """Returns the checks of all modules by the names of cases."""
  checks_by_name: dict[str, Check] = {}
  for module in pkgutil.iter_modules(__path__):
    loaded = importlib.import_module(f'{__name__}.{module.name}')
    checks_by_name |= loaded.CHECKS
  return checks_by_name
