"""The requests that a served model answers, their limits and their replies.

Needs starlette, which is in the extra [serve].
"""

import asyncio
from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
import concurrent.futures
import contextlib
import dataclasses
import functools
import threading
import time
from typing import Any
from typing import TypeVar

import numpy as np
from starlette import applications
from starlette import exceptions
from starlette import requests
from starlette import responses
from starlette import routing
from starlette import types

from vit_jax.config import UserError
from vit_jax.data.host import batches
from vit_jax.evaluation import answers as answers_lib
from vit_jax.serve import batcher as batcher_lib
from vit_jax.serve import bodies
from vit_jax.serve import counts as counts_lib
from vit_jax.serve import model as model_lib
from vit_jax.serve import openapi
from vit_jax.serve import room as room_lib
from vit_jax.web import app as app_lib
from vit_jax.web import uploads

_T = TypeVar('_T')

MOST_IMAGES = 64  # of a request
_MOST_PIXELS = 4 * uploads.MOST_PIXELS  # of all images of a request
# Of all images that are decoded at the same time. A PNG of half a megabyte may
# have the pixels of one, which take 1.4 GB with 16 bits.
_MOST_DECODED = 2 * uploads.MOST_PIXELS
_RETRY_S = 1


@dataclasses.dataclass(frozen=True)
class Settings:
  """Limits of a server.

  Attributes:
    batch_size: Largest number of images in a batch.
    max_delay_s: How long an image waits for others that are underway.
    max_queue: Largest number of images that wait for the model.
    timeout_s: How long the body of a request may take to arrive.
    top: Number of classes in an answer, unless the request says another.
  """

  batch_size: int = 32
  max_delay_s: float = 0.005
  max_queue: int = 256
  timeout_s: float = 30.0
  top: int = 5


def application(
  answerer: model_lib.Answerer,
  settings: Settings,
  hosts: Collection[str] = (),
) -> types.ASGIApp:
  """Returns the ASGI application; `openapi` describes its requests.

  Args:
    answerer: The model.
    settings: The limits.
    hosts: Names of this machine, as for `web.app.Guard`.
  """
  api = _Api(answerer, settings)
  paths: dict[str, tuple[str, Callable[..., Any]]] = {
    '/predict': ('POST', api.predict),
    '/embed': ('POST', api.embed),
    '/health': ('GET', api.health),
    '/metrics': ('GET', api.metrics),
    '/openapi.json': ('GET', api.describe),
    '/docs': ('GET', api.docs),
    '/docs.css': ('GET', api.style),
  }
  app = applications.Starlette(
    routes=[
      routing.Route(path, function, methods=[method])
      for path, (method, function) in paths.items()
    ],
    exception_handlers={
      **app_lib.handlers(
        mistake_status=400, paths='GET /docs lists the requests'
      ),
      batcher_lib.Busy: _refuse_busy,
      batcher_lib.ModelError: _report_failure,
    },
  )
  app.router.redirect_slashes = False
  guarded = app_lib.Guard(
    app, hosts, 'use its address, or start it with that name in --names'
  )
  return api.counts.counted(guarded, paths)


