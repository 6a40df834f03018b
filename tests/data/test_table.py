"""Tables as sources: CSV, TSV and Parquet."""

import ast
import csv
import importlib.util
import io
import json
import os
import pathlib
import re

import case_files
import commands
import numpy as np
import pytest
import stand_in
import tiny

from vit_jax import data
from vit_jax import evaluate
from vit_jax.config import UserError
from vit_jax.data import features
from vit_jax.data import target_kinds
from vit_jax.train import experiment as experiment_lib
from vit_jax.train import loop

ROWS = [
  ('train', 'ant', 'small;black', 1.5, 2.0),
  ('train', 'bee', 'small|yellow', 2.5, 1.0),
  ('train', 'ant', 'small', 3.5, 0.0),
  ('train', 'cow', '', 4.5, -1.0),
  ('valid', 'cow', 'black', 5.5, -2.0),
  ('valid', 'bee', 'yellow', 6.5, -3.0),
]
HEAD = ('path', 'split', 'label', 'tags', 'weight', 'height')


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  root = tmp_path_factory.mktemp('table')
  (root / 'images').mkdir()
  for i in range(len(ROWS)):
    image = stand_in.pixels(i, 20 + i, 24)
    (root / 'images' / f'{i}.png').write_bytes(stand_in.png(image))
  lines = [(f'images/{i}.png', *row) for i, row in enumerate(ROWS)]
  for name, delimiter in (('all.csv', ','), ('all.tsv', '\t')):
    with open(root / name, 'w', newline='', encoding='utf-8') as file:
      writer = csv.writer(file, delimiter=delimiter)
      writer.writerows([HEAD, *lines])
  if importlib.util.find_spec('pyarrow'):
    import pyarrow as pa
    from pyarrow import parquet

    columns = dict(zip(HEAD, map(list, zip(*lines, strict=True)), strict=True))
    columns['tags'] = [
      re.split('[;|]', x) if x else [] for x in columns['tags']
    ]
    parquet.write_table(pa.table(columns), root / 'all.parquet')
    columns['path'] = [(root / x).read_bytes() for x in columns['path']]
    parquet.write_table(pa.table(columns), root / 'bytes.parquet')
    columns['path'] = [{'bytes': x, 'path': None} for x in columns['path']]
    parquet.write_table(pa.table(columns), root / 'structs.parquet')
  return root


def open_table(path, split='train', **columns):
  config = tiny.config(data__name=f'table:{path}', data__split=split)
  config.data.columns.update(columns)
  data.check(config)
  return data.open_source(config, split)


KINDS = [
  'all.csv',
  'all.tsv',
  'all.parquet',
  'bytes.parquet',
  'structs.parquet',
]


@pytest.mark.parametrize('name', KINDS)
def test_all_kinds_hold_the_same(folder, name):
  if not (folder / name).exists():
    pytest.skip('pyarrow is not installed')
  source = open_table(folder / name)
  assert source.classes == ('ant', 'bee', 'cow') and len(source) == 4
  actual = {
    (source.read(i).image, source.read(i).values['label']) for i in range(4)
  }
  assert actual == {
    ((folder / f'images/{i}.png').read_bytes(), 'abc'.index(row[1][0]))
    for i, row in enumerate(ROWS[:4])
  }
  assert sorted(source.column('label').tolist()) == [0, 0, 1, 2]
  assert len(open_table(folder / name, 'val')) == 2  # of 'valid'
  assert len(open_table(folder / name, 'all')) == 6
  assert len(open_table(folder / name, 'train[:50%]')) == 2


