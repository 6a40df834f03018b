"""Datasets of the `datasets` library as sources, with the library itself."""

import concurrent.futures
import dataclasses
import hashlib
import json
import os
import pickle
import subprocess
import sys

import commands
import file_server
import numpy as np
import pytest
import stand_in
import tiny

from vit_jax import data
from vit_jax import evaluate
from vit_jax.config import UserError
from vit_jax.data import __main__ as check_command
from vit_jax.data import features
from vit_jax.data import hf
from vit_jax.data import survey
from vit_jax.data import target_kinds
from vit_jax.data.host import decode
from vit_jax.train import loop

datasets = pytest.importorskip('datasets')

CLASSES = ('cow', 'ant', 'bee')  # not sorted: the order of the dataset
TAGS = ('black', 'small', 'yellow')
NUM_TRAIN, NUM_VAL = 9, 3
COMMIT = 'c' * 40


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path_factory):
  """Keeps the library from the network, and from the user's cache."""
  import huggingface_hub

  home = tmp_path_factory.mktemp('home')
  monkeypatch.setattr(datasets.config, 'HF_DATASETS_CACHE', home / 'datasets')
  monkeypatch.setattr(datasets.config, 'HF_HUB_OFFLINE', True)
  constants = huggingface_hub.constants
  monkeypatch.setattr(constants, 'HF_HUB_OFFLINE', True)
  monkeypatch.setattr(constants, 'HF_HUB_CACHE', str(home / 'hub'))
  hf._from_hub.cache_clear()


def columns(start, count):
  """Columns of a dataset; image and numbers follow the label."""
  rows = range(start, start + count)
  return {
    'image': [
      {'bytes': stand_in.png(stand_in.pixels(i % 3, 20 + i, 24)), 'path': None}
      for i in rows
    ],
    'label': [i % 3 for i in rows],
    'tags': [sorted({i % 3, i % 2}) if i % 4 else [] for i in rows],
    'weight': [i / 2 for i in rows],
    'height': [*rows],
  }


TYPES = datasets.Features(
  {
    'image': datasets.Image(),
    'label': datasets.ClassLabel(names=list(CLASSES)),
    'tags': datasets.Sequence(datasets.ClassLabel(names=list(TAGS))),
    'weight': datasets.Value('float32'),
    'height': datasets.Value('int64'),
  }
)


BYTES_AND_PATH = (('bytes', 'binary'), ('path', 'string'))


def dataset(start=0, count=NUM_TRAIN, **changed):
  return datasets.Dataset.from_dict(
    columns(start, count) | changed, features=TYPES
  )


@pytest.fixture(scope='module')
def root(tmp_path_factory):
  """The same images, as all that can be read."""
  root = tmp_path_factory.mktemp('hf')
  train, validation = dataset(), dataset(NUM_TRAIN, NUM_VAL)
  splits = datasets.DatasetDict(train=train, validation=validation)
  splits.save_to_disk(root / 'saved')
  train.save_to_disk(root / 'one')
  for name, split in splits.items():
    (root / 'parquet').mkdir(exist_ok=True)
    split.to_parquet(root / f'parquet/{name}-0.parquet')
    for i, row in enumerate(split.to_list()):
      folder = root / 'folder' / name / CLASSES[row['label']]
      folder.mkdir(parents=True, exist_ok=True)
      (folder / f'{i}.png').write_bytes(row['image']['bytes'])
  return root


def open_hf(path, spec='train', cache=None, **named):
  config = tiny.config(data__name=f'hf:{path}', data__split=spec)
  config.data.columns.update(named)
  config.data.dir = cache
  data.check(config)
  return data.open_source(config, spec)


def examples(source):
  read = [source.read(i) for i in range(len(source))]
  return {(x.image, source.classes[x.values['label']]) for x in read}


@pytest.mark.parametrize('kind', ['saved', 'one', 'parquet', 'folder'])
def test_all_kinds_hold_the_same(root, kind, tmp_path):
  source = open_hf(root / kind, cache=str(tmp_path))
  is_folder = kind == 'folder'  # there classes have no order of their own
  assert source.classes == (tuple(sorted(CLASSES)) if is_folder else CLASSES)
  stored = columns(0, NUM_TRAIN)
  expected = {
    (image['bytes'], CLASSES[label])
    for image, label in zip(stored['image'], stored['label'], strict=True)
  }
  assert examples(source) == expected
  actual = source.column('label').tolist()
  assert actual == [source.read(i).values['label'] for i in range(NUM_TRAIN)]
  assert source.bits() == 8 and source.features['image'] == features.Image()
  assert (source.file(0) is not None) == is_folder


