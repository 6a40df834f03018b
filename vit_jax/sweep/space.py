"""The search space of a sweep and how its trials are judged."""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import math
import re
import typing
from typing import Annotated
from typing import Any
from typing import Literal

from absl import flags
import ml_collections

from vit_jax import cli
from vit_jax import config as config_lib
from vit_jax.config import options
from vit_jax.config import UserError

# Values of the keys of a space: {'optim.learning_rate': 3e-4}.
Point = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Choice:
  """A dimension with a finite set of values, of any type."""

  values: tuple[Any, ...]

  def __str__(self) -> str:
    return f'choice({", ".join(map(repr, self.values))})'


@dataclasses.dataclass(frozen=True)
class Range:
  """A dimension of numbers from `low` to `high`, inclusive."""

  kind: str  # the function that makes it: uniform, log_uniform or integers
  low: float
  high: float

  @property
  def log(self) -> bool:
    """Whether it is uniform in the logarithm."""
    return self.kind == 'log_uniform'

  @property
  def is_integer(self) -> bool:
    """Whether it has integers alone."""
    return self.kind == 'integers'

  def __str__(self) -> str:
    return f'{self.kind}({self.low!r}, {self.high!r})'


Dimension = Choice | Range


def choice(*values: Any) -> Choice:
  """Returns a dimension with these values, as `choice(0.0, 0.1, 0.3)`."""
  return Choice(values)


def uniform(low: float, high: float) -> Range:
  """Returns a dimension of numbers, uniform between `low` and `high`."""
  return Range('uniform', low, high)


def log_uniform(low: float, high: float) -> Range:
  """Returns a dimension of numbers, uniform in the logarithm."""
  return Range('log_uniform', low, high)


def integers(low: int, high: int) -> Range:
  """Returns a dimension of integers from `low` to `high`, inclusive."""
  return Range('integers', low, high)


@dataclasses.dataclass(frozen=True)
class Sweep:
  """The search space of a sweep and how its trials are judged.

  A trial is one point of the space, run once with each seed; its value is the
  mean over the seeds.

  Attributes:
    space: Dimension of each key: {'optim.learning_rate': log_uniform(...)}.
    sampler: 'grid': each point once, in shuffled order; 'random'; or 'tpe': a
      tree-structured Parzen estimator, which learns from completed trials
      (arXiv:2304.11127).
    trials: Number of trials; None: the whole grid.
    seeds: Values of `config.seed`.
    metric: Name of the metric in metrics.jsonl.
    direction: 'maximize' or 'minimize'.
    pick: 'last': the value at the end of the run; 'best': its best value.
    pruner: 'none'; 'median': stops a trial whose best value is worse than the
      median of the others at the same step; 'halving': asynchronous successive
      halving, which continues the better quarter of the trials at 1, 4, 16, ...
      times the first step with a value (arXiv:1810.05934).
    prune_after_trials: Number of completed trials before 'median' prunes.
    prune_after_steps: Number of steps before 'median' prunes a trial.
    sampler_seed: Seed of the points. A trial's point depends on it, on the
      trial's number and, for tpe, on the values known when the trial begins.
  """

  space: Mapping[str, Dimension]
  sampler: Literal['grid', 'random', 'tpe'] = 'tpe'
  trials: Annotated[int | None, options.Interval('[1, inf)')] = None
  seeds: Sequence[int] = (0,)
  metric: str = 'val/accuracy'
  direction: Literal['maximize', 'minimize'] = 'maximize'
  pick: Literal['last', 'best'] = 'last'
  pruner: Literal['none', 'median', 'halving'] = 'none'
  prune_after_trials: Annotated[int, options.Interval('[1, inf)')] = 5
  prune_after_steps: Annotated[int, options.Interval('[0, inf)')] = 0
  sampler_seed: Annotated[int, options.Interval('[0, inf)')] = 0

  def total(self) -> int:
    """Returns the number of trials."""
    if self.sampler != 'grid':
      return self.trials or 0
    size = math.prod(len(values(x)) for x in self.space.values())
    return size if self.trials is None else min(self.trials, size)

  def describe(self) -> dict[str, str | int | list[int] | None]:
    """Returns the content of sweep.json: all that determines the trials."""
    fields = {
      field.name: getattr(self, field.name)
      for field in dataclasses.fields(self)
      if field.name not in ('space', 'trials')
    }
    space = {f'space.{k}': str(self.space[k]) for k in sorted(self.space)}
    return {**fields, 'seeds': list(self.seeds), **space}


def values(dimension: Dimension) -> tuple[Any, ...]:
  """Returns all values of a finite dimension."""
  if isinstance(dimension, Choice):
    return dimension.values
  return tuple(range(int(dimension.low), int(dimension.high) + 1))


def text(value: Any) -> str:
  """Returns a value as text for the command line."""
  return value if isinstance(value, str) else repr(value)


def point_flags(point: Mapping[str, Any]) -> list[str]:
  """Returns the flags that set the keys of a point.

  A flag cannot express None: such a key keeps the value of the config file.
  """
  return [
    f'--config.{key}={text(point[key])}'
    for key in sorted(point)
    if point[key] is not None
  ]


def show(point: Mapping[str, Any]) -> str:
  """Returns a point as readable text."""
  return ', '.join(f'{key}={show_value(point[key])}' for key in sorted(point))


def show_value(value: Any) -> str:
  """Returns a value as readable text, as 0.0012346 for 0.00123456789."""
  if isinstance(value, float):
    return f'{value:.5g}'
  return text(value) or "''"