class _Api:
  """The requests.

  Attributes:
    counts: Counts of the requests.
  """

  def __init__(self, answerer: model_lib.Answerer, settings: Settings):
    self._answerer, self._settings = answerer, settings
    self._most_images = min(MOST_IMAGES, settings.max_queue)
    self._batcher = batcher_lib.Batcher(
      answerer,
      settings.batch_size,
      settings.max_delay_s,
      settings.max_queue,
    )
    self.counts = counts_lib.Counts(self._batcher)
    self._decoders = concurrent.futures.ThreadPoolExecutor(
      batches.num_cores(), 'decoder'
    )
    self._room = room_lib.Room()
    self._pixels = _Pixels(_MOST_DECODED)
    self._start = time.monotonic()
    loaded = answerer.loaded
    self._model = loaded.describe()
    self._checkpoint = loaded.origin.to_dict()
    self._description = openapi.describe(
      answerer, self._model, self._most_images, settings.top
    )
    self._page = openapi.page(self._description)

  async def predict(self, request: requests.Request) -> responses.Response:
    """Answers with the most probable classes of each image, or its numbers."""
    head = self._answerer.head
    if head is None:
      raise exceptions.HTTPException(
        404, 'this model has no head, and names nothing: ask /embed'
      )
    _check_query(request, () if head.predicts_numbers else ('top',))
    top = self._top(request, head.top)
    results = []
    for name, answer in await self._answers(request):
      assert answer.numbers is not None and answer.values is not None
      ranked = answers_lib.named(
        name,
        head.names,
        answer.numbers[:top].tolist(),
        answer.values[:top].tolist(),
      )
      fields = answers_lib.as_json(ranked, head.predicts_numbers)
      results.append({'image': name, **fields})
    return self._reply(results)

  async def embed(self, request: requests.Request) -> responses.Response:
    """Answers with the embedding of each image."""
    _check_query(request, ())
    answers = await self._answers(request)
    return self._reply(
      [
        {'image': name, 'embedding': x.embedding.tolist()}
        for name, x in answers
      ]
    )

  async def health(self, _: requests.Request) -> responses.Response:
    """Says whether the model works; while it is loaded nobody replies."""
    failure = self._batcher.failure
    facts = {
      'status': 'failing' if failure else 'ready',
      'model': self._model,
      'checkpoint': self._checkpoint,
      'uptime_s': round(time.monotonic() - self._start, 3),
    }
    if failure:
      facts['error'] = failure
    return responses.JSONResponse(facts, 503 if failure else 200)

  async def metrics(self, _: requests.Request) -> responses.Response:
    """Returns counts for Prometheus."""
    text = self.counts.text()
    return responses.Response(text, media_type=counts_lib.MEDIA_TYPE)

  async def describe(self, _: requests.Request) -> responses.Response:
    """Returns the description of all requests."""
    return responses.JSONResponse(self._description)

  async def docs(self, _: requests.Request) -> responses.Response:
    """Returns the description as a page."""
    return responses.HTMLResponse(self._page)

  async def style(self, _: requests.Request) -> responses.Response:
    """Returns the style of the page."""
    return responses.Response(openapi.STYLE, media_type='text/css')

  def _reply(self, results: list[dict[str, Any]]) -> responses.Response:
    return responses.JSONResponse(
      {'results': results, 'checkpoint': self._checkpoint}
    )

  def _top(self, request: requests.Request, most: int) -> int:
    text = request.query_params.get('top', str(min(self._settings.top, most)))
    digits = text.isascii() and text.isdecimal() and len(text) < 9
    if digits and 1 <= int(text) <= most:
      return int(text)
    raise UserError(f'top={text[:20]}: write a whole number from 1 to {most}')

  async def _answers(
    self, request: requests.Request
  ) -> list[tuple[str, model_lib.Answer]]:
    """Returns the names of a request's images, and their answers."""
    with self._batcher.coming(), self._room.body() as body:
      names, pixels = await self._read(request, body)
    # All of them are in the queue before a batch leaves it.
    futures = self._batcher.add(pixels)
    answers = await _unless_left(request, asyncio.gather(*futures))
    for name, answer in zip(names, answers, strict=True):
      if not all(np.isfinite(x).all() for x in answer if x is not None):
        raise exceptions.HTTPException(
          500, f'the model has no answer for {name}: its output is not finite'
        )
    return [*zip(names, answers, strict=True)]

  async def _read(
    self, request: requests.Request, body: room_lib.Body
  ) -> tuple[list[str], list[np.ndarray]]:
    """Returns the names and the decoded pixels of a request's images."""
    content_type = request.headers.get('content-type', '')
    parse = bodies.find_parser(content_type, self._most_images)
    if parse is None:
      raise exceptions.HTTPException(
        415,
        f'the Content-Type is {content_type!r}: send image/jpeg or another'
        ' image, multipart/form-data or application/json',
      )
    reserve = functools.partial(self._room.reserve, body)
    try:
      async with body.coming():
        content = await app_lib.read_body(
          request, uploads.MOST_BYTES, self._settings.timeout_s, reserve
        )
    except TimeoutError:
      raise exceptions.HTTPException(
        408,
        'the body came so slowly that others got its memory: send it again',
        {'Connection': 'close'},
      ) from None
    with self._batcher.place():
      return await _unless_left(request, self._decoded(parse, content))

  async def _decoded(
    self, parse: Callable[[bytes], list[bodies.Upload]], body: bytes
  ) -> tuple[list[str], list[np.ndarray]]:
    """As `_read`, for a body; if it is cancelled it decodes no more images."""
    images = await self._in_thread(_parsed, parse, body)
    decoded = await asyncio.gather(
      *(self._in_thread(self._decode, image) for image in images),
      return_exceptions=True,
    )
    pixels = []
    for image in decoded:  # the first one that is damaged is named
      if isinstance(image, BaseException):
        raise image
      pixels.append(image)
    return [image.name for image in images], pixels

  def _decode(self, image: bodies.Upload) -> np.ndarray:
    try:
      with self._pixels.reserve(uploads.check(image.file)):
        return self._answerer.pixels(image.file)
    except UserError as e:
      raise UserError(f'{image.name}: {app_lib.impersonal(e)}') from None

  def _in_thread(
    self, function: Callable[..., Any], *args: Any
  ) -> Awaitable[Any]:
    loop = asyncio.get_running_loop()
    return loop.run_in_executor(self._decoders, function, *args)


