"""Gathers the images of concurrent requests into batches for a model.

All but the model runs in the event loop of the server.
"""

import asyncio
import collections
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import concurrent.futures
import contextlib
import time
from typing import Any
from typing import NamedTuple

from absl import logging

from vit_jax import config as config_lib


class Busy(Exception):
  """Too many images wait."""


class ModelError(Exception):
  """The model failed for a batch; the message is one line."""


class _Image(NamedTuple):
  """An image that waits, with the future of its answer."""

  pixels: Any
  answer: 'asyncio.Future[Any]'
  since: float  # in the time of the event loop


class Batcher:
  """A queue of images before a model.

  Attributes:
    images: Number of images that the model has answered.
    batches: Number of calls of the model.
    model_s: Seconds of these calls.
    failure: What the last call failed with; '' if it did not.
    underway: Number of requests whose images are not in the queue yet.
  """

  def __init__(
    self,
    apply: Callable[[list[Any]], Sequence[Any]],
    most: int,
    max_delay_s: float,
    max_queue: int,
  ):
    """Starts no thread yet.

    Args:
      apply: Maps images to their answers. It runs in a thread of its own.
      most: Largest number of images that it takes.
      max_delay_s: How long an image waits for others that are underway.
      max_queue: Largest number of images that wait.
    """
    self._apply, self._most = apply, most
    self._max_delay_s, self._max_queue = max_delay_s, max_queue
    self._queue: collections.deque[_Image] = collections.deque()
    self.underway = 0
    self._places = 0  # requests that have arrived, of those underway
    self._changed = asyncio.Event()
    self._work: asyncio.Task[None] | None = None
    self._thread = concurrent.futures.ThreadPoolExecutor(1, 'model')
    self.images, self.batches, self.model_s = 0, 0, 0.0
    self.failure = ''

  @property
  def queued(self) -> int:
    """Number of images in the queue."""
    return len(self._queue)

  @contextlib.contextmanager
  def coming(self) -> Iterator[None]:
    """Announces a request, until its images are in the queue.

    It has no place yet, so that slow clients do not keep others out.

    Raises:
      Busy: There is no place.
    """
    self._check_places()
    self.underway += 1
    try:
      yield
    finally:
      self.underway -= 1
      self._changed.set()

  @contextlib.contextmanager
  def place(self) -> Iterator[None]:
    """Holds a place for a request that has arrived.

    Raises:
      Busy: There is none.
    """
    self._check_places()
    self._places += 1
    try:
      yield
    finally:
      self._places -= 1

  def _check_places(self) -> None:
    if len(self._queue) + self._places >= self._max_queue:
      raise Busy

  def add(self, images: Sequence[Any]) -> 'list[asyncio.Future[Any]]':
    """Puts images into the queue; returns the futures of their answers.

    An image whose future is cancelled while it waits leaves the queue.

    Raises:
      Busy: They do not fit.
    """
    if len(self._queue) + len(images) > self._max_queue:
      raise Busy
    loop = asyncio.get_running_loop()
    answers: list[asyncio.Future[Any]] = []
    for image in images:
      answers.append(loop.create_future())
      answers[-1].add_done_callback(self._forget_cancelled)
      self._queue.append(_Image(image, answers[-1], loop.time()))
    self._changed.set()
    if self._work is None or self._work.done():
      self._work = asyncio.create_task(self._answer_all())
    return answers

  def _forget_cancelled(self, answer: 'asyncio.Future[Any]') -> None:
    if answer.cancelled():
      live = (x for x in self._queue if not x.answer.cancelled())
      self._queue = collections.deque(live)

  async def _answer_all(self) -> None:
    """Answers batches until the queue is empty."""
    while self._queue:
      await self._gather()
      batch: list[_Image] = []
      while self._queue and len(batch) < self._most:
        image = self._queue.popleft()
        if not image.answer.cancelled():
          batch.append(image)
      if batch:
        await self._answer(batch)

  async def _gather(self) -> None:
    """Waits for a full batch, as long as requests are underway and it may."""
    deadline = self._queue[0].since + self._max_delay_s
    with contextlib.suppress(TimeoutError):
      async with asyncio.timeout_at(deadline):
        while self.underway and len(self._queue) < self._most:
          self._changed.clear()
          await self._changed.wait()

  async def _answer(self, batch: list[_Image]) -> None:
    """Applies the model to a batch, and sets its answers."""
    loop, start = asyncio.get_running_loop(), time.monotonic()
    pixels = [image.pixels for image in batch]
    try:
      answers = await loop.run_in_executor(self._thread, self._apply, pixels)
    except Exception as e:  # all requests of the batch get it
      logging.exception('the model failed for a batch of %d', len(batch))
      self.failure = f'the model failed: {config_lib.one_line(e)}'
      for image in batch:
        if not image.answer.done():
          image.answer.set_exception(ModelError(self.failure))
      return
    self.failure = ''
    self.images += len(batch)
    self.batches += 1
    self.model_s += time.monotonic() - start
    for image, answer in zip(batch, answers, strict=True):
      if not image.answer.done():  # its client may have left
        image.answer.set_result(answer)
