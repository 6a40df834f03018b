"""Values captured in one forward pass, reduced to those that pictures show.

In comments: B images, N tokens (P before the patches), D hidden size, H heads,
L layers, (h, w) the grid of patches.
"""

import dataclasses

import jax
import numpy as np

from vit_jax import weights
from vit_jax.explore import attention as attention_lib
from vit_jax.explore import predictions
from vit_jax.explore import tokens as tokens_lib
from vit_jax.models import vit as vit_lib
from vit_jax.weights import features

_MOST_BYTES = 2**30  # maximum size of the tokens of all layers to keep


@dataclasses.dataclass(frozen=True)
class Attention:
  """Captured attention.

  Attributes:
    maps: Attention of the class token, else of the mean patch, float32
      [L, B, H, h, w].
    query: Attention of the chosen patch, mean over heads, float32
      [L, B, h, w].
    rollout: Attention rollout, float32 [B, h, w].
    distance: Attention distance in pixels, float32 [L, H].
    entropy: Attention entropy in nats, float32 [L, H].
  """

  maps: np.ndarray
  query: np.ndarray
  rollout: np.ndarray
  distance: np.ndarray
  entropy: np.ndarray


@dataclasses.dataclass(frozen=True)
class Captured:
  """Captured values of B images.

  Attributes:
    logits: float32 [B, classes].
    norms: L2 norms of the tokens, float32 [L, B, N].
    similarity: Cosine similarity of each patch to the chosen one, float32
      [L, B, h, w].
    tokens: Tokens of the layers in `layers`, float32 [len(layers), B, N, D].
    layers: Indices of all layers, or of the requested ones if all would take
      too much memory.
    attention: Captured attention; None for a Mixer.
  """

  logits: np.ndarray
  norms: np.ndarray
  similarity: np.ndarray
  tokens: np.ndarray
  layers: tuple[int, ...]
  attention: Attention | None

  def layer_tokens(self, layer: int) -> np.ndarray:
    """Returns the tokens of a layer in `layers`, [B, N, D]."""
    return self.tokens[self.layers.index(layer)]


def capture(
  vit: weights.Loaded,
  inputs: np.ndarray,
  query: tuple[int, int],
  layers: tuple[int, ...],
) -> Captured:
  """Runs a model on images and captures what the pictures show.

  inputs: float32 [B, H, W, C], as `vit.preprocess` makes it.
  """
  features.check_tokens(vit)
  grid = features.patch_grid(vit)
  index = features.patch_index(vit, query)
  layers = _layers_to_keep(vit, len(inputs), layers)
  attends = isinstance(vit.model, vit_lib.ViT)

  def reduce(values: dict[str, jax.Array]) -> dict[str, jax.Array]:
    tokens = values['tokens']
    similarity = jax.vmap(
      lambda layer: tokens_lib.similarity_to(layer, grid, index)
    )
    arrays = {
      'logits': values['logits'][None],
      'norms': tokens_lib.norms(tokens),
      'similarity': similarity(tokens),
      'tokens': tokens[np.asarray(layers)],
    }
    if attends:
      arrays |= _reduce_attention(vit, values['attention'], query)
    return arrays

  names = ('logits', 'tokens', *(['attention'] if attends else []))
  arrays = features.reduced(vit, inputs, names, reduce, axis=1)
  logits = arrays.pop('logits')[0]
  predictions.check_finite(logits)
  attention = _pop_attention(arrays) if attends else None
  return Captured(logits=logits, layers=layers, attention=attention, **arrays)


def _layers_to_keep(
  vit: weights.Loaded, images: int, layers: tuple[int, ...]
) -> tuple[int, ...]:
  """Returns all layers, or `layers` if all tokens would be too large."""
  tokens = features.num_tokens(vit)
  width: int = getattr(vit.model, 'hidden_size', 0)
  depth = features.depth(vit)
  fits = 4 * depth * images * tokens * width <= _MOST_BYTES
  return tuple(range(depth)) if fits else layers


def _reduce_attention(
  vit: weights.Loaded, attention: jax.Array, query: tuple[int, int]
) -> dict[str, jax.Array]:
  """Reduces attention [L, B, H, N, N] to arrays whose second axis is B."""
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


def _pop_attention(arrays: dict[str, np.ndarray]) -> Attention:
  """Removes the arrays of `_reduce_attention` and returns them."""
  return Attention(
    maps=arrays.pop('maps'),
    query=arrays.pop('query'),
    rollout=arrays.pop('rollout')[0],
    distance=arrays.pop('distance').mean(axis=1),
    entropy=arrays.pop('entropy').mean(axis=1),
  )