def test_pixels_are_those_of_a_folder(root):
  read = {}
  for kind in ('hf', 'folder'):
    config = tiny.config(data__name=f'{kind}:{root}/folder')
    source = data.open_source(config, 'train')
    read[kind] = {
      source.file(i): decode.decode(source.read(i).image, 3)
      for i in range(len(source))
    }
  assert set(read['hf']) == set(read['folder'])
  for path, pixels in read['hf'].items():
    np.testing.assert_array_equal(pixels, read['folder'][path])


def test_splits(root):
  saved = root / 'saved'
  assert len(open_hf(saved, 'validation')) == NUM_VAL
  val = open_hf(saved, 'val')
  assert val.id(0) == open_hf(saved, 'validation').id(0)
  assert {val.read(i).index for i in range(NUM_VAL)} == set(range(NUM_VAL))
  assert len(open_hf(saved, 'all')) == NUM_TRAIN + NUM_VAL
  train = open_hf(saved)
  ids = [train.id(i) for i in range(NUM_TRAIN)]
  assert ids != sorted(ids)  # by a hash, so that slices hold all classes


def test_captions_are_in_the_columns_that_are_named(tmp_path):
  texts = [[f'a {i}', f'the {i}'][: 1 + i % 2] for i in range(NUM_TRAIN)]
  types = TYPES | {'note': datasets.List(datasets.Value('string'))}
  saved = datasets.Dataset.from_dict(
    columns(0, NUM_TRAIN) | {'note': texts}, features=datasets.Features(types)
  )
  saved.save_to_disk(tmp_path / 'saved')
  config = tiny.config(
    data__name=f'hf:{tmp_path}/saved',
    data__split='train',
    data__tokenizer='words',
    data__columns__text=('note',),
    data__columns__label='label',
  )
  source = data.open_source(config, 'train')
  actual = [source.captions(i) for i in range(NUM_TRAIN)]
  assert sorted(actual) == sorted(texts)
  assert source.read(0).values['text'] == source.captions(0)
  with pytest.raises(UserError, match='which is no text'):
    open_hf(tmp_path / 'saved', text=('height',), label='label').captions(0)


def test_several_classes_and_numbers(root):
  numbers = ('weight', 'height')
  source = open_hf(root / 'saved', labels='tags', numbers=numbers)
  assert source.features == {
    'image': features.Image(),
    'labels': target_kinds.MultiLabel(TAGS),
    'numbers': target_kinds.Number(numbers),
  }
  order = np.argsort(source.column('numbers')[:, 1])
  stored = columns(0, NUM_TRAIN)
  np.testing.assert_array_equal(
    source.column('numbers')[order],
    np.stack([stored['weight'], stored['height']], 1),
  )
  expected = [[i in row for i in range(3)] for row in stored['tags']]
  np.testing.assert_array_equal(source.column('labels')[order], expected)


def test_columns_without_types_of_their_own_are_named_or_usual(tmp_path):
  images = [x['bytes'] for x in columns(0, 3)['image']]
  rows = datasets.Dataset.from_dict(
    {'photo': images, 'class': [10, 9, 10], 'note': ['a;b', '', 'b']}
  )
  rows.save_to_disk(tmp_path / 'plain')
  source = open_hf(tmp_path / 'plain', image='photo')
  assert source.classes == ('9', '10')
  assert {source.read(i).image for i in range(3)} == set(images)
  several = open_hf(tmp_path / 'plain', image='photo', labels='note')
  assert several.classes == ('a', 'b')
  assert several.column('labels').sum() == 3


@pytest.mark.slow
def test_threads_and_processes_read_the_same(root):
  source = open_hf(root / 'saved')
  alone = [source.read(i) for i in range(NUM_TRAIN)]
  for copy in (source, pickle.loads(pickle.dumps(source))):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
      actual = list(pool.map(copy.read, [*range(NUM_TRAIN)] * 20))
    assert actual == alone * 20
  read = []
  for workers in (0, 2):
    config = tiny.config(
      data__name=f'hf:{root}/saved',
      data__image_size=16,
      data__channels=3,
      data__num_workers=workers,
      train__batch_size=4,
    )
    batches = data.train_batches(source, config, start_step=0, num_steps=4)
    read.append(list(batches))
    batches.close()
  for one, other in zip(*read, strict=True):
    for name, values in one.items():
      np.testing.assert_array_equal(values, other[name])


