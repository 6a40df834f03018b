"""The flags of commands that read a split of a dataset with a model."""

from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import re
from typing import TYPE_CHECKING

from absl import flags
from absl import logging

from vit_jax import cli
from vit_jax import config as config_lib
from vit_jax.config import UserError
from vit_jax.runs import terminal

if TYPE_CHECKING:
  import ml_collections

  from vit_jax import data
  from vit_jax import weights

# The flags that replace keys of the config in errors.
_FLAG_OF = {
  'config.data.name': '--data',
  'config.data.dir': '--data_dir',
  'config.data.num_workers': '--num_workers',
  'config.data.source_size': '--source_size',
}

# Keys of config.data that say how a caption becomes tokens.
_TEXT_KEYS = ('tokenizer', 'text_length', 'text_too_long', 'words')


def define(flag_values: flags.FlagValues, purpose: str) -> None:
  """Defines --data, --split and flags for reading them.

  `purpose` is the command's use of the data, as 'evaluate on'.
  """
  texts = {
    'data': f"Data to {purpose}: 'digits', 'folder:PATH', 'table:FILE',"
    " 'hf:NAME' or a TFDS name.",
    'split': "The split, such as 'test' or 'train[90%:]'. Default: the only"
    ' split of a folder.',
    'data_dir': 'Folder of TFDS datasets, or cache of hf: datasets.',
    'source_size': 'Size of all stored images, such as 32x32; the device then'
    ' crops them. For a run that was trained with config.data.source_size.',
  }
  cli.define_texts(flag_values, texts)
  flags.DEFINE_integer(
    'batch_size',
    64,
    'Images at a time.',
    lower_bound=1,
    flag_values=flag_values,
  )
  flags.DEFINE_integer(
    'num_workers',
    0,
    'Processes that read and decode images. 0: threads of this process.',
    lower_bound=0,
    flag_values=flag_values,
  )


def define_same_order(
  flag_values: flags.FlagValues,
) -> flags.FlagHolder[bool]:
  """Defines --same_order, for commands that compare labels and predictions."""
  return flags.DEFINE_bool(
    'same_order',
    False,
    'The data and the model have the same classes in the same order, although'
    ' the names differ.',
    flag_values=flag_values,
  )


def check(flag_values: flags.FlagValues, argv: list[str]) -> None:
  """Checks the flags, before a model is loaded.

  `argv` has the command's name and the arguments that are not flags, of which
  there must be none.
  """
  cli.refuse_arguments(argv)
  cli.check_from(flag_values)
  if not flag_values['data'].value:
    raise cli.missing('data', 'a dataset', 'digits')
  if not flag_values['split'].value:
    from vit_jax.data import sources  # after the flags: its import is slow

    with explained():
      name = flag_values['data'].value
      names = sources.find(name).split_names(name)
    if len(names) != 1:
      raise cli.missing('split', 'one', names[-1] if names else 'test')
    flag_values['split'].value = names[0]
    logging.info('taking --split=%s: there is no other', names[0])


def make_config(
  flag_values: flags.FlagValues, loaded: 'weights.Loaded'
) -> 'ml_collections.ConfigDict':
  """Returns a config for the data that the flags name, prepared for a model."""
  config = loaded.preprocess.to_config()
  if name := flag_values['data'].value:
    config.data.name = name
  trained = loaded.trained_with
  if trained is not None and trained.data.tokenizer:
    for key in (*_TEXT_KEYS, 'captions', 'class_names'):
      config_lib.set_value(config, f'data.{key}', trained.data[key])
  if trained is not None:
    config.data.map.update(trained.data.map)
    if config.data.name.startswith(('table:', 'tar:', 'hf:')):
      config.data.columns.map = trained.data.columns.map
    kind = re.match('table:|hf:|tar:', config.data.name)
    if kind and trained.data.name.startswith(kind[0]):
      config.data.columns.update(trained.data.columns)
  config.data.dir = flag_values['data_dir'].value
  config.data.num_workers = flag_values['num_workers'].value
  config.train.batch_size = flag_values['batch_size'].value
  if size := flag_values['source_size'].value:
    config.data.source_size = cli.parse_size(size, '--source_size')
  return config


def open_split(
  flag_values: flags.FlagValues,
  config: 'ml_collections.ConfigDict',
  flag: str = 'split',
) -> 'data.Source':
  """Opens a split that a flag names, and sets that of `make_config`'s config.

  Errors name the flag.
  """
  from vit_jax import data  # after the flags: its import is slow

  config.data.split = flag_values[flag].value
  with explained({'config.data.split': f'--{flag}'}):
    data.check(config)
    with config_lib.explained(f'--{flag}', data.SplitError):
      return data.open_source(config, config.data.split)


@contextlib.contextmanager
def explained(flag_of: Mapping[str, str] | None = None) -> Iterator[None]:
  """Replaces keys of the config by flags in errors; `flag_of` has more keys."""
  try:
    yield
  except UserError as e:
    text = str(e)
    for key, flag in (_FLAG_OF | dict(flag_of or {})).items():
      text = text.replace(key, flag)
    raise UserError(text) from None


def progress(total: int, hidden: bool = False) -> terminal.ProgressBar:
  """Returns a progress bar over images, shown if stderr is a terminal."""
  return terminal.ProgressBar(total, 'images', hidden=hidden)
