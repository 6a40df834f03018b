"""Zero-shot classification: a class is the mean of its prompts' embeddings.

A prompt is a template with the name of the class: 'a photo of a dog.' Each
prompt's embedding is normalised before the mean, and the mean once more, as
CLIP's notebook "Prompt_Engineering_for_ImageNet" does (arXiv:2103.00020,
section 3.1.4).

In comments: M prompts, K classes, N images, D the width of an embedding.
"""

from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

import jax
import ml_collections
import numpy as np

from vit_jax import data
from vit_jax.config import UserError
from vit_jax.data import captions
from vit_jax.data import features as features_lib
from vit_jax.data import text_kind
from vit_jax.evaluation import base
from vit_jax.evaluation import embedded
from vit_jax.evaluation import intervals
from vit_jax.evaluation import knn

_PROMPTS = 256  # that are embedded at a time
_TOP = 5


class ZeroShot(base.Evaluator):
  """Accuracy of the classes whose prompts are closest to an image."""

  metrics: Mapping[str, str] = {
    'accuracy': 'max',
    'top5_accuracy': 'max',
    'examples': 'max',
  }

  def __init__(
    self,
    spec: ml_collections.ConfigDict,
    templates: str = 'a photo of a {}.',
    class_names: str = '',
  ):
    """Takes the options.

    Args:
      spec: The entry of `config.evals`.
      templates: Captions of a class, with {} for its name. They are written as
        'A {}.|B {}.', or as a list of vit_jax/data/templates, such as
        'imagenet', or as a file with one caption per line.
      class_names: Names of the classes, as in `data.class_names`.
    """
    super().__init__(spec)
    self._templates = captions.parse(templates, 'templates')
    self._class_names = class_names

  def check_sources(
    self, source: data.Source, train_source: data.Source | None
  ) -> None:
    """Checks that images have classes, and the names of these."""
    del train_source
    text_feature(source.features, self.kind)
    try:
      self._names(source.features)
    except UserError as e:
      raise base.EvaluationError(str(e)) from None

  def run(self, context: base.Context) -> base.Scalars:
    """Embeds the prompts and the images, and compares them."""
    names, templates = self._names(context.features), self._templates
    prompts = [x for name in names for x in captions.fill(templates, name)]
    text = text_feature(context.features, self.kind)
    embeddings = embed_texts(
      context.compute, text.encode_all(prompts, 'templates')
    )
    labels = np.repeat(np.arange(len(names)), len(templates))
    weights = class_weights(embeddings, labels, len(names))
    right, top, count = 0, 0, 0
    for outputs in context.apply(image_features, self.spec.split):
      real = outputs['valid']
      images, truth = outputs['features'][real], outputs['label'][real]
      most = min(_TOP, len(names))
      _, nearest = knn.nearest(weights, images, most, cosine=False)
      is_own = nearest == truth[:, None]
      right += int(is_own[:, 0].sum())
      top += int(is_own.sum())
      count += len(truth)
    shares = {'accuracy': right / count, 'top5_accuracy': top / count}
    return shares | {'examples': float(count)}

  def intervals(
    self, results: Mapping[str, float]
  ) -> dict[str, tuple[float, float] | None]:
    """Returns Wilson's intervals of the accuracies, over examples."""
    return intervals.accuracy_intervals(results)

  def _names(self, features: features_lib.Features) -> tuple[str, ...]:
    classes = captions.label_classes(features, self.kind, 'these data')
    return captions.class_names(
      self._class_names, classes, 'config.evals.NAME.kind, class_names'
    )


def text_feature(features: features_lib.Features, kind: str) -> text_kind.Text:
  """Returns the feature of captions, or raises an EvaluationError without any.

  `kind` names the evaluation in the error.
  """
  feature = features.get('text')
  if isinstance(feature, text_kind.Text) and feature.length:
    return feature
  raise base.EvaluationError(
    f'{kind} compares images with texts, but there is no tokenizer: set'
    ' config.data.tokenizer'
  )


def embed_texts(
  compute: Callable[[base.Compute, Any], Any], tokens: np.ndarray
) -> np.ndarray:
  """Returns the embeddings of tokens [M, T], float32 [M, D].

  `compute` applies a function to arrays, as `base.Context.compute`.
  """
  parts = []
  for start in range(0, len(tokens), _PROMPTS):
    part = tokens[start : start + _PROMPTS]
    # All parts have one size, so that the function is compiled once.
    missing = min(len(tokens), _PROMPTS) - len(part)
    padded = np.pad(part, ((0, missing), (0, 0)))
    parts.append(compute(text_features, padded)[: len(part)])
  return np.concatenate(parts)


def image_features(
  objective: Any, params: Any, batch: dict[str, jax.Array]
) -> dict[str, jax.Array]:
  """Returns the embeddings of images, and the rest of the batch."""
  columns = {name: x for name, x in batch.items() if name != 'image'}
  images = {'image': batch['image']}
  return columns | {'features': objective.outputs(params, images)['features']}


def text_features(objective: Any, params: Any, tokens: jax.Array) -> jax.Array:
  """Returns the embeddings of tokens, float32 [M, D]."""
  features: jax.Array = objective.text_outputs(params, tokens)['text_features']
  return features


def class_weights(
  embeddings: np.ndarray, labels: np.ndarray, num_classes: int
) -> np.ndarray:
  """Returns the embedding of each class, float32 [K, D], of unit length.

  The embeddings of the prompts, [M, D], may have any length. `labels`, int [M],
  are their classes, which may have different numbers of prompts, but at least
  one.
  """
  counts = np.bincount(labels, minlength=num_classes)
  if not counts.all():
    raise ValueError(f'class {int(counts.argmin())} has no prompt')
  total = np.zeros((num_classes, embeddings.shape[1]))
  np.add.at(total, labels, embedded.normalised(embeddings.astype(np.float64)))
  return embedded.normalised(total / counts[:, None]).astype(np.float32)


def logits(images: np.ndarray, weights: np.ndarray, scale: float) -> np.ndarray:
  """Returns the logits of the classes, [N, K], for `class_weights`.

  The embeddings of images, [N, D], may have any length. The scale is the
  inverse of the temperature, which does not change the ranking.
  """
  return scale * embedded.normalised(images) @ weights.T
