"""`vit_jax.embed`: its files against the library's embeddings."""

import importlib.util
import json
import shutil

import commands
import jax
import numpy as np
import pytest
import stand_in

import vit_jax
from vit_jax import data
from vit_jax import embed
from vit_jax import models
from vit_jax.cli import columns
from vit_jax.config import UserError
from vit_jax.models import values
from vit_jax.weights.files import containers as weights_files
from vit_jax.weights.formats import google
from vit_jax.weights.formats import tables

SPLIT = '--split=train[80%:]'


@pytest.fixture(scope='module')
def headless(tmp_path_factory):
  """A checkpoint of 24 px images with a head of 7 classes."""
  model = models.create_model(
    'ViT-Ti/8', 7, hidden_size=16, mlp_dim=32, num_heads=2, depth=2
  )
  params = models.init_params(model, jax.random.key(1), (24, 24, 3))
  path = tmp_path_factory.mktemp('models') / 'model.npz'
  weights_files.write_npz(
    path, tables.write(google.VIT.rules(values.model_values(model)), params)
  )
  return path


def test_an_archive_of_the_digits(digits_run, tmp_path):
  """The last batch is padded; other sizes of batch give the same."""
  path = tmp_path / 'digits.npz'
  for size in (16, 100):
    args = f'--data=digits {SPLIT} --batch_size={size}'.split()
    assert (
      commands.run(embed, f'--from={digits_run}', *args, f'--out={path}') == 0
    )
    with np.load(path) as actual:
      arrays = dict(actual)
    vit = vit_jax.load(digits_run)
    source = data.open_source(vit.preprocess.to_config(), 'train[80%:]')
    expected = vit_jax.embeddings(vit, list(source.arrays['image']))
    assert arrays['embedding'].shape == (359, 16)
    np.testing.assert_allclose(arrays['embedding'], expected, atol=2e-5)
    np.testing.assert_array_equal(arrays['label'], source.arrays['label'])
    np.testing.assert_array_equal(arrays['index'], source.indices)
    assert arrays['file'].tolist() == [''] * 359
    assert arrays['classes'].tolist() == list('0123456789')
    assert {x.dtype.name for x in arrays.values()} >= {'float32', 'int32'}
  assert [p.name for p in tmp_path.iterdir()] == ['digits.npz']


def run_folder(class_folder, model, path, *args):
  return commands.run(
    embed,
    f'--from={model}',
    f'--data=folder:{class_folder}',
    '--split=val[20%:]+train[:3]',
    '--batch_size=4',
    '--model.num_heads=2',
    f'--out={path}',
    *args,
  )


def test_a_folder_of_other_classes(class_folder, headless, tmp_path):
  """Its files are named; that the model tells others apart does not matter."""
  assert run_folder(class_folder, headless, tmp_path / 'a.npz') == 0
  with np.load(tmp_path / 'a.npz') as actual:
    arrays = dict(actual)
  files = arrays['file'].tolist()
  assert arrays['classes'].tolist() == list(stand_in.CLASSES)
  for label, file in zip(arrays['label'], files, strict=True):
    assert f'/{stand_in.CLASSES[label]}/' in file
  vit = vit_jax.load(headless, num_heads=2)
  expected = vit_jax.embeddings(vit, files)
  np.testing.assert_allclose(arrays['embedding'], expected, atol=2e-5)
  assert arrays['index'].tolist() == [*range(3, 15), 15, 16, 17]


