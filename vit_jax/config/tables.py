"""Tables as aligned text and as Markdown.

clu's `parameter_overview.make_table` draws a box around dataclasses, and aligns
numbers by their type; here cells are text.
"""

from collections.abc import Collection
from collections.abc import Sequence


def aligned(
  rows: Sequence[Sequence[str]], right: Collection[int] = ()
) -> list[str]:
  """Lays out rows as lines, in columns that are two spaces apart.

  Args:
    rows: Cells of each row, equally many; the header is a row, too.
    right: Indices of the columns that are aligned to the right.

  Returns:
    A line for each row, without spaces at its end.
  """
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  return [
    '  '.join(
      cell.rjust(width) if i in right else cell.ljust(width)
      for i, (cell, width) in enumerate(zip(row, widths, strict=True))
    ).rstrip()
    for row in rows
  ]


def markdown(rows: Sequence[Sequence[str]]) -> list[str]:
  """Returns the lines of a Markdown table; the first row is the header."""
  header, *lines = (f'| {" | ".join(row)} |' for row in rows)
  return [header, '|' + '---|' * len(rows[0]), *lines]
