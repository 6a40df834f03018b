"""Captions of a source's own, and captions made of templates and class names.

A template has {} where the name of the class goes: 'a photo of a {}.'
"""

from collections.abc import Mapping
from collections.abc import Sequence
import importlib.resources
from importlib.resources.abc import Traversable
import itertools
import os

import ml_collections

from vit_jax import config as config_lib
from vit_jax.config import UserError
from vit_jax.data import base
from vit_jax.data import features
from vit_jax.data import sources
from vit_jax.data import text_kind
from vit_jax.data import tokenizers
from vit_jax.data import wrapped
from vit_jax.runs import safe_io

TEMPLATES = 'templates:'
_PLACE = '{}'
# Folders of lists in this package.
CLASS_NAMES = 'class_names'
TEMPLATE_LISTS = 'templates'


def attach(
  source: base.Source, config: ml_collections.ConfigDict, split: str
) -> base.Source:
  """Returns a split with the captions that `config.data` asks for."""
  data = config.data
  features = {k: x for k, x in source.features.items() if k != 'text'}
  if not data.tokenizer:
    if data.class_names:
      raise UserError(
        'config.data.class_names is for captions, and no config.data.tokenizer'
        f' is set: leave it out; the classes of {data.name} keep their names'
      )
    if 'text' not in source.features:
      return source
    return wrapped.WrappedSource(source, ('',), features)
  words: tuple[str, ...] = ()
  if data.tokenizer == tokenizers.WORDS:
    words = tuple(data.words)
    if not words:
      is_train = split == data.split
      train = source if is_train else sources.open_stored(config, data.split)
      texts = by_class(train, config) or map(train.captions, range(len(train)))
      words = tokenizers.common_words(itertools.chain.from_iterable(texts))
  tokenizer = tokenizers.make(data.tokenizer, data.text_length, words)
  text = text_kind.Text(
    tokenizer.length,
    tokenizer.vocabulary,
    data.tokenizer,
    tokenizers.digest(data.tokenizer, words),
    words,
    cuts=data.text_too_long == 'cut',
  )
  features['text'] = text
  captions = by_class(source, config)
  if not captions:
    return wrapped.WrappedSource(source, (text.digest,), features)
  facts = text.digest, *itertools.chain.from_iterable(captions)
  derive = captions.__getitem__
  return wrapped.DerivedSource(source, facts, features, 'text', 'label', derive)


def by_class(
  source: base.Source, config: ml_collections.ConfigDict
) -> list[tuple[str, ...]]:
  """Returns the captions of each class; []: the examples have their own."""
  data = config.data
  if not data.captions:
    if 'text' not in source.features:
      raise UserError(
        f'config.data.tokenizer is {data.tokenizer!r}, but {data.name} has no'
        ' captions: name their columns in config.data.columns.text, or, where'
        " images have a class, set config.data.captions='templates:a photo of a"
        " {}.'"
      )
    return []
  classes = label_classes(source.features, 'config.data.captions', data.name)
  names = class_names(data.class_names, classes, 'config.data.class_names')
  templates = _templates(data.captions)
  return [tuple(fill(templates, name)) for name in names]


def label_classes(
  example_features: Mapping[str, features.Feature], key: str, data_name: str
) -> tuple[str, ...]:
  """Returns the classes of images, of which each has one."""
  label = example_features.get('label')
  if isinstance(label, features.Label):
    return label.classes
  raise UserError(
    f'{key} needs the class of each image, but the examples of {data_name} have'
    f' {", ".join(example_features)}'
  )


def _templates(value: str) -> tuple[str, ...]:
  """Returns the templates of `config.data.captions`."""
  key = 'config.data.captions'
  if not value.startswith(TEMPLATES):
    raise UserError(
      f"{key} is {value!r}: write 'templates:a photo of a {{}}.|a {{}}.', or"
      " 'templates:FILE' with one on each line"
    )
  return parse(value.removeprefix(TEMPLATES), key)


def parse(template_spec: str, key: str) -> tuple[str, ...]:
  """Returns the templates that a value of the config stands for.

  It is 'A {}.|B {}.', a list of this package, or a file with one on each line.
  """
  if _PLACE in template_spec:
    templates = [x.strip() for x in template_spec.split('|')]
  else:
    templates = _lines(template_spec, TEMPLATE_LISTS, key)
  return check_templates(templates, key)


def check_templates(templates: Sequence[str], key: str) -> tuple[str, ...]:
  """Returns templates, if each has one place for the name of a class."""
  for template in templates:
    if template.count(_PLACE) != 1:
      raise UserError(
        f'{key}: the template {template!r} must have {{}} once, where the name'
        ' of the class goes'
      )
  if not templates:
    raise UserError(f"{key}: there is no template: write 'a photo of a {{}}.'")
  return tuple(templates)


def fill(templates: Sequence[str], name: str) -> list[str]:
  """Returns templates with the name of a class in them."""
  return [template.replace(_PLACE, name) for template in templates]


def class_names(
  list_name: str, classes: Sequence[str], key: str
) -> tuple[str, ...]:
  """Returns class names for captions, of a list or a file, or as they are."""
  if not list_name:
    return tuple(name.replace('_', ' ') for name in classes)
  names = tuple(_lines(list_name, CLASS_NAMES, key))
  if len(names) != len(classes):
    raise UserError(
      f'{key}={list_name} has {len(names)} names, but the data have'
      f' {len(classes)} classes ({config_lib.join_first(classes)}): give one'
      ' name for each, in this order'
    )
  return names


def lists(folder: str) -> dict[str, Traversable]:
  """Returns the lists of this package in one of its folders, by name."""
  directory = importlib.resources.files('vit_jax.data') / folder
  return {x.name.removesuffix('.txt'): x for x in directory.iterdir()}


def _lines(list_name: str, folder: str, key: str) -> list[str]:
  """Returns the lines of a list of this package, or of a file."""
  package_lists = lists(folder)
  if list_name in package_lists:
    return package_lists[list_name].read_text('utf-8').splitlines()
  try:
    text = safe_io.read_text(os.path.expanduser(list_name))
  except (OSError, UnicodeDecodeError) as e:
    raise UserError(
      f'{key}: {list_name} cannot be read: {config_lib.one_line(e)}; lists with'
      f' a name are {", ".join(sorted(package_lists))}'
    ) from None
  return [line.strip() for line in text.splitlines() if line.strip()]


def check(config: ml_collections.ConfigDict) -> None:
  """Checks the keys for captions, without reading data."""
  data = config.data
  if data.tokenizer:
    tokenizers.check_name(data.tokenizer)
  elif data.captions:
    raise UserError(
      f'config.data.captions is {data.captions!r}, but config.data.tokenizer is'
      f" '': set it to {tokenizers.WORDS!r}, or to a vocabulary"
    )
  if data.captions:
    _templates(data.captions)
  config_lib.within(config, 'data.text_length', '[2, inf)')
  config_lib.check_choice(config, 'data.text_too_long', ('cut', 'refuse'))
  if data.tokenizer and data.cache != 'none':
    raise UserError(
      f'config.data.cache is {data.cache!r}, which keeps one value of each'
      ' example, but captions are drawn anew at each step: set it to none'
    )
