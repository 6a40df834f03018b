"""Examples as a model embeds them: what its head reads."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import dataclasses
from typing import Any
from typing import Self

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from vit_jax import data
from vit_jax import weights
from vit_jax.data.device import views
from vit_jax.evaluation import applied


@dataclasses.dataclass(frozen=True)
class Embedded:
  """N embedded examples.

  Attributes:
    features: float32 [N, D], what the head reads.
    labels: int32 [N], positions in the classes of the data.
    index: int32 [N], positions in the unsliced split.
  """

  features: np.ndarray
  labels: np.ndarray
  index: np.ndarray

  def __len__(self) -> int:
    return len(self.labels)

  @classmethod
  def of_batch(
    cls, features: np.ndarray, batch: Mapping[str, np.ndarray]
  ) -> Self:
    """Returns the examples of a batch that are no padding.

    Args:
      features: float32 [B, D].
      batch: index, valid and, where there is one, label, as
        `data.eval_batches` has them; without, each is -1.
    """
    real = batch['valid']
    label = batch.get('label', np.full(len(real), -1, np.int32))
    return cls(features[real], label[real], batch['index'][real])


def join(parts: Sequence[Embedded]) -> Embedded:
  """Returns all examples of several parts, in order."""
  return Embedded(
    features=np.concatenate([part.features for part in parts]),
    labels=np.concatenate([part.labels for part in parts]),
    index=np.concatenate([part.index for part in parts]),
  )


class Embedder:
  """A loaded model without its head, on as many devices as divide the batch."""

  def __init__(
    self,
    loaded: weights.Loaded,
    config: ml_collections.ConfigDict,
    image_shape: tuple[int, int] | None,
  ):
    """Prepares; compiles nothing yet.

    Args:
      loaded: The model.
      config: Says how images are read and normalised, from
        `loaded.preprocess`; `train.batch_size` at a time.
      image_shape: (height, width) of images that are to be resized on the
        device, None where they come in the model's size.
    """
    model = loaded.model.clone(num_classes=0)
    prepare = views.eval_transform(config, image_shape)

    def embed(params: Any, batch: Mapping[str, jax.Array]) -> jax.Array:
      found = model.apply({'params': params}, prepare(batch['image']))
      return jnp.asarray(found, jnp.float32)

    self._config = config
    self._applied = applied.Applied(
      embed, loaded.params, config.train.batch_size
    )

  def embed(self, source: data.Source) -> Iterator[Embedded]:
    """Yields the examples of a split in order, a batch at a time.

    Args:
      source: Its images are as the embedder was made for.

    Raises:
      UserError: An image cannot be read.
    """
    size = self._config.train.batch_size
    with contextlib.closing(
      data.eval_batches(source, self._config, batch_size=size)
    ) as batches:
      pairs = ((batch, {'image': batch['image']}) for batch in batches)
      for batch, features in self._applied(pairs):
        yield Embedded.of_batch(features, batch)

  def embed_all(
    self, source: data.Source, progress: Callable[[int], object]
  ) -> Embedded:
    """Returns all examples of a split.

    Args:
      source: As for `embed`.
      progress: Is called with the number of examples that were embedded.

    Raises:
      UserError: An image cannot be read.
    """
    parts = []
    for part in self.embed(source):
      parts.append(part)
      progress(len(part))
    return join(parts)
