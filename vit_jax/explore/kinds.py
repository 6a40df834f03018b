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

# Draws the pictures of a kind, or raises a UserError that says why it cannot.
Draw = Callable[[subject_lib.Subject], subject_lib.Drawn]

# Headings on the page and functions by the names for --only, in the order of
# the page: first where the model is wrong, then what it attends to, then its
# parameters and its layers.
KINDS: Mapping[str, tuple[str, Draw]] = {
  'mistakes': ('Most confident mistakes', prediction_pictures.mistakes),
  'confusion': ('Confusion matrix', prediction_pictures.confusion),
  'errors': ('Maps with the lowest overlap', segment_pictures.errors),
  'overlays': ('Classes of pixels', segment_pictures.overlays),
  'predictions': ('Predictions', prediction_pictures.predictions),
  'reliability': ('Reliability', prediction_pictures.reliability),
  'embedding': ('Map of embeddings', prediction_pictures.embedding),
  'neighbors': ('Nearest neighbours', token_pictures.neighbors),
  'objective': (
    'What the training method makes of images',
    objective_pictures.objective,
  ),
  'samples': ('Images that the model draws', objective_pictures.samples),
  'completions': (
    'Lower halves that the model draws',
    objective_pictures.completions,
  ),
  'attention': ('Attention maps', attention_pictures.maps),
  'segments': (
    'Most of the attention of the class token',
    attention_pictures.segments,
  ),
  'rollout': ('Attention rollout', attention_pictures.rollout),
  'relevance': ('Class relevance', attention_pictures.relevance),
  'query': ('Attention of a chosen patch', attention_pictures.query),
  'patches': ('An image as a sequence of patches', model_pictures.patches),
  'filters': ('Filters of the patch embedding', model_pictures.filters),
  'stem': ('First filters of the stem', model_pictures.stem),
  'positions': (
    'Similarity of position embeddings',
    model_pictures.positions_grid,
  ),
  'distance': ('Attention distance and entropy', attention_pictures.distance),
  'norms': ('Norms of tokens', token_pictures.norms),
  'similarity': ('Similarity to a chosen patch', token_pictures.similarity),
  'pca': ('Principal components of tokens', token_pictures.pca),
  'foreground': (
    'Principal components of the foreground',
    token_pictures.foreground,
  ),
  'cka': ('Similarity of layers', token_pictures.cka),
  'decodability': (
    'Linear classification of each layer',
    token_pictures.decodability,
  ),
}


class Contents(NamedTuple):
  """Contents of a report."""

  sections: list[report.Section]  # sections of the page
  missing: list[report.Missing]  # kinds without a picture, and why
  # Numbers behind the pictures, by the name of the kind.
  numbers: dict[str, Any]


def draw(
  subject: subject_lib.Subject,
  names: Sequence[str],
  folder: pathlib.Path,
  progress: Callable[[str], object],
) -> Contents:
  """Draws pictures, writes them as PNG and SVG, and returns the contents.

  Args:
    subject: The model and the images.
    names: Names of the kinds.
    folder: Folder of the files `KIND.png`, or `KIND-1.png` and so on.
    progress: Called with the name of each kind that can be drawn, before its
      pictures are written.
  """
  contents = Contents([], [], {})
  with canvas.style():
    for name in names:
      title, draw_kind = KINDS[name]
      try:
        drawn = draw_kind(subject)
      except UserError as e:
        contents.missing.append(report.Missing(name, title, str(e)))
        continue
      progress(name)
      figures, pictures = list(drawn.figures), []
      for i, (label, figure) in enumerate(figures, 1):
        number = f'-{i:0{len(str(len(figures)))}}' if len(figures) > 1 else ''
        path = folder / f'{name}{number}'
        size = canvas.save(figure, path)
        file = path.with_name(f'{path.name}.png')
        pictures.append(report.Picture(file, label, size))
      contents.sections.append(
        report.Section(name, title, drawn.caption, tuple(pictures))
      )
      if drawn.numbers:
        contents.numbers[name] = plain(drawn.numbers)
  return contents


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
