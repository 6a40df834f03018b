"""`python -m vit_jax.data check`, and data.skip_damaged."""

import contextlib
import functools
import json
import shutil
import sys

import commands
import numpy as np
import pytest
import stand_in
import tiny

from vit_jax import config as config_lib
from vit_jax import data
from vit_jax.config import UserError
from vit_jax.data import __main__ as command
from vit_jax.data import survey
from vit_jax.runs import workdir as workdir_lib
from vit_jax.train import loop


@pytest.fixture
def folder(tmp_path):
  """Of each class 6 images to train on and 2 for val, all good."""
  return stand_in.write_folder(tmp_path / 'images', training=6, val=2)


def spoil(folder):
  """Damages five files of the folder; returns their ids."""
  names = [
    f'training/{name}/{i}.png' for name in ('ant', 'bee') for i in (1, 4)
  ]
  names.append('val/cow/0.png')
  for i, name in enumerate(names):
    file = folder / name
    file.write_bytes(file.read_bytes()[: 40 * i])  # the first one is empty
  return names


@pytest.fixture
def check(capsys, monkeypatch):
  """Returns the exit status, and what --format=json prints."""

  def run(*args):
    argv = command.with_config(['check', *map(str, args), '--format=json'])
    monkeypatch.setattr(sys, 'argv', ['check', *argv])  # keys of a config
    status = commands.run(command, *argv)
    return status, json.loads(capsys.readouterr().out)

  return run


def test_all_that_is_wrong_is_listed(folder, check):
  names = spoil(folder)
  twin = (folder / 'training' / 'cow' / '2.png').read_bytes()
  (folder / 'val' / 'ant' / 'twin.png').write_bytes(twin)
  (folder / 'training' / 'cow' / 'twin.png').write_bytes(twin)
  (folder / 'training' / 'bee' / 'notes.txt').write_text('')
  (folder / 'val' / 'bee' / 'more.TXT').write_text('')
  deep = np.arange(600, 1000, dtype=np.uint16).reshape(20, 20)
  (folder / 'training' / 'ant' / 'deep.png').write_bytes(stand_in.png(deep))
  status, actual = check(folder)
  assert status == 1
  assert sorted(x['id'] for x in actual['damaged']) == sorted(names)
  problems = {x['id']: x['problem'] for x in actual['damaged']}
  assert f'{folder}/{names[0]} is empty' in problems[names[0]]
  assert all('damaged' in problems[name] for name in names[1:])
  (group,) = actual['duplicates']
  assert sorted(group['ids']) == [
    'training/cow/2.png',
    'training/cow/twin.png',
    'val/ant/twin.png',
  ]
  assert sorted(group['splits']) == ['train', 'val']
  assert actual['ignored']['.txt']['count'] == 2
  assert actual['splits']['train']['classes'] == {'ant': 7, 'bee': 6, 'cow': 7}
  assert actual['splits']['train']['folder'] == f'{folder}/training'
  assert actual['examples'] == 27 and actual['bits'] == {'8': 21, '16': 1}
  assert actual['intensity']['least'] == 600
  assert actual['intensity']['greatest'] == 999
  assert '--config.data.intensity' in actual['intensity']['warning']
  assert actual['sizes']['smallest'] == [20, 20]


def test_table_says_the_same(folder, capsys):
  names = spoil(folder)
  assert commands.run(command, 'check', folder) == 1
  out, err = capsys.readouterr()
  assert 'damaged: 5' in out and 'is empty' in out
  assert all(name in out for name in names)
  assert '--config.data.skip_damaged=damaged.json' in err


def test_good_data_are_said_to_be(folder, capsys):
  assert commands.run(command, 'check', folder) == 0
  assert capsys.readouterr().out.endswith('nothing is wrong\n')


def test_classes_without_images_and_unknown_ones_are_all_listed(folder, check):
  (folder / 'training' / 'dog').mkdir()
  (folder / 'val' / 'ant').rename(folder / 'val' / 'aunt')
  status, actual = check(folder)
  assert status == 1 and not actual['damaged']
  first, second = actual['problems']
  assert 'training/dog has no images' in first
  assert 'val/aunt is not a class of train' in second


