"""Functions of many items, on all cores."""

import collections
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
import concurrent.futures
import itertools
from typing import TypeVar

from vit_jax.data.host.batches import num_cores

Item = TypeVar('Item')
Result = TypeVar('Result')


def in_threads(
  function: Callable[[Item], Result], items: Iterable[Item], ahead: int = 256
) -> Iterator[Result]:
  """Yields what a function returns of items, in order, on all cores.

  At most `ahead` results wait.
  """
  pool = concurrent.futures.ThreadPoolExecutor(num_cores())
  futures = (pool.submit(function, item) for item in items)
  waiting = collections.deque(itertools.islice(futures, ahead))
  try:
    while waiting:
      result = waiting.popleft().result()
      waiting.extend(itertools.islice(futures, 1))
      yield result
  finally:
    pool.shutdown(cancel_futures=True)
