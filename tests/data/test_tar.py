"""WebDataset's shards as a source."""

import json
import tarfile

import methods
import pytest
import stand_in
import tiny

from vit_jax import data
from vit_jax.config import UserError
from vit_jax.data import features
from vit_jax.train import loop

CLASSES = ('2', '10', '2', '7', '10', '7')


def write_shard(path, numbers, **more):
  samples = {
    f'some/{i:04}': {
      'png': stand_in.png(stand_in.pixels(i, 20 + i, 24)),
      'cls': CLASSES[i % len(CLASSES)].encode(),
      'txt': f'caption {i}\n'.encode(),
      'json': json.dumps({'alt': [f'a {i}', f'b {i}'], 'width': i}).encode(),
    }
    | more
    for i in numbers
  }
  stand_in.write_shard(path, samples)


@pytest.fixture(scope='module')
def shards(tmp_path_factory):
  root = tmp_path_factory.mktemp('shards')
  for shard in range(2):
    write_shard(root / f'train-{shard:03}.tar', range(6 * shard, 6 * shard + 6))
  write_shard(root / 'val-000.tar', range(20, 23))
  return root


def open_shards(name, split='train', **columns):
  config = tiny.config(data__name=f'tar:{name}', data__split=split)
  config.data.columns.update(columns)
  config.data.tokenizer = 'words'
  data.check(config)
  return data.open_source(config, split)


def test_samples_of_the_shards(shards):
  train = open_shards(shards)
  assert len(train) == 12 and len(open_shards(shards, 'val')) == 3
  assert train.features['label'] == features.Label(('2', '7', '10'))
  for position in range(12):
    example = train.read(position)
    number = int(train.id(position).rpartition('/')[2])
    label = train.classes[example.values['label']]
    assert label == CLASSES[number % len(CLASSES)]
    assert example.values['text'] == [f'caption {number}']
    wanted = stand_in.png(stand_in.pixels(number, 20 + number, 24))
    assert example.image == wanted
  assert len({train.id(i) for i in range(12)}) == 12


def test_keys_of_json_are_columns(shards):
  found = open_shards(shards, text=('alt',), numbers=('width',)).read(0).values
  width = int(found['numbers'][0])
  assert found['text'] == [f'a {width}', f'b {width}']


def test_files_of_text_are_columns(tmp_path):
  png = stand_in.png(stand_in.pixels(0, 8, 8))
  files = {
    'png': png,
    'class': b'cat\n',
    'tags': b'a;b',
    'age': b'3',
    'caption': b'x',
  }
  stand_in.write_shard(tmp_path / 'a.tar', {'1': files})
  found = open_shards(tmp_path / 'a.tar', label='class', text=('caption',))
  assert found.classes == ('cat',)
  assert found.read(0).values['text'] == ['x']
  found = open_shards(tmp_path / 'a.tar', labels='tags', numbers=('age',))
  assert found.features['labels'] == features.MultiLabel(('a', 'b'))
  assert found.read(0).values['numbers'] == [3.0]


def test_files_that_are_of_no_sample_are_left_out(tmp_path):
  png = stand_in.png(stand_in.pixels(0, 8, 8))
  files = {'png': png, 'cls': b'1', 'txt': b'x'}
  samples = {'d/._1': files, 'd/1': files, 'd/2': files}
  stand_in.write_shard(tmp_path / 'a.tar', samples)
  with tarfile.open(tmp_path / 'a.tar', 'a') as archive:
    archive.addfile(tarfile.TarInfo('README'))
  found = open_shards(tmp_path / 'a.tar')
  assert {found.id(i) for i in range(len(found))} == {'a.tar/d/1', 'a.tar/d/2'}


def test_a_split_is_no_column(shards):
  config = tiny.config(data__name=f'tar:{shards}', data__columns__split='alt')
  with pytest.raises(UserError, match=r'columns\.split is for tables'):
    data.open_source(config, 'train')


def test_a_shard_is_read_once(shards, monkeypatch):
  pattern = f'{shards}/train-{{000..001}}.tar'
  first = open_shards(pattern)
  index = shards / 'train-000.tar.index.json'
  with monkeypatch.context() as patch:
    patch.setattr(tarfile, 'open', None)  # fails if it is called
    again = open_shards(pattern)
  assert again.fingerprint() == first.fingerprint()
  ids = [first.id(i) for i in range(len(first))]
  index.write_text('{"shard": 3')
  damaged = open_shards(pattern)
  assert [damaged.id(i) for i in range(len(damaged))] == ids
  write_shard(shards / 'train-000.tar', range(6, 9))
  assert len(open_shards(pattern)) == 9
  write_shard(shards / 'train-000.tar', range(6))


def test_a_run_resumes_to_the_bit(shards, tmp_path):
  config = tiny.config(
    data__name=f'tar:{shards}',
    data__split='train',
    data__image_size=8,
    data__channels=3,
    train__batch_size=8,
    train__duration='4 steps',
    evals__val__split='val',
    checkpoint__every='2 steps',
  )
  assert loop.run(config, str(tmp_path / 'whole')).status == 0
  methods.assert_resumes_to_the_bit(
    config, tmp_path / 'whole', tmp_path / 'copy'
  )


@pytest.mark.parametrize(
  ('name', 'message'),
  [
    ('none-{000..002}.tar', 'there is no shard .*none-000.tar'),
    ('train-{3..1}.tar', 'is no range'),
    ('cut.tar', 'damaged'),
    ('ends_at_a_header.tar', 'damaged'),
    ('ends_in_a_header.tar', 'damaged'),
    ('wrong_header.tar', 'damaged'),
    ('text.tar', 'damaged'),
    ('empty.tar', 'are empty'),
  ],
)
def test_bad_shards_get_one_line(name, message, shards, tmp_path):
  whole = (shards / 'val-000.tar').read_bytes()
  (tmp_path / 'cut.tar').write_bytes(whole[:700])
  with tarfile.open(shards / 'val-000.tar') as archive:
    at = [member.offset for member in archive][-4]  # of the last sample
  (tmp_path / 'ends_at_a_header.tar').write_bytes(whole[:at])
  (tmp_path / 'ends_in_a_header.tar').write_bytes(whole[: at + 100])
  wrong = whole[:at] + b'x' + whole[at + 1 :]
  (tmp_path / 'wrong_header.tar').write_bytes(wrong)
  (tmp_path / 'text.tar').write_bytes(b'no shard' * 200)
  tarfile.open(tmp_path / 'empty.tar', 'w').close()
  with pytest.raises(UserError, match=f'^[^\n]*{message}[^\n]*$'):
    open_shards(tmp_path / name)


def test_a_sample_that_cannot_be_used_is_named(tmp_path):
  write_shard(tmp_path / 'a.tar', range(2), txt=b' ')
  with pytest.raises(UserError, match=r'a\.tar, sample some/000.*empty'):
    open_shards(tmp_path / 'a.tar')
  write_shard(tmp_path / 'c.tar', range(2), json=rb'{"alt": "a \ud83d"}')
  with pytest.raises(UserError, match=r'c\.tar, sample some/000.*half a char'):
    open_shards(tmp_path / 'c.tar', text=('alt',))
  write_shard(tmp_path / 'b.tar', range(2), json=b'{"alt": ')
  with pytest.raises(UserError, match=r'b\.tar, sample some/000.*json'):
    open_shards(tmp_path / 'b.tar')
