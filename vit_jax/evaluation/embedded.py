"""Embeddings: inputs of a model's head, with labels and positions."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from typing import Any
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.config import UserError
from vit_jax.evaluation import base
from vit_jax.models import stack

_TINY = 1e-12  # avoids a division by 0


@dataclasses.dataclass(frozen=True)
class Embedded:
  """N embedded examples."""

  # The inputs of the head; or all tokens, or the means of all layers, side by
  # side, float32 [N, D].
  features: np.ndarray
  labels: np.ndarray  # positions in the classes of the data, int32 [N]
  index: np.ndarray  # positions in the whole split, before slicing, int32 [N]

  def __len__(self) -> int:
    return len(self.index)

  @classmethod
  def from_batch(cls, outputs: Mapping[str, np.ndarray]) -> Self:
    """Returns the examples of a batch without padding.

    `outputs` come from `embed`. If they have no labels, the labels become -1.
    """
    real = outputs['valid']
    label = outputs.get('label', np.full(len(real), -1, np.int32))
    return cls(outputs['embedding'][real], label[real], outputs['index'][real])


def normalised(x: np.ndarray) -> np.ndarray:
  """Returns vectors [..., D] of length 1; a vector of zeros stays."""
  norm = np.linalg.norm(x, axis=-1, keepdims=True)
  return x / np.maximum(norm, _TINY)


def _with_embedding(
  batch: dict[str, jax.Array], embedding: jax.Array
) -> dict[str, jax.Array]:
  columns = {name: x for name, x in batch.items() if name != 'image'}
  return columns | {'embedding': embedding}


def embed(
  objective: Any, params: Any, batch: dict[str, jax.Array]
) -> dict[str, jax.Array]:
  """Returns `embedding`, float32 [B, D], and the batch without its images."""
  model, params = objective.trunk(params)
  headless = model.clone(num_classes=0)
  features = headless.apply({'params': params}, batch['image'])
  return _with_embedding(batch, jnp.asarray(features, jnp.float32))


def embed_tokens(
  objective: Any, params: Any, batch: dict[str, jax.Array]
) -> dict[str, jax.Array]:
  """Returns what `embed` does, but all tokens side by side, [B, N D].

  Unlike the mean that many heads read, they say where in an image something is.
  """
  model, params = objective.trunk(params)
  outputs = model.apply({'params': params}, batch['image'], method='trunk')
  tokens = jnp.asarray(outputs['tokens'], jnp.float32)
  return _with_embedding(batch, tokens.reshape(len(tokens), -1))


def embed_layers(
  objective: Any, params: Any, batch: dict[str, jax.Array]
) -> dict[str, jax.Array]:
  """Returns what `embed` does, but of all L layers, side by side, [B, L D].

  A layer has the mean of its patches, each brought to mean 0 and variance 1. A
  method that predicts patches or pixels has its best features in a layer in the
  middle (iGPT, Chen et al., 2020; BEiT's code, microsoft/unilm, probes each
  layer).
  """
  model, params = objective.trunk(params)
  check(model, 'layers')
  _, state = model.apply(
    {'params': params}, batch['image'], method='trunk', mutable=[stack.LEVELS]
  )
  tokens = state[stack.LEVELS]['tokens'][:, :, model.prefix_length :]
  means = jax.nn.standardize(tokens.astype(jnp.float32)).mean(axis=2)
  return _with_embedding(batch, jnp.concatenate(list(means), axis=-1))


# What a probe reads of the trunk, by the name in `config.evals.NAME.features`.
READS: Mapping[str, Callable[..., dict[str, jax.Array]]] = {
  'head': embed,
  'tokens': embed_tokens,
  'layers': embed_layers,
}


def check(model: Any, read: str) -> None:
  """Checks that a probe can read a model by `read`, one of `READS`."""
  is_vit = hasattr(model, 'patches')
  merges = is_vit and hasattr(model.block, 'merge')
  if read == 'layers' and not (is_vit and not merges):
    raise UserError(
      "features='layers' is for a ViT whose layers all have the patches of an"
      f' image, and this is a {type(model).__name__}'
      f"{' that merges tokens' if is_vit else ''}: choose 'head'"
    )


def embeddings(
  context: base.Context, split: str, read: str = 'head'
) -> Embedded:
  """Returns all embeddings of a split by one of `READS`, computed once.

  The split is `spec.split` or `train_split` of the evaluator.
  """
  key = 'embeddings', split, read
  if key not in context.shared_results:
    batches = context.apply(READS[read], split)
    context.shared_results[key] = join(
      [Embedded.from_batch(x) for x in batches]
    )
  embeddings: Embedded = context.shared_results[key]
  return embeddings


def join(parts: Sequence[Embedded]) -> Embedded:
  """Returns all examples of several parts, in order."""
  return Embedded(
    features=np.concatenate([part.features for part in parts]),
    labels=np.concatenate([part.labels for part in parts]),
    index=np.concatenate([part.index for part in parts]),
  )