def parse(
  config_flags: Sequence[str], point: Mapping[str, Any]
) -> ml_collections.ConfigDict:
  """Returns the config of a run with these flags."""
  flag_values = flags.FlagValues()
  argv = ['sweep', *config_flags, *point_flags(point)]
  config = cli.define_config(flag_values)
  cli.parse_flags(argv, flag_values)
  return config.value


def load(path: str) -> Sweep:
  """Returns the sweep of `FILE.py` or `FILE.py:ARG`."""
  sweep = config_lib.call_file(path, 'sweep', 'configs/sweeps/')
  if not isinstance(sweep, Sweep):
    file = path.split(':', 1)[0]
    raise UserError(f'{file}: get_sweep() must return a sweep.Sweep')
  return sweep


def check(
  sweep: Sweep, config_flags: Sequence[str]
) -> ml_collections.ConfigDict:
  """Checks a sweep against the config that it is to vary, and returns this."""
  _check_fields(sweep)
  config = parse(config_flags, {})
  _check_config(config)
  defaults = dict(config_lib.flatten(config))
  set_keys = {
    x[1] for f in config_flags if (x := re.match(r'--?config\.(.+?)=', f))
  }
  if 'seed' in {*set_keys, *sweep.space}:
    raise UserError(
      "config.seed is one of the sweep's `seeds`: name it there alone"
    )
  for key, dimension in sweep.space.items():
    if key not in defaults:
      raise UserError(f'in the space: {config_lib.unknown_key(config, key)}')
    if key in set_keys:
      raise UserError(
        f'--config.{key}: the space has this key, too; take it out of one'
      )
    _check_dimension(key, dimension, sweep.sampler)
    samples: Sequence[Any]
    if isinstance(dimension, Choice):
      samples = dimension.values
    else:
      number = int if dimension.is_integer else float
      samples = number(dimension.low), number(dimension.high)
    for value in samples:
      with config_lib.explained(f'in the space: {key}={text(value)}'):
        trial_config = parse(config_flags, {key: value})
        _check_config(trial_config)
      typed_value = config_lib.value_at(trial_config, key)
      if typed_value != value:
        raise UserError(
          f'in the space: {key}={text(value)}: the config takes it for'
          f' {typed_value!r}, not for {value!r}'
        )
  name, _, quantity = sweep.metric.partition('/')
  evaluations = [k for k, spec in config.evals.items() if spec.split]
  if not quantity or name not in [*evaluations, 'train']:
    raise UserError(
      f'metric is {sweep.metric!r}, but no such evaluation runs:'
      f' {", ".join(evaluations) or "all splits in config.evals are empty"}'
    )
  return config


def _check_config(config: ml_collections.ConfigDict) -> None:
  """Runs those checks of `experiment.check` that need no device."""
  from vit_jax import data  # after the flags, since they import jax
  from vit_jax import objectives
  from vit_jax import optim
  from vit_jax.train import variant

  config_lib.check(config)
  variant.check(config)
  for layer in (data, optim, objectives):
    layer.check(config)


def _check_fields(sweep: Sweep) -> None:
  hints = typing.get_type_hints(Sweep, include_extras=True)
  for field in dataclasses.fields(sweep):
    try:
      value = getattr(sweep, field.name)
      options.converted(field.name, value, hints[field.name])
    except ValueError as e:
      raise UserError(str(e)) from None
  if not sweep.space and sweep.sampler != 'grid':
    raise UserError(
      'the space is empty: name keys to vary, as in'
      " space={'optim.learning_rate': sweep.log_uniform(1e-4, 1e-2)}"
    )
  seeds: Any = sweep.seeds
  good = isinstance(seeds, Sequence) and len(seeds) > 0
  good = good and all(type(x) is int and 0 <= x < 2**32 for x in seeds)
  if not good or len(set(seeds)) < len(seeds):
    raise UserError(
      f'seeds is {seeds!r}: write different whole numbers, as (0, 1, 2) or'
      ' range(3)'
    )
  if sweep.trials is None and sweep.sampler != 'grid':
    raise UserError(
      f'trials is missing: say how many points {sweep.sampler} is to try, as in'
      ' trials=20 or --trials=20'
    )


def _check_dimension(key: str, dimension: Any, sampler: str) -> None:
  problem = ''
  if isinstance(dimension, Choice):
    texts = [text(value) for value in dimension.values]
    if not texts or len(set(texts)) < len(texts):
      problem = ': name one value or more, each once'
  elif isinstance(dimension, Range):
    low, high = dimension.low, dimension.high
    if not all(
      isinstance(x, int | float) and math.isfinite(x) for x in (low, high)
    ):
      problem = ': write two numbers'
    elif dimension.is_integer and not all(type(x) is int for x in (low, high)):
      problem = ': write two whole numbers'
    elif not low < high or (dimension.log and low <= 0):
      positive = 'from a positive number ' if dimension.log else ''
      problem = f': it must go {positive}up to a higher one'
    elif sampler == 'grid' and not dimension.is_integer:
      problem = (
        ', which no grid can try one by one: name values with'
        ' sweep.choice(...), or take the sampler random or tpe'
      )
  else:
    problem = ': write sweep.choice(...), uniform, log_uniform or integers'
    dimension = repr(dimension)
  if problem:
    raise UserError(f'in the space: {key} is {dimension}{problem}')