@pytest.mark.parametrize('name', ['all.csv', 'all.parquet'])
def test_several_classes_and_numbers(folder, name):
  if not (folder / name).exists():
    pytest.skip('pyarrow is not installed')
  source = open_table(
    folder / name, labels='tags', numbers=('weight', 'height')
  )
  assert source.features['labels'] == target_kinds.MultiLabel(
    ('black', 'small', 'yellow')
  )
  assert source.features['numbers'] == target_kinds.Number(('weight', 'height'))
  assert 'label' not in source.features
  by_weight = np.argsort(source.column('numbers')[:, 0])
  np.testing.assert_array_equal(
    source.column('labels')[by_weight],
    [[1, 1, 0], [0, 1, 1], [0, 1, 0], [0, 0, 0]],
  )
  np.testing.assert_array_equal(
    source.column('numbers')[by_weight],
    [[1.5, 2], [2.5, 1], [3.5, 0], [4.5, -1]],
  )


def test_numbers_are_learned_from_a_table(folder, tmp_path):
  config = tiny.config(
    data__name=f'table:{folder}/all.csv',
    data__split='train',
    data__image_size=16,
    data__channels=3,
    data__columns__numbers=('weight', 'height'),
    evals__val__split='val',
    objective__name='regression',
    train__batch_size=4,
    train__duration='3 steps',
    optim__warmup='0 steps',
  )
  results = loop.run(config, str(tmp_path / 'run'))
  assert results.status == 0 and 'val/r2' in results.metrics
  assert results.metrics['val/examples'] == 2
  name = f'--data=table:{folder}/all.csv'  # its columns are those of the run
  assert (
    commands.run(evaluate, f'--from={tmp_path / "run"}', name, '--split=val')
    == 0
  )


def test_whole_numbers_are_ordered_by_size(tmp_path):
  lines = [f'{i}.png,{i}\n' for i in (2, 10, 1)]
  (tmp_path / 'a.csv').write_text('file,class\n' + ''.join(lines))
  assert open_table(tmp_path / 'a.csv').classes == ('1', '2', '10')


def test_classes_have_one_order(tmp_path):
  names = [f'{i:0{width}}' for i in range(1, 9) for width in (1, 2, 3)]
  lines = ''.join(f'{name}.png,{name}\n' for name in names)
  (tmp_path / 'a.csv').write_text('file,class\n' + lines)
  expected = [f'{i:0{width}}' for i in range(1, 9) for width in (3, 2, 1)]
  assert open_table(tmp_path / 'a.csv').classes == (*expected,)


def write_parquet(path, **columns):
  pa = pytest.importorskip('pyarrow')
  parquet = pytest.importorskip('pyarrow.parquet')
  parquet.write_table(pa.table(columns), path)
  return path


def test_rows_without_a_split_are_in_train(tmp_path):
  images, splits = (
    [stand_in.png(stand_in.pixels(0, 8, 8))] * 3,
    ['val', None, ''],
  )
  path = write_parquet(
    tmp_path / 'a.parquet', image=images, label=['x'] * 3, split=splits
  )
  assert len(open_table(path)) == 2 and len(open_table(path, 'val')) == 1


def test_a_number_is_one_of_several_classes(tmp_path):
  images = [stand_in.png(stand_in.pixels(0, 8, 8))] * 3
  path = write_parquet(
    tmp_path / 'a.parquet', image=images, labels=[2, 10, None]
  )
  source = open_table(path)
  assert source.features['labels'] == target_kinds.MultiLabel(('2', '10'))
  assert sorted(source.column('labels').tolist()) == [[0, 0], [0, 1], [1, 0]]


@pytest.mark.parametrize('images', [[1, 2], [[1, 2], [3]]])
def test_images_that_are_none_name_the_row(tmp_path, images):
  path = write_parquet(tmp_path / 'a.parquet', image=images, label=['x', 'y'])
  source = open_table(path)
  assert source.bits() == 8 and source.file(0) is None
  with pytest.raises(UserError, match=r'row \d: there is no image'):
    source.read(0)


