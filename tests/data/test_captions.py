"""Captions of the data, and captions made of class names."""

import contextlib

import commands
import cv2
import numpy as np
import pandas as pd
import pytest
import stand_in
import tiny

from vit_jax import data
from vit_jax.config import UserError
from vit_jax.data import base
from vit_jax.data import captions
from vit_jax.data import features
from vit_jax.data import folder
from vit_jax.data import text_kind
from vit_jax.data import tokenizers
from vit_jax.data import wrapped

TEMPLATES = 'templates:a {}.|the number {}.'


def make_config(**overrides):
  return tiny.config(data__tokenizer='words', data__text_length=8, **overrides)


def _table(folder, texts, name='text'):
  """Writes images and a table with their captions."""
  files = [f'{i}.png' for i in range(len(texts))]
  for i, file in enumerate(files):
    cv2.imwrite(str(folder / file), np.full((8, 8), 9 * i, np.uint8))
  path = folder / 'pairs.parquet'
  pd.DataFrame({'image': files, name: texts}).to_parquet(path)
  return f'table:{path}'


def _texts(source, **overrides):
  config = make_config(**overrides)
  with contextlib.closing(
    data.train_batches(source, config, start_step=0, num_steps=40)
  ) as batches:
    text = source.features['text']
    return [[text.decode(x) for x in batch['text']] for batch in batches]


def test_captions_of_templates_are_drawn_by_seed_and_step():
  """Each template is used, and the class of the image is in the caption."""
  config = make_config(data__captions=TEMPLATES, data__split='train[:64]')
  source = data.open_split(config, 'data.split')
  actual = _texts(source)
  assert actual == _texts(source)
  texts = {text for batch in actual for text in batch}
  assert texts == {f'{x} {i} .' for x in ('a', 'the number') for i in range(10)}
  with contextlib.closing(
    data.train_batches(source, config, start_step=0, num_steps=3)
  ) as batches:
    text = source.features['text']
    for batch in batches:
      for tokens, label in zip(batch['text'], batch['label'], strict=True):
        assert str(label) in text.decode(tokens).split()


def test_evaluation_takes_the_first_template():
  config = make_config(data__captions=TEMPLATES)
  source = data.open_split(config, 'evals.val.split')
  with contextlib.closing(
    data.eval_batches(source, config, batch_size=16)
  ) as batches:
    batch = next(iter(batches))
  actual = {source.features['text'].decode(x) for x in batch['text']}
  assert actual <= {f'a {i} .' for i in range(10)}


def test_captions_of_templates_read_no_image(tmp_path, monkeypatch):
  root = stand_in.write_folder(tmp_path, train=2)
  config = make_config(
    data__name=f'folder:{root}', data__split='train', data__source_size=None
  )
  config.data.captions = TEMPLATES
  source = data.open_split(config, 'data.split')
  names = [source.classes[i] for i in source.column('label')]
  read = [source.read(i).values['text'] for i in range(len(source))]
  monkeypatch.setattr(folder, 'read_image', None)  # fails if it is called
  actual = [source.captions(i) for i in range(len(source))]
  assert actual == [(f'a {x}.', f'the number {x}.') for x in names] == read


class _Labels(base.Source):
  """Examples without a column, of which the last has a wrong label."""

  def __init__(self):
    label = features.Label(('cat', 'dog'))
    self.features = {'image': features.Image(), 'label': label}
    self.positions_read = []

  def __len__(self):
    return 3

  def read(self, position):
    self.positions_read.append(position)
    if position == 2:
      raise UserError('example 2 has a wrong label')
    values = {'image': b'', 'label': 1 - position}
    return base.Example(values, position, f'example {position}')

  def fingerprint(self):
    return 'labels'


class _LabelsInMemory(_Labels):
  """The same, where all labels are at hand, and checked at once."""

  def column(self, name):
    return super().column(name)


@pytest.mark.parametrize('kind', [_Labels, _LabelsInMemory])
def test_a_wrong_label_spoils_its_own_caption_alone(kind):
  source = kind()
  texts = [('a cat',), ('a dog',)]
  described = wrapped.DerivedSource(
    source, (), source.features, 'text', 'label', texts.__getitem__
  )
  again = wrapped.SelectedSource(described, (), np.array([2, 1]))
  assert again.captions(1) == ('a cat',)
  assert described.captions(0) == ('a dog',)
  if kind is _Labels:
    assert source.positions_read == [1, 0]
  else:
    assert source.positions_read == [0, 1, 2, 1, 0]  # all labels only once
  with pytest.raises(UserError, match='example 2'):
    again.captions(0)
  with pytest.raises(UserError, match='example 2'):
    described.column('label')


def test_labels_of_a_model_read_no_image(tmp_path, monkeypatch):
  lines = ['image,labels', '0.png,a|b', '1.png,b', '2.png,a']
  for line in lines[1:]:
    cv2.imwrite(str(tmp_path / line.split(',')[0]), np.zeros((8, 8), np.uint8))
  (tmp_path / 'x.csv').write_text('\n'.join(lines))
  config = tiny.config(data__name=f'table:{tmp_path}/x.csv')
  source = data.open_source(config, 'train')
  moved = wrapped.relabel(source, 'labels', ('c', 'b', 'a'))
  feature = moved.features['labels']
  read = [feature.encode(moved.read(i).values['labels'], '') for i in range(3)]
  monkeypatch.setattr(folder, 'read_image', None)  # fails if it is called
  actual = moved.column('labels')
  np.testing.assert_array_equal(actual, read)
  np.testing.assert_array_equal(actual[:, ::-1][:, :2], source.column('labels'))