def test_images_of_one_size_are_kept_on_the_devices(tmp_path):
  image = {'bytes': stand_in.png(stand_in.pixels(0, 16, 16)), 'path': None}
  dataset(image=[image] * NUM_TRAIN).save_to_disk(tmp_path / 'same')
  config = settings(
    tmp_path / 'same',
    data__source_size=(16, 16),
    data__cache='device',
    evals__val__split='train[:3]',
  )
  results = loop.run(config, str(tmp_path / 'run'))
  assert results.status == 0 and results.metrics['val/examples'] == 3


def settings(path, **overrides):
  return tiny.config(
    **{
      'data__name': f'hf:{path}',
      'data__split': 'train',
      'data__image_size': 16,
      'data__channels': 3,
      'evals__val__split': 'val',
      'train__batch_size': 4,
      'train__duration': '3 steps',
      'optim__warmup': '0 steps',
    }
    | overrides
  )


def test_a_model_is_trained_and_evaluated(root, tmp_path, capsys):
  path = tmp_path / 'run'
  results = loop.run(settings(root / 'saved'), str(path))
  assert results.status == 0 and results.metrics['val/examples'] == NUM_VAL
  flags = f'--from={path}', f'--data=hf:{root}/parquet', '--split=val'
  assert commands.run(evaluate, *flags, '--format=json') == 0
  report = json.loads(capsys.readouterr().out)
  assert report['examples'] == NUM_VAL
  assert {x['name'] for x in report['classes']} == set(CLASSES)
  assert report['accuracy'] == pytest.approx(results.metrics['val/accuracy'])


@pytest.fixture
def damaged(tmp_path):
  """A dataset, of which an image is damaged and another one missing."""
  images = columns(0, NUM_TRAIN)['image']
  images[2] = {'bytes': images[2]['bytes'][:60], 'path': None}
  images[5] = {'bytes': b'', 'path': None}
  splits = datasets.DatasetDict(
    train=dataset(image=images), validation=dataset(NUM_TRAIN, NUM_VAL)
  )
  splits.save_to_disk(tmp_path / 'damaged')
  return tmp_path / 'damaged'


def test_what_is_damaged_is_named_and_left_out(
  damaged, tmp_path, capsys, monkeypatch
):
  with pytest.raises(UserError) as e:
    loop.run(settings(damaged), str(tmp_path / 'run'))
  rows = [f'hf:{damaged}, row {i} of train' for i in (2, 5)]
  assert any(row in str(e.value) for row in rows)
  out = tmp_path / 'damaged.json'
  argv = check_command.with_config(
    [
      'check',
      str(tiny.ROOT / 'configs' / 'folder.py'),
      f'--config.data.name=hf:{damaged}',
      f'--out={out}',
      '--format=json',
    ]
  )
  monkeypatch.setattr(sys, 'argv', ['check', *argv])  # keys of a config
  assert commands.run(check_command, *argv) == 1
  report = json.loads(capsys.readouterr().out)
  assert {x['id'] for x in report['damaged']} == {'train/2', 'train/5'}
  for entry in report['damaged']:
    assert any(row in entry['problem'] for row in rows)
  assert report['examples'] == NUM_TRAIN + NUM_VAL
  config = settings(damaged, data__skip_damaged=str(out))
  assert loop.run(config, str(tmp_path / 'run2')).status == 0


def test_check_counts_what_has_no_class(root):
  config = settings(root / 'saved', data__columns__labels='tags')
  report = survey.report(survey.list_config(config))
  assert report['splits']['train']['classes'] == {'(none)': NUM_TRAIN}
  assert not survey.is_bad(report)


@pytest.mark.parametrize(
  'split, named, message',
  [
    ('test', {}, "no split 'test': choose from train, validation"),
    ('train', {'label': 'lable'}, "'lable', but the columns .* image, label"),
    ('train', {'image': 'weight'}, "'weight' is Value.*columns.image"),
    ('train', {'numbers': ('tags',)}, "'tags' is List.*columns.numbers"),
    ('train', {'label': 'tags'}, "'tags' is List.*columns.label"),
    ('train', {'split': 'label'}, 'columns.split is for tables'),
  ],
)
def test_mistakes_say_what_is_there(root, split, named, message):
  with pytest.raises(UserError, match=f'^[^\n]*{message}[^\n]*$'):
    open_hf(root / 'saved', split, **named)


