"""Checks of keys, types and lengths of time."""

import fractions
import reprlib

import ml_collections

from vit_jax.config.defaults import default
from vit_jax.config.defaults import evaluation
from vit_jax.config.durations import parse_duration
from vit_jax.config.errors import explained
from vit_jax.config.errors import UserError
from vit_jax.config.keys import accumulation
from vit_jax.config.keys import all_evaluations
from vit_jax.config.keys import AUTO
from vit_jax.config.keys import check_set
from vit_jax.config.keys import flatten
from vit_jax.config.keys import unknown_key
from vit_jax.config.keys import value_at
from vit_jax.config.options import check_interval

MOST_PIXELS = 2**16  # the largest height or width of an image


def check(config: ml_collections.ConfigDict) -> None:
  """Checks keys, types and lengths of time.

  Raises:
    UserError: A key is unknown or its value cannot work.
  """
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
      raise unknown_key(default(), key)
    check_set(key, value)
  lengths = ['train.duration', 'train.log_every', 'train.patience']
  lengths += ['optim.warmup', 'checkpoint.every', 'checkpoint.keep_every']
  lengths += [f'evals.{name}.every' for name in config.evals]
  for key in lengths:
    _check_length(config, key, value_at(config, key))
  _check_train(config)
  _check_best(config)


def _check_length(
  config: ml_collections.ConfigDict, key: str, text: str
) -> None:
  optional = ('evals.', 'checkpoint.', 'train.patience')
  if not text and key.startswith(optional):
    return
  amount = duration(config, key)
  if not amount and key != 'optim.warmup':
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
  check_choice(config, 'train.dtype', ('float32', 'bfloat16'))
  check_choice(config, 'train.rng', ('threefry', 'rbg'))
  within(config, 'train.ema_decay', '[0, 1)')
  if train.ema_warmup and not train.ema_decay:
    raise UserError(
      'config.train.ema_warmup is True, but config.train.ema_decay is 0, so'
      ' that no average is kept: set --config.train.ema_decay=0.9999, or so'
    )


def _check_best(config: ml_collections.ConfigDict) -> None:
  """Checks checkpoint.best and train.patience, which watches its metric."""
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

  Args:
    config: The full config.
    key: Key of the number; None is in any interval.
    interval: As `options.Interval`: '[0, 1)', '[1, inf)', '(-inf, inf)'.
  """
  value = value_at(config, key)
  if value is not None:
    try:
      check_interval(f'config.{key}', value, interval)
    except ValueError as e:
      raise UserError(str(e)) from None


def duration(config: ml_collections.ConfigDict, key: str) -> fractions.Fraction:
  """Returns the number of steps, epochs or examples in `config.<key>`.

  Raises:
    UserError: It is no length of time.
  """
  with explained(f'config.{key}'):
    return parse_duration(value_at(config, key))[0]


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
  """Converts `32` or `(24, 32)` to (height, width), in pixels.

  Raises:
    UserError: It is neither, or not positive, or too large.
  """
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
  """Converts a size to (height, width), or (depth, height, width) of a volume.

  Raises:
    UserError: As `pair`.
  """
  if isinstance(value, tuple | list) and len(value) == 3:
    depth, *plane_size = value
    return pair((depth, depth), key)[0], *pair(
      (plane_size[0], plane_size[1]), key
    )
  return pair(value, key)
