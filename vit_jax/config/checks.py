"""Checks of keys and types, and lengths of time.

A length of time is a text: '200 epochs', '10_000 steps', '1.5e6 examples'.
"""

import fractions
import math
import re
import reprlib

import ml_collections

from vit_jax.config.defaults import default
from vit_jax.config.defaults import evaluation
from vit_jax.config.errors import explained
from vit_jax.config.errors import UserError
from vit_jax.config.keys import accumulation
from vit_jax.config.keys import all_evaluations
from vit_jax.config.keys import AUTO
from vit_jax.config.keys import check_set
from vit_jax.config.keys import flatten
from vit_jax.config.keys import value_at
from vit_jax.config.options import check_interval
from vit_jax.config.registry import wing

MOST_PIXELS = 2**16  # the largest height or width of an image

_LONGEST = 10**12  # largest amount of any unit of time


def check(config: ml_collections.ConfigDict) -> None:
  """Checks keys, types and lengths of time."""
  valid_keys = dict(flatten(default()))
  for name, spec in config.evals.items():
    is_config = isinstance(spec, ml_collections.ConfigDict)
    if not is_config or not set(evaluation()) <= set(spec):
      raise UserError(
        f'config.evals.{name} must be made by config.evaluation(split, every)'
      )
    valid_keys |= {f'evals.{name}.{key}': '' for key in evaluation()}
  options = config.objective.options  # an objective checks its own
  valid_keys |= {f'objective.options.{key}': '' for key in options}
  for key, value in flatten(config):
    if key.startswith('tasks.'):  # `each_task` gives configs to check
      continue
    if key not in valid_keys:
      raise wing('vit_jax.config.synonyms:unknown_key')(default(), key)
    check_set(key, value)
  duration(config, 'optim.warmup')
  for key in ('train.duration', 'train.log_every'):
    _check_positive(config, key)
  optional = ['train.patience', 'checkpoint.every', 'checkpoint.keep_every']
  for key in (*optional, *(f'evals.{name}.every' for name in config.evals)):
    if value_at(config, key):
      _check_positive(config, key)
  _check_train(config)
  _check_best(config)


def _check_positive(config: ml_collections.ConfigDict, key: str) -> None:
  if not duration(config, key):
    text = value_at(config, key)
    raise UserError(f'config.{key} is {text!r}: it must be more than 0')


def _check_train(config: ml_collections.ConfigDict) -> None:
  train = config.train
  within(config, 'seed', '[0, inf)')
  if config.seed >= 2**32:
    raise UserError(f'config.seed is {config.seed}: it must be below 2**32')
  within(config, 'train.batch_size', '[1, inf)')
  parts = train.accumulation
  if parts != AUTO and (type(parts) is not int or parts < 1):
    raise UserError(
      f'config.train.accumulation is {parts!r}: write a number of'
      f' microbatches, at least 1, or {AUTO!r}'
    )
  within(config, 'train.steps_per_call', '[1, inf)')
  within(config, 'train.max_skipped_in_a_row', '[1, inf)')
  within(config, 'train.stall_timeout', '[0, inf)')
  if train.batch_size % accumulation(config):
    raise UserError(
      f'config.train.batch_size={train.batch_size} does not divide into'
      f' config.train.accumulation={train.accumulation} equal parts: change'
      ' one of them'
    )
  check_choice(config, 'train.dtype', ('float32', 'bfloat16', 'float16'))
  if train.dtype == 'float16' and not train.skip_nonfinite:
    raise UserError(
      'config.train.dtype is float16, in which gradients overflow from time to'
      ' time: set config.train.skip_nonfinite=True, which skips these steps'
    )
  check_choice(config, 'train.rng', ('threefry', 'rbg'))
  within(config, 'train.ema_decay', '[0, 1)')
  if train.ema_warmup and not train.ema_decay:
    raise UserError(
      'config.train.ema_warmup is True, but config.train.ema_decay is 0, so'
      ' that no average is kept: set --config.train.ema_decay=0.9999, or so'
    )


