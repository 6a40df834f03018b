"""Times functions in turns, after a warm-up, with the spread of the times."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import functools
import math
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp

Times = dict[str, list[float]]

_RATE = 'images_per_second'

# Minimum seconds of a block; noise dominates shorter ones.
_BLOCK_SECONDS = 1.0


def in_turns(
  functions: Mapping[str, Callable[[], Any]], blocks: int, warmup: int = 1
) -> Times:
  """Times functions block by block, one after the other.

  A temporary slowdown of the machine affects all of them alike.

  Args:
    functions: Functions by name; each does one block of work and waits for it.
    blocks: Number of timed blocks.
    warmup: Number of untimed blocks before.

  Returns:
    Seconds of each block, by name.
  """
  times: Times = {name: [] for name in functions}
  for block in range(-warmup, blocks):
    for name, function in functions.items():
      seconds = _seconds(function)
      if block >= 0:
        times[name].append(seconds)
  return times


def steps_per_block(
  functions: Sequence[Callable[[int], Any]], seconds: float = _BLOCK_SECONDS
) -> int:
  """Returns the number of steps in a block, for the fastest of some functions.

  Args:
    functions: Functions that take a number of steps and wait for them.
    seconds: Least seconds of a block of more than one step.
  """
  fastest = math.inf
  for function in functions:
    function(1)  # may compile
    fastest = min(fastest, _seconds(functools.partial(function, 1)))
  if seconds > 10 * fastest:  # too short to time a single step well
    steps = math.ceil(seconds / fastest / 10)
    fastest = min(
      _seconds(functools.partial(function, steps)) / steps
      for function in functions
    )
  return max(1, math.ceil(seconds / fastest))


def _seconds(function: Callable[[], Any]) -> float:
  start = time.perf_counter()
  function()
  return time.perf_counter() - start


def spread(
  values: Sequence[float], name: str, ends: str = 'range'
) -> dict[str, Any]:
  """Returns the median of values by its name, and (minimum, maximum)."""
  return {name: statistics.median(values), ends: [min(values), max(values)]}


def against(
  ours: Sequence[float], theirs: Sequence[float], name: str
) -> dict[str, Any]:
  """Returns two measurements and their ratio for an entry of the report.

  Args:
    ours: Our values.
    theirs: Those of the rival, each in turn with one of ours.
    name: Name of ours.

  Returns:
    The medians of ours, by its name, and of the baseline, with range and
    baseline_range (minimum, maximum); ratio, the median over the turns, and
    ratio_range.
  """
  ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
  return {
    **spread(ours, name),
    **spread(theirs, 'baseline', 'baseline_range'),
    **spread(ratios, 'ratio', 'ratio_range'),
  }


def summarize(seconds: Sequence[float], images: float) -> dict[str, Any]:
  """Returns the median rate of blocks of images, and its (minimum, maximum)."""
  return spread([images / s for s in seconds], _RATE)


def compare(
  ours: Sequence[float], theirs: Sequence[float], images: int
) -> dict[str, Any]:
  """Returns `against` for the rates of blocks of images, from their seconds."""
  rates = [images / s for s in ours]
  return against(rates, [images / s for s in theirs], _RATE)


def matmul_flops(dtype: str) -> float:
  """Returns the best measured rate of products of a type here, in FLOP/s."""
  size = 2048 if jax.default_backend() == 'cpu' else 8192
  x = jax.random.normal(jax.random.key(0), (size, size), dtype)
  product = jax.jit(jnp.dot)

  def block() -> None:
    jax.block_until_ready(product(x, x))

  seconds = in_turns({'product': block}, blocks=10, warmup=2)['product']
  return 2 * size**3 / min(seconds)
