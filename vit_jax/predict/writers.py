"""Prints predictions as tables, JSON and CSV."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
import sys
from typing import Any
from typing import NamedTuple

from vit_jax import tables


class Prediction(NamedTuple):
  """A class, or a quantity, with the value that is predicted for it."""

  name: str
  number: int  # position in the output
  probability: float


# An image's path with its predictions, the most probable first.
Predictions = Iterable[tuple[str, Sequence[Prediction]]]
Checkpoint = dict[str, Any]  # where the model comes from


def _write_text(predictions: Predictions, width: int, _: Checkpoint) -> None:
  _print(predictions, width, ('probability', 'class'), '.4f')


def _write_numbers(predictions: Predictions, width: int, _: Checkpoint) -> None:
  _print(predictions, width, ('value', 'name'), '.6g')


def _print(
  predictions: Predictions, width: int, names: tuple[str, str], form: str
) -> None:
  """Prints lines as the images are read: there may be many of these.

  Args:
    predictions: What is printed.
    width: Letters of the longest path.
    names: Of the columns after the image.
    form: How numbers are written.
  """
  rows = (
    ('' if i else path, x.probability, x.name)
    for path, ranked in predictions
    for i, x in enumerate(ranked)
  )
  table = tables.Table(('image', *names), rows, {names[0]: form})
  for line in table.stream([max(width, len('image')), 11]):
    print(line)


def _write_json(predictions: Predictions, _: int, origin: Checkpoint) -> None:
  objects = (
    {
      'image': path,
      'predictions': [
        {'class': x.name, 'index': x.number, 'probability': x.probability}
        for x in ranked
      ],
      'checkpoint': origin,
    }
    for path, ranked in predictions
  )
  tables.write_json(objects, sys.stdout)


def _write_number_json(
  predictions: Predictions, _: int, origin: Checkpoint
) -> None:
  objects = (
    {
      'image': path,
      'numbers': {x.name: x.probability for x in numbers},
      'checkpoint': origin,
    }
    for path, numbers in predictions
  )
  tables.write_json(objects, sys.stdout)


def _write_csv(predictions: Predictions, _: int, __: Checkpoint) -> None:
  names = 'image', 'rank', 'class', 'index', 'probability'
  rows = (
    (path, rank, x.name, x.number, x.probability)
    for path, ranked in predictions
    for rank, x in enumerate(ranked, 1)
  )
  tables.Table(names, rows).write_csv(sys.stdout)


def _write_number_csv(predictions: Predictions, _: int, __: Checkpoint) -> None:
  rows = (
    (path, x.name, x.probability)
    for path, numbers in predictions
    for x in numbers
  )
  tables.Table(('image', 'name', 'value'), rows).write_csv(sys.stdout)


Writer = Callable[[Predictions, int, Checkpoint], None]
CLASSES: dict[str, Writer] = {
  'table': _write_text,
  'json': _write_json,
  'csv': _write_csv,
}
NUMBERS: dict[str, Writer] = {
  'table': _write_numbers,
  'json': _write_number_json,
  'csv': _write_number_csv,
}
