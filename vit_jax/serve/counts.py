"""Counts requests, as text that Prometheus reads."""

import collections
from collections.abc import Collection
import time

from starlette import types

from vit_jax.serve import batcher as batcher_lib

MEDIA_TYPE = 'text/plain; version=0.0.4'
_UNLISTED = 'other'  # in place of paths that are not served


class Counts:
  """Requests, with their seconds, and images before and in the model."""

  def __init__(self, batcher: batcher_lib.Batcher):
    """Has no request yet."""
    self._batcher = batcher
    self._requests = collections.Counter[tuple[str, int]]()
    self._seconds: dict[str, float] = collections.defaultdict(float)

  def counted(
    self, app: types.ASGIApp, paths: Collection[str]
  ) -> types.ASGIApp:
    """Returns an application whose requests are counted, by its paths."""

    async def count(
      scope: types.Scope, receive: types.Receive, send: types.Send
    ) -> None:
      start = time.monotonic()
      status = 500

      async def send_counted(message: types.Message) -> None:
        nonlocal status
        if message['type'] == 'http.response.start':
          status = message['status']
        await send(message)

      try:
        await app(scope, receive, send_counted)
      finally:
        path = scope['path'] if scope['path'] in paths else _UNLISTED
        self._requests[path, status] += 1
        self._seconds[path] += time.monotonic() - start

    return count

  def text(self) -> str:
    """Returns the metrics, in the text format of Prometheus."""
    batcher = self._batcher
    requests = {
      f'path="{path}",status="{status}"': count
      for (path, status), count in sorted(self._requests.items())
    }
    seconds = {
      f'path="{path}"': round(value, 6)
      for path, value in sorted(self._seconds.items())
    }
    lines = []
    for name, kind, values in (
      ('requests_total', 'counter', requests),
      ('request_seconds_total', 'counter', seconds),
      ('images_total', 'counter', {'': batcher.images}),
      ('batches_total', 'counter', {'': batcher.batches}),
      ('model_seconds_total', 'counter', {'': round(batcher.model_s, 6)}),
      ('queued_images', 'gauge', {'': batcher.queued}),
      ('arriving_requests', 'gauge', {'': batcher.underway}),
    ):
      lines.append(f'# TYPE vit_jax_{name} {kind}')
      for labels, value in values.items():
        labels = f'{{{labels}}}' if labels else ''
        lines.append(f'vit_jax_{name}{labels} {value}')
    return '\n'.join([*lines, ''])
