"""Lengths of time: '200 epochs', '10_000 steps', '1.5e6 examples'."""

import fractions
import math
import re
import reprlib

from vit_jax.config.errors import UserError

_LONGEST = 10**12  # largest amount of any unit

_UNITS = ('steps', 'epochs', 'examples')


def parse_duration(text: str) -> tuple[fractions.Fraction, str]:
  """Parses `'10_000 steps'` into its number and its unit.

  Raises:
    UserError: The text is not a non-negative number and one of the units.
  """
  # The number of digits is limited: 1e999999999 as a fraction would fill the
  # memory.
  match = re.fullmatch(
    r'\s*([0-9._]{1,30}(?:[eE][+-]?\d{1,2})?)\s+([a-z]{1,9})\s*', text
  )
  try:
    if match is None:
      raise ValueError
    amount = fractions.Fraction(match[1])
    unit = match[2] if match[2].endswith('s') else match[2] + 's'
    _UNITS.index(unit)
  except (ValueError, ZeroDivisionError):
    raise UserError(
      f'{reprlib.repr(text)} is not a length of time: write a number and a'
      " unit, as in '200 epochs', '10_000 steps' or '1.5e6 examples'"
    ) from None
  if amount > _LONGEST:
    raise UserError(f'{text!r} is too long: at most {_LONGEST:,} {unit}')
  return amount, unit


def period(text: str, examples: int, batch_size: int) -> fractions.Fraction:
  """Converts a length of time to steps, exactly, as a fraction."""
  amount, unit = parse_duration(text)
  per_unit = {
    'steps': fractions.Fraction(1),
    'examples': fractions.Fraction(1, batch_size),
    'epochs': fractions.Fraction(examples, batch_size),
  }
  return amount * per_unit[unit]


def num_steps(text: str, examples: int, batch_size: int) -> int:
  """Converts a length of time to whole steps, rounded up."""
  return math.ceil(period(text, examples, batch_size))


def is_due(step: int, every: fractions.Fraction | None) -> bool:
  """Whether `step` is the first step at or after a multiple of `every`.

  Args:
    step: Number of completed steps.
    every: Interval in steps, from `period`; None: never.
  """
  if not every or step <= 0:
    return False
  return step // every > (step - 1) // every