@pytest.mark.parametrize(
  'changed, named, line',
  [
    ({'label': [-1]}, {}, "row 0 of train: column 'label' is empty"),
    ({'label': [None]}, {}, "row 0 of train: column 'label' is empty"),
    ({'weight': [None]}, {'numbers': ('weight',)}, 'weight is None'),
    ({'weight': [np.inf]}, {'numbers': ('weight',)}, 'not 1 finite numbers'),
    ({'tags': [[-1]]}, {'labels': 'tags'}, "'-1' is not a class of train"),
    ({'image': [None]}, {}, 'row 0 of train: there is no image'),
    (
      {'image': [{'bytes': None, 'path': 'no.png'}]},
      {},
      'row 0 of train: .*no.png cannot be read: No such file',
    ),
  ],
)
def test_mistakes_name_the_row(tmp_path, changed, named, line):
  # Not as Image: the library would read the file to write the dataset.
  image = {k: datasets.Value(v) for k, v in BYTES_AND_PATH}
  types = datasets.Features(TYPES | {'image': image})
  rows = datasets.Dataset.from_dict(columns(0, 1) | changed, features=types)
  rows.to_parquet(tmp_path / 'train.parquet')
  source = open_hf(tmp_path, cache=str(tmp_path / 'cache'), **named)
  with pytest.raises(UserError, match=f'^[^\n]*{line}[^\n]*$'):
    source.read(0)
    for name in features.targets(source.features):
      source.column(name)


def test_of_several_columns_of_a_type_the_usual_one_is_taken(tmp_path):
  rows = dataset(0, 3).rename_column('label', 'fine')
  rows = rows.add_column('coarse', [0, 0, 1]).cast_column(
    'coarse', datasets.ClassLabel(names=['x', 'y'])
  )
  rows.save_to_disk(tmp_path / 'two')
  with pytest.raises(UserError, match=r'columns\.label=fine, of fine, coarse'):
    open_hf(tmp_path / 'two')
  assert open_hf(tmp_path / 'two', label='coarse').classes == ('x', 'y')
  rows.rename_column('coarse', 'label').save_to_disk(tmp_path / 'usual')
  assert open_hf(tmp_path / 'usual').classes == ('x', 'y')


def test_each_split_must_have_the_columns(tmp_path):
  splits = datasets.DatasetDict(
    train=dataset(), test=dataset(NUM_TRAIN, NUM_VAL).remove_columns('label')
  )
  splits.save_to_disk(tmp_path / 'bare')
  source = open_hf(tmp_path / 'bare', 'test')
  with pytest.raises(UserError, match="its test has no column 'label'"):
    source.read(0)


def test_there_must_be_images(tmp_path):
  rows = dataset(0, 3).remove_columns('image')
  rows.save_to_disk(tmp_path / 'none')
  with pytest.raises(UserError, match='say which has the images'):
    open_hf(tmp_path / 'none')


@pytest.mark.parametrize(
  'name, line',
  [
    ('./none', "there is no directory './none'"),
    ('/none/at/all', "there is no directory '/none/at/all'"),
    ('two words', 'hf:OWNER/NAME'),
    ('{root}/saved:other', "it has no configuration 'other'"),
    ('{root}/parquet:other', "'other' not found"),
    ('{empty}', "doesn't contain any data files"),
    ('nobody/nothing', "Couldn't reach 'nobody/nothing'.*save_to_disk"),
  ],
)
def test_what_is_not_there_is_one_line(root, tmp_path, name, line):
  name = name.format(root=root, empty=tmp_path)
  with pytest.raises(UserError, match=f'^config.data.name[^\n]*{line}[^\n]*$'):
    open_hf(name, cache=str(tmp_path / 'cache'))


def test_a_damaged_dataset_is_one_line(root, tmp_path):
  broken = tmp_path / 'broken'
  dataset(0, 3).save_to_disk(broken)
  (arrow,) = broken.glob('*.arrow')
  arrow.write_bytes(arrow.read_bytes()[:100])
  with pytest.raises(UserError, match=r'^config.data.name: [^\n]* be read: '):
    open_hf(broken)


def test_without_the_library_the_extra_is_named(root, monkeypatch):
  monkeypatch.setitem(sys.modules, 'datasets', None)
  with pytest.raises(UserError, match=r"pip install 'vit_jax\[hf\]'$"):
    open_hf(root / 'saved')


