import os
import pathlib
import shutil
import sys

from absl import logging
import case_files
import cv2
import numpy as np
import pytest
import stand_in
import tiny

from vit_jax import config as config_lib
from vit_jax import data
from vit_jax.config import UserError
from vit_jax.train import loop

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
    (source.classes[e.values['label']], os.path.basename(e.origin), e.index)
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


def test_other_files_are_counted_and_named_once(tmp_path, warnings_logged):
  names = ('a/1.png', 'a/notes.txt', 'a/2.png.bak', 'b/1.png', 'readme.md')
  root = write(tmp_path, *names, 'stray.png', 'a/.DS_Store', '.git/x.png')
  os.symlink('nowhere', tmp_path / 'a' / 'broken.png')
  for split in ('train', 'train[:50%]'):
    open_folder(root, split)
  assert warnings_logged == [
    f'{root}: ignored files that are not images of a class (5):'
    ' a/2.png.bak, a/broken.png, a/notes.txt, readme.md, stray.png'
  ]
  assert len(open_folder(root)) == 2


def test_a_stray_image_beside_classes_changes_nothing(
  tmp_path, warnings_logged
):
  names = [
    f'{s}/{c}/{i}.png' for s in ('train', 'val') for c in 'ab' for i in '12'
  ]
  root = write(tmp_path, *names, 'train/stray.png', 'val/stray.png')
  for split in ('train', 'val'):
    source = open_folder(root, split)
    assert source.classes == ('a', 'b') and len(source) == 4
  assert len(warnings_logged) == 2
  assert all(
    x.endswith('not images of a class (1): stray.png') for x in warnings_logged
  )


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
  ('_', 'case', 'message'),
  case_files.read(pathlib.Path(__file__).with_name('folders.txt')),
)
def test_errors_say_what_is_wrong(tmp_path, _, case, message):
  names, split = case.split('; ')
  with pytest.raises(UserError, match=message):
    open_folder(write(tmp_path, *names.split()), split)


@pytest.mark.parametrize('names', [('test',), ('val', 'Testing')])
def test_without_train_the_classes_are_those_of_the_split(tmp_path, names):
  folders = [f'{names[-1]}/b/1.png', f'{names[-1]}/a/2.png']
  root = write(tmp_path, *folders, *(f'{x}/c/3.png' for x in names[:-1]))
  source = open_folder(root, 'test')
  assert source.classes == ('a', 'b')
  assert {x[:2] for x in read(source)} == {('a', '2.png'), ('b', '1.png')}


LEFTOVERS = [
  *('@eaDir/1.png', '.thumbnails/1.png', '__MACOSX/1.png', '@eadir/2.png'),
  *('lost+found/1.png', '.ipynb_checkpoints/1.png', '$RECYCLE.BIN/1.png'),
  *('System Volume Information/1.png', '._1.png', 'Thumbs.db', '.DS_Store'),
]
RUN = ['runs/a/.lock', 'runs/a/pictures/1.png', 'runs/b/.sweep.lock']


@pytest.mark.parametrize('names', [[x] for x in LEFTOVERS] + [RUN])
@pytest.mark.parametrize('places', [[''], ['train/', 'train/a/', '']])
def test_what_systems_and_runs_leave_is_no_data(
  tmp_path, monkeypatch, names, places
):
  clean = [f'{places[0]}{x}/{i}.png' for x in 'ab' for i in range(3)]
  before = read(open_folder(write(tmp_path, *clean)))
  lines = logged(monkeypatch)
  for place in places:
    write(tmp_path, *(f'{place}{name}' for name in names))
  source = open_folder(tmp_path)
  assert source.classes == ('a', 'b') and read(source) == before
  top = names[0].partition('/')[0]
  for place in places:
    path = f'{tmp_path}/{place.partition("/")[0]}'.rstrip('/')
    (line,) = (x for x in lines if x.startswith(f'{path}: '))
    assert ': skipped hidden files' in line and top in line


def test_a_run_within_its_data(tmp_path, monkeypatch):
  for name in 'ab':
    (tmp_path / name).mkdir()
    for i in range(4):
      image = stand_in.png(stand_in.pixels(i, 16, 16))
      (tmp_path / name / f'{i}.png').write_bytes(image)
  monkeypatch.chdir(tmp_path)
  config = tiny.config(
    data__name='folder:.',
    data__split='train',
    data__image_size=8,
    data__channels=3,
    train__batch_size=4,
    train__duration='2 steps',
    optim__warmup='0 steps',
    evals__val__split='',
  )
  assert loop.run(config, str(tmp_path / 'runs' / 'x')).status == 0
  assert open_folder(tmp_path).classes == ('a', 'b')


def test_no_such_folder(tmp_path):
  with pytest.raises(UserError, match=r"no folder '.*/nothing'$"):
    open_folder(tmp_path / 'nothing')
  (tmp_path / 'thing').mkdir()
  with pytest.raises(UserError, match=r"did you mean '.*/thing'\?$"):
    open_folder(tmp_path / 'thingy')


