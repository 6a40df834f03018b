"""A loaded model that answers batches of images, of a few compiled sizes.

In comments: B images, K classes or quantities, E the size of an embedding.
"""

from collections.abc import Sequence
import math
from typing import Any
from typing import NamedTuple

from absl import logging
import jax
import numpy as np

from vit_jax import weights
from vit_jax.config import UserError
from vit_jax.data import features as features_lib
from vit_jax.evaluation import predictions
from vit_jax.objectives import embedder as embedder_lib
from vit_jax.objectives import segmenter

MOST_CLASSES = 1000  # of an answer


class Answer(NamedTuple):
  """What a model says of one image.

  Attributes:
    embedding: float32 [E].
    numbers: int32 [k], positions of the most probable classes, the most
      probable first, or of all quantities; None: the model has no head.
    values: float32 [k], their probabilities, or the quantities.
  """

  embedding: np.ndarray
  numbers: np.ndarray | None = None
  values: np.ndarray | None = None


class Answerer:
  """A model on the devices.

  Attributes:
    loaded: The model.
    head: Interprets its logits; None: it has no head.
    sizes: Sizes of the batches that are compiled, in ascending order.
  """

  def __init__(self, loaded: weights.Loaded, batch_size: int):
    """Copies the parameters to the devices; compiles nothing yet.

    Args:
      loaded: A model of images, as `check` wants it.
      batch_size: The largest number of images in a batch.
    """
    self.loaded = loaded
    self._embedder = embedder_lib.Embedder(loaded, batch_size)
    self.head = None
    if loaded.model.num_classes and not self._embedder.towers:
      self.head = predictions.Head.from_loaded(loaded, MOST_CLASSES)
    # As many as the devices that share a batch, and doubled from there.
    smallest = math.gcd(batch_size, jax.device_count())
    doublings = (batch_size // smallest).bit_length()
    self.sizes = [smallest << i for i in range(doublings)]
    if self.sizes[-1] < batch_size:
      self.sizes.append(batch_size)

  def warm(self) -> None:
    """Compiles all that `__call__` runs."""
    blank = self.pixels(np.zeros((64, 64), np.uint8))
    for size in self.sizes:
      logging.info('compiling batches of %d images', size)
      self([blank] * size)

  def pixels(self, image: bytes | np.ndarray) -> np.ndarray:
    """Decodes and crops an image, to uint8 or uint16 [H, W, C]."""
    stored: np.ndarray = self.loaded.preprocess.pixels(image)[0]
    return stored

  def __call__(self, images: Sequence[np.ndarray]) -> list[Answer]:
    """Returns the answers for images from `pixels`, at most `sizes[-1]`."""
    count = len(images)
    size = next(size for size in self.sizes if size >= count)
    batch = np.zeros((size, *images[0].shape), images[0].dtype)
    np.stack(images, out=batch[:count])
    ((_, outputs),) = self._embedder.applied(
      self._answer,
      {'image': features_lib.Image(None)},
      [(None, {'image': batch})],
    )
    columns = [
      outputs[name][:count] for name in Answer._fields if name in outputs
    ]
    return [Answer(*row) for row in zip(*columns, strict=True)]

  def _answer(
    self, objective: Any, params: Any, batch: dict[str, jax.Array]
  ) -> dict[str, jax.Array]:
    """Returns the columns of answers, [B, ...], as in `Answer`."""
    embedding = self._embedder.features(objective, params, batch)
    if self.head is None:
      return {'embedding': embedding}
    # The compiler sees that these are the same layers as the embedding's.
    logits = objective.model.apply({'params': params}, batch['image'])
    ranking = self.head.rank(logits)
    return {
      'embedding': embedding,
      'numbers': ranking['top'],
      'values': ranking['probability'],
    }


def check(loaded: weights.Loaded) -> None:
  """Raises a UserError if a model takes no images, or answers with maps."""
  path, preprocess = loaded.origin.path, loaded.preprocess
  if type(preprocess.input) is not features_lib.Image:
    raise UserError(
      f'--from={path} takes {preprocess.input.inputs}, and images are served:'
      ' see what predict writes'
    )
  if len(preprocess.image_size) != 2:
    raise UserError(
      f'--from={path} takes volumes, and images are served: see what predict'
      ' writes'
    )
  if segmenter.is_segmentation(loaded):
    raise UserError(
      f'--from={path} is a model of segmentation, and names or embeddings are'
      ' served: predict writes its maps'
    )
