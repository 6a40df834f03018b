"""The subject of a report: a model, images, and cached results."""

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import functools
from typing import Any
from typing import TYPE_CHECKING

import numpy as np

from vit_jax import weights
from vit_jax.config import UserError
from vit_jax.evaluation import predictions as evaluation_predictions
from vit_jax.explore import captured as captured_lib
from vit_jax.explore import examples as examples_lib
from vit_jax.explore import predictions as predictions_lib
from vit_jax.models import resnet
from vit_jax.plots import tiles
from vit_jax.weights import batched

if TYPE_CHECKING:
  from matplotlib.figure import Figure

_LAYERS = 4  # number of layers in `some_layers`


@dataclasses.dataclass(frozen=True)
class Drawn:
  """Pictures of one kind.

  Attributes:
    caption: Explains the pictures and how they were computed.
    figures: Charts, and pixels of sheets uint8 [H, W, 3], with their labels
      ('' for a single one); made one at a time.
    numbers: Numbers behind the pictures, unless there are many.
  """

  caption: str
  figures: 'Iterable[tuple[str, Figure | np.ndarray]]'
  numbers: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def caption(
  name: str, predicted: str = '', probability: float = 0.0, label: str = ''
) -> str:
  """Returns the caption of an image, one line for each thing that is known."""
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
class Images:
  """Images of a report.

  Attributes:
    names: Names to show.
    truths: Names of the labels; '' where unknown.
    inputs: Input of the model, float32 [B, H, W, C].
    sources: The images before preprocessing, for another model: paths, or
      arrays uint8 [h, w, C].
    available: Number of images that these were chosen from.
    naming: A sentence that explains the names; '' for names of files.
    rows: Their positions among the labelled examples; () for other images.
  """

  names: tuple[str, ...]
  truths: tuple[str, ...]
  inputs: np.ndarray
  sources: Sequence[Any]
  available: int
  naming: str = ''
  rows: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Options:
  """Options of a report.

  Attributes:
    query: (row, column) of the patch that others are compared with.
    layers: Indices of the layers to show, from 0, ascending.
    classes: Indices of the classes to explain; if empty, the most probable
      class of each image.
    position_size: Image size (height, width), in pixels, that the position
      embeddings are resized for.
    same_order: Whether the classes of the model and of the data have the same
      order, whatever their names.
    mass: Share of the class token's attention that a segment holds.
    neighbors: Number of neighbours to show of each image.
  """

  query: tuple[int, int]
  layers: tuple[int, ...]
  classes: tuple[int, ...]
  position_size: tuple[int, int] | None
  same_order: bool
  mass: float = 0.6
  neighbors: int = 5

  @property
  def some_layers(self) -> tuple[int, ...]:
    """A few of the layers, evenly spread, for large pictures."""
    chosen = tiles.spread(len(self.layers), _LAYERS)
    return tuple(self.layers[i] for i in chosen)


@dataclasses.dataclass(frozen=True)
class Subject:
  """A model, images and labelled examples.

  Attributes:
    vit: The model.
    name: Name of the model.
    chosen_images: The images, if any.
    labelled: Labelled examples, if any.
    options: Options of the report.
    second_vit: A second model to compare with, if any.
    second_name: Name of the second model.
  """

  vit: weights.Loaded
  name: str
  chosen_images: Images | None
  labelled: examples_lib.Examples | None
  options: Options
  second_vit: weights.Loaded | None = None
  second_name: str = ''

  @property
  def images(self) -> Images:
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
  def captured(self) -> captured_lib.Captured:
    """Values captured in one forward pass over the images."""
    options = self.options
    return captured_lib.capture(
      self.vit, self.images.inputs, options.query, options.some_layers
    )

  @functools.cached_property
  def embeddings(self) -> np.ndarray:
    """The input of the head for the examples, float32 [N, D']."""
    return self.examples.embeddings(self.vit)

  @property
  def names(self) -> tuple[str, ...]:
    """Names of the classes; numbers for those without a name."""
    count = self.vit.model.num_classes
    if not count:
      raise UserError('the model has no head, so it names no classes')
    names = self.vit.classes or self.vit.target.names
    return (*names, *map(str, range(len(names), count)))

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
