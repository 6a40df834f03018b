"""The web page's server: what is asked for, allowed and answered.

Needs starlette, which is in the extra [demo].
"""

import asyncio
from collections.abc import Collection
from collections.abc import Sequence
import ipaddress
import pathlib
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
from vit_jax.explore import uploads
from vit_jax.explore import viewer as viewer_lib

_PAGE = pathlib.Path(__file__).with_name('page')
_HEADERS = {
  # The page has what it needs with it, and shows nothing of others.
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
  viewers: Sequence[viewer_lib.Viewer], hosts: Collection[str] = ()
) -> types.ASGIApp:
  """Returns the ASGI application.

  GET / is the page; GET /api/models describes the models and the limits; POST
  /api/look/N sends the file of an image as it is, and gets what `Viewer.look`
  returns for model N. Errors are JSON, {"error": line}.

  Uploads are held in memory alone. The models look at one image at a time; the
  others wait.

  Args:
    viewers: The models.
    hosts: Names that this machine is known by; others than these, localhost and
      addresses are refused, since a page of another site could use them to
      read what is here (DNS rebinding).
  """
  turn = asyncio.Lock()

  async def describe(_: requests.Request) -> responses.Response:
    return responses.JSONResponse(
      {
        'models': [viewer.describe() for viewer in viewers],
        'most_bytes': uploads.MOST_BYTES,
      }
    )

  async def look(request: requests.Request) -> responses.Response:
    name = request.path_params['number']
    known = {str(number): viewer for number, viewer in enumerate(viewers)}
    if name not in known:
      raise exceptions.HTTPException(404, f'there is no model {name[:20]!r}')
    image = await _body(request)
    uploads.check(image)
    async with turn:
      if await request.is_disconnected():  # who asked has left
        return responses.Response(status_code=400)
      seen = await concurrency.run_in_threadpool(known[name].look, image)
    return responses.Response(seen, media_type='application/octet-stream')

  app = applications.Starlette(
    routes=[
      routing.Mount(
        '/api',
        routes=[
          routing.Route('/models', describe),
          routing.Route('/look/{number}', look, methods=['POST']),
        ],
      ),
      routing.Mount('/', staticfiles.StaticFiles(directory=_PAGE, html=True)),
    ],
    exception_handlers={
      exceptions.HTTPException: _refuse,
      config_lib.UserError: _refuse,
      Exception: _fail,
    },
  )
  return _Guard(app, hosts)  # around all of it, so that failures are, too


async def _body(request: requests.Request) -> bytes:
  """Returns what was sent, and stops reading where it is too much."""
  too_much = exceptions.HTTPException(
    413,
    f'it has more than {uploads.MOST_BYTES / 2**20:.0f} MiB: make it smaller',
  )
  announced = request.headers.get('content-length', '0')
  if announced.isdecimal() and int(announced) > uploads.MOST_BYTES:
    raise too_much
  body = bytearray()
  async for part in request.stream():
    body += part
    if len(body) > uploads.MOST_BYTES:
      raise too_much
  return bytes(body)


async def _refuse(_: requests.Request, error: Exception) -> responses.Response:
  """Answers what was asked for wrongly."""
  if isinstance(error, exceptions.HTTPException):
    return _problem(error.status_code, error.detail)
  # `preprocess` numbers what has no name.
  line = config_lib.one_line(error).replace('image 0 ', 'it ', 1)
  return _problem(422, line)


async def _fail(_: requests.Request, error: Exception) -> responses.Response:
  """Answers where we are wrong; the traceback is logged."""
  del error
  return _problem(500, 'something failed: see the terminal of the server')


def _problem(status: int, line: str) -> responses.Response:
  return responses.JSONResponse({'error': line}, status)


class _Guard:
  """Refuses what comes from other sites' pages; adds headers to all answers."""

  def __init__(self, app: types.ASGIApp, hosts: Collection[str]):
    self._app, self._hosts = app, {'localhost', *map(str.lower, hosts)}

  async def __call__(
    self, scope: types.Scope, receive: types.Receive, send: types.Send
  ) -> None:
    """Is an ASGI application."""

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
