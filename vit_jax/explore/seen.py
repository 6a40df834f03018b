"""What is seen of images in one pass, kept as small as the pictures need it.

In comments: B images, N tokens (P before the patches), D hidden size, H heads,
L layers, (h, w) the grid of patches.
"""

import dataclasses

import jax
import numpy as np

from vit_jax import weights
from vit_jax.explore import answers
from vit_jax.explore import attention as attention_lib
from vit_jax.explore import tokens as tokens_lib
from vit_jax.models import vit as vit_lib
from vit_jax.weights import features

_MOST_TOKENS = 2**30  # bytes up to which the tokens of all layers are kept


@dataclasses.dataclass(frozen=True)
class Attention:
  """What is seen of attention.

  Attributes:
    maps: float32 [L, B, H, h, w], of the class token, or of the mean patch.
    query: float32 [L, B, h, w], of the chosen patch, mean over heads.
    rollout: float32 [B, h, w].
    distance: float32 [L, H], in pixels.
    entropy: float32 [L, H], in nats.
  """

  maps: np.ndarray
  query: np.ndarray
  rollout: np.ndarray
  distance: np.ndarray
  entropy: np.ndarray


@dataclasses.dataclass(frozen=True)
class Seen:
  """What is seen of B images.

  Attributes:
    logits: float32 [B, classes].
    norms: Of the tokens, float32 [L, B, N].
    similarity: Of each patch to the chosen one, cosine, float32 [L, B, h, w].
    tokens: Of the layers in `kept`, float32 [len(kept), B, N, D].
    kept: Indices of layers: all of them, or where that is too much, those that
      were asked for.
    attention: None of a Mixer.
  """

  logits: np.ndarray
  norms: np.ndarray
  similarity: np.ndarray
  tokens: np.ndarray
  kept: tuple[int, ...]
  attention: Attention | None

  def tokens_of(self, layer: int) -> np.ndarray:
    """Returns the tokens of a layer that was kept, [B, N, D]."""
    return self.tokens[self.kept.index(layer)]


def look(
  vit: weights.Loaded,
  inputs: np.ndarray,
  query: tuple[int, int],
  layers: tuple[int, ...],
) -> Seen:
  """Looks at images.

  Args:
    vit: A ViT, hybrid or Mixer.
    inputs: float32 [B, H, W, C], as `vit.preprocess` makes it.
    query: (row, column) of the chosen patch.
    layers: Of which the tokens are kept, whatever their size.

  Raises:
    UserError: The model has no tokens, its output is not finite, or there is
      no such patch.
  """
  features.check_tokens(vit)
  grid = features.patch_grid(vit)
  index = features.patch_index(vit, query)
  kept = _kept(vit, len(inputs), layers)
  attends = isinstance(vit.model, vit_lib.ViT)

  def reduce(seen: dict[str, jax.Array]) -> dict[str, jax.Array]:
    tokens = seen['tokens']
    found = {
      'logits': seen['logits'][None],
      'norms': tokens_lib.norms(tokens),
      'similarity': jax.vmap(
        lambda layer: tokens_lib.similarity_to(layer, grid, index)
      )(tokens),
      'tokens': tokens[np.asarray(kept)],
    }
    if attends:
      found |= _reduce_attention(vit, seen['attention'], query)
    return found

  names = ('logits', 'tokens', *(['attention'] if attends else []))
  found = features.reduced(vit, inputs, names, reduce, axis=1)
  answers.check_finite(found['logits'])
  return Seen(
    logits=found['logits'][0],
    norms=found['norms'],
    similarity=found['similarity'],
    tokens=found['tokens'],
    kept=kept,
    attention=_attention(found) if attends else None,
  )


def _kept(
  vit: weights.Loaded, images: int, layers: tuple[int, ...]
) -> tuple[int, ...]:
  """Returns the layers whose tokens are kept."""
  tokens = features.num_tokens(vit)
  width: int = getattr(vit.model, 'hidden_size', 0)
  depth = features.depth(vit)
  fits = 4 * depth * images * tokens * width <= _MOST_TOKENS
  return tuple(range(depth)) if fits else layers


def _reduce_attention(
  vit: weights.Loaded, attention: jax.Array, query: tuple[int, int]
) -> dict[str, jax.Array]:
  """Returns what is kept of attention [L, B, H, N, N]; B comes second."""
  grid, patch = features.patch_grid(vit), attention_lib.patch_size(vit)
  prefix = features.prefix_length(vit)
  class_queries = attention_lib.shown_queries(vit)
  queries = attention_lib.shown_queries(vit, query)
  rolled = attention_lib.read_out(vit, attention_lib.rollout(attention))
  return {
    'maps': attention_lib.maps(attention, grid, class_queries),
    'query': attention_lib.maps(attention, grid, queries).mean(axis=2),
    'rollout': rolled[None],
    'distance': attention_lib.distances(attention, grid, patch, prefix),
    'entropy': attention_lib.entropies(attention),
  }


def _attention(found: dict[str, np.ndarray]) -> Attention:
  return Attention(
    maps=found['maps'],
    query=found['query'],
    rollout=found['rollout'][0],
    distance=found['distance'].mean(axis=1),
    entropy=found['entropy'].mean(axis=1),
  )
