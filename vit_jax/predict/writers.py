"""Prints predictions as tables, JSON and CSV."""

from collections.abc import Iterable
from collections.abc import Sequence
import sys
from typing import Any

from vit_jax import tables
from vit_jax.evaluation import answers


def write(
  predictions: Iterable[tuple[str, Sequence[answers.Prediction]]],
  format_name: str,
  width: int,
  checkpoint: dict[str, Any],
  *,
  are_numbers: bool,
) -> None:
  """Prints predictions as the images are read: there may be many of these.

  Args:
    predictions: An image's path with its predictions, the most probable first.
    format_name: 'table', 'json' or 'csv'.
    width: Letters of the longest path.
    checkpoint: Where the model comes from, for JSON.
    are_numbers: Whether quantities are predicted, and not classes.
  """
  if format_name == 'json':
    objects = (
      {
        'image': path,
        **answers.as_json(x, are_numbers),
        'checkpoint': checkpoint,
      }
      for path, x in predictions
    )
    tables.write_json(objects, sys.stdout)
  elif format_name == 'csv':
    names = 'image', 'rank', 'class', 'index', 'probability'
    chosen_names = ('image', 'name', 'value') if are_numbers else names
    rows = (
      (path, x.name, x.probability)
      if are_numbers
      else (path, rank, x.name, x.number, x.probability)
      for path, ranked in predictions
      for rank, x in enumerate(ranked, 1)
    )
    tables.Table(chosen_names, rows).write_csv(sys.stdout)
  else:
    value, name = ('value', 'name') if are_numbers else ('probability', 'class')
    lines = (
      ('' if i else path, x.probability, x.name)
      for path, ranked in predictions
      for i, x in enumerate(ranked)
    )
    formats = {value: '.6g' if are_numbers else '.4f'}
    table = tables.Table(('image', value, name), lines, formats)
    for line in table.stream([max(width, len('image')), 11]):
      print(line)
