"""Sentences that are compared with one image, and what its places add to each.

What a place adds is how much the cosine of the image and a sentence falls when
the place is hidden (Zeiler and Fergus, arXiv:1311.2901, section 4.2). This asks
the whole model, so it holds for any pool: a class token, a mean of patches, or
attention pooling. The outputs of patches would say less: in layers before,
patches take from each other, and what is read at one may be of another place.

In comments: C sentences, S places, E the size of an embedding.
"""

from collections.abc import Sequence
import dataclasses
from typing import Any
from typing import Self

import jax
import numpy as np

from vit_jax import weights
from vit_jax.config import UserError
from vit_jax.data import captions
from vit_jax.objectives import embedder as embedder_lib
from vit_jax.weights import features

MOST = 256  # sentences at a time
_LEAST = 16  # sentences that are compiled for; then twice as many
_PLACES = 64  # maximum number of places, which are hidden one by one
_AT_ONCE = 8  # hidden places in a batch


@dataclasses.dataclass(frozen=True)
class Fit:
  """How C sentences fit an image."""

  # The probability of each sentence, float32 [C]; see `Towers.probabilities`.
  probability: np.ndarray
  # The cosine of the embeddings of each sentence and the image, float32 [C].
  cosine: np.ndarray
  # How much `cosine` falls if a patch is hidden, with its neighbours if there
  # are many patches, float32 [C, h, w].
  places: np.ndarray


@dataclasses.dataclass(frozen=True)
class Sentences:
  """A model of images and texts, which compares sentences with an image."""

  embedder: embedder_lib.Embedder
  towers: Any
  grid: tuple[int, int]  # (h, w) of the patches

  @property
  def independent(self) -> bool:
    """Whether each sentence has a probability of its own.

    With SigLIP's loss, each has one. Otherwise the probabilities of all
    sentences add up to 1.
    """
    has_bias: bool = self.towers.towers.has_bias
    return has_bias

  @classmethod
  def load(cls, loaded: weights.Loaded) -> Self | None:
    """Returns a model copied to the device; None: it has no text tower."""
    embedder = embedder_lib.Embedder(loaded, batch_size=1)
    towers = embedder.towers
    if towers is None:
      return None
    return cls(embedder, towers, features.patch_grid(loaded))

  def compare(self, image: np.ndarray, sentences: Sequence[str]) -> Fit:
    """Returns how sentences fit an image.

    `image` is the input of the model, float32 [1, H, W, channels].
    """
    tokens = self.towers.text.encode_all(sentences, 'a sentence')
    count, size = len(tokens), _LEAST
    while size < count:
      size *= 2
    padded = np.pad(tokens, ((0, size - count), (0, 0)))
    number = windows(self.grid)
    rows, columns = (
      np.arange(length) * n // length
      for length, n in zip(image.shape[1:3], number.shape, strict=True)
    )
    places = np.arange(number.max() + 1)[:, None, None]
    # Which pixels stay if a place is hidden.
    visible = (number[rows][:, columns] != places)[..., None]
    embeddings = self.embedder.applied.compute(
      _embed, {'image': image, 'shown': visible, 'tokens': padded}
    )
    texts = embeddings['texts'][:count]
    probability = self.towers.probabilities(
      self.embedder.params, embeddings['image'], texts
    )
    cosine = texts @ embeddings['image'][0]
    falls = cosine[:, None] - texts @ embeddings['hidden'].T  # [C, S]
    return Fit(np.asarray(probability[0], np.float32), cosine, falls[:, number])


def windows(grid: tuple[int, int]) -> np.ndarray:
  """Returns the number of the place that each patch is in, int [h, w].

  Places are squares of patches, as small as 64 of them allow. `grid` is (h, w).
  """
  h, w = grid
  side = 1
  while -(-h // side) * -(-w // side) > _PLACES:
    side += 1
  rows, columns = np.arange(h) // side, np.arange(w) // side
  numbers: np.ndarray = rows[:, None] * -(-w // side) + columns
  return numbers


def split(text: str, template: str = '{}') -> list[str]:
  """Returns the sentences of a text, each within a template.

  The sentences are the lines of the text. In a text of one line, they are the
  parts between commas. `template` has {} where a sentence goes.
  """
  (template,) = captions.check_templates([template.strip() or '{}'], 'template')
  lines = [x.strip() for x in text.splitlines() if x.strip()]
  parts = lines[0].split(',') if len(lines) == 1 else lines
  sentences = [x.strip() for x in parts if x.strip()]
  if not sentences:
    raise UserError('there is no sentence: write one, or several classes')
  if len(sentences) > MOST:
    raise UserError(
      f'there are {len(sentences)} sentences, and at most {MOST} are compared'
      ' at a time: leave some out'
    )
  return [x for name in sentences for x in captions.fill([template], name)]


def _embed(
  objective: Any, params: Any, inputs: dict[str, jax.Array]
) -> dict[str, jax.Array]:
  """Returns embeddings of `image` [1, E], `hidden` [S, E] and `texts` [C, E].

  `inputs` are `image`, float32 [1, H, W, channels]; `shown`, bool [S, H, W, 1],
  False where a place is hidden; and `tokens`, int32 [C, T].
  """
  image = inputs['image']

  def embed(visible: jax.Array) -> jax.Array:
    # 0 is the mean colour of the data that the model was trained on.
    masked = image * visible
    embedding: jax.Array = objective.embed(params, 'image', masked)[0]
    return embedding

  return {
    'image': objective.embed(params, 'image', image),
    'hidden': jax.lax.map(embed, inputs['shown'], batch_size=_AT_ONCE),
    'texts': objective.text_outputs(params, inputs['tokens'])['text_features'],
  }
