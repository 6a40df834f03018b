"""Zero-shot classification: a class is the mean of its prompts' embeddings.

Each prompt's embedding is normalised before the mean, and the mean once more,
as CLIP's notebook "Prompt_Engineering_for_ImageNet" does (arXiv:2103.00020,
section 3.1.4).

In comments: M prompts, K classes, N images, D the width of an embedding.
"""

import numpy as np

_TINY = 1e-12


def normalised(x: np.ndarray) -> np.ndarray:
  """Returns vectors [..., D] at unit length; zero stays zero."""
  norm = np.linalg.norm(x, axis=-1, keepdims=True)
  return x / np.maximum(norm, _TINY)


def class_weights(
  embeddings: np.ndarray, labels: np.ndarray, num_classes: int
) -> np.ndarray:
  """Returns the embedding of each class, float32 [K, D], of unit length.

  Args:
    embeddings: Those of the prompts, float32 [M, D], of any length.
    labels: Class of each prompt, int [M]; classes may have different numbers.
    num_classes: K.

  Raises:
    ValueError: A class has no prompt.
  """
  counts = np.bincount(labels, minlength=num_classes)
  if not counts.all():
    raise ValueError(f'class {int(counts.argmin())} has no prompt')
  total = np.zeros((num_classes, embeddings.shape[1]))
  np.add.at(total, labels, normalised(embeddings.astype(np.float64)))
  return normalised(total / counts[:, None]).astype(np.float32)


def logits(images: np.ndarray, weights: np.ndarray, scale: float) -> np.ndarray:
  """Returns the logits of the classes, [N, K].

  Args:
    images: Embeddings of images, [N, D], of any length.
    weights: From `class_weights`.
    scale: The inverse of the temperature, which does not change the ranking.
  """
  return scale * normalised(images) @ weights.T
