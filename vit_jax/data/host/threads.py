"""Functions of many items, on all cores."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import concurrent.futures
from typing import TypeVar

from vit_jax.data.host.batches import num_cores

Item = TypeVar('Item')
Result = TypeVar('Result')


def in_threads(
  function: Callable[[Item], Result], items: Sequence[Item], at_once: int = 256
) -> Iterator[Result]:
  """Yields what a function returns of items, in order, on all cores."""
  with concurrent.futures.ThreadPoolExecutor(num_cores()) as pool:
    for start in range(0, len(items), at_once):
      yield from pool.map(function, items[start : start + at_once])
