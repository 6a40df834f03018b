"""A model of segmentation for inputs of any size.

In comments: K classes.
"""

from collections.abc import Sequence
import dataclasses
from typing import Any

import jax
import numpy as np

from vit_jax import weights
from vit_jax.config import UserError
from vit_jax.data import given
from vit_jax.data import scans
from vit_jax.data import target_kinds
from vit_jax.evaluation import windows
from vit_jax.objectives import trained
from vit_jax.plots import sheet

_OVERLAP = 1 / 3  # of an image's windows, as in mmsegmentation's configs


@dataclasses.dataclass(frozen=True)
class WindowSettings:
  """How a model sees an input that is larger than its own.

  Attributes:
    scales: Factors of the size of an image, over which probabilities are
      averaged.
    flip: Whether mirrored images are averaged, too.
    overlap: Share of a window that the next one covers; None: a third for
      images, and for scans that of the run.
    gaussian: Whether a window counts less towards its edges; None: not for
      images, and for scans as the run says.
  """

  scales: Sequence[float] = (1.0,)
  flip: bool = False
  overlap: float | None = None
  gaussian: bool | None = None

  @property
  def averages(self) -> bool:
    """Whether there is more than one view of an image."""
    return self.flip or tuple(self.scales) != (1.0,)


def is_segmentation(loaded: weights.Loaded) -> bool:
  """Whether a model predicts the class of each pixel."""
  return 'segments' in loaded.preprocess.outputs


def with_windows(
  loaded: weights.Loaded, settings: WindowSettings
) -> weights.Loaded:
  """Returns a model of a run whose objective has other windows."""
  if loaded.trained_with is None:
    return loaded
  config = loaded.trained_with.copy_and_resolve_references()
  options = config.objective.options
  with options.unlocked():
    for name in ('overlap', 'gaussian'):
      if getattr(settings, name) is not None:
        options[name] = getattr(settings, name)
  return dataclasses.replace(loaded, trained_with=config)


class Segmenter:
  """A model that predicts maps of images or scans of any size.

  An image is enlarged or shrunk until it covers the model's input, and windows
  of that size slide over it. A scan gets the spacing of the training data, and
  its map the scan's own size again.

  Attributes:
    classes: Names of the classes.
    ignore: Label of places that do not count.
    takes_volumes: Whether the model is one of volumes.
  """

  def __init__(
    self, loaded: weights.Loaded, settings: WindowSettings | None = None
  ):
    """Takes the model of a run with the objective `segmentation`.

    It compiles nothing yet. `settings` are its windows and views; None: one
    view, with windows as `WindowSettings` says.
    """
    settings = settings or WindowSettings()
    objective, params = trained.restored(with_windows(loaded, settings))
    self.takes_volumes = len(loaded.preprocess.image_size) == 3
    if self.takes_volumes and settings.averages:
      raise UserError(
        'the model takes volumes: --scales and --flip are for images, leave'
        ' them out'
      )
    options = objective.config.objective.options
    overlap, is_gaussian = options.overlap, options.gaussian
    if not self.takes_volumes:
      overlap = _OVERLAP if settings.overlap is None else settings.overlap
      is_gaussian = bool(settings.gaussian)
    self._preprocess, self._params = loaded.preprocess, params
    self._window = window = loaded.preprocess.image_size
    self._stride = windows.strides(window, overlap)
    self._weights = windows.gaussian(window) if is_gaussian else None
    self._settings = settings
    self._outputs = jax.jit(
      lambda params, images: objective.outputs(params, {'image': images})
    )
    feature = objective.features['map']
    assert isinstance(feature, target_kinds.SegmentationMap)
    self.classes, self.ignore = feature.classes, feature.ignore

  def __call__(
    self, image: Any, source: str = 'the image'
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns an image's pixels, uint8 [h, w, 3], and its map, int32 [h, w].

    Those of a scan are uint8 [d, h, w, 3] and int32 [d, h, w]. `image` is one
    that `Preprocess` takes, or the path of a scan; `source` names one that is
    no path, for errors.
    """
    if self.takes_volumes:
      stored, header = scans.read_volume(image, self._preprocess)
      volume = self._preprocess.normalized(stored)
      labels = windows.labels(
        self._logits, volume, self._window, self._stride, self._weights
      )
      grey = self._preprocess.levels.scale(stored[..., :1])
      return sheet.to_rgb(grey), scans.fitted(labels, header.size)
    stored, inputs = given.covering(self._preprocess, image, source)
    if self._settings.averages:
      scores = windows.multi_scale(
        self._slide, inputs, self._settings.scales, self._settings.flip
      )
    else:
      scores = self._slide(inputs[None])[0]
    labels = windows.most_likely(scores, stored.shape[:2])
    return sheet.to_rgb(self._preprocess.levels.scale(stored)), labels

  def _logits(self, images: np.ndarray) -> np.ndarray:
    return np.asarray(self._outputs(self._params, images)['logits'])

  def _slide(self, images: np.ndarray) -> np.ndarray:
    return windows.slide(
      self._logits,
      images,
      self._window,
      self._stride,
      weights=self._weights,
      pad=True,
      batch_size=1,
    )