def test_a_config_names_the_data_and_its_splits(folder, check):
  file = tiny.ROOT / 'configs' / 'folder.py'
  same = (folder / 'training' / 'ant' / '0.png').read_bytes()
  for i in range(1, 6):
    (folder / 'training' / 'ant' / f'{i}.png').write_bytes(same)
  keys = {
    'name': f'folder:{folder}',
    'split': 'train[:50%]',
    'skip_damaged': '',
  }
  flags = [f'--config.data.{key}={value}' for key, value in keys.items()]
  status, actual = check(file, *flags, '--config.evals.val.split=train[50%:]')
  assert status == 0 and actual['copies'] == 0
  (group,) = actual['duplicates']  # within a folder, but on both sides
  assert sorted(group['splits']) == ['train[50%:]', 'train[:50%]']
  assert set(actual['splits']) == {'train[:50%]', 'train[50%:]', 'val'}
  status, actual = check(tiny.ROOT / 'configs' / 'digits.py')
  assert status == 0 and actual['examples'] == 1797


def test_only_json_is_on_standard_output(folder):
  spoil(folder)
  done = commands.python('-m', 'vit_jax.data', 'check', folder, '--format=json')
  assert done.returncode == 1, done.stderr
  assert len(json.loads(done.stdout)['damaged']) == 5
  assert 'skip_damaged' in done.stderr and 'Traceback' not in done.stderr


@pytest.mark.parametrize(
  'args, message',
  [
    ([], 'is no verb: write check'),
    (['look', 'x'], "'look' is no verb"),
    (['check'], 'check takes one folder or config file'),
    (['check', '/no/such'], 'there is no folder /no/such: name one, or a co'),
    (['check', '.', '--out=/no/such/x.json'], 'there is no folder /no/such'),
  ],
)
def test_mistakes(args, message):
  with pytest.raises(UserError, match=message):
    commands.run(command, *args)


make_config = functools.partial(stand_in.config, data__image_size=8)


def test_a_run_that_stopped_goes_on_without_what_is_damaged(folder, tmp_path):
  run = tmp_path / 'run'
  assert loop.run(make_config(folder), str(run)).status == 0
  (run / 'DONE').unlink()  # as if it had stopped after its first checkpoint
  for later in workdir_lib.newest_first(run / 'checkpoints')[:-1]:
    shutil.rmtree(later)
  spoil(folder)
  with pytest.raises(UserError, match=r'damaged|empty') as e:
    loop.run(make_config(folder), str(run))
  assert f'run python -m vit_jax.data check {folder} --out=' in str(e.value)
  assert 'add --config.data.skip_damaged=damaged.json' in str(e.value)
  path = tmp_path / 'damaged.json'
  commands.run(command, 'check', folder, f'--out={path}')
  assert (
    loop.run(make_config(folder, data__skip_damaged=str(path)), str(run)).status
    == 0
  )
  starts = json.loads((run / 'run.json').read_text())['runs']
  assert len({start['data_fingerprint'] for start in starts}) == 2


def test_what_is_left_keeps_its_index_and_its_order(folder, tmp_path):
  whole = data.open_source(make_config(folder), 'train')
  index = {whole.id(i): whole.read(i).index for i in range(len(whole))}
  names = spoil(folder)
  path = tmp_path / 'damaged.json'
  commands.run(command, 'check', folder, f'--out={path}')
  config = make_config(folder, data__skip_damaged=str(path))
  left = data.open_source(config, 'train')
  assert [left.id(i) for i in range(len(left))] == [
    name for name in index if name not in names
  ]
  for i in range(len(left)):
    assert left.read(i).index == index[left.id(i)]
  assert left.fingerprint() != whole.fingerprint()
  again = data.open_source(config, 'train')
  assert left.fingerprint() == again.fingerprint()
  for source, start in ((left, 0), (again, 3)):  # as a resumed run reads them
    with contextlib.closing(
      data.train_batches(source, config, start_step=start, num_steps=5)
    ) as batches:
      *_, last = batches
    if start == 0:
      first = last
  for name in first:
    np.testing.assert_array_equal(first[name], last[name])


