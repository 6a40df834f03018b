"""The server of the web page: its requests, limits and replies.

Needs starlette, which is in the extra [demo].
"""

import asyncio
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Sequence
import ipaddress
import pathlib
from typing import Any
import urllib.parse

from starlette import applications
from starlette import concurrency
from starlette import datastructures
from starlette import exceptions
from starlette import requests
from starlette import responses
from starlette import routing
from starlette import staticfiles
from starlette import types

from vit_jax import config as config_lib
from vit_jax.explore import samples as samples_lib
from vit_jax.explore import uploads
from vit_jax.explore import viewer as viewer_lib
from vit_jax.plots import style

_PAGE = pathlib.Path(__file__).with_name('page')
_HEADERS = {
  # The page loads nothing from other sites.
  'Content-Security-Policy': (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
    " connect-src 'self'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'"
  ),
  'Cross-Origin-Resource-Policy': 'same-origin',
  'Referrer-Policy': 'no-referrer',
  'X-Content-Type-Options': 'nosniff',
  'Cache-Control': 'no-cache',
}


def application(
  viewers: Sequence[viewer_lib.Viewer],
  hosts: Collection[str] = (),
  samples: Sequence[samples_lib.Sample] = (),
) -> types.ASGIApp:
  """Returns the ASGI application.

  GET / is the page; GET /api/models describes the models, the limits, the names
  of samples and the colours of maps; GET /api/samples/N is the file of sample
  N.

  POST /api/look/N takes an image file and returns the result of `Viewer.look`
  for model N. POST /api/fit/N takes JSON and an image file as `uploads.parse`
  reads them, and returns the result of `Viewer.fit`. Errors are JSON,
  {"error": line}. Uploads stay in memory.

  Args:
    viewers: The models.
    hosts: Names of this machine. Requests for any other name are refused,
      except for localhost and addresses: with such a name, a page of another
      site could read the results (DNS rebinding).
    samples: Images that the page offers.
  """
  api = _Api(viewers, samples)
  routes = [
    routing.Route('/models', api.describe),
    routing.Route('/samples/{number:int}', api.sample),
    routing.Route('/look/{number}', api.look, methods=['POST']),
    routing.Route('/fit/{number}', api.fit, methods=['POST']),
  ]
  app = applications.Starlette(
    routes=[
      routing.Mount('/api', routes=routes),
      routing.Mount('/', staticfiles.StaticFiles(directory=_PAGE, html=True)),
    ],
    exception_handlers={
      exceptions.HTTPException: _refuse,
      config_lib.UserError: _refuse,
      Exception: _fail,
    },
  )
  return _Guard(app, hosts)  # outermost: it guards error replies, too


class _Api:
  """The requests of the page; the models process one image at a time."""

  def __init__(
    self,
    viewers: Sequence[viewer_lib.Viewer],
    samples: Sequence[samples_lib.Sample],
  ):
    self._samples = samples
    self._viewers = {str(i): viewer for i, viewer in enumerate(viewers)}
    self._turn = asyncio.Lock()

  async def describe(self, _: requests.Request) -> responses.Response:
    """Describes the models, the limits, the samples and the colours of maps."""
    return responses.JSONResponse(
      {
        'models': [viewer.describe() for viewer in self._viewers.values()],
        'most_bytes': uploads.MOST_BYTES,
        'samples': [sample.name for sample in self._samples],
        'colours': style.colour_table(style.HEAT).tolist(),
      }
    )

  async def sample(self, request: requests.Request) -> responses.Response:
    """Returns the file of a sample."""
    number = request.path_params['number']
    if number >= len(self._samples):
      raise exceptions.HTTPException(404, f'there is no sample {number}')
    file = self._samples[number].file
    # Browsers read the format off the file.
    return responses.Response(file, media_type='image/*')

  async def look(self, request: requests.Request) -> responses.Response:
    """Applies a model to an uploaded image."""
    viewer = self._viewer(request)
    image = await _body(request, uploads.MOST_BYTES)
    uploads.check(image)
    return await self._run(request, viewer.look, image)

  async def fit(self, request: requests.Request) -> responses.Response:
    """Compares sentences with an uploaded image."""
    viewer = self._viewer(request)
    body = await _body(request, uploads.MOST_BYTES + uploads.MOST_TEXT)
    texts, image = uploads.parse(body, ('text', 'template'))
    uploads.check(image)
    return await self._run(request, viewer.fit, image, *texts)

  def _viewer(self, request: requests.Request) -> viewer_lib.Viewer:
    name = request.path_params['number']
    if name not in self._viewers:
      raise exceptions.HTTPException(404, f'there is no model {name[:20]!r}')
    return self._viewers[name]

  async def _run(
    self, request: requests.Request, function: Callable[..., bytes], *args: Any
  ) -> responses.Response:
    """Applies a model when it is this request's turn."""
    async with self._turn:
      if await request.is_disconnected():
        return responses.Response(status_code=400)
      reply = await concurrency.run_in_threadpool(function, *args)
    return responses.Response(reply, media_type='application/octet-stream')


async def _body(request: requests.Request, most: int) -> bytes:
  """Returns the body of a request; stops reading beyond `most` bytes."""
  too_much = exceptions.HTTPException(
    413,
    f'it has more than {uploads.MOST_BYTES / 2**20:.0f} MiB: make it smaller',
  )
  announced = request.headers.get('content-length', '0')
  if announced.isdecimal() and int(announced) > most:
    raise too_much
  body = bytearray()
  async for part in request.stream():
    body += part
    if len(body) > most:
      raise too_much
  return bytes(body)


async def _refuse(_: requests.Request, error: Exception) -> responses.Response:
  """Replies to an invalid request."""
  if isinstance(error, exceptions.HTTPException):
    return _problem(error.status_code, error.detail)
  # `preprocess` numbers images that have no name.
  line = config_lib.one_line(error).replace('image 0 ', 'it ', 1)
  return _problem(422, line)


async def _fail(_: requests.Request, error: Exception) -> responses.Response:
  """Replies after a bug; the traceback is logged."""
  del error
  return _problem(500, 'something failed: see the terminal of the server')


def _problem(status: int, line: str) -> responses.Response:
  return responses.JSONResponse({'error': line}, status)


class _Guard:
  """Refuses requests from pages of other sites; adds headers to all replies."""

  def __init__(self, app: types.ASGIApp, hosts: Collection[str]):
    self._app, self._hosts = app, {'localhost', *map(str.lower, hosts)}

  async def __call__(
    self, scope: types.Scope, receive: types.Receive, send: types.Send
  ) -> None:
    """Handles a request, as an ASGI application."""

    async def send_with_headers(message: types.Message) -> None:
      if message['type'] == 'http.response.start':
        datastructures.MutableHeaders(scope=message).update(_HEADERS)
      await send(message)

    headers = datastructures.Headers(scope=scope)
    host, origin = headers.get('host', ''), headers.get('origin')
    app = self._app
    if not self._is_ours(host):
      app = _problem(
        421, f'this server is not {host}: use its address, or localhost'
      )
    elif origin is not None and origin.partition('://')[2] != host:
      app = _problem(403, 'the page of another site asked for this')
    await app(scope, receive, send_with_headers)

  def _is_ours(self, host: str) -> bool:
    try:
      name = urllib.parse.urlsplit(f'//{host}').hostname or ''
      if name in self._hosts:
        return True
      ipaddress.ip_address(name)
    except ValueError:
      return False
    return True
