"""Text tables with aligned columns: the one printer of the package.

clu's `parameter_overview.make_table` draws a box around dataclasses, and aligns
numbers by their type; tables of cells that are text already need less.
"""

from collections.abc import Collection
from collections.abc import Sequence


def aligned(
  rows: Sequence[Sequence[str]], right: Collection[int] = ()
) -> list[str]:
  """Lays out rows as lines, in columns that are two spaces apart.

  Args:
    rows: Cells of each row, as many in all; the header is a row like others.
    right: Columns that are aligned to the right, as numbers are.

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
