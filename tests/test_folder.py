import os
import shutil
import sys

from absl import logging
import pytest
import stand_in

from vit_jax import config as config_lib
from vit_jax import data
from vit_jax.config import UserError

PNG = stand_in.png(stand_in.pixels(0, 5, 6))


def open_folder(root, split='train') -> data.Source:
  config = config_lib.default()
  config.data.name = f'folder:{root}'
  return data.open_source(config, split)


def write(root, *names: str) -> str:
  for name in names:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(PNG)
  return str(root)


def read(source: data.Source) -> list[tuple[str, str, int]]:
  """(class, file's name, index) of all examples."""
  examples = [source.read(i) for i in range(len(source))]
  return [
    (source.classes[e.label], os.path.basename(e.where), e.index)
    for e in examples
  ]


def test_folders_of_splits(tmp_path):
  root = write(
    tmp_path,
    *('train/b/1.png', 'train/b/deep/er/2.JPG', 'train/a/3.jpeg'),
    *('val/b/4.WebP', 'test/a/5.bmp', 'test/b/6.png'),
  )
  train = open_folder(root)
  assert train.classes == ('a', 'b')
  assert train.image_shape is None
  examples = read(train)
  assert sorted(e[:2] for e in examples) == [
    ('a', '3.jpeg'),
    ('b', '1.png'),
    ('b', '2.JPG'),
  ]
  assert [e[2] for e in examples] == [0, 1, 2]
  assert train.read(0).image == PNG
  assert read(open_folder(root, 'val')) == [('b', '4.WebP', 0)]
  assert len(open_folder(root, 'train+test')) == 5
  assert len(open_folder(root, 'all')) == 6


def test_folders_of_classes_alone(tmp_path):
  names = [f'{name}/{i}.png' for name in ('x', 'train', 'y') for i in range(20)]
  root = write(tmp_path, *names)  # 'train' is a class here
  first = open_folder(root, 'train[:50%]')
  assert first.classes == ('train', 'x', 'y')
  rest = open_folder(root, 'train[50%:]')
  assert read(first) + read(rest) == read(open_folder(root))
  assert {e[0] for e in read(first)} == {'train', 'x', 'y'}
  assert [e[2] for e in read(rest)] == list(range(30, 60))
  with pytest.raises(UserError, match="has no split 'val': choose from train"):
    open_folder(root, 'val')


def test_order_does_not_depend_on_where_the_folder_is(tmp_path):
  root = stand_in.write_folder(tmp_path / 'here', train=6)
  before = open_folder(root)
  examples = read(before)
  shutil.move(root / 'train', tmp_path / 'there')  # and alone
  after = open_folder(tmp_path / 'there')
  assert read(after) == examples
  assert after.fingerprint() == before.fingerprint()
  write(tmp_path / 'there', 'bee/another.png')
  assert open_folder(tmp_path / 'there').fingerprint() != before.fingerprint()


def test_slices_have_fingerprints_of_their_own(tmp_path):
  root = stand_in.write_folder(tmp_path, train=4, val=2)
  splits = ('train', 'train[:6]', 'train[6:]', 'val', 'train+val')
  assert len({open_folder(root, s).fingerprint() for s in splits}) == 5


def test_other_files_are_counted_and_named_once(tmp_path, monkeypatch):
  lines = []
  monkeypatch.setattr(
    logging, 'warning', lambda f, *args: lines.append(f % args)
  )
  names = ('a/1.png', 'a/notes.txt', 'a/2.png.bak', 'b/1.png', 'readme.md')
  root = write(tmp_path, *names, 'stray.png', 'a/.DS_Store', '.git/x.png')
  os.symlink('nowhere', tmp_path / 'a' / 'broken.png')
  for split in ('train', 'train[:50%]'):
    open_folder(root, split)
  assert lines == [
    f'{root}: 5 files are not images of a class, and are ignored:'
    ' a/2.png.bak, for example'
  ]
  assert len(open_folder(root)) == 2


def test_links_are_followed_but_not_for_ever(tmp_path):
  write(tmp_path / 'elsewhere', '1.png', 'sub/2.png')
  root = write(tmp_path / 'root', 'a/0.png')
  os.symlink(tmp_path / 'elsewhere', tmp_path / 'root' / 'b')
  os.symlink(tmp_path / 'root', tmp_path / 'elsewhere' / 'sub' / 'loop')
  os.symlink('.', tmp_path / 'root' / 'a' / 'self')
  source = open_folder(root)
  assert source.classes == ('a', 'b')
  assert {('a', '0.png'), ('b', '1.png'), ('b', '2.png')} <= {
    e[:2] for e in read(source)
  }


@pytest.mark.parametrize(
  'names, split, message',
  [
    (['1.png'], 'train', 'has no folders: it needs one for each class'),
    (['train/a/1.png'], 'val', "has no split 'val': choose from train"),
    (['val/a/1.png'], 'val', r'has no folder train/<class>: the classes are'),
    (
      ['train/a/1.png', 'train/b/1.png', 'val/c/1.png'],
      'val',
      r'val/c is not a class of train: the classes are a, b$',
    ),
    (
      ['train/a/1.png', 'train/b/x.txt'],
      'train',
      r'train/b has no images: add',
    ),
    (['a/1.png', 'b/c/x.txt'], 'train', r'/b has no images: add'),
    (['a/1.png'], 'train[:10%]', r"split 'train\[:10%\]' is empty"),
    (['a/1.png'], 'train[', 'is not a split'),
  ],
)
def test_errors_say_what_is_wrong(tmp_path, names, split, message):
  root = write(tmp_path, *names)
  with pytest.raises(UserError, match=message):
    open_folder(root, split)


def test_no_such_folder(tmp_path):
  with pytest.raises(UserError, match=r'there is no folder .*/nothing'):
    open_folder(tmp_path / 'nothing')


def test_file_that_went_away_is_named(tmp_path):
  root = write(tmp_path, 'a/1.png')
  source = open_folder(root)
  os.remove(tmp_path / 'a' / '1.png')
  with pytest.raises(UserError, match=r'a/1.png cannot be read: No such file'):
    source.read(0)


@pytest.mark.skipif(sys.platform == 'darwin', reason='macOS has no such names')
def test_name_that_is_not_utf8(tmp_path):
  folder = os.fsencode(tmp_path) + b'/a'
  os.mkdir(folder)
  with open(folder + b'/\xff.png', 'wb') as f:
    f.write(PNG)
  source = open_folder(tmp_path)
  assert source.read(0).image == PNG and source.fingerprint()
