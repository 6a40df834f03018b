"""The content of the page for an image: predictions, attention, sentences.

In comments: L layers, H heads, N tokens, P patches.
"""

from collections.abc import Mapping
import dataclasses
import json
import struct
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax import config as config_lib
from vit_jax import weights
from vit_jax.evaluation import predictions as evaluation_predictions
from vit_jax.explore import attention as attention_lib
from vit_jax.explore import predictions
from vit_jax.explore import sentences as sentences_lib
from vit_jax.models import mixer
from vit_jax.models import resnet
from vit_jax.plots import tiles
from vit_jax.weights import batched
from vit_jax.weights import features

_TOP = 5
_PERCENTILE = 99  # of attention that has the last colour, as in reports
_MOST_NUMBERS = 2**26  # maximum attention weights in a reply, a byte each


class Viewer:
  """A model that is applied to one image at a time."""

  def __init__(self, vit: weights.Loaded, name: str):
    """Copies the parameters to the device; compiles nothing yet."""
    self.name = name  # on the page
    self._sentences, problem = None, ''
    try:  # None for a model without a text tower
      self._sentences = sentences_lib.Sentences.load(vit)
    except config_lib.UserError as e:
      problem = f'Sentences cannot be compared: {config_lib.one_line(e)}.'
    self._vit = dataclasses.replace(vit, params=jax.device_put(vit.params))
    self._heads, note = _shown_heads(vit)
    self._note = ' '.join(filter(None, (note, problem)))
    self._pack = jax.jit(self._packable)
    names = vit.classes or vit.target.names
    count = vit.model.num_classes
    unnamed = [f'class {i}' for i in range(len(names), count)]
    self._names = (*names[:count], *unnamed)

  def describe(self) -> dict[str, Any]:
    """Returns the facts about the model that the page needs, for JSON.

    If there is attention to show, `heads` is positive, and there are `layers`,
    `grid` (rows and columns of patches), `uniform` (the attention that each
    token has if all have the same) and `start` (the query that is shown while
    no patch is chosen). If sentences can be compared with images, `texts`
    is 'together' (probabilities of all sentences add up to 1) or 'each', and
    there is `grid`.
    """
    height, width = self._vit.preprocess.image_size
    result = {
      'name': self.name,
      'facts': f'{self._vit.describe()}, images of {height} × {width}',
      'note': self._note,
      'checkpoint': self._vit.origin.to_dict(),
      'heads': self._heads,
      'texts': '',
    }
    if self._sentences:
      result |= {
        'texts': 'each' if self._sentences.independent else 'together',
        'grid': features.patch_grid(self._vit),
      }
    if self._heads:
      has_class = 'class_token' in getattr(self._vit.model, 'prefix', ())
      result |= {
        'layers': features.depth(self._vit),
        'grid': features.patch_grid(self._vit),
        'uniform': 1 / features.num_tokens(self._vit),
        'start': 'class token' if has_class else 'mean of all patches',
      }
    return result

  def warm(self) -> None:
    """Compiles the functions that `look` and `fit` run."""
    preprocess = self._vit.preprocess
    shape = (1, *preprocess.image_size, preprocess.channels)
    image = np.zeros(shape, np.float32)
    self._see(image)
    if self._sentences:
      self._sentences.compare(image, ['a text'])

  def look(self, image: bytes) -> bytes:
    """Applies the model to an image; returns the page's content, as `packed`.

    In the JSON, `top` has name, index and probability of the most probable
    classes, in descending order; it is empty if the model has no head. If the
    model predicts numbers, `top` has name, index and number of each. If
    attention is shown, `high` is the 99th percentile of the first queries'
    attention in all layers and heads, for one scale of all maps. The arrays:

      peaks: float32 [M, 1 + P], the largest value of each row of `weights`. M
        counts heads within layers; attention rollout comes last. The array is
        missing if no attention is shown.
      weights: uint8 [M, 1 + P, P], the attention of each query to each patch,
        in 255ths of the row's peak. The first query is the class token, or the
        mean of the patches (for rollout, the input of the head); the others are
        the patches. The array is missing if no attention is shown.
      pixels: uint8 [H, W, 3], the input of the model.

    `image` is the content of an image file.
    """
    x = self._vit.preprocess(image)
    arrays = self._see(x)
    head: dict[str, Any] = {'top': self._top(arrays.pop('logits'))}
    if 'high' in arrays:
      head['high'] = float(arrays.pop('high'))
    arrays['pixels'] = tiles.pixels(self._vit.preprocess, x)[0]
    return packed(head, arrays)

  def fit(self, image: bytes, text: str, template: str) -> bytes:
    """Compares sentences with an image; returns the content for the page.

    In the JSON, `sentences` has text, index, probability and cosine of each, in
    descending order of the probabilities. There is one array:

      places: float32 [C, h, w], how much each patch adds to the cosine of each
        sentence (`sentences.Fit`); `index` is a row of it.

    Args:
      image: Content of an image file.
      text: Sentences, as for `sentences.split`.
      template: A text with {} where a sentence goes.
    """
    if self._sentences is None:
      raise config_lib.UserError(f'{self.name} reads no texts')
    sentences = sentences_lib.split(text, template)
    comparison = self._sentences.compare(self._vit.preprocess(image), sentences)
    predictions.check_finite(comparison.places)
    order = np.argsort(-comparison.probability, kind='stable').tolist()
    listed = [
      {
        'text': sentences[i],
        'index': i,
        'probability': float(comparison.probability[i]),
        'cosine': float(comparison.cosine[i]),
      }
      for i in order
    ]
    return packed({'sentences': listed}, {'places': comparison.places})

  def _see(self, x: np.ndarray) -> dict[str, np.ndarray]:
    """Returns logits [classes], and peaks and weights if they are shown."""
    if not self._heads:
      logits = batched.apply(self._vit.model, self._vit.params, x)
      return {'logits': np.asarray(logits[0], np.float32)}
    names = ('logits', 'attention')
    return features.reduced(self._vit, x, names, self._pack)

  def _packable(self, arrays: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Returns the arrays of a reply from logits and attention of one image."""
    vit, grid = self._vit, features.patch_grid(self._vit)
    attention = arrays['attention']  # [L, 1, H, N, N]
    rollout = attention_lib.rollout(attention)  # [1, N, N]
    if self._heads < attention.shape[2]:
      attention = attention.mean(axis=2, keepdims=True)
    queries = attention_lib.shown_queries(vit)
    start = jnp.concatenate(
      [
        attention_lib.maps(attention, grid, queries).reshape(-1, *grid),
        attention_lib.read_out(vit, rollout),
      ]
    )
    n, count = attention.shape[-1], grid[0] * grid[1]
    rows = jnp.concatenate([attention.reshape(-1, n, n), rollout])
    rows = jnp.concatenate(
      [start.reshape(-1, 1, count), rows[:, -count:, -count:]], axis=1
    )  # [M, 1 + P, P]
    peaks = rows.max(axis=-1, keepdims=True)
    shares = rows / jnp.maximum(peaks, jnp.finfo(peaks.dtype).tiny)
    return {
      'logits': arrays['logits'][0],
      'high': jnp.percentile(start[:-1], _PERCENTILE),
      'peaks': peaks[..., 0],
      'weights': jnp.rint(shares * 255).astype(jnp.uint8),
    }

  def _top(self, logits: np.ndarray) -> list[dict[str, Any]]:
    predictions.check_finite(logits)
    if not self._names:  # the output is features
      return []
    head = evaluation_predictions.Head.from_loaded(self._vit, _TOP)
    ranking = head.rank(jnp.asarray(logits[None]))
    quantity = 'number' if head.predicts_numbers else 'probability'
    return [
      {'name': self._names[i], 'index': i, quantity: x}
      for i, x in zip(
        ranking['top'][0].tolist(),
        ranking['probability'][0].tolist(),
        strict=True,
      )
    ]


def packed(head: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
  """Returns JSON and arrays as bytes that a browser reads without copying.

  The bytes are the length of the JSON, in 4 bytes; the JSON, padded with spaces
  to a multiple of 4 bytes; and the arrays. In the JSON, `arrays` lists (name,
  type, shape) of each, in this order. Numbers are little-endian. `arrays` must
  have float32 arrays before uint8 arrays.
  """
  listed = [(name, x.dtype.name, x.shape) for name, x in arrays.items()]
  text = json.dumps({**head, 'arrays': listed}).encode()
  text += b' ' * (-len(text) % 4)
  parts = [x.astype(x.dtype.newbyteorder('<')) for x in arrays.values()]
  return b''.join(
    [struct.pack('<I', len(text)), text, *(x.tobytes() for x in parts)]
  )


def _shown_heads(vit: weights.Loaded) -> tuple[int, str]:
  """Returns the number of heads to show for each layer, and a note on it."""
  if isinstance(vit.model, resnet.BiT):
    return 0, 'A BiT is a ResNet: it has no patches that look at each other.'
  if isinstance(vit.model, mixer.Mixer):
    return 0, 'A Mixer has no attention: an MLP mixes its patches.'
  h, w = features.patch_grid(vit)
  numbers = (features.depth(vit) + 1) * (1 + h * w) * h * w
  heads = features.attention_shape(vit)[1]
  if numbers * heads <= _MOST_NUMBERS:
    return heads, ''
  problem = f'The attention between {h * w} patches is too much to show'
  if numbers <= _MOST_NUMBERS:
    return 1, f'{problem} of all {heads} heads: it is their mean.'
  return 0, f'{problem}.'
