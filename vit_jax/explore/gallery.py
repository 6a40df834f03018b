"""All kinds of pictures, and how they are drawn, saved and explained."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import math
import pathlib
from typing import Any
from typing import NamedTuple

import numpy as np

from vit_jax.config import UserError
from vit_jax.explore import answer_pictures
from vit_jax.explore import attention_pictures
from vit_jax.explore import model_pictures
from vit_jax.explore import report
from vit_jax.explore import subject as subject_lib
from vit_jax.explore import token_pictures
from vit_jax.plots import canvas


class Kind(NamedTuple):
  """A kind of pictures.

  Attributes:
    title: For people.
    draw: Draws them, or raises a UserError that says why there are none.
  """

  title: str
  draw: Callable[[subject_lib.Subject], subject_lib.Drawn]


# By the name that --only takes, in the order of the page.
KINDS: Mapping[str, Kind] = {
  'patches': Kind('An image as a sequence of patches', model_pictures.patches),
  'filters': Kind('Filters of the patch embedding', model_pictures.filters),
  'stem': Kind('First filters of the stem', model_pictures.stem),
  'positions': Kind(
    'Similarity of position embeddings', model_pictures.positions_grid
  ),
  'attention': Kind('Attention maps', attention_pictures.maps),
  'rollout': Kind('Attention rollout', attention_pictures.rollout),
  'relevance': Kind('What speaks for a class', attention_pictures.relevance),
  'query': Kind('Where a chosen patch looks', attention_pictures.query),
  'distance': Kind('How far heads look', attention_pictures.distance),
  'norms': Kind('Norms of tokens', token_pictures.norms),
  'similarity': Kind('Patches like a chosen one', token_pictures.similarity),
  'pca': Kind('Principal components of tokens', token_pictures.pca),
  'cka': Kind('Similarity of layers', token_pictures.cka),
  'decodability': Kind(
    'What can be read off each layer', token_pictures.decodability
  ),
  'predictions': Kind('Predictions', answer_pictures.predictions),
  'mistakes': Kind('Most confident mistakes', answer_pictures.mistakes),
  'confusion': Kind('Confusion matrix', answer_pictures.confusion),
  'reliability': Kind('Reliability', answer_pictures.reliability),
  'embedding': Kind('Map of embeddings', answer_pictures.embedding),
}


class Shown(NamedTuple):
  """What came of the kinds that were asked for.

  Attributes:
    sections: Of the page.
    missing: What there is no picture of, and why.
    numbers: Behind the pictures, by the name of the kind.
  """

  sections: list[report.Section]
  missing: list[report.Missing]
  numbers: dict[str, Any]


def draw(
  subject: subject_lib.Subject,
  names: Sequence[str],
  folder: pathlib.Path,
  progress: Callable[[str], object],
) -> Shown:
  """Draws pictures, and writes them as PNG and SVG.

  Args:
    subject: What is looked at.
    names: Of the kinds.
    folder: For the files `KIND.png`, or `KIND-1.png` and so on.
    progress: Is called with the name of each kind before it is drawn.

  Raises:
    UserError: A file cannot be written.
  """
  shown = Shown([], [], {})
  with canvas.style():
    for name in names:
      progress(name)
      kind = KINDS[name]
      try:
        drawn = kind.draw(subject)
      except UserError as e:
        shown.missing.append(report.Missing(name, kind.title, str(e)))
        continue
      figures = list(drawn.figures)
      pictures = tuple(
        _save(figure, folder / _stem(name, i, len(figures)), label)
        for i, (label, figure) in enumerate(figures, 1)
      )
      shown.sections.append(
        report.Section(name, kind.title, drawn.caption, pictures)
      )
      if drawn.numbers:
        shown.numbers[name] = plain(drawn.numbers)
  return shown


def _save(figure: Any, path: pathlib.Path, label: str) -> report.Picture:
  size = canvas.save(figure, path)
  return report.Picture(path.with_name(f'{path.name}.png'), label, size)


def _stem(name: str, number: int, count: int) -> str:
  if count == 1:
    return name
  return f'{name}-{number:0{len(str(count))}}'


def plain(value: Any) -> Any:
  """Returns numbers as JSON has them: with six digits, null for nan."""
  if isinstance(value, Mapping):
    return {str(key): plain(x) for key, x in value.items()}
  if isinstance(value, np.ndarray | np.generic):
    return plain(value.tolist())
  if isinstance(value, list | tuple):
    return [plain(x) for x in value]
  if isinstance(value, float):
    return float(f'{value:.6g}') if math.isfinite(value) else None
  return value
