"""Checks the size that `config.data.source_size` says all images have."""

import ml_collections

from vit_jax import config as config_lib
from vit_jax.config import UserError
from vit_jax.data import base
from vit_jax.data import features
from vit_jax.data import folder
from vit_jax.data.host import decode
from vit_jax.data.host import transforms


def check(config: ml_collections.ConfigDict, source: base.Source) -> None:
  """Checks the sizes of some images before anything is compiled."""
  image_size = features.image(source.features).size or ()
  # Volumes and videos have three sides; their sources look at them.
  if len(image_size) != 2:
    return
  config_lib.pair(config.data.source_size, 'data.source_size')
  step = -(-len(source) // folder.SAMPLE)
  for position in range(0, len(source), step):
    try:
      example = source.read(position)
    except UserError:
      continue  # a run names the file when it needs it
    image = example.image
    if isinstance(image, bytes):
      size = decode.upright_size(image)
    else:
      size = image.shape[0], image.shape[1]
    if size is not None:
      transforms.check_size(size, image_size, example.origin)
