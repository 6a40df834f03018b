"""Counts requests, as text that Prometheus reads."""

import collections
from collections.abc import Collection
import time

from starlette import types

from vit_jax.serve import batcher as batcher_lib

MEDIA_TYPE = 'text/plain; version=0.0.4'
_OTHER = 'other'  # in place of paths that are not served


class Counts:
  """An application of ASGI that counts the requests of another."""

  def __init__(
    self,
    app: types.ASGIApp,
    paths: Collection[str],
    batcher: batcher_lib.Batcher,
  ):
    """Counts the requests of an application, by its paths."""
    self._app, self._paths, self._batcher = app, paths, batcher
    self._requests = collections.Counter[tuple[str, int]]()
    self._seconds = collections.Counter[str]()

  async def __call__(
    self, scope: types.Scope, receive: types.Receive, send: types.Send
  ) -> None:
    """Handles a request."""
    start, status = time.monotonic(), 500

    async def send_counted(message: types.Message) -> None:
      nonlocal status
      if message['type'] == 'http.response.start':
        status = message['status']
      await send(message)

    path = scope['path'] if scope['path'] in self._paths else _OTHER
    scope['state']['counts'] = self
    try:
      await self._app(scope, receive, send_counted)
    finally:
      self._requests[path, status] += 1
      self._seconds[path] += time.monotonic() - start

  def text(self) -> str:
    """Returns the metrics."""
    batcher = self._batcher
    lines = ['# TYPE vit_jax_requests_total counter']
    for (path, status), count in sorted(self._requests.items()):
      labels = f'path="{path}",status="{status}"'
      lines.append(f'vit_jax_requests_total{{{labels}}} {count}')
    lines.append('# TYPE vit_jax_request_seconds_total counter')
    for path, seconds in sorted(self._seconds.items()):
      lines.append(
        f'vit_jax_request_seconds_total{{path="{path}"}} {seconds:.6f}'
      )
    for name, kind, value in (
      ('images_total', 'counter', batcher.images),
      ('batches_total', 'counter', batcher.batches),
      ('model_seconds_total', 'counter', f'{batcher.model_s:.6f}'),
      ('waiting', 'gauge', batcher.waiting),
    ):
      lines.append(f'# TYPE vit_jax_{name} {kind}')
      lines.append(f'vit_jax_{name} {value}')
    return '\n'.join([*lines, ''])
