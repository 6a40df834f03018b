"""`vit_jax.predict`: which images it finds, its answers, what is damaged."""

import csv
import io
import json
import os
import re
import shutil
import sys

import commands
import numpy as np
import pytest
import stand_in

import vit_jax
from vit_jax.cli import image_files
from vit_jax.config import UserError
from vit_jax.evaluation import predictions
from vit_jax.explore import predictions as explored
from vit_jax.predict import __main__ as predict


@pytest.fixture(scope='module')
def images(tmp_path_factory):
  """Seven images in folders, and what must not be taken for one."""
  root = tmp_path_factory.mktemp('images')
  names = ['b.png', 'a/2.png', 'a/1.PNG', 'a/deep/3.png', 'c d/é,"1".png']
  for i, name in enumerate([*names, 'c d/2.png', 'c d/3.png']):
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_bytes(stand_in.png(stand_in.pixels(i, 9, 12 - i)))
  (root / 'a' / 'notes.txt').write_text('not an image')
  (root / '.hidden.png').write_bytes(b'')
  return root


def on_stdin(monkeypatch, data):
  monkeypatch.setattr(sys, 'stdin', io.TextIOWrapper(io.BytesIO(data)))


def test_the_answers_are_those_of_load(digits_run, images, capsys):
  status = commands.run(
    predict, f'--from={digits_run}', images, '--format=json', '--batch_size=4'
  )
  out, err = capsys.readouterr()
  actual = json.loads(out)
  expected = ['a/1.PNG', 'a/2.png', 'a/deep/3.png', 'b.png', 'c d/2.png']
  expected += ['c d/3.png', 'c d/é,"1".png']
  paths = [f'{images}/{name}' for name in expected]
  assert status == 0 and 'image/s' not in err
  assert [x['image'] for x in actual] == paths
  loaded = vit_jax.load(digits_run)
  logits = loaded.predict(paths)
  for answer, row in zip(actual, logits, strict=True):
    best = answer['predictions']
    numbers = np.argsort(-row)[:5].tolist()
    assert [x['index'] for x in best] == numbers
    assert [x['class'] for x in best] == [str(i) for i in numbers]
    p = np.exp(row) / np.exp(row).sum()
    np.testing.assert_allclose(
      [x['probability'] for x in best], p[numbers], rtol=1e-4
    )


def test_csv_and_table_say_the_same(digits_run, images, capsys):
  args = f'--from={digits_run}', f'{images}/c d', '--top=2'
  assert commands.run(predict, *args, '--format=csv') == 0
  rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
  assert commands.run(predict, *args) == 0
  head, *table = capsys.readouterr().out.splitlines()
  assert head.split() == ['image', 'probability', 'class']
  assert len(rows) == len(table) == 6
  assert rows[4]['image'] == f'{images}/c d/é,"1".png'
  for row, line in zip(rows, table, strict=True):
    begin = row['image'] if row['rank'] == '1' else ' '
    probability, name = line.split()[-2:]
    assert line.startswith(begin) and name == row['class']
    assert float(probability) == pytest.approx(
      float(row['probability']), abs=6e-5
    )


