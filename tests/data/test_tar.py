"""WebDataset's shards as a source."""

import io
import json
import os
import tarfile

import pytest
import stand_in
import tiny

from vit_jax import data
from vit_jax.config import UserError
from vit_jax.data import features
from vit_jax.data import target_kinds

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


def open_shards(name, split='train', tokenizer='words', **columns):
  config = tiny.config(data__name=f'tar:{name}', data__split=split)
  config.data.columns.update(columns)
  config.data.tokenizer = tokenizer
  data.check(config)
  return data.open_source(config, split)


def open_images(name, **columns):
  return open_shards(name, tokenizer='', **columns)


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
    expected = stand_in.png(stand_in.pixels(number, 20 + number, 24))
    assert example.image == expected
  assert len({train.id(i) for i in range(12)}) == 12


def test_keys_of_json_are_columns(shards):
  actual = open_shards(shards, text=('alt',), numbers=('width',)).read(0).values
  width = int(actual['numbers'][0])
  assert actual['text'] == [f'a {width}', f'b {width}']


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
  actual = open_shards(tmp_path / 'a.tar', label='class', text=('caption',))
  assert actual.classes == ('cat',)
  assert actual.read(0).values['text'] == ['x']
  actual = open_shards(tmp_path / 'a.tar', labels='tags', numbers=('age',))
  assert actual.features['labels'] == target_kinds.MultiLabel(('a', 'b'))
  assert actual.read(0).values['numbers'] == [3.0]


PHOTO, MASK = (stand_in.png(stand_in.pixels(i, 8, 8)) for i in range(2))


@pytest.mark.parametrize(
  ('photo', 'mask'),
  [('jpg', 'png'), ('png', 'jpg'), ('JPG', 'Png'), ('jpg', 'jpeg')],
)
def test_of_two_images_the_config_names_one(tmp_path, photo, mask):
  samples = {
    str(i): {photo: PHOTO, mask: MASK, 'cls': b'%d' % i} for i in range(2)
  }
  stand_in.write_shard(tmp_path / 'a.tar', samples)
  names = f'{photo.lower()}, {mask.lower()}|{mask.lower()}, {photo.lower()}'
  with pytest.raises(UserError, match=f'a.tar, sample 0 has 2.*({names})'):
    open_images(tmp_path)
  for column, image in ((photo, PHOTO), (mask, MASK)):
    source = open_images(tmp_path, image=column)
    assert [source.read(i).image for i in range(2)] == [image] * 2
    assert source.classes == ('0', '1')
  config = tiny.config(
    data__name=f'tar:{tmp_path}',
    data__columns__map=mask,
    data__map__classes=('road', 'sky'),
  )
  data.check(config)
  source = data.open_source(config, 'train')
  assert source.read(0).image == PHOTO
  assert source.read(0).values['map'] == MASK


def test_images_that_are_maps_alone_are_refused_at_the_start(tmp_path):
  stand_in.write_shard(tmp_path / 'a.tar', {'x/1': {'png': MASK}})
  config = tiny.config(
    data__name=f'tar:{tmp_path}',
    data__columns__map='png',
    data__map__classes=('road', 'sky'),
  )
  with pytest.raises(UserError, match=r'sample x/1 has no image \(1 of 1 '):
    data.open_source(config, 'train')


def test_of_two_labels_the_config_names_one(tmp_path):
  files = {'jpg': PHOTO, 'label': b'cat', 'cls': b'3'}
  stand_in.write_shard(tmp_path / 'a.tar', {'1': files})
  with pytest.raises(UserError, match=r'2 files for the label.*label, cls'):
    open_images(tmp_path)
  for name, label in (('label', 'cat'), ('cls', '3')):
    assert open_images(tmp_path, label=name).classes == (label,)


@pytest.mark.parametrize('mask', ['seg.png', 'mask.png', 'depth.PNG'])
def test_an_ending_with_a_dot_is_a_column_of_its_own(tmp_path, mask):
  samples = {f'd.1/{i}': {mask: MASK, 'JPG': PHOTO, 'CLS': b'1'} for i in '12'}
  stand_in.write_shard(tmp_path / 'A.TAR', samples)
  assert open_images(tmp_path).read(0).image == PHOTO
  source = open_images(tmp_path, image=mask.lower())
  assert source.read(0).image == MASK


@pytest.mark.parametrize(
  'names',
  [
    ['a.png', 'a.cls', 'b.png', 'b.cls', 'a.png', 'a.cls'],
    ['a.PNG', 'a.cls', 'b.png', 'b.cls', 'a.png', 'a.CLS'],
    ['a.png', 'a.cls', 'a.png', 'a.cls', 'b.png', 'b.cls'],
    ['a.png', 'a.cls', 'a.png', 'a.cls', 'a.png', 'a.cls'],
    ['a.png', 'b.png', 'a.cls', 'b.cls', 'a.png', 'a.cls'],
  ],
)
def test_samples_of_one_name_are_all_kept(tmp_path, names):
  contents: dict[str, list[bytes]] = {'png': [], 'cls': []}
  with tarfile.open(tmp_path / 'a.tar', 'w') as archive:
    for name in names:
      ending = name[2:].lower()
      number = len(contents[ending])
      image = stand_in.png(stand_in.pixels(number, 8, 8))
      content = image if ending == 'png' else b'%d' % number
      contents[ending].append(content)
      info = tarfile.TarInfo(name)
      info.size = len(content)
      archive.addfile(info, io.BytesIO(content))
  for _ in range(2):  # from the shard, and from its index
    source = open_images(tmp_path)
    assert len({source.id(i) for i in range(3)}) == len(source) == 3
    for example in map(source.read, range(3)):
      label = int(source.classes[example.values['label']])
      assert example.image == contents['png'][label]


