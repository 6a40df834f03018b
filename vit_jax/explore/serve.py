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
import time

from absl import flags
from absl import logging

from vit_jax import cli
from vit_jax.config import check_package
from vit_jax.config import UserError
from vit_jax.web import address

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
_HOST, _PORT = address.define(FLAGS)


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
  host = _HOST.value
  with address.listen(host, _PORT.value) as listener:
    models = [cli.load(FLAGS, path) for path in paths]
    for model, path in zip(models, paths, strict=True):
      if len(model.preprocess.image_size) != 2:
        raise UserError(
          f'--from={path} takes volumes or videos, and the page shows images:'
          ' see what predict writes'
        )
    from vit_jax.explore import samples
    from vit_jax.explore import server as page
    from vit_jax.explore import viewer
    from vit_jax.web import server

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
    host = address.public_name(host, 'the page')
    app = page.application(viewers, [host], samples.read(models[0]))
    logging.info('open this address in a browser; Ctrl-C ends the server')
    print(address.url(host, listener), flush=True)
    return server.run(server.make_server(app), listener)
