"""The server of the web page: its requests, limits and replies.

Needs starlette, which is in the extra [demo].
"""

import asyncio
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
import pathlib
from typing import Any
from typing import TypeVar

from starlette import applications
from starlette import concurrency
from starlette import exceptions
from starlette import requests
from starlette import responses
from starlette import routing
from starlette import staticfiles
from starlette import types

from vit_jax.explore import samples as samples_lib
from vit_jax.explore import viewer as viewer_lib
from vit_jax.plots import style
from vit_jax.web import app as app_lib
from vit_jax.web import uploads

_T = TypeVar('_T')

_PAGE = pathlib.Path(__file__).with_name('page')
_TIMEOUT_S = 60.0  # for an upload to arrive


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
    hosts: Names of this machine, as for `web.app.Guard`.
    samples: Images that the page offers.
  """
  api = _Api(viewers, samples)
  routes = [
    routing.Route('/models', api.describe),
    routing.Route('/samples/{number}', api.sample),
    routing.Route('/look/{number}', api.look, methods=['POST']),
    routing.Route('/fit/{number}', api.fit, methods=['POST']),
  ]
  app = applications.Starlette(
    routes=[
      routing.Mount('/api', routes=routes),
      routing.Mount('/', staticfiles.StaticFiles(directory=_PAGE, html=True)),
    ],
    exception_handlers=app_lib.handlers(422, app_lib.impersonal),
  )
  return app_lib.Guard(app, hosts)  # outermost: it guards error replies, too


class _Api:
  """The requests of the page; the models process one image at a time."""

  def __init__(
    self,
    viewers: Sequence[viewer_lib.Viewer],
    samples: Sequence[samples_lib.Sample],
  ):
    self._samples = {str(i): sample for i, sample in enumerate(samples)}
    self._viewers = {str(i): viewer for i, viewer in enumerate(viewers)}
    self._turn = asyncio.Lock()

  async def describe(self, _: requests.Request) -> responses.Response:
    """Describes the models, the limits, the samples and the colours of maps."""
    return responses.JSONResponse(
      {
        'models': [viewer.describe() for viewer in self._viewers.values()],
        'most_bytes': uploads.MOST_BYTES,
        'samples': [sample.name for sample in self._samples.values()],
        'colours': style.colour_table(style.HEAT).tolist(),
      }
    )

  async def sample(self, request: requests.Request) -> responses.Response:
    """Returns the file of a sample."""
    sample = self._named(request, self._samples, 'sample')
    # Browsers read the format off the file.
    return responses.Response(sample.file, media_type='image/*')

  async def look(self, request: requests.Request) -> responses.Response:
    """Applies a model to an uploaded image."""
    viewer = self._named(request, self._viewers, 'model')
    image = await app_lib.read_body(request, uploads.MOST_BYTES, _TIMEOUT_S)
    uploads.check(image)
    return await self._run(request, viewer.look, image)

  async def fit(self, request: requests.Request) -> responses.Response:
    """Compares sentences with an uploaded image."""
    viewer = self._named(request, self._viewers, 'model')
    body = await app_lib.read_body(
      request, uploads.MOST_BYTES + uploads.MOST_TEXT, _TIMEOUT_S
    )
    texts, image = uploads.parse(body, ('text', 'template'))
    uploads.check(image)
    return await self._run(request, viewer.fit, image, *texts)

  def _named(
    self, request: requests.Request, items: Mapping[str, _T], kind: str
  ) -> _T:
    """Returns the item whose number is in the path of a request."""
    number = request.path_params['number']
    if number not in items:
      raise exceptions.HTTPException(404, f'there is no {kind} {number[:20]!r}')
    return items[number]

  async def _run(
    self, request: requests.Request, function: Callable[..., bytes], *args: Any
  ) -> responses.Response:
    """Applies a model when it is this request's turn."""
    async with self._turn:
      if await request.is_disconnected():
        return responses.Response(status_code=400)
      reply = await concurrency.run_in_threadpool(function, *args)
    return responses.Response(reply, media_type='application/octet-stream')