def test_a_damaged_image_is_reported_and_the_rest_goes_on(
  digits_run, images, tmp_path, capsys
):
  whole = (images / 'b.png').read_bytes()
  (tmp_path / 'cut.png').write_bytes(whole[: len(whole) // 2])
  args = tmp_path / 'cut.png', images / 'b.png', tmp_path / 'none.jpg'
  status = commands.run(
    predict,
    f'--from={digits_run}',
    *args,
    images / 'a' / '2.png',
    '--format=json',
  )
  out, err = capsys.readouterr()
  assert status == 1
  assert [os.path.basename(x['image']) for x in json.loads(out)] == [
    'b.png',
    '2.png',
  ]
  cut, none = [line for line in err.splitlines() if str(tmp_path) in line]
  assert 'cut.png is damaged' in cut
  assert 'none.jpg cannot be read: No such file' in none
  assert all(line.endswith('. The image is skipped.') for line in (cut, none))


def test_only_damaged_images(digits_run, images, capsys):
  status = commands.run(
    predict, f'--from={digits_run}', images / 'a' / 'notes.txt', '--format=json'
  )
  out, err = capsys.readouterr()
  assert status == 1 and json.loads(out) == []
  assert 'notes.txt is damaged or no image' in err
  assert 'no JPEG, PNG, WebP, TIFF, BMP or GIF' in err and 'convert it' in err


def test_a_single_logit_of_unknown_meaning_is_a_number(digits_run):
  """The softmax of one logit would be 1, whatever the image."""
  vit = vit_jax.load(digits_run, num_classes=1)
  head = predictions.Head.from_loaded(vit, 5)
  actual = head.rank(np.array([[2.5]]))
  assert head.names == ('output',)
  np.testing.assert_array_equal(actual['probability'], [[2.5]])
  with pytest.raises(UserError, match='predicts numbers'):
    explored.probabilities(vit, np.array([[2.5]]))


def test_where_images_are_found(images, monkeypatch, capsys):
  monkeypatch.chdir(images)

  def find(*arguments):
    return image_files.find(arguments)

  assert find('b.png', 'a', 'b.png') == [
    'b.png',
    'a/1.PNG',
    'a/2.png',
    'a/deep/3.png',
    'b.png',
  ]
  assert find('*/2.png') == ['a/2.png', 'c d/2.png']
  assert find('c*') == ['c d/2.png', 'c d/3.png', 'c d/é,"1".png']
  assert find('**/3.png') == ['a/deep/3.png', 'c d/3.png']
  assert find('*.gif', 'b.png') == ['b.png']
  assert capsys.readouterr().err == 'no file matches the pattern *.gif\n'
  on_stdin(monkeypatch, b'c d/2.png\r\n\na/deep\nb.png')
  assert find('-') == ['c d/2.png', 'a/deep/3.png', 'b.png']
  on_stdin(monkeypatch, b'\xef\xbb\xbfb.png\0a/2.png\0')
  assert find('-') == ['b.png', 'a/2.png']
  for folder in ('c d/@eaDir', 'c d/.thumbnails', 'a/__MACOSX', 'a/._x'):
    shutil.copytree('a/deep', folder)
  assert find('**/3.png') == ['a/deep/3.png', 'c d/3.png']
  assert find('a') == ['a/1.PNG', 'a/2.png', 'a/deep/3.png']
  os.mkdir('empty')
  assert find('empty', 'b.png') == ['b.png']
  assert capsys.readouterr().err == 'empty has no images\n'
  os.rmdir('empty')


def test_a_name_that_is_not_there_has_a_similar_one(images, monkeypatch):
  """It is told before the model is loaded."""
  monkeypatch.chdir(images)
  for name, expected in {'b.pgn': 'b.png', 'c  d': 'c d'}.items():
    text = commands.mistake(predict, '--from=none', name)
    assert f'there is no {name}: did you mean {expected!r}?' in text
  assert 'no photos in /' in commands.mistake(predict, '--from=none', 'photos')


def test_a_pattern_may_be_a_name(images, monkeypatch):
  monkeypatch.chdir(images)
  (images / '[ab].png').write_bytes((images / 'b.png').read_bytes())
  assert image_files.find(['[ab].png']) == ['[ab].png']
  (images / '[ab].png').unlink()
  assert image_files.find(['[ab].png']) == ['b.png']


def test_names_that_are_no_utf_8(images, monkeypatch):
  on_stdin(monkeypatch, b'b.png\ncaf\xe9.png\n')
  monkeypatch.chdir(images)
  _, path = image_files.find(['-'])
  assert os.fsencode(path) == b'caf\xe9.png'


def test_one_shape_for_all_batches_and_few_images_ahead():
  started = []

  def pixels(path):
    started.append(path)
    if path == '3':
      raise UserError('3 is damaged')
    return np.full((1, 2, 2, 1), int(path), np.uint8)

  errors, counts = [], []
  paths = [str(i) for i in range(30)]
  batches = image_files.decoded_batches(
    paths, pixels, 4, errors.append, counts.append
  )
  names, first = next(batches)
  assert names == ['0', '1', '2', '4'] and len(started) <= 5 + 12
  rest = list(batches)
  assert [str(e) for e in errors] == ['3 is damaged']
  assert [n for names, _ in rest for n in names] == paths[5:]
  assert {x['image'].shape for _, x in [(0, first), *rest]} == {(4, 2, 2, 1)}
  np.testing.assert_array_equal(rest[-1][1]['image'][:, 0, 0, 0], [29, 0, 0, 0])
  assert sum(counts) == 30


def test_the_command_itself(digits_run, images, tmp_path):
  """Also that what was compiled is kept, and that `head` may end it."""
  env = commands.ENV | {'VIT_JAX_CACHE': str(tmp_path / 'cache')}
  # Those that conftest.py sets.
  env = {k: x for k, x in env.items() if not re.match('JAX.*_CACHE_', k)}
  result = commands.python(
    *('-m', 'vit_jax.predict', f'--from={digits_run}', '-', '--top=1'),
    env=env,
    input=f'{images}/b.png\n',
  )
  assert result.returncode == 0, result.stderr
  head, line = result.stdout.splitlines()
  assert head.split() == ['image', 'probability', 'class']
  assert line.startswith(f'{images}/b.png') and ' 0.' in line
  (line,) = result.stderr.splitlines()
  assert line.startswith(f'loaded {digits_run}/checkpoints/3: step 3, ')
  assert any((tmp_path / 'cache' / 'xla').iterdir())
  code = (
    'import sys, runpy; sys.argv = ["predict", "--help"]\n'
    'try: runpy.run_module("vit_jax.predict", run_name="__main__")\n'
    'finally: assert "jax" not in sys.modules'
  )
  env['VIT_JAX_CACHE'] = f'{images}/b.png'  # no folder: nothing is kept
  result = commands.python('-c', code, env=env)
  assert result.returncode == 0, result.stderr
  assert '--from=runs/digits' in result.stdout and '--top' in result.stdout
