"""Starts and ends a server of HTTP.

Needs uvicorn, which is in the extras [demo] and [serve].
"""

import asyncio
import signal
import socket
from typing import TYPE_CHECKING

import h11
import uvicorn
from uvicorn.protocols.http import h11_impl

if TYPE_CHECKING:
  from starlette import types

_MOST_CONNECTIONS = 64  # more are refused with status 503
_SHUTDOWN_S = 5  # for requests that are being processed
# A connection without a request is closed. Proxies keep theirs for 60 s, and
# expect to be the ones that close them.
_IDLE_S = 75.0


class Protocol(h11_impl.H11Protocol):
  """Closes connections of clients that neither ask nor read.

  uvicorn itself waits without end for the headers of a request, and for a
  client that does not read its reply.
  """

  idle_s: float
  _asking: asyncio.TimerHandle | None = None
  _reading: asyncio.TimerHandle | None = None

  def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
    """Waits for the first request."""
    super().connection_made(transport)
    # asyncio does so only if a socket's protocol is named, which is not so for
    # `socket.create_server`. Each reply would wait 40 ms between its headers
    # and its body, for the client's acknowledgement.
    connection = transport.get_extra_info('socket')
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    self._await_request()

  def send_400_response(self, msg: str) -> None:
    """Replies to bytes that are no HTTP, and ends the request before them.

    uvicorn itself lets a request whose body is damaged wait for the rest, and
    reply a second time.
    """
    if self.cycle is not None and not self.cycle.response_complete:
      self.cycle.disconnected = True
      self.cycle.message_event.set()
    if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
      super().send_400_response(msg)
    else:  # a reply has begun
      self.transport.close()

  def on_response_complete(self) -> None:
    """Waits for the next request."""
    super().on_response_complete()
    self._await_request()

  def _await_request(self) -> None:
    if self._asking is not None:
      self._asking.cancel()
    self._asking = self.loop.call_later(self.idle_s, self._close_if_idle)

  def _close_if_idle(self) -> None:
    if self.cycle is None or self.cycle.response_complete:
      self.transport.abort()

  def pause_writing(self) -> None:
    """Waits for the client to read."""
    super().pause_writing()
    self._reading = self.loop.call_later(self.idle_s, self.transport.abort)

  def resume_writing(self) -> None:
    """Goes on, since the client has read."""
    super().resume_writing()
    if self._reading is not None:
      self._reading.cancel()

  def connection_lost(self, exc: Exception | None) -> None:
    """Forgets the timers."""
    for timer in filter(None, (self._asking, self._reading)):
      timer.cancel()
    super().connection_lost(exc)


def make_server(
  app: 'types.ASGIApp',
  most_connections: int = _MOST_CONNECTIONS,
  shutdown_s: int = _SHUTDOWN_S,
  idle_s: float = _IDLE_S,
) -> uvicorn.Server:
  """Returns a server for an application.

  Args:
    app: The application.
    most_connections: Connections at a time; more get the status 503.
    shutdown_s: Seconds for the requests that are being processed at the end.
    idle_s: Seconds until a connection is closed that has no request, or whose
      client reads nothing.
  """
  return uvicorn.Server(
    uvicorn.Config(
      app,
      loop='asyncio',
      http=type('IdleProtocol', (Protocol,), {'idle_s': idle_s}),
      ws='none',
      lifespan='off',
      log_config=None,
      log_level='warning',
      access_log=False,
      server_header=False,
      proxy_headers=False,
      limit_concurrency=most_connections,
      timeout_keep_alive=int(idle_s) + 1,  # closed by `Protocol` before
      timeout_graceful_shutdown=shutdown_s,
    )
  )


def run(server: uvicorn.Server, listener: socket.socket) -> int:
  """Serves until SIGINT or SIGTERM; returns the exit status."""
  stops: list[int] = []

  def stop(number: int, _: object) -> None:
    # uvicorn installs handlers of its own, and calls these when it ends.
    stops.append(number)
    server.should_exit = True

  before = {n: signal.signal(n, stop) for n in (signal.SIGINT, signal.SIGTERM)}
  try:
    server.run(sockets=[listener])
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)
  return 128 + signal.SIGTERM if signal.SIGTERM in stops else 0
