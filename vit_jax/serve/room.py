"""The memory that the bodies of concurrent requests share.

A body that comes slowly keeps its memory until its deadline. So a few clients
could keep all others out. If others need the memory, a slow body loses it.
"""

import asyncio
from collections.abc import AsyncIterator
from collections.abc import Iterator
import contextlib
import time

from vit_jax.serve import batcher as batcher_lib

MOST_BYTES = 2**28
# A body is slow if it brings fewer bytes in so many seconds.
_PACE_BYTES = 2**18
_PACE_S = 2.0


class Body:
  """The memory of a body.

  Attributes:
    size: Bytes that it holds.
  """

  def __init__(self) -> None:
    """Has no bytes yet."""
    self.size = 0
    self._deadline: asyncio.Timeout | None = None  # while it comes
    self._paced_size, self._paced_s = 0, time.monotonic()

  @contextlib.asynccontextmanager
  async def coming(self) -> AsyncIterator[None]:
    """Raises a TimeoutError when the body is evicted."""
    async with asyncio.timeout(None) as self._deadline:
      try:
        yield
      finally:
        self._deadline = None

  def grow(self, size: int) -> None:
    """Counts bytes that have come."""
    self.size += size
    if self.size - self._paced_size >= _PACE_BYTES:
      self._paced_size, self._paced_s = self.size, time.monotonic()

  @property
  def is_slow(self) -> bool:
    """Whether it still comes, and slowly."""
    if self._deadline is None or self._deadline.expired():
      return False
    return time.monotonic() - self._paced_s >= _PACE_S

  def evict(self) -> None:
    """Takes the memory from a slow body, and ends `coming`."""
    assert self._deadline is not None
    self._deadline.reschedule(asyncio.get_running_loop().time())
    self._deadline = None
    self.size = 0


class Room:
  """The memory of all bodies."""

  def __init__(self) -> None:
    """Is empty."""
    self._bodies: set[Body] = set()

  @contextlib.contextmanager
  def body(self) -> Iterator[Body]:
    """Yields a body, whose memory is free after the context."""
    body = Body()
    self._bodies.add(body)
    try:
      yield body
    finally:
      self._bodies.remove(body)

  def reserve(self, body: Body, size: int) -> None:
    """Gives a body memory for more bytes, if need be that of slow ones.

    Raises:
      Busy: There is not enough.
    """
    lacking = sum(x.size for x in self._bodies) + size - MOST_BYTES
    slow = [x for x in self._bodies if x is not body and x.is_slow]
    if lacking > sum(x.size for x in slow):
      raise batcher_lib.Busy
    for slow_body in sorted(slow, key=lambda x: x.size, reverse=True):
      if lacking > 0:
        lacking -= slow_body.size
        slow_body.evict()
    body.grow(size)
