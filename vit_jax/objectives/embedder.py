"""Embeddings of unit length by a loaded model, of images and of texts.

A model of images and texts embeds both in one space. Of another model, the
embedding of an image is the input of the head.

In comments: B images, M texts, E the size of an embedding.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
import hashlib
import json
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict
import numpy as np

from vit_jax import data
from vit_jax import objectives
from vit_jax import weights
from vit_jax.config import UserError
from vit_jax.data import features as features_lib
from vit_jax.evaluation import embedded
from vit_jax.evaluation import loaded as loaded_lib
from vit_jax.evaluation import zero_shot
from vit_jax.models import describing
from vit_jax.models import projection
from vit_jax.objectives import contrastive
from vit_jax.objectives import towers as towers_lib
from vit_jax.objectives import trained


class Embedder:
  """A model on the devices, to embed images and texts.

  Attributes:
    towers: Both towers; None: the model has no text tower.
    params: Parameters of the objective, or of the model.
    applied: Applies functions of these to batches.
  """

  def __init__(self, loaded: weights.Loaded, batch_size: int):
    """Copies the parameters to the devices; compiles nothing yet."""
    self._loaded = loaded
    config = loaded.preprocess.to_config()
    config.train.batch_size = batch_size
    self.towers, self.params = _load_towers(loaded)
    objective = self.towers or loaded_lib.Trunk(loaded.model)
    self.applied = loaded_lib.Applied(objective, self.params, config)

  def images(
    self, batches: Iterable[loaded_lib.Pair]
  ) -> Iterator[tuple[Any, np.ndarray]]:
    """Yields the value of each pair, and the embeddings, float32 [B, E].

    `batches` are pairs of any value and a batch with image: uint8 [B, H, W, C].
    """
    feature = {'image': features_lib.Image(None)}
    yield from self.applied(self._embed, feature, batches)

  def features(
    self, objective: Any, params: Any, batch: dict[str, jax.Array]
  ) -> jax.Array:
    """Returns the embeddings of images as `embed_split` does, float32 [B, E].

    It is for `applied`.
    """
    if self.towers:
      return zero_shot.image_features(objective, params, batch)['features']
    return embedded.embed(objective, params, batch)['embedding']

  def _embed(self, objective: Any, params: Any, batch: Any) -> jax.Array:
    features = self.features(objective, params, batch)
    return features if self.towers else projection.unit(features)

  def texts(self, texts: Sequence[str], flag: str) -> np.ndarray:
    """Returns the embeddings of texts, float32 [M, E].

    `flag` is what names them, for errors, as '--text'.
    """
    if self.towers is None:
      stored = self._loaded.trained_with
      trained = f' was trained for {stored.objective.name}' if stored else ''
      raise UserError(
        f'{flag} needs a model of images and texts, but'
        f' {self._loaded.origin.path}{trained or " has no text tower"}: leave'
        f' {flag} out'
      )
    tokens = self.towers.text.encode_all(texts, flag)
    return zero_shot.embed_texts(self.applied.compute, tokens)

  def digest(self) -> str:
    """Returns a digest of the model and of how images are prepared."""
    digest = hashlib.blake2b(digest_size=8)
    model = self._loaded.model
    settings = [
      self._loaded.preprocess.to_config().data.to_dict(),
      describing.config_values(model),
      jnp.dtype(model.dtype).name,
    ]
    digest.update(json.dumps(settings, default=str).encode())
    for path, x in jax.tree.leaves_with_path(self.params):
      digest.update(jax.tree_util.keystr(path).encode())
      digest.update(np.ascontiguousarray(x).tobytes())
    return digest.hexdigest()


def embed_split(
  loaded: weights.Loaded, config: ConfigDict, source: data.Source
) -> Iterator[embedded.Embedded]:
  """Yields the embeddings of a split, batch by batch.

  Those of a model of images and texts have unit length, in the space that both
  share; of another model, they are the inputs of the head. The config says how
  images are read and prepared, and names the split.
  """

  def embed_shared(
    objective: Any, params: Any, batch: dict[str, jax.Array]
  ) -> dict[str, jax.Array]:
    outputs = zero_shot.image_features(objective, params, batch)
    return outputs | {'embedding': outputs['features']}

  towers, params = _load_towers(loaded)
  objective = towers or loaded_lib.Trunk(loaded.model)
  function = embed_shared if towers else embedded.embed
  split = config.data.split
  context = loaded_lib.LoadedContext(objective, params, config, {split: source})
  return map(embedded.Embedded.from_batch, context.apply(function, split))


def _load_towers(
  loaded: weights.Loaded,
) -> tuple[towers_lib.Towers | None, Any]:
  """Returns both towers of a model, or None, and the parameters."""
  stored, towers = loaded.trained_with, None
  if stored is None:
    towers = towers_lib.from_loaded(loaded)
  elif loaded.objective_params and issubclass(
    objectives.objective_class(stored), contrastive.Contrastive
  ):
    objective, params = trained.restored(loaded)
    assert isinstance(objective, contrastive.Contrastive)
    towers = objective, params
  return towers or (None, loaded.params)
