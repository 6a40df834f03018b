"""Tables of text are aligned, and end with no spaces."""

from vit_jax.config import tables


def test_columns_are_as_wide_as_their_longest_cell():
  rows = [('name', 'count', ''), ('a', '1,000,000', ''), ('longer', '2', 'x')]
  assert tables.aligned(rows, right=(1,)) == [
    'name        count',
    'a       1,000,000',
    'longer          2  x',
  ]
  assert tables.aligned([]) == []
