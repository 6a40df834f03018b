"""Prints predictions as tables, JSON and CSV."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
import csv
import json
import sys
from typing import Any
from typing import NamedTuple


class Prediction(NamedTuple):
  """A class, or a quantity, with the value that is predicted for it."""

  name: str
  number: int  # position in the output
  probability: float


# An image's path with its predictions, the most probable first.
Predictions = Iterable[tuple[str, Sequence[Prediction]]]
Checkpoint = dict[str, Any]  # where the model comes from


def _write_table(predictions: Predictions, width: int, _: Checkpoint) -> None:
  for path, classes in predictions:
    for i, x in enumerate(classes):
      image = '' if i else path
      print(f'{image:{width}}  {x.probability:.4f}  {x.name}')


def _write_json(predictions: Predictions, _: int, origin: Checkpoint) -> None:
  _write_objects(
    (
      {
        'image': path,
        'predictions': [
          {'class': x.name, 'index': x.number, 'probability': x.probability}
          for x in classes
        ],
      }
      for path, classes in predictions
    ),
    origin,
  )


def _write_objects(
  objects: Iterable[dict[str, Any]], origin: Checkpoint
) -> None:
  """Prints an array of JSON with one object a line."""
  separator = '['
  for each in objects:
    line = json.dumps({**each, 'checkpoint': origin})
    print(f'{separator}\n{line}', end='')
    separator = ','
  print('\n]' if separator == ',' else '[]')


def _write_csv(predictions: Predictions, _: int, __: Checkpoint) -> None:
  writer = csv.writer(sys.stdout, lineterminator='\n')
  writer.writerow(['image', 'rank', 'class', 'index', 'probability'])
  for path, classes in predictions:
    for rank, x in enumerate(classes, 1):
      writer.writerow([path, rank, x.name, x.number, x.probability])


def _write_number_table(
  predictions: Predictions, width: int, _: Checkpoint
) -> None:
  for path, numbers in predictions:
    for i, x in enumerate(numbers):
      print(f'{"" if i else path:{width}}  {x.probability:<12.6g}  {x.name}')


def _write_number_json(
  predictions: Predictions, _: int, origin: Checkpoint
) -> None:
  _write_objects(
    (
      {'image': path, 'numbers': {x.name: x.probability for x in numbers}}
      for path, numbers in predictions
    ),
    origin,
  )


def _write_number_csv(predictions: Predictions, _: int, __: Checkpoint) -> None:
  writer = csv.writer(sys.stdout, lineterminator='\n')
  writer.writerow(['image', 'name', 'value'])
  for path, numbers in predictions:
    writer.writerows([path, x.name, x.probability] for x in numbers)


Writer = Callable[[Predictions, int, Checkpoint], None]
CLASSES: dict[str, Writer] = {
  'table': _write_table,
  'json': _write_json,
  'csv': _write_csv,
}
NUMBERS: dict[str, Writer] = {
  'table': _write_number_table,
  'json': _write_number_json,
  'csv': _write_number_csv,
}
