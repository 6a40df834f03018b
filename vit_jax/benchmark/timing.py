"""Timing that can be trusted: in turns, after a warm-up, with its spread."""

from collections.abc import Callable
import statistics
import time

import jax
import jax.numpy as jnp

Times = dict[str, list[float]]


def in_turns(
  functions: dict[str, Callable[[], None]], blocks: int, warmup: int = 1
) -> Times:
  """Times functions block by block, one after the other.

  What slows the machine down for a while slows all of them alike.

  Args:
    functions: Each does one block of work and waits for its end.
    blocks: How often each is timed.
    warmup: How often each runs untimed before.

  Returns:
    Seconds of each block, by name.
  """
  times: Times = {name: [] for name in functions}
  for block in range(-warmup, blocks):
    for name, function in functions.items():
      start = time.perf_counter()
      function()
      if block >= 0:
        times[name].append(time.perf_counter() - start)
  return times


def summarize(seconds: list[float], work: float) -> dict[str, float]:
  """Returns the median, least and greatest rate of blocks of `work` units."""
  rates = [work / s for s in seconds]
  return {
    'median': statistics.median(rates),
    'min': min(rates),
    'max': max(rates),
  }


def matmul_flops(dtype: str = 'float32', size: int = 2048) -> float:
  """Returns the best measured rate of matrix products here, in FLOP/s."""
  x = jnp.ones((size, size), dtype)
  product = jax.jit(jnp.dot)

  def block() -> None:
    jax.block_until_ready(product(x, x))

  seconds = in_turns({'product': block}, blocks=10, warmup=2)['product']
  return 2 * size**3 / min(seconds)
