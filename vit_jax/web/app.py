"""Limits, errors and headers that all applications of HTTP have.

Needs starlette, which is in the extras [demo] and [serve].
"""

import asyncio
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
import http
import ipaddress
from typing import Any
import urllib.parse

from starlette import datastructures
from starlette import exceptions
from starlette import requests
from starlette import responses
from starlette import types

from vit_jax import config as config_lib
from vit_jax.web import uploads

_HEADERS = {
  # Pages load nothing from other sites.
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

# Details of the errors that starlette raises where no route fits.
_PHRASES = {x: http.HTTPStatus(x).phrase for x in (404, 405)}


def problem(
  status: int, line: str, headers: Mapping[str, str] | None = None
) -> responses.Response:
  """Returns the reply to a request that fails, the JSON {"error": line}."""
  return responses.JSONResponse({'error': line}, status, headers)


def handlers(
  mistake_status: int,
  describe: Callable[[Exception], str] = config_lib.one_line,
  paths: str = '',
) -> dict[Any, Callable[..., Any]]:
  """Returns the handlers of errors.

  Args:
    mistake_status: The status of a reply to a UserError.
    describe: Returns the line about one.
    paths: What names the paths of the application, for a request to no path.
  """

  async def refuse(
    request: requests.Request, e: Exception
  ) -> responses.Response:
    """Replies to an invalid request."""
    if isinstance(e, exceptions.HTTPException):
      line, path = e.detail, request.url.path
      if e.status_code == 404 and line == _PHRASES[404]:
        line = f'there is no {path}{paths and f": {paths}"}'
      elif e.status_code == 405 and line == _PHRASES[405]:
        allowed = sorted((e.headers or {}).get('Allow', '').split(', '))
        line = f'{path} has no {request.method}: send {" or ".join(allowed)}'
      return problem(e.status_code, line, e.headers)
    return problem(mistake_status, describe(e))

  async def fail(_: requests.Request, e: Exception) -> responses.Response:
    """Replies after a bug; the traceback is logged."""
    del e
    return problem(500, 'something failed: see the terminal of the server')

  return {
    exceptions.HTTPException: refuse,
    config_lib.UserError: refuse,
    Exception: fail,
  }


def impersonal(error: Exception) -> str:
  """Returns the line of an error about an image that has no name."""
  # `preprocess` numbers such images.
  return config_lib.one_line(error).replace('image 0 ', 'it ', 1)


def left() -> exceptions.HTTPException:
  """Returns the error for a client that has left; nobody reads the reply."""
  return exceptions.HTTPException(499, 'the client has left')  # as of nginx


async def read_body(
  request: requests.Request,
  most: int,
  timeout_s: float,
  reserve: Callable[[int], object] = lambda _: None,
) -> bytes:
  """Returns the body of a request.

  Args:
    request: The request.
    most: Bytes beyond which it stops reading.
    timeout_s: Seconds for the whole body, so that no client holds a connection
      by sending a byte now and then.
    reserve: Called with the size of each part before it is kept.
  """
  too_much = exceptions.HTTPException(
    413,
    f'it has more than {uploads.MOST_BYTES / 2**20:.0f} MiB: make it smaller',
  )
  announced = request.headers.get('content-length', '0')
  # Longer than any size; Python refuses to read thousands of digits.
  is_long = len(announced) > 20
  if announced.isdecimal() and (is_long or int(announced) > most):
    raise too_much
  body = bytearray()
  try:
    async with asyncio.timeout(timeout_s):
      async for part in request.stream():
        reserve(len(part))
        body += part
        if len(body) > most:
          raise too_much
  except requests.ClientDisconnect:
    raise left() from None
  except TimeoutError:
    raise exceptions.HTTPException(
      408,
      f'the body did not arrive within {timeout_s:g} s',
      {'Connection': 'close'},
    ) from None
  return bytes(body)


class Guard:
  """Refuses requests from pages of other sites; adds headers to all replies."""

  def __init__(
    self,
    app: types.ASGIApp,
    hosts: Collection[str],
    advice: str = 'use its address, or localhost',
  ):
    """Guards an application.

    Args:
      app: The application.
      hosts: Names of this machine. Requests for any other name are refused,
        except for localhost and addresses: with such a name, a page of another
        site could read the results (DNS rebinding).
      advice: For errors about another name.
    """
    self._app, self._hosts = app, {'localhost', *map(str.lower, hosts)}
    self._advice = advice

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
      app = problem(421, f'this server is not {host}: {self._advice}')
    elif origin is not None and origin.partition('://')[2] != host:
      app = problem(403, 'the page of another site asked for this')
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
