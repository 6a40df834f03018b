"""Classes that are named by texts: images are compared with prompts."""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import jax

from vit_jax import weights
from vit_jax.config import UserError
from vit_jax.data import features as features_lib
from vit_jax.evaluation import loaded as loaded_lib
from vit_jax.evaluation import zero_shot
from vit_jax.objectives import embedder as embedder_lib


def split(text: str) -> list[str]:
  """Returns the prompts of --prompts."""
  prompts = [prompt.strip() for prompt in text.split(',')]
  if len(prompts) < 2 or not all(prompts):
    raise UserError(
      f'--prompts={text!r}: write at least two texts with commas between them,'
      " as --prompts='a photo of a cat,a photo of a dog'"
    )
  return prompts


def rank(
  loaded: weights.Loaded,
  prompts: Sequence[str],
  top: int,
  batch_size: int,
  batches: Iterable[loaded_lib.Pair],
) -> Iterator[tuple[Any, dict[str, Any]]]:
  """Yields the best prompts for batches of images, as `predictions.predict`.

  The model is one of images and texts; an image gets `top` prompts at most.
  """
  embedder = embedder_lib.Embedder(loaded, batch_size)
  texts = embedder.texts(prompts, '--prompts')
  count = min(top, len(prompts))

  def compare(objective: Any, params: Any, batch: dict[str, jax.Array]) -> Any:
    images = zero_shot.image_features(objective, params, batch)['features']
    probabilities = objective.probabilities(params, images, texts)
    probability, classes = jax.lax.top_k(probabilities, count)
    return {'top': classes, 'probability': probability}

  return embedder.applied(compare, {'image': features_lib.Image(None)}, batches)
