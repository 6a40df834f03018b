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
from vit_jax.evaluation import zero_shot

AT = (1, 5, 10)
_QUERIES = 1024  # that are compared at a time
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
    tokens, pairs = self._captions(context)
    texts = zero_shot.embed_texts(context.compute, tokens)
    sides = images, texts
    ranks_by_way = {
      way: _all_ranks(sides[i], sides[1 - i], pairs[:, i], pairs[:, 1 - i])
      for i, way in enumerate(_WAYS)
    }
    return _recalls(ranks_by_way, AT) | {'examples': float(len(images))}

  def _captions(self, context: base.Context) -> tuple[np.ndarray, np.ndarray]:
    """Returns the tokens of all captions, and whose they are.

    int32 [texts, T], different from each other; and int [pairs, 2], an image
    and a text that belong together.
    """
    text = zero_shot.text_feature(context.features, self.kind)
    captions = [self._source.captions(i) for i in range(len(self._source))]
    image = np.repeat(np.arange(len(captions)), [len(x) for x in captions])
    tokens = text.encode_all(
      [x for image_captions in captions for x in image_captions], 'captions'
    )
    tokens, caption = np.unique(tokens, axis=0, return_inverse=True)
    pairs = np.stack([image, caption.reshape(-1)], axis=1)
    return tokens, np.unique(pairs, axis=0)


def _all_ranks(
  queries: np.ndarray,
  items: np.ndarray,
  query: np.ndarray,
  item: np.ndarray,
) -> np.ndarray:
  """Returns the `ranks` of all queries, which are compared in blocks.

  queries: Embeddings, [queries, D].
  items: Embeddings, [items, D].
  query: Query of each pair, int [pairs].
  """
  rank_blocks = []
  for start in range(0, len(queries), _QUERIES):
    similarity = queries[start : start + _QUERIES] @ items.T
    in_block = (start <= query) & (query < start + _QUERIES)
    is_own = np.zeros(similarity.shape, bool)
    is_own[query[in_block] - start, item[in_block]] = True
    rank_blocks.append(ranks(similarity, is_own))
  return np.concatenate(rank_blocks)


def ranks(similarity: np.ndarray, is_own: np.ndarray) -> np.ndarray:
  """Returns the rank of each query's nearest own item, from 0, int [queries].

  similarity: [queries, items].
  is_own: bool [queries, items], whether an item belongs to a query; each query
  has at least one.
  """
  order = np.argsort(-similarity, axis=1, kind='stable')
  return np.take_along_axis(is_own, order, axis=1).argmax(axis=1)


def _recalls(
  ranks_by_way: Mapping[str, np.ndarray], at: Sequence[int]
) -> dict[str, float]:
  """Returns the recall at each k of `at` for the ranks of each way."""
  return {
    f'{way}@{k}': float((x < k).mean())
    for way, x in ranks_by_way.items()
    for k in at
  }


def both_ways(
  similarity: np.ndarray, image_of_text: np.ndarray, at: Sequence[int] = AT
) -> dict[str, float]:
  """Returns the recalls of texts by images, and of images by texts.

  similarity: [images, texts].
  image_of_text: Image that each text describes, int [texts]; an image may have
  several texts.
  'image_to_text@1', ..., 'text_to_image@10'.
  """
  is_own = np.arange(len(similarity))[:, None] == image_of_text
  sides = ranks(similarity, is_own), ranks(similarity.T, is_own.T)
  return _recalls(dict(zip(_WAYS, sides, strict=True)), at)
