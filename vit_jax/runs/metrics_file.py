"""Reads metrics.jsonl, whose form `reporting` describes."""

from collections.abc import Iterator
import pathlib
from typing import Any

from vit_jax.config import UserError
from vit_jax.runs import safe_io

_LONGEST_LINE = 4 << 20  # bytes of a line of metrics.jsonl


def read(path: pathlib.Path) -> Iterator[dict[str, Any]]:
  """Yields the values of each line that is not damaged."""
  yield from filter(None, map(parse_metrics, read_lines(path)))


def cut_back(
  path: pathlib.Path, step: int
) -> dict[str, tuple[int, float | None]]:
  """Removes lines after a step, and incomplete ones, from metrics.jsonl.

  Returns step and value of the newest entry of each metric that is kept.
  """
  newest: dict[str, tuple[int, float | None]] = {}
  with safe_io.replacing(path) as new:
    for line in read_lines(path):
      values = parse_metrics(line)
      if values is None or values['step'] > step:
        continue
      new.write(line)
      newest |= {name: (values['step'], x) for name, x in values.items()}
  return newest


def parse_metrics(line: str) -> dict[str, Any] | None:
  """Parses a line of metrics.jsonl with its end; None if it is damaged.

  A line without an end was cut: the process was killed while it wrote.
  """
  if not line.endswith('\n'):
    return None
  try:
    values = safe_io.parse_json(line)
  except ValueError:
    return None
  if not isinstance(values, dict) or type(values.get('step')) is not int:
    return None
  numbers = [values.get(key, 0) for key in ('epoch', 'time')]
  numbers += [x for x in values.values() if x is not None]
  # A float may be huge, since a run may diverge; an int must fit in a float.
  are_numbers = all(
    type(x) is float or (type(x) is int and abs(x) < 2**1000) for x in numbers
  )
  return values if are_numbers and abs(values['step']) < 2**63 else None


def read_lines(path: pathlib.Path) -> Iterator[str]:
  """Yields the lines of a regular file with their line ends.

  Bytes that are not UTF-8 become replacement characters. Lines of more than
  4 MiB (a run writes none) are yielded in parts. Raises a FileNotFoundError if
  there is no such file; other errors become a UserError.
  """
  try:
    with safe_io.open_regular(path) as file:
      while line := file.readline(_LONGEST_LINE):
        yield line.decode('utf-8', errors='replace')
  except FileNotFoundError:
    raise
  except OSError as e:
    raise UserError(f'cannot read {path}: {e.strerror}; repair it') from None
