"""Shows attention and predictions for an image in a browser.

  python -m vit_jax.explore serve --from=runs/digits
  python -m vit_jax.explore serve --from=runs/small --from=runs/large --port=0

Prints the address of a page. It offers some images of the data that the model
was trained on, if they are on this machine, and takes any image that is dropped
on it. It shows the predictions, and the attention of the patch below the mouse
to the others, in any layer and head, or attention rollout (arXiv:2005.00928).
--from twice shows two models side by side. A model of images and texts also
compares the image with sentences that are typed, and shows which places speak
for each.

Only this machine can open the page, unless --host says otherwise; it needs no
network. Uploads stay in memory. Ctrl-C ends the server.

Needs the extra [demo]: pip install 'vit_jax[demo]'.
"""

import os
import signal
import socket
import time
from typing import TYPE_CHECKING

from absl import flags
from absl import logging

from vit_jax import cli
from vit_jax.config import check_package
from vit_jax.config import UserError

if TYPE_CHECKING:
  from starlette import types
  import uvicorn

USAGE = 'explore serve --from=PATH'
FLAGS = flags.FlagValues()  # its own: other commands have flags of these names
_FROM = flags.DEFINE_multi_string(
  'from',
  [],
  'The model: a work directory, or any other path that vit_jax.load reads. Two'
  ' models are shown side by side.',
  flag_values=FLAGS,
)
cli.define_overrides(FLAGS)
cli.define_compile_cache(FLAGS)
_HOST = flags.DEFINE_string(
  'host',
  '127.0.0.1',
  'Address to listen at. 0.0.0.0 lets other machines in.',
  flag_values=FLAGS,
)
_PORT = flags.DEFINE_integer(
  'port',
  8000,
  'Port to listen at. 0: any free port.',
  lower_bound=0,
  upper_bound=65535,
  flag_values=FLAGS,
)

_EVERYWHERE = ('0.0.0.0', '::')
_MOST_CONNECTIONS = 64  # more are refused with status 503
_SHUTDOWN_S = 5  # for requests that are being processed


def main(argv: list[str]) -> int:
  """Serves the page until a signal; returns the exit status."""
  cli.refuse_arguments(argv)
  paths = _FROM.value or ['']
  if not all(paths):
    raise cli.missing('from', 'a model', 'runs/digits')
  if len(paths) > 2:
    raise UserError(f'--from={paths[2]}: at most two models fit side by side')
  for package in ('starlette', 'uvicorn'):
    check_package('the page', package, 'demo')
  with listen(_HOST.value, _PORT.value) as listener:
    models = [cli.load(FLAGS, path) for path in paths]
    for model, path in zip(models, paths, strict=True):
      if len(model.preprocess.image_size) != 2:
        raise UserError(
          f'--from={path} takes volumes or videos, and the page shows images:'
          ' see what predict writes'
        )
    from vit_jax.explore import samples
    from vit_jax.explore import server
    from vit_jax.explore import viewer

    names = [os.path.basename(os.path.normpath(path)) for path in paths]
    if len(set(names)) < len(names):
      names = paths
    viewers = []
    for model, name in zip(models, names, strict=True):
      model_viewer = viewer.Viewer(model, name)
      viewers.append(model_viewer)
      start = time.monotonic()
      model_viewer.warm()
      seconds = time.monotonic() - start
      logging.info('%s: compiled in %.1f s', model_viewer.name, seconds)
    host = _HOST.value
    if host in _EVERYWHERE:
      host = socket.gethostname()  # for the address that a browser opens
      logging.warning('everyone who reaches this machine can use the page')
    app = server.application(viewers, [host], samples.read(models[0]))
    logging.info('open this address in a browser; Ctrl-C ends the server')
    host = f'[{host}]' if ':' in host else host
    print(f'http://{host}:{listener.getsockname()[1]}/', flush=True)
    return run(make_server(app), listener)


def listen(host: str, port: int) -> socket.socket:
  """Returns a socket that listens at an address; 0 is any free port."""
  try:
    family, *_, address = socket.getaddrinfo(
      host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    return socket.create_server(address[:2], family=family)
  except (OSError, UnicodeError) as e:  # the latter for an invalid name
    reason = (
      e.strerror if isinstance(e, OSError) else 'that is no name of a host'
    )
    raise UserError(
      f'--host={host} --port={port} cannot be listened at: {reason}; give'
      ' another, or --port=0 for any that is free'
    ) from None


def make_server(app: 'types.ASGIApp') -> 'uvicorn.Server':
  """Returns a server for an application."""
  import uvicorn

  return uvicorn.Server(
    uvicorn.Config(
      app,
      loop='asyncio',
      http='h11',
      ws='none',
      lifespan='off',
      log_config=None,
      log_level='warning',
      access_log=False,
      server_header=False,
      proxy_headers=False,
      limit_concurrency=_MOST_CONNECTIONS,
      timeout_graceful_shutdown=_SHUTDOWN_S,
    )
  )


def run(server: 'uvicorn.Server', listener: socket.socket) -> int:
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
