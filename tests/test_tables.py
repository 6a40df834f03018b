"""One table as text of any width, Markdown, CSV and JSON."""

import io
import json
import sys

import pytest
import tiny

from vit_jax import tables

TABLE = tables.Table(
  ('name', 'count', 'loss', 'note'),
  [
    ('a', 1_000_000, 0.5, ''),
    ('longer', 2, None, 'a text of several words that is long'),
  ],
  {'loss': '.2f'},
)


def test_numbers_are_right_and_columns_as_wide_as_their_longest_cell():
  assert TABLE.text().split('\n') == [
    'name        count  loss  note',
    'a       1,000,000  0.50',
    'longer          2        a text of several words that is long',
  ]
  assert tables.Table((), [('a', 'x 2'), ('bc', '10%')]).text(indent='  ') == (
    '  a   x 2\n  bc  10%'
  )
  assert tables.Table((), []).text() == ''
  assert tables.Table(('a', 'b'), []).text() == 'a  b'


def test_long_texts_continue_on_the_next_line():
  assert TABLE.text(50).split('\n') == [
    'name        count  loss  note',
    'a       1,000,000  0.50',
    'longer          2        a text of several words',
    '                         that is long',
  ]


@pytest.mark.parametrize('width', [20, 22, 30])
def test_many_columns_fold(width):
  wide = tables.Table(
    ('run', *(f'metric {i}' for i in range(5))),
    [('digits', *range(5)), ('scenes', *range(5, 10))],
  )
  text = wide.text(width)
  parts = [part.splitlines() for part in text.split('\n\n')]
  assert max(map(len, text.splitlines())) <= width
  assert {len(part) for part in parts} == {3}
  assert all(part[1].startswith('digits') for part in parts)
  numbers = [x for part in parts for x in part[2].split()[1:]]
  assert numbers == list('56789')


def test_the_same_rows_as_csv_and_markdown():
  file = io.StringIO()
  tables.Table(('a', 'b'), [(1 / 3, [1, 2]), (None, 'x,y')]).write_csv(file)
  assert file.getvalue() == f'a,b\n{1 / 3},"[1, 2]"\n,"x,y"\n'
  assert TABLE.markdown()[:3] == [
    '| name | count | loss | note |',
    '|---|---|---|---|',
    '| a | 1,000,000 | 0.50 |  |',
  ]


def test_rows_are_written_as_they_come():
  def rows():
    yield 'a.png', 0.25
    raise ValueError('the second')

  table = tables.Table(('image', 'share'), rows(), {'share': '.4f'})
  lines = table.stream([10])
  assert next(lines) == 'image       share'
  assert next(lines) == 'a.png       0.2500'
  with pytest.raises(ValueError, match='second'):
    next(lines)


@pytest.mark.parametrize('objects', [[], [{'a': 1}, {'a': 'x'}]])
def test_json_has_an_object_a_line(objects):
  file = io.StringIO()
  tables.write_json(objects, file)
  assert json.loads(file.getvalue()) == objects
  assert file.getvalue().count('\n') == (1 if not objects else 4)


def test_only_a_terminal_has_a_width(monkeypatch):
  monkeypatch.setenv('COLUMNS', '66')
  assert tables.room(io.StringIO()) is None
  monkeypatch.setattr(sys, 'stdout', tiny.Terminal())
  assert tables.room() == 66
