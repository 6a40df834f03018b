"""The subject of a report: a model, images, and cached results.

One forward pass captures what several pictures show. In comments: B images, N
tokens (P before the patches), D hidden size, H heads, L layers, (h, w) the grid
of patches.
"""

from collections.abc import Iterable
from collections.abc import Mapping
import dataclasses
import functools
from typing import Any
from typing import TYPE_CHECKING

import jax
import numpy as np

from vit_jax import weights
from vit_jax.config import UserError
from vit_jax.evaluation import predictions as evaluation_predictions
from vit_jax.explore import attention as attention_lib
from vit_jax.explore import examples as examples_lib
from vit_jax.explore import predictions as predictions_lib
from vit_jax.explore import tokens as tokens_lib
from vit_jax.models import resnet
from vit_jax.models import vit as vit_lib
from vit_jax.plots import tiles
from vit_jax.weights import batched
from vit_jax.weights import features

if TYPE_CHECKING:
  from matplotlib.figure import Figure

_LAYERS = 4  # number of layers in `some_layers`
_MOST_BYTES = 2**30  # maximum size of the tokens of all layers to keep


@dataclasses.dataclass(frozen=True)
class Drawn:
  """Pictures of one kind."""

  caption: str  # explains the pictures and how they were computed
  # Labels ('' for a single picture) and pictures, which are made one at a time.
  # A picture is a chart, or the pixels of a sheet, uint8 [H, W, 3].
  figures: 'Iterable[tuple[str, Figure | np.ndarray]]'
  # Numbers behind the pictures, unless there are many.
  numbers: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def caption(
  name: str,
  predicted: str = '',
  probability: float = 0.0,
  label: str | None = None,
) -> str:
  """Returns the caption of an image, one line for each thing that is known.

  Args:
    name: Name of the image.
    predicted: The class that the model predicts; '' if it does not classify.
    probability: Probability of that class.
    label: Name of the label; '' or None if it is unknown.
  """
  lines = [name]
  if predicted:
    lines.append(f'{predicted}, {probability:.0%}')
  if label:
    lines.append(f'label {label}')
  return '\n'.join(lines)


def one_line(text: str) -> str:
  """Returns a caption as one line."""
  return text.replace('\n', ' – ')


@dataclasses.dataclass(frozen=True)
class Options:
  """Options of a report."""

  # (row, column) of the patch that others are compared with.
  query: tuple[int, int]
  layers: tuple[int, ...]  # indices of the layers to show, from 0, ascending
  # Indices of the classes to explain; if empty, the most probable class of each
  # image.
  classes: tuple[int, ...]
  # Image size (height, width), in pixels, that the position embeddings are
  # resized for.
  position_size: tuple[int, int] | None
  # Whether the classes of the model and of the data have the same order,
  # whatever their names.
  same_order: bool
  mass: float = 0.6  # share of the class token's attention that a segment holds
  neighbors: int = 5  # number of neighbours to show of each image

  @property
  def some_layers(self) -> tuple[int, ...]:
    """A few of the layers, evenly spread, for large pictures."""
    chosen = tiles.spread(len(self.layers), _LAYERS)
    return tuple(self.layers[i] for i in chosen)


@dataclasses.dataclass(frozen=True)
class Captured:
  """Captured values of B images; a Mixer has no attention."""

  logits: np.ndarray  # float32 [B, classes]
  norms: np.ndarray  # L2 norms of the tokens, float32 [L, B, N]
  # Cosine similarity of each patch to the chosen one, float32 [L, B, h, w].
  similarity: np.ndarray
  # Tokens of the layers in `layers`, float32 [len(layers), B, N, D].
  tokens: np.ndarray
  # Indices of all layers, or of the requested ones if all would take too much
  # memory.
  layers: tuple[int, ...]
  # Attention of the class token, else of the mean patch, [L, B, H, h, w].
  maps: Any = None
  # Attention of the chosen patch, mean over heads, float32 [L, B, h, w].
  query: Any = None
  rollout: Any = None  # attention rollout, float32 [B, h, w]
  distance: Any = None  # attention distance in pixels, float32 [L, H]
  entropy: Any = None  # attention entropy in nats, float32 [L, H]