@pytest.mark.parametrize(
  'content, message',
  [
    (None, 'there is no file .*write it by'),
    ('{', 'cannot read'),
    ('{"damaged": [3]}', 'is not what a check writes'),
    ('{"damaged": [{"id": 1}], "data": 3}', 'is not what a check writes'),
    ('[]', 'is not what a check writes'),
  ],
)
def test_list_that_cannot_be_used(folder, tmp_path, content, message):
  path = tmp_path / 'list.json'
  if content is not None:
    path.write_text(content)
  config = config_lib.default()
  config.data.update(name=f'folder:{folder}', skip_damaged=str(path))
  with pytest.raises(UserError, match=f'config.data.skip_damaged: .*{message}'):
    data.open_source(config, 'train')


def test_a_row_with_a_bad_number_is_left_out(tmp_path):
  path = tmp_path / 'a.csv'
  ages = ['1', '2', 'old', '3']
  lines = [f'{i}.png,{age}\n' for i, age in enumerate(ages)]
  path.write_text('image,age\n' + ''.join(lines))
  for i in range(len(ages)):
    image = stand_in.png(stand_in.pixels(i, 8, 8))
    (tmp_path / f'{i}.png').write_bytes(image)
  config = config_lib.default()
  config.data.name = f'table:{path}'
  config.data.columns.numbers = ('age',)
  report = survey.report(survey.list_config(config))
  (tmp_path / 'list.json').write_text(json.dumps(report))
  config.data.skip_damaged = str(tmp_path / 'list.json')
  numbers = data.open_source(config, 'train').column('numbers')
  assert sorted(numbers.tolist()) == [[1.0], [2.0], [3.0]]


def test_nothing_left_is_an_error(folder, tmp_path):
  source = data.open_source(make_config(folder), 'val')
  ids = [{'id': source.id(i)} for i in range(len(source))]
  path = tmp_path / 'list.json'
  name = f'folder:{folder}'
  path.write_text(json.dumps({'data': name, 'damaged': ids}))
  config = make_config(folder, data__skip_damaged=str(path))
  with pytest.raises(UserError, match='leaves out all 6 examples'):
    data.open_source(config, 'val')


def test_a_list_for_other_data_gets_a_warning(
  folder, tmp_path, warnings_logged
):
  """A check of one split's folder names its files in another way."""
  path = tmp_path / 'list.json'
  spoil(folder)
  commands.run(command, 'check', folder / 'training', f'--out={path}')
  config = make_config(folder, data__skip_damaged=str(path))
  assert len(data.open_source(config, 'train'))
  (line,) = [x for x in warnings_logged if 'lists damaged files of' in x]
  assert f'{folder}/training' in line and f'folder:{folder}' in line


ASCII = {'LC_ALL': 'C', 'PYTHONUTF8': '0'}  # names of files are not UTF-8


@pytest.mark.parametrize(
  'locale', [ASCII, ASCII | {'PYTHONIOENCODING': 'ascii'}]
)
def test_names_are_the_same_in_all_locales(tmp_path, locale):
  root, out = tmp_path / 'é', tmp_path / 'found.json'
  names = {'café': 'ü1', 'cafe\u0301': '1', '日本': '"é"'}
  for i, (name, file) in enumerate(names.items()):
    image = stand_in.png(stand_in.pixels(i, 8, 8))
    (root / name).mkdir(parents=True)
    (root / name / f'{file}.png').write_bytes(image)
  (root / 'café' / 'ü2.png').write_bytes(b'')
  done = commands.python(
    *('-m', 'vit_jax.data', 'check', str(root), f'--out={out}'),
    env=commands.ENV | locale,
    encoding='utf-8',
  )
  assert done.returncode == 1 and 'Traceback' not in done.stderr
  shown = 'caf\\xe9' if 'PYTHONIOENCODING' in locale else 'café'
  assert f'{shown} 2' in done.stdout
  report = json.loads(out.read_text())
  expected = survey.report(survey.list_folder(str(root)))
  assert report == json.loads(json.dumps(expected))
  assert list(report['splits']['train']['classes']) == sorted(names)