@pytest.mark.parametrize(
  ('_', 'case', 'message'),
  case_files.read(pathlib.Path(__file__).with_name('tables.txt')),
)
def test_mistakes_name_the_row(tmp_path, _, case, message):
  text, _, named = case.partition(' | ')
  text = '' if text == '-' else text.encode().decode('unicode_escape')
  call = ast.parse(f'dict({named})', mode='eval').body
  columns = {x.arg: ast.literal_eval(x.value) for x in call.keywords}
  path = tmp_path / 'a.csv'
  path.write_bytes(text.encode('utf-8', 'surrogateescape'))
  with pytest.raises(UserError, match=f'^[^\n]*{message}[^\n]*$'):
    source = open_table(path, 'all', **columns)
    for name in features.targets(source.features):
      source.column(name)
    source.read(0)


@pytest.mark.parametrize(
  ('cells', 'named', 'message'),
  [
    ('cat,1', {'label': 'label'}, "'cat' is not a class of train"),
    ('ant,inf', {'numbers': ('w',)}, 'are not 1 finite numbers'),
  ],
)
def test_a_run_finds_wrong_targets_before_it_trains(
  tmp_path, cells, named, message
):
  """Unless the row is left out."""
  path = tmp_path / 'a.csv'
  rows = 'path,split,label,w', 'x,train,ant,1', f'y,val,{cells}', 'z,val,ant,2'
  path.write_text('\n'.join(rows))
  config = tiny.config(data__name=f'table:{path}', data__split='train')
  config.evals.val.split = 'val'
  config.data.columns.update(named)
  with pytest.raises(UserError, match=f'row 2: .*{message}'):
    experiment_lib.open_splits(config)
  listed = {'data': config.data.name, 'damaged': [{'id': 'y'}]}
  (tmp_path / 'damaged.json').write_text(json.dumps(listed))
  config.data.skip_damaged = str(tmp_path / 'damaged.json')
  assert len(experiment_lib.open_splits(config)['evals.val']) == 1


@pytest.mark.slow
def test_a_multilabel_model_is_measured_on_some_of_its_classes(
  folder, tmp_path, capsys
):
  def write(path, rows):
    lines = [f'{folder}/images/{i}.png,{x}' for i, x in rows]
    path.write_text('\n'.join(['path,labels', *lines]))
    return f'table:{path}'

  labels = enumerate(['ant', 'bee;cow', 'cow', 'ant;bee', 'cow', 'bee'])
  rows = list(labels)
  config = tiny.config(
    data__name=write(tmp_path / 'all.csv', rows),
    data__split='train',
    data__image_size=16,
    data__channels=3,
    evals__val__split='',
    objective__name='multilabel',
    train__batch_size=4,
    train__duration='1 steps',
    optim__warmup='0 steps',
    checkpoint__best='',
  )
  assert loop.run(config, str(tmp_path / 'run')).status == 0
  some = [rows[1], rows[2], rows[4], rows[5]]
  for path, name in (
    (tmp_path / 'all_rows.csv', config.data.name),
    (tmp_path / 'some_rows.csv', write(tmp_path / 'some.csv', some)),
  ):
    args = f'--from={tmp_path}/run', f'--data={name}', '--split=train'
    flags = f'--predictions={path}', '--format=json'
    assert commands.run(evaluate, *args, *flags) == 0
  summary = json.loads(capsys.readouterr().out.splitlines()[-1])
  assert summary['examples'] == 4 and 0 < summary['map'] <= 1

  def read(name):
    with open(tmp_path / f'{name}_rows.csv') as file:
      actual = {x['file']: x for x in csv.DictReader(file)}
    return {
      (file, key): round(float(x[key]), 4)
      for file, x in actual.items()
      for name in ('ant', 'bee', 'cow')
      for key in (name, f'{name}_predicted')
    }

  assert read('some').items() <= read('all').items()
  rows = write(tmp_path / 'other.csv', [(0, 'elk;bee')])
  text = commands.mistake(
    evaluate, args[0], f'--data={rows}', '--split=train', has_config=False
  )
  assert 'of the data alone are elk; of the model are ant, bee, cow' in text