class _Pixels:
  """A number of pixels that threads share."""

  def __init__(self, amount: int):
    """Starts with all of them left."""
    self._left, self._changed = amount, threading.Condition()

  @contextlib.contextmanager
  def reserve(self, amount: int) -> Iterator[None]:
    """Waits until so much is left, and takes it meanwhile."""
    with self._changed:
      self._changed.wait_for(lambda: self._left >= amount)
      self._left -= amount
    try:
      yield
    finally:
      with self._changed:
        self._left += amount
        self._changed.notify_all()


def _check_query(
  request: requests.Request, parameters: Collection[str]
) -> None:
  for name in request.query_params:
    if name not in parameters:
      names = f': {", ".join(parameters)} is known' if parameters else ''
      raise UserError(f'there is no parameter {name!r}{names}')


def _parsed(
  parse: Callable[[bytes], list[bodies.Upload]], body: bytes
) -> list[bodies.Upload]:
  """Returns the images of a body, which are not too large together."""
  images, pixels = parse(body), 0
  if not images:
    raise UserError('there are no images')
  for image in images:
    with contextlib.suppress(UserError):  # `_decode` raises the first one
      pixels += uploads.check(image.file)
  if pixels > _MOST_PIXELS:
    raise exceptions.HTTPException(
      413,
      f'the images have {pixels / 1e6:.0f} million pixels, and a request may'
      f' have {_MOST_PIXELS / 1e6:.0f} million: make them smaller, or send'
      ' fewer',
    )
  return images


async def _refuse_busy(_: requests.Request, e: Exception) -> responses.Response:
  del e
  return app_lib.problem(
    503, 'too many images wait: ask again', {'Retry-After': str(_RETRY_S)}
  )


async def _report_failure(
  _: requests.Request, e: Exception
) -> responses.Response:
  return app_lib.problem(500, str(e))


async def _unless_left(request: requests.Request, work: Awaitable[_T]) -> _T:
  """Returns the result of work; cancels it if the client leaves."""

  async def left() -> None:
    while (await request.receive())['type'] != 'http.disconnect':
      pass

  waiting, leaving = asyncio.ensure_future(work), asyncio.create_task(left())
  try:
    await asyncio.wait({waiting, leaving}, return_when='FIRST_COMPLETED')
    if not waiting.done():
      raise app_lib.left()
    return waiting.result()
  finally:
    leaving.cancel()
    waiting.cancel()
    await asyncio.wait({waiting})  # until it has cancelled its futures