def _check_best(config: ml_collections.ConfigDict) -> None:
  train = config.train
  within(config, 'checkpoint.keep', '[2, inf)')
  best = config.checkpoint.best
  specs = all_evaluations(config)
  names = list(specs)
  if best and best.split('/')[0] not in names:
    advice = 'all splits in config.evals are empty: set one'
    if names:
      metric = best.rpartition('/')[2]
      advice = (
        f'the evaluations are: {", ".join(names)}; write {names[0]}/{metric},'
        ' for example'
      )
    raise UserError(
      f'config.checkpoint.best is {best!r}, but no such evaluation runs:'
      f" {advice}, or --config.checkpoint.best=''"
    )
  if train.patience and not best:
    raise UserError(
      f'config.train.patience is {train.patience!r}, but config.checkpoint.best'
      ' is empty, so that there is no metric to watch: set it, as in'
      f' --config.checkpoint.best={next(iter(names), "val")}/accuracy'
    )
  if train.patience and not specs[best.split('/')[0]].every:
    raise UserError(
      f'config.train.patience is {train.patience!r}, but'
      f' config.evals.{best.split("/")[0]}.every is empty, so that {best} is'
      " measured at the end alone: set it, as to '1 epochs'"
    )


def normalization(
  config: ml_collections.ConfigDict,
) -> tuple[tuple[float, ...], tuple[float, ...]]:
  """Returns `data.mean` and `data.std`; 0.5 if they are not set."""
  return tuple(config.data.mean) or (0.5,), tuple(config.data.std) or (0.5,)


def within(config: ml_collections.ConfigDict, key: str, interval: str) -> None:
  """Raises a UserError unless a number, or each of a tuple, is in an interval.

  None is in any interval; `options.Interval` has its form.
  """
  value = value_at(config, key)
  if value is not None:
    try:
      check_interval(f'config.{key}', value, interval)
    except ValueError as e:
      raise UserError(str(e)) from None


def check_choice(
  config: ml_collections.ConfigDict, key: str, choices: tuple[str, ...]
) -> None:
  """Raises a UserError if `config.<key>` is none of `choices`."""
  value = value_at(config, key)
  if value not in choices:
    raise UserError(
      f'config.{key} is {value!r}: choose one of {", ".join(choices)}'
    )


def pair(value: int | tuple[int, ...], key: str) -> tuple[int, int]:
  """Converts `32` or `(24, 32)` to (height, width), in pixels."""
  hw = (value, value) if isinstance(value, int) else value
  good = isinstance(hw, tuple | list) and len(hw) == 2
  if not good or not all(type(x) is int and x > 0 for x in hw):
    raise UserError(
      f'config.{key} is {reprlib.repr(value)}: write one positive number, or'
      ' (height, width)'
    )
  if max(hw) > MOST_PIXELS:
    raise UserError(
      f'config.{key} is {value}: too large, at most {MOST_PIXELS:,} a side'
    )
  return hw[0], hw[1]


def sides(
  value: int | tuple[int, ...], key: str = 'data.image_size'
) -> tuple[int, ...]:
  """Converts a size to (height, width), or (depth, height, width)."""
  if isinstance(value, tuple | list) and len(value) == 3:
    depth, *plane_size = value
    return pair((depth, depth), key)[0], *pair(tuple(plane_size), key)
  return pair(value, key)


def duration(config: ml_collections.ConfigDict, key: str) -> fractions.Fraction:
  """Returns the number of steps, epochs or examples in `config.<key>`."""
  with explained(f'config.{key}'):
    return parse_duration(value_at(config, key))[0]


def parse_duration(text: str) -> tuple[fractions.Fraction, str]:
  """Parses `'10_000 steps'` into its number and its unit."""
  # The number of digits is limited: 1e999999999 as a fraction would fill the
  # memory.
  match = re.fullmatch(
    r'\s*([0-9._]{1,30}(?:[eE][+-]?\d{1,2})?)\s+(step|epoch|example)s?\s*', text
  )
  try:
    if match is None:
      raise ValueError
    amount = fractions.Fraction(match[1])
  except (ValueError, ZeroDivisionError):
    raise UserError(
      f'{reprlib.repr(text)} is not a length of time: write a number and a'
      " unit, as in '200 epochs', '10_000 steps' or '1.5e6 examples'"
    ) from None
  unit = f'{match[2]}s'
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

  `every` is in steps, from `period`; None: never.
  """
  if not every or step <= 0:
    return False
  return step // every > (step - 1) // every