CELLS = [
  ('path', 'split', 'label', 'text', 'weight'),
  ('x.png', 'train', 'cat', ' of, a|b; cat ', '1.5'),
  ('y.png', 'train', 'dog', 'of a dog', '2'),
  ('z.png', 'valid', 'cat', '"so"', '3'),
]


@pytest.mark.parametrize('ending', ['csv', 'tsv'])
@pytest.mark.parametrize('delimiter', [',', ';', '\t', '|'])
@pytest.mark.parametrize(
  'encoding', ['utf-8', 'utf-8-sig', 'utf-16', 'utf-16-le', 'utf-16-be']
)
@pytest.mark.parametrize('space', ['', ' ', '\t ', '\xa0'])
def test_tables_as_spreadsheets_write_them(
  tmp_path, ending, delimiter, encoding, space
):
  if delimiter in space:
    pytest.skip('the space separates cells')
  file = io.StringIO(newline='')
  writer = csv.writer(file, delimiter=delimiter)
  for row in CELLS:
    padded = [space + cell + space for cell in row]
    writer.writerow([*padded[:3], row[3], padded[4]])
  text = file.getvalue() + space + '\r\n'
  mark = '\ufeff' if encoding in ('utf-16-le', 'utf-16-be') else ''
  path = tmp_path / f'a.{ending}'
  path.write_bytes((mark + text).encode(encoding))
  for name in 'xyz':
    image = stand_in.png(stand_in.pixels(ord(name), 8, 8))
    (tmp_path / f'{name}.png').write_bytes(image)
  config = tiny.config(data__name=f'table:{path}', data__tokenizer='words')
  actual = {}
  for split in ('train', 'val'):
    source = data.open_source(config, split)
    assert source.classes == ('cat', 'dog')
    for example in map(source.read, range(len(source))):
      name = os.path.basename(example.origin.partition(' (')[0])
      label = source.classes[example.values['label']]
      actual[name] = (split, label, example.values['text'][0])
  assert actual == {
    row[0]: ('val' if row[1] == 'valid' else row[1], *row[2:4])
    for row in CELLS[1:]
  }
  numbers = open_table(path, 'all', numbers=('weight',)).column('numbers')
  assert sorted(numbers[:, 0].tolist()) == [1.5, 2, 3]


@pytest.mark.parametrize(
  ('text', 'columns'),
  [
    ('foto;art\nx.png;a, b\n', {'image': 'foto', 'label': 'art'}),
    ('foto;art, lang\nx.png;a, b\n', {'image': 'foto', 'label': 'art, lang'}),
    ('path;label;a,b\nx.png;a, b;1,2\n', {}),
    ('sep=|\npath|label\nx.png|a, b\n', {}),
    ('path,label,a;b\nx.png,"a, b",1;2\n', {}),
  ],
)
def test_what_separates_cells(tmp_path, text, columns):
  (tmp_path / 'a.csv').write_text(text)
  source = open_table(tmp_path / 'a.csv', **columns)
  assert source.classes == ('a, b',)
  assert source.file(0) == f'{tmp_path}/x.png'


def test_spaces_in_parquet(tmp_path):
  pa = pytest.importorskip('pyarrow')
  from pyarrow import parquet

  columns = {
    ' path': ['x.png ', ' y.png'],
    'label ': ['cat', 'cat '],
    'split': [' train', 'Train '],
  }
  parquet.write_table(pa.table(columns), tmp_path / 'a.parquet')
  source = open_table(tmp_path / 'a.parquet')
  assert source.classes == ('cat',) and len(source) == 2
  assert {source.file(i) for i in range(2)} == {
    f'{tmp_path}/x.png',
    f'{tmp_path}/y.png',
  }


@pytest.mark.parametrize('name', ['a.txt', 'missing.csv'])
def test_other_files(tmp_path, name):
  (tmp_path / 'a.txt').write_text('x')
  config = tiny.config(data__name=f'table:{tmp_path}/{name}')
  with pytest.raises(UserError, match=r'a table ends with|there is no file'):
    experiment_lib.check(config)
    experiment_lib.build(config)
