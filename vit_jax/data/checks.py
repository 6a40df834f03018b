"""Checks of `config.data`, before anything slow."""

import os
import re

import ml_collections

from vit_jax import config as config_lib
from vit_jax.config import UserError
from vit_jax.data import geometry, sources, splits

# name, name/config, either with :version; namespace:name.
_TFDS_NAME = re.compile(r'[\w-]+(/[\w.+=,-]+)?(:[\w.*]+)*')


def check(config: ml_collections.ConfigDict) -> None:
  """Checks the values of `config.data`, and the splits of all evaluations.

  Nothing is read; that datasets and folders exist is seen when they are
  opened.

  Raises:
    UserError: A value cannot be used; one line says which, and why.
  """
  data = config.data
  _check_name(data.name)
  _check_split('data.split', data.split)
  for name, spec in config.evals.items():
    if spec.split:
      _check_split(f'evals.{name}.split', spec.split)
  config_lib.at_least(config, 'seed', 0)
  config_lib.at_least(config, 'data.pad', 0)
  config_lib.at_least(config, 'data.num_workers', 0)
  config_lib.at_least(config, 'data.num_threads', 1)
  config_lib.one_of(config, 'data.crop', geometry.CROPS)
  if data.channels not in (1, 3, 4):
    raise UserError(
      f'config.data.channels is {data.channels}: choose 1 (grey), 3 (RGB) or'
      ' 4 (RGB and alpha)'
    )
  _check_range('data.crop_scale', data.crop_scale, most=1)
  _check_range('data.crop_ratio', data.crop_ratio)
  _check_normalization(data)
  if data.source_size is not None:
    config_lib.pair(data.source_size, 'data.source_size')
  _check_resize('data.resize', geometry.train_crop(config))
  _check_resize('data.eval_resize', geometry.eval_crop(config))


def _check_name(name: str) -> None:
  if name.startswith(sources.FOLDER):
    path = sources.folder_path(name)
    if not os.path.isdir(path):
      raise UserError(f'config.data.name: there is no folder {path!r}')
  elif not _TFDS_NAME.fullmatch(name):
    hint = f": did you mean 'folder:{name}'?" if os.path.isdir(name) else ''
    raise UserError(
      f"config.data.name is {name!r}{hint or ': write'} 'digits',"
      " 'folder:PATH' or the name of a TFDS dataset"
    )
