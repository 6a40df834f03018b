"""The kinds of pictures of a report; draws and saves them."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import math
import pathlib
from typing import Any
from typing import NamedTuple

import numpy as np

from vit_jax.config import UserError
from vit_jax.explore import attention_pictures
from vit_jax.explore import model_pictures
from vit_jax.explore import objective_pictures
from vit_jax.explore import prediction_pictures
from vit_jax.explore import report
from vit_jax.explore import segment_pictures
from vit_jax.explore import subject as subject_lib
from vit_jax.explore import token_pictures
from vit_jax.plots import canvas


class Kind(NamedTuple):
  """A kind of pictures.

  Attributes:
    title: Heading on the page.
    draw: Draws the pictures, or raises a UserError that says why it cannot.
  """

  title: str
  draw: Callable[[subject_lib.Subject], subject_lib.Drawn]


# By the names for --only, in the order of the page: first where the model is
# wrong, then what it attends to, then its parameters and its layers.
KINDS: Mapping[str, Kind] = {
  'mistakes': Kind('Most confident mistakes', prediction_pictures.mistakes),
  'confusion': Kind('Confusion matrix', prediction_pictures.confusion),
  'errors': Kind('Maps with the lowest overlap', segment_pictures.errors),
  'overlays': Kind('Classes of pixels', segment_pictures.overlays),
  'predictions': Kind('Predictions', prediction_pictures.predictions),
  'reliability': Kind('Reliability', prediction_pictures.reliability),
  'embedding': Kind('Map of embeddings', prediction_pictures.embedding),
  'neighbors': Kind('Nearest neighbours', token_pictures.neighbors),
  'objective': Kind(
    'What the training method makes of images', objective_pictures.objective
  ),
  'samples': Kind('Images that the model draws', objective_pictures.samples),
  'completions': Kind(
    'Lower halves that the model draws', objective_pictures.completions
  ),
  'attention': Kind('Attention maps', attention_pictures.maps),
  'segments': Kind(
    'Most of the attention of the class token', attention_pictures.segments
  ),
  'rollout': Kind('Attention rollout', attention_pictures.rollout),
  'relevance': Kind('Class relevance', attention_pictures.relevance),
  'query': Kind('Attention of a chosen patch', attention_pictures.query),
  'patches': Kind('An image as a sequence of patches', model_pictures.patches),
  'filters': Kind('Filters of the patch embedding', model_pictures.filters),
  'stem': Kind('First filters of the stem', model_pictures.stem),
  'positions': Kind(
    'Similarity of position embeddings', model_pictures.positions_grid
  ),
  'distance': Kind(
    'Attention distance and entropy', attention_pictures.distance
  ),
  'norms': Kind('Norms of tokens', token_pictures.norms),
  'similarity': Kind('Similarity to a chosen patch', token_pictures.similarity),
  'pca': Kind('Principal components of tokens', token_pictures.pca),
  'foreground': Kind(
    'Principal components of the foreground', token_pictures.foreground
  ),
  'cka': Kind('Similarity of layers', token_pictures.cka),
  'decodability': Kind(
    'Linear classification of each layer', token_pictures.decodability
  ),
}


class Contents(NamedTuple):
  """Contents of a report.

  Attributes:
    sections: Sections of the page.
    missing: Kinds without a picture, and why.
    numbers: Numbers behind the pictures, by the name of the kind.
  """

  sections: list[report.Section]
  missing: list[report.Missing]
  numbers: dict[str, Any]


def draw(
  subject: subject_lib.Subject,
  names: Sequence[str],
  folder: pathlib.Path,
  progress: Callable[[str], object],
) -> Contents:
  """Draws pictures, and writes them as PNG and SVG."""
  contents = Contents([], [], {})
  with canvas.style():
    for name in names:
      kind = KINDS[name]
      try:
        drawn = kind.draw(subject)
      except UserError as e:
        contents.missing.append(report.Missing(name, kind.title, str(e)))
        continue
      progress(name)
      pictures = _save_all(list(drawn.figures), folder, name)
      contents.sections.append(
        report.Section(name, kind.title, drawn.caption, pictures)
      )
      if drawn.numbers:
        contents.numbers[name] = plain(drawn.numbers)
  return contents


def _save_all(
  figures: Sequence[tuple[str, Any]], folder: pathlib.Path, name: str
) -> tuple[report.Picture, ...]:
  """Writes the figures of one kind; numbers the files if there are several."""
  pictures = []
  for i, (label, figure) in enumerate(figures, 1):
    number = f'-{i:0{len(str(len(figures)))}}' if len(figures) > 1 else ''
    path = folder / f'{name}{number}'
    size = canvas.save(figure, path)
    file = path.with_name(f'{path.name}.png')
    pictures.append(report.Picture(file, label, size))
  return tuple(pictures)


def plain(value: Any) -> Any:
  """Converts numbers for JSON: to six digits, and nan to None."""
  if isinstance(value, Mapping):
    return {str(key): plain(x) for key, x in value.items()}
  if isinstance(value, np.ndarray | np.generic):
    return plain(value.tolist())
  if isinstance(value, list | tuple):
    return [plain(x) for x in value]
  if isinstance(value, float):
    return float(f'{value:.6g}') if math.isfinite(value) else None
  return value