def test_classes_that_val_lacks_are_told(tmp_path, monkeypatch):
  lines = logged(monkeypatch)
  root = write(tmp_path, *(f'train/{x}/1.png' for x in 'abc'), 'val/b/1.png')
  assert len(open_folder(root, 'val')) == 1
  (line,) = lines
  assert line.startswith(f'warning: {root}/val has no images of a, c, which')


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


def logged(monkeypatch) -> list[str]:
  """What is logged from now on."""
  lines: list[str] = []
  for level in ('info', 'warning'):
    monkeypatch.setattr(logging, level, lambda f, *args: lines.append(f % args))
  return lines


@pytest.mark.parametrize(
  'train, val',
  [
    ('training', 'validation'),
    ('Train', 'VALID'),
    ('TRAINING', 'dev'),
    ('train', 'Eval'),
  ],
)
def test_usual_names_of_splits(tmp_path, monkeypatch, train, val):
  lines = logged(monkeypatch)
  root = write(
    tmp_path,
    *(f'{train}/a/1.png', f'{train}/b/2.png', f'{val}/a/3.png'),
    'Testing/b/4.png',
  )
  source = open_folder(root)
  assert source.classes == ('a', 'b') and len(source) == 2
  assert read(open_folder(root, 'val')) == [('a', '3.png', 0)]
  assert read(open_folder(root, val)) == [('a', '3.png', 0)]  # as it is called
  assert read(open_folder(root, 'test')) == [('b', '4.png', 0)]
  (line,) = (x for x in lines if not x.startswith('warning: '))
  assert f'{val} as val' in line and f'{train} as train' in line
  assert 'Testing as test' in line


def test_their_own_names_need_no_word(tmp_path, monkeypatch):
  lines = logged(monkeypatch)
  root = write(tmp_path, 'train/a/1.png', 'val/a/2.png', 'test/a/3.png')
  open_folder(root, 'val')
  assert not lines


def test_test_stands_for_a_val_that_is_not_there(tmp_path, monkeypatch):
  lines = logged(monkeypatch)
  root = write(tmp_path, 'train/a/1.png', 'test/a/2.png', 'test/a/3.png')
  val, test = open_folder(root, 'val'), open_folder(root, 'test')
  assert read(val) == read(test) and val.fingerprint() == test.fingerprint()
  assert lines == [f'{root} has no val: test is taken for it']
  assert len(open_folder(root, 'all')) == 3  # each once


def test_split_without_classes_is_left_out_with_a_word(tmp_path, monkeypatch):
  lines = logged(monkeypatch)
  root = write(tmp_path, 'train/a/1.png', 'test/1.png', 'notes/1.txt')
  assert len(open_folder(root)) == 1
  assert lines == [
    f'{root}/test has images, but no folders of classes, and is not read'
  ]


def test_classes_alone_are_told_the_flags(tmp_path):
  config = config_lib.default()
  config.data.name = f'folder:{write(tmp_path, "a/1.png", "b/2.png")}'
  config.evals.val.split = 'val'
  with pytest.raises(UserError) as e:
    data.open_split(config, 'evals.val.split')
  assert str(e.value).endswith(
    "To hold some out, set --config.data.split='train[:90%]'"
    " --config.evals.val.split='train[90%:]'"
  )


def test_tiff_and_gif_files_are_images(tmp_path):
  root = write(tmp_path, 'a/1.tif', 'a/2.TIFF', 'a/3.gif', 'a/4.svg')
  assert len(open_folder(root)) == 3


def test_bits_are_those_of_a_sample(tmp_path):
  root = write(tmp_path, 'a/1.png', 'a/2.png')
  assert open_folder(root).bits() == 8
  deep = stand_in.pixels(0, 5, 6).astype(np.uint16)
  (tmp_path / 'a' / '3.png').write_bytes(stand_in.png(deep))
  (tmp_path / 'a' / '4.png').write_bytes(b'')
  assert open_folder(root).bits() == 16


@pytest.mark.parametrize('ending', ['png', 'jpg', 'bmp', 'tif'])
def test_a_size_that_images_do_not_have_is_refused_at_once(tmp_path, ending):
  """Before anything is compiled; with the way out."""
  root = tmp_path / 'images'
  for split in ('train', 'val'):
    for name, size in (('a', (20, 24)), ('b', (24, 24))):
      (root / split / name).mkdir(parents=True)
      for i in range(3):
        path = root / split / name / f'{i}.{ending}'
        assert cv2.imwrite(str(path), stand_in.pixels(i, *size))
  config = stand_in.config(root, data__source_size=(24, 24))
  message = (
    r'a/\d\.\w+ has \(height, width\) \(20, 24\), not the \(24, 24\) .*'
    r'--config\.data\.source_size=None'
  )
  for split in ('train', 'val'):
    with pytest.raises(UserError, match=message):
      data.open_source(config, split)
  config.data.source_size = None
  assert len(data.open_source(config, 'train')) == 6