def test_captions_of_a_table(tmp_path):
  """One caption or several for an image."""
  name = _table(tmp_path, [['A cat'], ['a dog', 'Ein Hund'], ['a bird']])
  config = make_config(
    data__name=name, data__split='train', data__source_size=None
  )
  source = data.open_split(config, 'data.split')
  actual = [source.captions(i) for i in range(3)]
  assert sorted(actual) == [['A cat'], ['a bird'], ['a dog', 'Ein Hund']]
  encoded = source.features['text'].encode_all(['Ein Hund, a cat'], 'here')
  assert source.features['text'].decode(encoded[0]) == 'ein hund , a cat'


@pytest.mark.parametrize(
  ('texts', 'message'),
  [
    (['a', ' '], 'row 2.*the caption is empty'),
    ([2, 3], 'which is no text'),
    ([['a'], []], 'row 2.*the caption is empty'),
  ],
)
def test_bad_captions_name_their_row(texts, message, tmp_path):
  name = _table(tmp_path, texts)
  config = make_config(
    data__name=name, data__split='train', data__source_size=None
  )
  with pytest.raises(UserError, match=message):
    data.open_split(config, 'data.split')


def test_a_table_without_captions(tmp_path):
  name = _table(tmp_path, ['a', 'b'], 'note')
  config = make_config(
    data__name=name, data__split='train', data__source_size=None
  )
  with pytest.raises(UserError, match='has no captions: name their columns'):
    data.open_split(config, 'data.split')


def test_kinds_and_scans_need_no_tokenizer():
  result = commands.python(
    '-c',
    'import sys, vit_jax.data.features, vit_jax.data.scans\n'
    'print([x for x in sys.modules if "tokenizers" in x or "vocabular" in x])',
  )
  assert result.stdout == '[]\n', result.stderr


def test_unknown_words_are_bytes():
  words = tokenizers.Words(('cat', 'a'), 12)
  tokens = words(['A cat', 'a Löwe'])
  assert words.decode(tokens[0].tolist()) == 'a cat'
  assert words.decode(tokens[1].tolist()) == 'a löwe'
  assert tokens.max(axis=1).tolist() == [words.end, words.end]


def test_another_vocabulary_is_told_by_its_hash():
  one, other = (
    text_kind.Text(8, 260, 'words', tokenizers.digest('words', x), ('cat',))
    for x in (('cat',), ('dog',))
  )
  one.check_vocabulary()
  with pytest.raises(UserError, match='is not the vocabulary of the model'):
    other.check_vocabulary()


@pytest.mark.parametrize('name', sorted(captions.lists(captions.CLASS_NAMES)))
def test_lists_of_class_names(name):
  """None is empty; no name is there twice but two of CLIP's for ImageNet."""
  lengths = {
    'cifar10': 10,
    'cifar100': 100,
    'food101': 101,
    'imagenet2012': 1000,
    'oxford_iiit_pet': 37,
  }
  actual = captions.class_names(name, ['?'] * lengths[name], 'key')
  twice = {x for x in actual if actual.count(x) > 1}
  assert all(actual)
  both = {'missile', 'sunglasses'}
  assert twice == (both if name == 'imagenet2012' else set())


def test_imagenets_names_are_in_the_order_of_its_synsets():
  actual = captions.class_names('imagenet2012', ['?'] * 1000, 'key')
  assert [actual[i] for i in (0, 1, 9, 207, 281, 999)] == [
    'tench',
    'goldfish',
    'ostrich',
    'Golden Retriever',
    'tabby cat',
    'toilet paper',
  ]


@pytest.mark.parametrize(
  'name', sorted(captions.lists(captions.TEMPLATE_LISTS))
)
def test_lists_of_templates(name):
  """All templates of CLIP, none of them twice."""
  actual = captions.parse(name, 'templates')
  assert len(set(actual)) == len(actual) == {'cifar': 18, 'imagenet': 80}[name]
  assert all(x.count('{}') == 1 and x == x.strip() for x in actual)
  assert 'a photo of a {}.' in actual


def test_captions_of_a_list_of_templates():
  config = make_config(data__captions='templates:cifar')
  source = data.open_split(config, 'data.split')
  label = source.read(0).values['label']
  assert len(source.captions(0)) == 18
  assert source.captions(0)[-1] == f'a photo of the big {label}.'


def test_an_unknown_list_names_those_there_are():
  with pytest.raises(UserError, match=r'with a name are cifar, imagenet$'):
    captions.parse('imagenette', 'templates')
  with pytest.raises(
    UserError, match='with a name are cifar10, cifar100, food'
  ):
    captions.class_names('cifar', ['?'] * 10, 'key')


def test_names_of_classes_are_refused_without_captions():
  config = tiny.config(data__class_names='cifar10')
  with pytest.raises(UserError, match='the classes of digits keep their names'):
    data.open_split(config, 'data.split', 'train')


@pytest.mark.parametrize('encoding', ['utf-8', 'utf-8-sig', 'utf-16'])
def test_lists_in_files(tmp_path, encoding):
  path = tmp_path / 'list.txt'
  path.write_bytes('a {}\r\nb {}\n\n'.encode(encoding))
  assert captions.parse(str(path), 'key') == ('a {}', 'b {}')
  path.write_bytes('élan\ncat'.encode(encoding))
  assert captions.class_names(str(path), 'xy', 'key') == ('élan', 'cat')