def test_parquet_has_the_same(class_folder, headless, tmp_path, monkeypatch):
  if not importlib.util.find_spec('pyarrow'):
    pytest.skip('pyarrow is not installed')
  from pyarrow import parquet

  monkeypatch.setattr(embed, '_ROWS', 8)  # several groups
  for name in ('a.npz', 'a.parquet'):
    run_folder(class_folder, headless, tmp_path / name)
  table = parquet.read_table(tmp_path / 'a.parquet')
  with np.load(tmp_path / 'a.npz') as actual:
    arrays = dict(actual)
  assert table.column_names == [
    'embedding',
    'label',
    'label_name',
    'index',
    'file',
  ]
  np.testing.assert_array_equal(
    np.array(table['embedding'].to_pylist(), np.float32), arrays['embedding']
  )
  for name in ('label', 'index', 'file'):
    assert table[name].to_pylist() == arrays[name].tolist()
  names = [stand_in.CLASSES[i] for i in arrays['label']]
  assert table['label_name'].to_pylist() == names
  stored = json.loads(table.schema.metadata[b'classes'])
  assert stored == list(stand_in.CLASSES)
  assert parquet.ParquetFile(tmp_path / 'a.parquet').num_row_groups == 2


@pytest.mark.parametrize('ending', ['npz', 'parquet'])
def test_files_without_labels(class_folder, headless, tmp_path, ending):
  """As --data of the same files, in the order they are named in."""
  if ending == 'parquet' and not importlib.util.find_spec('pyarrow'):
    pytest.skip('pyarrow is not installed')
  path = tmp_path / f'a.{ending}'
  args = (f'--from={headless}', '--model.num_heads=2', '--batch_size=4')
  images = (
    f'--images={class_folder}/val/bee',
    f'--images={class_folder}/val/*/1.png',
  )
  assert commands.run(embed, *args, *images, f'--out={path}') == 0
  if ending == 'npz':
    with np.load(path) as actual:
      arrays = {name: array.tolist() for name, array in actual.items()}
    assert arrays.pop('checkpoint')
  else:
    from pyarrow import parquet

    table = parquet.read_table(path)
    assert list(table.schema.metadata) == [b'checkpoint']
    arrays = table.to_pydict()
  assert sorted(arrays) == ['embedding', 'file', 'index']
  names = [f'bee/{i}' for i in range(5)] + ['ant/1', 'bee/1', 'cow/1']
  assert arrays['file'] == [f'{class_folder}/val/{name}.png' for name in names]
  assert arrays['index'] == list(range(8))
  vit = vit_jax.load(headless, num_heads=2)
  expected = vit_jax.embeddings(vit, arrays['file'])
  np.testing.assert_allclose(arrays['embedding'], expected, atol=2e-5)


def test_parquet_of_what_has_no_files(digits_run, tmp_path):
  if not importlib.util.find_spec('pyarrow'):
    pytest.skip('pyarrow is not installed')
  from pyarrow import parquet

  args = '--data=digits', '--split=train[:5]', f'--out={tmp_path}/a.parquet'
  assert commands.run(embed, f'--from={digits_run}', *args) == 0
  table = parquet.read_table(tmp_path / 'a.parquet').to_pydict()
  assert table['file'] == [None] * 5


def test_names_that_are_no_utf_8_are_escaped():
  assert columns.as_text(b'caf\xe9.png'.decode('utf-8', 'surrogateescape')) == (
    'caf\\xe9.png'
  )
  assert columns.as_text('café') == 'café' and columns.as_text(None) is None


@pytest.mark.parametrize('ending', ['npz', 'parquet'])
def test_a_damaged_image_leaves_no_file(
  class_folder, headless, tmp_path, ending
):
  """Nor does it harm the one that was there."""
  root = shutil.copytree(class_folder, tmp_path / 'images')
  (root / 'val' / 'bee' / '0.png').write_bytes(b'damaged')
  out = tmp_path / 'out'
  out.mkdir()
  path = out / f'a.{ending}'
  path.write_text('before')
  with pytest.raises(UserError, match=r'bee/0\.png is damaged'):
    commands.run(
      embed,
      f'--from={headless}',
      f'--data=folder:{root}',
      '--split=val',
      '--batch_size=2',
      '--model.num_heads=2',
      f'--out={path}',
    )
  assert [p.name for p in out.iterdir()] == [path.name]
  assert path.read_text() == 'before'
