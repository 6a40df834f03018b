"""Opens the source that `config.data.name` names."""

import os

import ml_collections

from vit_jax import config as config_lib
from vit_jax.data import base
from vit_jax.data import digits
from vit_jax.data import folder
from vit_jax.data import hf
from vit_jax.data import pairs
from vit_jax.data import scenes
from vit_jax.data import skipping
from vit_jax.data import splits
from vit_jax.data import table
from vit_jax.data import tfds


def open_source(config: ml_collections.ConfigDict, split: str) -> base.Source:
  """Opens a split of the data.

  Args:
    config: The full config.
    split: A split specification, such as `config.data.split`.

  Raises:
    UserError: There is no such dataset, folder or split, or it cannot be used.
  """
  source = _open(config, split)
  if not config.data.skip_damaged:
    return source
  listed = skipping.read(config.data.skip_damaged, config.data.name)
  return skipping.without(source, listed, f'{config.data.name}, {split}')


def _open(config: ml_collections.ConfigDict, split: str) -> base.Source:
  data = config.data
  size = data.source_size
  if size is not None:
    size = config_lib.pair(size, 'data.source_size')
  if data.name == 'digits':
    return digits.open_digits(split, data.channels)
  if data.name == 'scenes':
    return scenes.ScenesSource(split, size or scenes.SIZE)
  if data.name.startswith(FOLDER):
    path = folder_path(data.name)
    if pairs.holds_pairs(path):
      return pairs.PairsSource(path, split, size)
    return folder.FolderSource(path, split, size)
  if data.name.startswith(TABLE):
    path = os.path.expanduser(data.name.removeprefix(TABLE))
    return table.TableSource(path, split, data.columns, size)
  if data.name.startswith(HF):
    name = data.name.removeprefix(HF)
    return hf.HfSource(name, data.dir, split, data.columns, size)
  if config_lib.is_own(data.name):
    kind = config_lib.load_own(data.name, 'data.name', base.Source)
    return kind(config, split)
  return tfds.TfdsSource(data.name, data.dir, split, size)


def open_split(
  config: ml_collections.ConfigDict, key: str = 'data.split'
) -> base.Source:
  """Opens the split that a key of the config holds.

  Raises:
    UserError: As `open_source`; an error about the split names the key.
  """
  try:
    return open_source(config, dict(config_lib.flatten(config))[key])
  except splits.SplitError as e:
    hint = ''
    if e.only and key != 'data.split':
      hint = (
        '. To hold some out, set'
        f" --config.data.split='{e.only}[:90%]' --config.{key}='{e.only}[90%:]'"
      )
    raise config_lib.UserError(f'config.{key}: {e}{hint}') from None


FOLDER = 'folder:'
TABLE = 'table:'
HF = 'hf:'


def folder_path(name: str) -> str:
  """Returns the path in 'folder:PATH'."""
  return os.path.expanduser(name.removeprefix(FOLDER))
