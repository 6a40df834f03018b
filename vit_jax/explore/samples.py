"""Images of a run's data, which the web page offers before any upload."""

import contextlib
import os
import pathlib
from typing import NamedTuple

import cv2

from vit_jax import data
from vit_jax import weights
from vit_jax.config import UserError
from vit_jax.explore import examples as examples_lib
from vit_jax.web import uploads

_MOST = 12
_MOST_BYTES = 2**21  # of a file; all are kept in memory
_FROM_NETWORK = ('hf:',)  # datasets that may be downloaded


class Sample(NamedTuple):
  """An image that the page offers."""

  name: str  # name to show
  file: bytes  # content of an image file that a browser can show


def read(loaded: weights.Loaded) -> list[Sample]:
  """Returns a few images of the data that a model was trained on.

  They are from the split of the first evaluation if there is one. The list is
  empty if the model is of no run, or if its data is not on this machine.
  """
  trained = loaded.trained_with
  if trained is None or trained.data.name.startswith(_FROM_NETWORK):
    return []
  splits = [x.split for x in trained.evals.values() if x.split]
  config = trained.copy_and_resolve_references()
  config.train.batch_size = _MOST
  config.data.split = [*splits, trained.data.split][0]
  try:
    source = data.open_source(config, config.data.split)
    examples = examples_lib.load(source, config, _MOST)
  except UserError:
    return []
  samples = []
  for i, name in enumerate(examples.names):
    file = _stored(source.file(i))
    image = examples.image[i]
    has_colours = image.ndim == 3 and image.shape[-1] in (1, 3)
    if file is None and has_colours and image.itemsize == 1:
      file = cv2.imencode('.png', image[..., ::-1])[1].tobytes()
    if file is not None:
      samples.append(Sample(examples_lib.printable(name), file))
  return samples


def _stored(path: str | None) -> bytes | None:
  """Returns the content of a file that the page accepts, if it is one."""
  with contextlib.suppress(OSError, UserError):
    if path and os.path.getsize(path) <= _MOST_BYTES:
      content = pathlib.Path(path).read_bytes()
      uploads.check(content)
      return content
  return None
