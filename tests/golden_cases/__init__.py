"""Cases of golden files: what other implementations answer.

A module of this package checks the cases of one area. Its `CHECKS` maps a
case's name to a function that computes the answers of this code, as a dict with
the names of the expected arrays. The functions call what training and loading
call.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses
import functools
import importlib
import pathlib
import pkgutil
import re
from typing import Any

import numpy as np


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

  @functools.cached_property
  def arrays(self) -> dict[str, np.ndarray]:
    """Inputs and answers, by name."""
    names = [self.fields['expected']] if 'expected' in self.fields else []
    names += [
      x for x in self.fields.get('files', ()) if x.endswith('_expected.npz')
    ]
    found = {}
    for name in names:
      with np.load(self.directory / name) as file:
        found |= dict(file)
    return found

  @property
  def inputs(self) -> dict[str, np.ndarray]:
    """The inputs, by name."""
    return {k: x for k, x in self.arrays.items() if self._is_input(k)}

  @property
  def expected(self) -> dict[str, np.ndarray]:
    """The answers, by name."""
    found = {k: x for k, x in self.arrays.items() if not self._is_input(k)}
    return found | dict(_flat(self.fields.get('values', {})))

  def _is_input(self, name: str) -> bool:
    if 'inputs' in self.fields:
      return name in self.fields['inputs']
    described = self.fields['arrays'].get(name, '')
    # '[2, 24, 24, 3] float32: input, NHWC'
    return described.partition(': ')[2].startswith('input')

  def judged(self, answers: Answers) -> dict[str, Judged]:
    """Compares answers with what is expected.

    Raises:
      KeyError: An expected array has no answer.
      ValueError: An answer has another shape.
    """
    return {
      name: self._judge(name, answers[name], x)
      for name, x in self.expected.items()
    }

  def _judge(self, name: str, found: Any, expected: np.ndarray) -> Judged:
    if isinstance(found, Judged):
      return found
    found = np.asarray(found)
    if found.shape != expected.shape:
      raise ValueError(
        f'{name} has the shape {found.shape} instead of {expected.shape}'
      )
    if expected.dtype.kind not in 'iubf' or not expected.size:
      return Judged(float(not np.array_equal(found, expected)), 0.0)
    wide = expected.astype(np.float64)
    difference = abs(found.astype(np.float64) - wide)
    allowed, is_relative = self._tolerance(name, expected.dtype)
    # A number that does not exist must not exist here either.
    difference = np.where(np.isnan(wide) & np.isnan(found), 0.0, difference)
    if is_relative:
      difference = difference / np.maximum(abs(wide), np.finfo(np.float64).tiny)
    elif not isinstance(self.fields['tolerance'], Mapping):
      allowed *= max(1.0, np.nanmax(abs(wide), initial=0.0))
    worst = difference.max()
    return Judged(np.inf if np.isnan(worst) else worst, allowed)

  def _tolerance(self, name: str, dtype: np.dtype) -> tuple[float, bool]:
    """Returns the tolerance, and whether it is relative to each number."""
    stated = self.fields['tolerance']
    if dtype.kind in 'iub' or stated == 'exact':
      return 0.0, False
    if isinstance(stated, Mapping):  # the largest absolute difference
      return stated['atol'], False
    if not isinstance(stated, str):
      return stated, False
    if found := re.match(r'([\d.]+(e-?\d+)?) relative', stated):
      return float(found[1]), True
    raise ValueError(f'{name} must be judged by its function: {stated}')


def _flat(
  values: Mapping[str, Any], prefix: str = ''
) -> Iterator[tuple[str, np.ndarray]]:
  """Yields the numbers of nested dicts, with names such as 'unetr/out'."""
  for key, value in values.items():
    if isinstance(value, Mapping):
      yield from _flat(value, f'{prefix}{key}/')
    else:
      yield f'{prefix}{key}', np.asarray(value)


Check = Callable[[Case], Answers]


def checks() -> dict[str, Check]:
  """Returns the checks of all modules by the names of cases."""
  found: dict[str, Check] = {}
  for module in pkgutil.iter_modules(__path__):
    loaded = importlib.import_module(f'{__name__}.{module.name}')
    found |= loaded.CHECKS
  return found