def test_shards_of_one_name_in_several_folders(tmp_path):
  """They are several shards, and the folder may say the split."""
  for number, place in enumerate(('a', 'b', 'val')):
    (tmp_path / place).mkdir()
    sample = {'png': stand_in.png(stand_in.pixels(number, 8, 8)), 'cls': b'3'}
    stand_in.write_shard(tmp_path / place / '000.tar', {'1': sample})
  pattern = f'{tmp_path}/*/000.tar'
  train = open_images(pattern)
  assert {train.id(0), train.id(1)} == {'a/000.tar/1', 'b/000.tar/1'}
  val = open_shards(pattern, 'val', tokenizer='')
  alone = open_images(tmp_path / 'val')
  assert len(val) == 1 and val.read(0).image == alone.read(0).image
  assert alone.id(0) == '000.tar/1'


def test_files_whose_sample_is_not_clear_are_told(tmp_path):
  with tarfile.open(tmp_path / 'a.tar', 'w') as archive:
    for name in ('a.png', 'a.png', 'a.cls', 'a.cls'):
      archive.addfile(tarfile.TarInfo(name))
  with pytest.raises(UserError, match=r'sample a\S* has no (image|label)'):
    open_images(tmp_path)


@pytest.mark.parametrize(
  ('lost', 'message'),
  [
    ('jpg', 'sample 1 has no image.*1 of 3'),
    ('cls', 'sample 1 has no label.*1 of 3'),
    ('age', 'sample 1 has no age.*1 of 3'),
  ],
)
@pytest.mark.parametrize('position', range(3))
def test_a_sample_with_other_files_is_named(tmp_path, lost, message, position):
  samples = {str(i): {'jpg': PHOTO, 'cls': b'3', 'age': b'2'} for i in range(3)}
  del samples[str(position)][lost]
  stand_in.write_shard(tmp_path / 'a.tar', samples)
  columns = {'numbers': ('age',)} if lost == 'age' else {}
  message = message.replace('sample 1', f'sample {position}')
  with pytest.raises(UserError, match=f'^[^\n]*a.tar, {message}[^\n]*$'):
    open_images(tmp_path, **columns)


@pytest.mark.parametrize(
  ('keys', 'message'),
  [
    (('cat.1', 'cat.2', 'dog.1'), r'images end with 1\.jpg, 2\.jpg.*first dot'),
    (('1', '2.5', '3'), r'sample 2 has no image.*5\.cls, 5\.jpg.*first dot'),
  ],
)
def test_dots_in_names_are_told(tmp_path, keys, message):
  samples = {key: {'jpg': PHOTO, 'cls': b'3'} for key in keys}
  stand_in.write_shard(tmp_path / 'a.tar', samples)
  with pytest.raises(UserError, match=message):
    open_images(tmp_path)


def test_one_ending_with_a_dot_serves(tmp_path):
  samples = {i: {'v2.jpg': PHOTO, 'v2.cls': b'%d' % int(i)} for i in '12'}
  stand_in.write_shard(tmp_path / 'a.tar', samples)
  source = open_images(tmp_path)
  assert source.classes == ('1', '2') and source.read(0).image == PHOTO


def test_an_index_of_an_older_form_is_made_anew(tmp_path):
  stand_in.write_shard(tmp_path / 'a.tar', {'1': {'jpg': PHOTO, 'cls': b'3'}})
  state = (tmp_path / 'a.tar').stat()
  old = {
    'shard': [state.st_size, state.st_mtime_ns],
    'samples': {'1': {'image': [0, 10], 'label': [10, 1]}},
  }
  (tmp_path / 'a.tar.index.json').write_text(json.dumps(old))
  assert open_images(tmp_path).read(0).image == PHOTO


def test_files_that_are_of_no_sample_are_left_out(tmp_path):
  png = stand_in.png(stand_in.pixels(0, 8, 8))
  files = {'png': png, 'cls': b'1', 'txt': b'x'}
  samples = {'d/._1': files, 'd/1': files, 'd/2': files}
  stand_in.write_shard(tmp_path / 'a.tar', samples)
  with tarfile.open(tmp_path / 'a.tar', 'a') as archive:
    archive.addfile(tarfile.TarInfo('README'))
  actual = open_shards(tmp_path / 'a.tar')
  assert {actual.id(i) for i in range(len(actual))} == {
    'a.tar/d/1',
    'a.tar/d/2',
  }


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


def test_classes_and_texts_are_those_of_the_index(tmp_path):
  """The files of both in the shard are overwritten, and their places stay."""
  shard = tmp_path / 'a.tar'
  long = 'word ' * 2000  # more than an index keeps
  samples = {
    '1': {'jpg': PHOTO, 'cls': b'3', 'txt': b'one'},
    '2': {'jpg': PHOTO, 'cls': b'4', 'txt': long.encode()},
  }
  stand_in.write_shard(shard, samples)
  first = open_shards(shard)
  content, state = shard.read_bytes(), shard.stat()
  for old, new in ((b'3', b'9'), (b'one', b'two')):
    padded = old.ljust(tarfile.BLOCKSIZE, b'\0')
    assert content.count(padded) == 1
    content = content.replace(padded, new.ljust(tarfile.BLOCKSIZE, b'\0'))
  shard.write_bytes(content)
  os.utime(shard, ns=(state.st_atime_ns, state.st_mtime_ns))
  again = open_shards(shard)
  assert again.classes == first.classes == ('3', '4')
  assert again.fingerprint() == first.fingerprint()
  actual = sorted(again.captions(i)[0] for i in range(2))
  assert actual == ['one', long.strip()]


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
