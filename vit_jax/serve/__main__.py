r"""Answers images over HTTP with names and probabilities, or with embeddings.

  python -m vit_jax.serve --from=runs/digits
  python -m vit_jax.serve --from=runs/digits --host=0.0.0.0 --batch_size=64

Prints the address when the model is ready. POST /predict and POST /embed take
an image file, a form with several files, or JSON with {"images": [base64]}:

  curl -F image=@photo.jpg 'http://127.0.0.1:8000/predict?top=3'

GET /health says whether the model works, GET /metrics has counts for
Prometheus, and GET /docs and GET /openapi.json describe all requests.

Images of concurrent requests are batched. Batches are padded to a power of two,
for which the model was compiled before. An image waits at most --max_delay_ms
for others that are being read; it does not wait if there are none.

Errors are JSON, {"error": line}, as of a damaged image (400), a slow client
(408), more than 20 MiB, 64 images or 268 million pixels (413), another
Content-Type (415), and more than --max_queue images that wait (503, with
Retry-After).

A model without a head has /embed alone. Only this machine can reach the server,
unless --host says otherwise. It knows neither users nor TLS: where others reach
it, put a proxy before it. Requests must name localhost, an address, --host or
one of --names as their host.

SIGTERM ends the server after the requests that it has, with the exit status
143; Ctrl-C does so with 0.

Needs the extra [serve]: pip install 'vit_jax[serve]'.
"""

import time

from absl import flags
from absl import logging

from vit_jax import cli
from vit_jax.config import check_package
from vit_jax.web import address

USAGE = 'serve --from=PATH'
FLAGS = flags.FlagValues()  # its own: other commands have flags of these names
cli.define_from(FLAGS)
cli.define_quantize(FLAGS)
cli.define_compile_cache(FLAGS)
_HOST, _PORT = address.define(FLAGS)
_NAMES = flags.DEFINE_list(
  'names',
  [],
  'Further names of this server, by which requests may call it.',
  flag_values=FLAGS,
)
_BATCH_SIZE = flags.DEFINE_integer(
  'batch_size',
  32,
  'Images at a time, at most.',
  lower_bound=1,
  upper_bound=4096,
  flag_values=FLAGS,
)
_MAX_DELAY_MS = flags.DEFINE_float(
  'max_delay_ms',
  5.0,
  'Milliseconds that an image waits, at most, for others that are being read.',
  lower_bound=0.0,
  upper_bound=60_000.0,
  flag_values=FLAGS,
)
_MAX_QUEUE = flags.DEFINE_integer(
  'max_queue',
  256,
  'Images that wait, at most.',
  lower_bound=1,
  flag_values=FLAGS,
)
_TIMEOUT_S = flags.DEFINE_float(
  'timeout_s',
  30.0,
  'Seconds that the body of a request may take to arrive. The end of the server'
  ' waits as long for the requests that it has.',
  lower_bound=0.001,
  upper_bound=86_400.0,
  flag_values=FLAGS,
)

_MOST_CONNECTIONS = 512  # more are refused with status 503


def main(argv: list[str]) -> int:
  """Serves a model until a signal; returns the exit status."""
  cli.refuse_arguments(argv)
  cli.check_from(FLAGS)
  for package in ('starlette', 'uvicorn'):
    check_package('serving', package, 'serve')
  host = _HOST.value
  with address.listen(host, _PORT.value) as listener:
    loaded = cli.load(FLAGS)
    from vit_jax.serve import api
    from vit_jax.serve import model
    from vit_jax.web import server

    model.check(loaded)
    answerer = model.Answerer(loaded, _BATCH_SIZE.value)
    start = time.monotonic()
    answerer.warm()
    logging.info(
      'compiled batches of %s images in %.1f s',
      ', '.join(map(str, answerer.sizes)),
      time.monotonic() - start,
    )
    settings = api.Settings(
      batch_size=_BATCH_SIZE.value,
      max_delay_s=_MAX_DELAY_MS.value / 1e3,
      max_queue=_MAX_QUEUE.value,
      timeout_s=_TIMEOUT_S.value,
    )
    name = address.public_name(host, 'the server')
    app = api.application(answerer, settings, [host, name, *_NAMES.value])
    logging.info('the server is ready; Ctrl-C ends it')
    print(address.url(name, listener), flush=True)
    running = server.make_server(
      app, _MOST_CONNECTIONS, shutdown_s=int(_TIMEOUT_S.value) + 1
    )
    return server.run(running, listener)


if __name__ == '__main__':
  cli.run(main, __doc__, FLAGS, USAGE)
