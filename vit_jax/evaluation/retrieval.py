"""Retrieval of captions by images, and of images by captions.

Recall at k is the share of the queries with at least one of their own items
among the k nearest (arXiv:2102.05918, section 4.2). The earlier of two equally
similar items counts as nearer.
"""

from collections.abc import Mapping
from collections.abc import Sequence

import numpy as np

from vit_jax import data
from vit_jax.evaluation import base
from vit_jax.evaluation import knn
from vit_jax.evaluation import zero_shot

AT = (1, 5, 10)
_WAYS = ('image_to_text', 'text_to_image')


class Retrieval(base.Evaluator):
  """Recalls of all captions, both ways.

  A caption of any image is a query, and an image's own captions are equally
  right, as on COCO (arXiv:1504.00325), where each image has five. Images with
  equal captions own each of them, and equal captions are one.
  """

  metrics: Mapping[str, str] = {
    **{f'{way}@{k}': 'max' for way in _WAYS for k in AT},
    'examples': 'max',
  }

  def check_sources(
    self, source: data.Source, train_source: data.Source | None
  ) -> None:
    """Checks that images have captions, which are read from the source."""
    del train_source
    zero_shot.text_feature(source.features, self.kind)
    self._source = source

  def run(self, context: base.Context) -> base.Scalars:
    """Embeds images and captions, and compares all of them."""
    parts = [
      batch['features'][batch['valid']]
      for batch in context.apply(zero_shot.image_features, self.spec.split)
    ]
    images = np.concatenate(parts)
    text = zero_shot.text_feature(context.features, self.kind)
    captions = [self._source.captions(i) for i in range(len(self._source))]
    image = np.repeat(np.arange(len(captions)), [len(x) for x in captions])
    tokens = text.encode_all([x for row in captions for x in row], 'captions')
    tokens, caption = np.unique(tokens, axis=0, return_inverse=True)
    pairs = np.stack([image, caption.reshape(-1)], axis=1)
    texts = zero_shot.embed_texts(context.compute, tokens)
    return recalls(images, texts, pairs) | {'examples': float(len(images))}


def recalls(
  images: np.ndarray,
  texts: np.ndarray,
  pairs: np.ndarray,
  at: Sequence[int] = AT,
) -> dict[str, float]:
  """Returns the recalls of texts by images, and of images by texts.

  Their names are 'image_to_text@1', ..., 'text_to_image@10'. Embeddings are
  compared by their inner products.

  Args:
    images: Embeddings [N, D].
    texts: Embeddings [M, D].
    pairs: int [pairs, 2], an image and a text that belong together.
    at: Values of k.
  """
  results = {}
  sides = images, texts
  for i, way in enumerate(_WAYS):
    queries, items = sides[i], sides[1 - i]
    most = min(max(at), len(items))
    _, neighbors = knn.nearest(items, queries, most, cosine=False)
    numbers = np.arange(len(queries))[:, None] * len(items) + neighbors
    is_own = np.isin(numbers, pairs[:, i] * len(items) + pairs[:, 1 - i])
    for k in at:
      results[f'{way}@{k}'] = float(is_own[:, :k].any(axis=1).mean())
  return results