@pytest.mark.parametrize(
  'name, address',
  [
    ('mnist', hf.Address('mnist', False)),
    ('a/b', hf.Address('a/b', False)),
    ('a/b:c-d', hf.Address('a/b', False, None, 'c-d')),
    ('a/b@v1.0', hf.Address('a/b', False, 'v1.0')),
    ('a/b@refs/pr/1:c', hf.Address('a/b', False, 'refs/pr/1', 'c')),
    ('{root}', hf.Address('{root}', True)),
    ('{root}:c', hf.Address('{root}', True, None, 'c')),
  ],
)
def test_names(tmp_path, name, address):
  path = address.path.format(root=tmp_path)
  expected = dataclasses.replace(address, path=path)
  assert hf.parse(name.format(root=tmp_path)) == expected


@pytest.fixture
def hub(root):
  """A server that answers as the Hub does, with the repository o/n.

  It has the configurations `default` and `other`; of the latter there is only
  the validation data, as train.
  """
  server = file_server.Server()
  parquet = root / 'parquet'
  files = {
    'README.md': b'---\nconfigs:\n- config_name: default\n  data_files: a-*\n'
    b'- config_name: other\n  data_files: b-*\n---\n',
    'a-0.parquet': (parquet / 'train-0.parquet').read_bytes(),
    'b-0.parquet': (parquet / 'validation-0.parquet').read_bytes(),
  }
  entries = [
    {'type': 'file', 'path': name, 'size': len(body), 'oid': 'd' * 40}
    for name, body in files.items()
  ]
  info = {'id': 'o/n', 'sha': COMMIT, 'siblings': [], 'tags': []}
  body = json.dumps(info).encode()
  api = '/api/datasets/o/n'
  for path in (api, f'{api}/revision/v1', f'{api}/revision/{COMMIT}'):
    server.replies[path] = file_server.Reply(body)
  server.replies[f'{api}/tree/{COMMIT}?recursive=false&expand=false'] = (
    file_server.Reply(json.dumps(entries).encode())
  )
  commit = {'X-Repo-Commit': COMMIT}
  missing = {'X-Error-Code': 'EntryNotFound', **commit}
  for revision in ('main', 'v1', COMMIT):
    base = f'/datasets/o/n/resolve/{revision}'
    for name, body in files.items():
      etag = f'"{hashlib.sha1(body).hexdigest()}"'
      reply = file_server.Reply(body, etag=etag, headers=commit)
      server.replies[f'{base}/{name}'] = reply
    for name in ('n.py', '.huggingface.yaml', 'dataset_infos.json'):
      reply = file_server.Reply(b'', 404, headers=missing)
      server.replies[f'{base}/{name}'] = reply
  for path in ('/api/datasets/o/no', '/datasets/o/no/resolve/main/README.md'):
    headers = {'X-Error-Code': 'RepoNotFound'}
    server.replies[path] = file_server.Reply(b'', 401, headers=headers)
  yield server
  server.stop()


# Opens the names on its standard input; the address of the Hub is read by the
# library when it is imported.
_OPEN = """
import sys
from vit_jax import config as config_lib
from vit_jax.config import UserError
from vit_jax.data import hf

config = config_lib.default()
for line in sys.stdin:
  config.data.name = f'hf:{line.strip()}'
  try:
    print(len(hf.HfSource(config, 'train')), flush=True)
  except UserError as e:
    print(e, flush=True)
  if line.endswith(' \\n'):
    hf._from_hub.cache_clear()
"""


def test_a_repository_of_the_hub_is_downloaded_once(hub, tmp_path):
  env = {k: v for k, v in os.environ.items() if not k.startswith('HF_')}
  env |= {
    'HF_ENDPOINT': hub.url,
    'HF_HOME': str(tmp_path),
    'PYTHONPATH': str(tiny.ROOT),
  }
  with subprocess.Popen(
    [sys.executable, '-c', _OPEN],
    env=env,
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
  ) as process:

    def opened(name, again=False):
      process.stdin.write(f'{name}{" " * (not again)}\n')
      process.stdin.flush()
      return process.stdout.readline().strip()

    assert opened('o/n:default') == str(NUM_TRAIN)
    assert opened('o/n@v1:default') == str(NUM_TRAIN)
    assert len([x for x in hub.paths if x.endswith('a-0.parquet')]) == 1
    assert opened('o/n:other', again=True) == str(NUM_VAL)
    asked = len(hub.heads)
    assert opened('o/n:other') == str(NUM_VAL) and len(hub.heads) == asked
    assert "'nix' not found" in opened('o/n:nix')
    assert "hf:o/no cannot be read: Dataset 'o/no' doesn't exist" in opened(
      'o/no'
    )
    hub.stop()  # without a network the cache will do
    assert opened('o/n:other') == str(NUM_VAL)
    assert "Couldn't reach 'o/missing'" in opened('o/missing')
    process.stdin.close()