def _reduce(
  vit: weights.Loaded,
  query: tuple[int, int],
  layers: tuple[int, ...],
  values: dict[str, jax.Array],
) -> dict[str, jax.Array]:
  """Reduces what a forward pass captures to arrays whose second axis is B.

  Args:
    vit: A ViT, hybrid or Mixer.
    query: (row, column) of the chosen patch.
    layers: Layers whose tokens are kept.
    values: `logits` [B, classes], `tokens` [L, B, N, D] and, unless the model
      is a Mixer, `attention` [L, B, H, N, N].
  """
  grid, index = features.patch_grid(vit), features.patch_index(vit, query)
  tokens, attention = values['tokens'], values.get('attention')
  similarity = jax.vmap(lambda x: tokens_lib.similarity_to(x, grid, index))
  arrays = {
    'logits': values['logits'][None],
    'norms': tokens_lib.norms(tokens),
    'similarity': similarity(tokens),
    'tokens': tokens[np.asarray(layers)],
  }
  if attention is None:
    return arrays
  class_queries = attention_lib.shown_queries(vit)
  queries = attention_lib.shown_queries(vit, query)
  rolled = attention_lib.read_out(vit, attention_lib.rollout(attention))
  geometry = attention_lib.patch_size(vit), features.prefix_length(vit)
  return arrays | {
    'maps': attention_lib.maps(attention, grid, class_queries),
    'query': attention_lib.maps(attention, grid, queries).mean(axis=2),
    'rollout': rolled[None],
    'distance': attention_lib.distances(attention, grid, *geometry),
    'entropy': attention_lib.entropies(attention),
  }


@dataclasses.dataclass(frozen=True)
class Subject:
  """A model, images and labelled examples, the latter two if there are any."""

  vit: weights.Loaded
  name: str
  chosen_images: examples_lib.Images | None
  labelled: examples_lib.Examples | None
  options: Options
  second_vit: weights.Loaded | None = None  # a second model, to compare
  second_name: str = ''

  @property
  def images(self) -> examples_lib.Images:
    """The images."""
    if self.chosen_images is None:
      raise UserError('there are no images: give some with --images')
    return self.chosen_images

  @property
  def examples(self) -> examples_lib.Examples:
    """Labelled examples."""
    if self.labelled is None:
      raise UserError('needs labelled images: give --data and --split')
    return self.labelled

  @functools.cached_property
  def pixels(self) -> np.ndarray:
    """The input of the model as pixels, uint8 [B, H, W, 3]."""
    return tiles.pixels(self.vit.preprocess, self.images.inputs)

  @functools.cached_property
  def captured(self) -> Captured:
    """Values captured in one forward pass over the images."""
    vit, options = self.vit, self.options
    features.check_tokens(vit)
    depth, layers = features.depth(vit), options.some_layers
    width = getattr(vit.model, 'hidden_size', 0)
    count = len(self.images.inputs)
    if 4 * depth * count * features.num_tokens(vit) * width <= _MOST_BYTES:
      layers = tuple(range(depth))
    attends = isinstance(vit.model, vit_lib.ViT)
    names = ('logits', 'tokens', *(['attention'] if attends else []))
    arrays = features.reduced(
      vit,
      self.images.inputs,
      names,
      functools.partial(_reduce, vit, options.query, layers),
      axis=1,
    )
    for name in ('logits', 'rollout'):
      if name in arrays:
        arrays[name] = arrays[name][0]
    for name in ('distance', 'entropy'):
      if name in arrays:
        arrays[name] = arrays[name].mean(axis=1)
    predictions_lib.check_finite(arrays['logits'])
    return Captured(layers=layers, **arrays)

  @functools.cached_property
  def embeddings(self) -> np.ndarray:
    """The input of the head for the examples, float32 [N, D']."""
    return self.examples.embeddings(self.vit)

  @property
  def names(self) -> tuple[str, ...]:
    """Names of the classes; a class without a name has its number."""
    return evaluation_predictions.Head.from_loaded(self.vit, top=1).names

  @functools.cached_property
  def probabilities(self) -> np.ndarray:
    """Probabilities of the classes, float64 [B, classes]."""
    if isinstance(self.vit.model, resnet.BiT):  # has no tokens to capture
      logits = batched.apply(
        self.vit.model, self.vit.params, self.images.inputs
      )
    else:
      logits = self.captured.logits
    return predictions_lib.probabilities(self.vit, logits)

  @functools.cached_property
  def captions(self) -> tuple[str, ...]:
    """Captions of the images, each with all that is known of it."""
    try:
      names, probabilities = self.names, self.probabilities
    except UserError:  # the model does not classify
      names, probabilities = ('',), np.zeros((len(self.images.names), 1))
    return tuple(
      caption(name, names[row.argmax()], float(row.max()), truth)
      for name, row, truth in zip(
        self.images.names, probabilities, self.images.truths, strict=True
      )
    )

  @functools.cached_property
  def predictions(
    self,
  ) -> tuple[evaluation_predictions.Predictions, tuple[str, ...]]:
    """The predictions for the examples, and the names of all classes."""
    predictions, names = self.examples.predictions(
      self.vit, self.options.same_order
    )
    predictions_lib.check_finite(predictions.probability)
    return predictions, names
