"""What is looked at, and what is seen of it: each pass is made once."""

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
from vit_jax.evaluation import predictions
from vit_jax.explore import answers as answer_numbers
from vit_jax.explore import labelled as labelled_lib
from vit_jax.explore import seen as seen_lib
from vit_jax.models import resnet
from vit_jax.plots import tiles
from vit_jax.weights import batched

if TYPE_CHECKING:
  from matplotlib.figure import Figure

_SOME = 4  # layers


@dataclasses.dataclass(frozen=True)
class Drawn:
  """Pictures of one kind.

  Attributes:
    caption: What is shown, and how it was computed.
    figures: With labels that tell them apart, '' for one alone; made as they
      are asked for.
    numbers: Behind the pictures, where they are few.
  """

  caption: str
  figures: 'Iterable[tuple[str, Figure]]'
  numbers: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Images:
  """Some images.

  Attributes:
    names: For people.
    truths: Names of their classes; '' where that is not known.
    inputs: float32 [B, H, W, C], as the model takes them.
    sources: The same as they come, for another model: paths, or arrays uint8
      [h, w, C].
    found: How many there were to choose from.
    naming: What the names say, a sentence; '' where they are those of files.
  """

  names: tuple[str, ...]
  truths: tuple[str, ...]
  inputs: np.ndarray
  sources: Sequence[Any]
  found: int
  naming: str = ''


@dataclasses.dataclass(frozen=True)
class Options:
  """What to show.

  Attributes:
    query: (row, column) of the patch that others are compared with.
    layers: Indices from 0, in order.
    classes: To explain, as positions in the model's; none: that of each image
      which is most probable.
    position_size: (height, width) in pixels to resize positions for.
    same_order: Whether the classes of the data are those of the model whatever
      their names.
  """

  query: tuple[int, int]
  layers: tuple[int, ...]
  classes: tuple[int, ...]
  position_size: tuple[int, int] | None
  same_order: bool

  @property
  def some_layers(self) -> tuple[int, ...]:
    """A few of the layers, evenly spread, for what takes much room."""
    chosen = tiles.spread(len(self.layers), _SOME)
    return tuple(self.layers[i] for i in chosen)


@dataclasses.dataclass(frozen=True)
class Subject:
  """A model, images and labelled examples.

  Attributes:
    vit: The model.
    name: Of it, for people.
    given: The images, if any.
    labelled: Examples, if any.
    options: What to show.
    other: Another model to compare with, if any.
    other_name: Of it.
  """

  vit: weights.Loaded
  name: str
  given: Images | None
  labelled: labelled_lib.Labelled | None
  options: Options
  other: weights.Loaded | None = None
  other_name: str = ''

  @property
  def images(self) -> Images:
    """The images.

    Raises:
      UserError: There are none.
    """
    if self.given is None:
      raise UserError('there are no images: give some with --images')
    return self.given

  @property
  def examples(self) -> labelled_lib.Labelled:
    """Labelled examples.

    Raises:
      UserError: There are none.
    """
    if self.labelled is None:
      raise UserError('needs labelled images: give --data and --split')
    return self.labelled

  @functools.cached_property
  def pixels(self) -> np.ndarray:
    """What the model is given, uint8 [B, H, W, 3]."""
    return tiles.pixels(self.vit.preprocess, self.images.inputs)

  @functools.cached_property
  def seen(self) -> seen_lib.Seen:
    """What is seen in one pass over the images.

    Raises:
      UserError: The model has no tokens.
    """
    options = self.options
    return seen_lib.look(
      self.vit, self.images.inputs, options.query, options.some_layers
    )

  @property
  def names(self) -> tuple[str, ...]:
    """Names of the classes; the number of one that has no name.

    Raises:
      UserError: The model has no head.
    """
    count = self.vit.model.num_classes
    if not count:
      raise UserError('the model has no head, so it names no classes')
    known = self.vit.classes
    return (*known, *map(str, range(len(known), count)))

  @functools.cached_property
  def probabilities(self) -> np.ndarray:
    """Softmax of the logits, float64 [B, classes].

    Raises:
      UserError: They are not finite.
    """
    if isinstance(self.vit.model, resnet.BiT):  # nothing else is seen of it
      logits = batched.apply(
        self.vit.model, self.vit.params, self.images.inputs
      )
    else:
      logits = self.seen.logits
    return answer_numbers.softmax(logits)

  @functools.cached_property
  def answers(self) -> tuple[predictions.Predictions, tuple[str, ...]]:
    """The answers to the examples, and the names of the model's classes.

    Raises:
      UserError: There are no examples, the model has no head or other classes,
        or its output is not finite.
    """
    found, names = self.examples.answers(self.vit, self.options.same_order)
    answer_numbers.check_finite(found.probability)
    return found, names
