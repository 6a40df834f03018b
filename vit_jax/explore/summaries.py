"""The card at the top of a report: results, worst classes and a few images."""

import base64
from collections.abc import Mapping
import dataclasses
from typing import Any

import cv2
import numpy as np

from vit_jax.config import UserError
from vit_jax.explore import subject as subject_lib

_IMAGES = 8  # maximum number of thumbnails
_SIDE = 96  # pixels of the longer side of a thumbnail on the page
_WORST = 3  # classes that are named


@dataclasses.dataclass(frozen=True)
class Result:
  """A number of the card.

  Attributes:
    name: Of the number, in words.
    value: The number.
    lines: Its interval, or what it was measured on.
  """

  name: str
  value: str
  lines: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Thumbnail:
  """A small image of the card.

  Attributes:
    png: Content of its file, in base64.
    size: (width, height) in pixels.
    lines: Name, prediction and label, as far as there are any.
  """

  png: str
  size: tuple[int, int]
  lines: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Summary:
  """The card of a report."""

  results: tuple[Result, ...] = ()
  thumbnails: tuple[Thumbnail, ...] = ()


def summarize(
  subject: subject_lib.Subject, numbers: Mapping[str, Any]
) -> Summary:
  """Returns the card of a report."""
  results: list[Result] = []
  if accuracy := numbers.get('confusion'):
    results.append(_rate(accuracy))
  if error := numbers.get('reliability'):
    value = f'{error["calibration_error"]:.3f}'
    results.append(Result('Calibration error', value, ('0 is perfect',)))
  if accuracy:
    results.append(_worst('accuracy', accuracy['classes_by_accuracy']))
  if overlap := numbers.get('errors'):
    lines = (f'{overlap["examples"]} examples',)
    results.append(Result('Mean IoU', f'{overlap["miou"]:.3f}', lines))
    results.append(_worst('IoU', overlap['classes_by_iou']))
  return Summary(tuple(results), _thumbnails(subject))


def _rate(accuracy: Mapping[str, Any]) -> Result:
  low, high = accuracy['interval']
  lines = (
    f'95% interval: {low:.1%} to {high:.1%}',
    f'{accuracy["examples"]} examples',
  )
  return Result('Accuracy', f'{accuracy["accuracy"]:.1%}', lines)


def _worst(measure: str, ascending: list[tuple[str, float]]) -> Result:
  """Returns the classes with the lowest values, of pairs in ascending order."""
  lowest, *more = [
    f'{name}: {x:.1%}' if measure == 'accuracy' else f'{name}: {x:.2f}'
    for name, x in ascending[:_WORST]
  ]
  return Result(f'Lowest {measure} of a class', lowest, tuple(more))


def _thumbnails(subject: subject_lib.Subject) -> tuple[Thumbnail, ...]:
  try:
    pixels, captions = subject.pixels[:_IMAGES], subject.captions
  except UserError:  # there are no images
    return ()
  return tuple(
    _thumbnail(image, text)
    for image, text in zip(pixels, captions, strict=False)
  )


def _thumbnail(image: np.ndarray, caption: str) -> Thumbnail:
  """Returns a thumbnail of an image, uint8 [H, W, 3], for dense screens."""
  scale = min(1.0, 2 * _SIDE / max(image.shape[:2]))
  height, width = (max(1, round(n * scale)) for n in image.shape[:2])
  small = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
  _, png = cv2.imencode('.png', small[..., ::-1])
  text = base64.b64encode(png.tobytes()).decode()
  return Thumbnail(text, (width, height), tuple(caption.split('\n')))
