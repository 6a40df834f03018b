"""Checks `config.data` and `config.augment` before anything slow starts."""

import os
import re
from typing import Any

import ml_collections

from vit_jax import config as config_lib
from vit_jax.config import UserError
from vit_jax.data import augmentations
from vit_jax.data import balance
from vit_jax.data import base
from vit_jax.data import captions
from vit_jax.data import codes
from vit_jax.data import hf
from vit_jax.data import recordings
from vit_jax.data import scans
from vit_jax.data import sources
from vit_jax.data import splits
from vit_jax.data import tar
from vit_jax.data.host import geometry
from vit_jax.data.host import levels

# 'name' or 'name/config', optionally with ':version'.
_TFDS_NAME = re.compile(r'[\w-]+(/[\w.+=,-]+)?(:[\d*]+(\.[\d*]+){0,2})?')

_MOST_RESIZE = 100  # limit, in multiples of the model's input size


def check(config: ml_collections.ConfigDict) -> None:
  """Checks `config.data`, `config.augment` and the splits of all evaluations.

  This reads nothing: a missing dataset or folder is found when it is opened.

  Raises:
    UserError: A value cannot be used.
  """
  data = config.data
  _check_name(data.name)
  _check_split('data.split', data.split)
  for name, spec in config.evals.items():
    if spec.split:
      _check_split(f'evals.{name}.split', spec.split)
  config_lib.at_least(config, 'data.num_workers', 0)
  config_lib.at_least(config, 'data.num_threads', 1)
  config_lib.one_of(config, 'data.cache', ('none', 'host', 'device'))
  _check_crops(config)
  _check_antialias(data)
  scans.check(config)
  codes.check(config)
  _check_columns(data)
  recordings.check(config)
  _check_channels(config)
  for key in ('mean', 'std'):
    config_lib.check_numbers(config, f'data.{key}')
  _check_normalization(data)
  levels.check(config)
  _check_sizes(config)
  _check_balance(data.balance)
  captions.check(config)
  _check_augment(config)
  _check_pairs(config)


def _check_channels(config: ml_collections.ConfigDict) -> None:
  config_lib.at_least(config, 'data.channels', 1)
  data = config.data
  is_volume = len(config_lib.sides(data.image_size)) == 3
  if data.channels not in (1, 3, 4) and not is_volume:
    raise UserError(
      f'config.data.channels is {data.channels}: choose 1 (grey), 3 (RGB) or'
      ' 4 (RGB and alpha)'
    )


def _check_name(name: str) -> None:
  folders = sources.FOLDER, sources.VIDEO, sources.AUDIO
  if name.startswith(folders):
    path = sources.folder_path(name, name[: name.index(':') + 1])
    if not os.path.isdir(path):
      near = config_lib.nearby(path, os.path.isdir)
      raise UserError(f'config.data.name: there is no folder {path!r}{near}')
  elif name.startswith(sources.TABLE):
    path = os.path.expanduser(name.removeprefix(sources.TABLE))
    if not os.path.isfile(path):
      near = config_lib.nearby(path, os.path.isfile)
      raise UserError(f'config.data.name: there is no file {path!r}{near}')
  elif name.startswith(sources.TAR):
    tar.expand(name.removeprefix(sources.TAR))
  elif name.startswith(sources.HF):
    hf.parse(name.removeprefix(sources.HF))
  elif config_lib.is_own(name):
    config_lib.load_own(name, 'data.name', base.Source)
  elif not _TFDS_NAME.fullmatch(name):
    hint = f'folder:{name}' if os.path.isdir(name) else 'folder:PATH'
    prefix = re.match(r'[\w-]+:', name)
    what = f'; {prefix[0]!r} is not known' if prefix else ''
    raise UserError(
      f"config.data.name is {name!r}: write 'digits', 'scenes', 'volumes',"
      f" 'moving_digits', 'tones', {hint!r}, 'video:PATH', 'audio:PATH',"
      " 'table:FILE', 'tar:SHARDS', 'hf:NAME', 'my_module:MySource' or the name"
      f' of a TFDS dataset{what}'
    )


def _check_columns(data: ml_collections.ConfigDict) -> None:
  """Checks that columns are only named where there are any."""
  with_columns = sources.TABLE, sources.HF, sources.TAR
  if data.name.startswith(with_columns) or config_lib.is_own(data.name):
    return
  for key, value in data.columns.items():
    if value:
      raise UserError(
        f'config.data.columns.{key} is {value!r}, but {data.name} has no'
        ' columns: leave it out'
      )


def _check_split(key: str, spec: str) -> None:
  with config_lib.explained(f'config.{key}'):
    splits.parse(spec)


def _check_crops(config: ml_collections.ConfigDict) -> None:
  """Checks kind, interpolation, area and ratio of crops."""
  data = config.data
  config_lib.build(data.crop, 'data.crop', config_lib.among(geometry.CROPS))
  if data.interpolation:
    config_lib.one_of(config, 'data.interpolation', geometry.INTERPOLATIONS)
  if data.resize_like:
    config_lib.one_of(config, 'data.resize_like', geometry.LIKE)


def _check_sizes(config: ml_collections.ConfigDict) -> None:
  """Checks the stored sizes of images and the sizes after resizing."""
  data = config.data
  if data.source_size is not None:
    config_lib.sides(data.source_size, 'data.source_size')
  for key in ('resize', 'eval_resize'):
    if isinstance(data[key], float):
      if not 0 < data[key] <= _MOST_RESIZE:
        raise UserError(
          f'config.data.{key} is {data[key]}: as a multiple of image_size it'
          f' must be more than 0, and {_MOST_RESIZE} at most'
        )
    elif data[key] is not None and not isinstance(data[key], str):
      config_lib.pair(data[key], f'data.{key}')
  crops = {
    'resize': geometry.train_crop(config),
    'eval_resize': geometry.eval_crop(config),
  }
  for key, crop in crops.items():
    _check_resize(f'data.{key}', crop, data[key])
    if crop.border:
      _check_fill(f'data.{key}', crop.fill, data)


def _check_normalization(data: ml_collections.ConfigDict) -> None:
  for key in ('mean', 'std'):
    values = data[key]
    if len(values) not in (0, 1, data.channels):
      raise UserError(
        f'config.data.{key} has {len(values)} numbers: write one, or one for'
        f' each of the config.data.channels={data.channels}'
      )
  if min(data.std, default=1) <= 0:
    raise UserError(
      f'config.data.std is {tuple(data.std)}: it must be more than 0'
    )


def _check_antialias(data: ml_collections.ConfigDict) -> None:
  """Checks that Pillow is not asked to resize without smoothing."""
  key = 'resize_like' if data.resize_like else 'interpolation'
  if not data.antialias and data[key] in ('bicubic', *geometry.LIKE):
    raise UserError(
      f'config.data.antialias is False, but config.data.{key}={data[key]} is as'
      ' Pillow resizes, which always smooths what it shrinks: leave one of them'
      ' out'
    )


def _check_balance(value: Any) -> None:
  is_number = isinstance(value, int | float) and not isinstance(value, bool)
  if value != balance.CLASSES and not (is_number and 0 <= value <= 1):
    raise UserError(
      f'config.data.balance is {value!r}: write a number from 0 (images are'
      f' drawn as they are) to 1 (classes are drawn alike), or'
      f' {balance.CLASSES!r} for 1'
    )


def _check_resize(key: str, crop: geometry.Crop, given: Any) -> None:
  """Checks that the crop fits into the image, resized as the key says."""
  if crop.resize is None or crop.kind in ('random_resized', 'scaled'):
    return
  size = geometry.of_frame(crop).size
  height, width = config_lib.pair(crop.resize, key)
  if isinstance(crop.resize, int):  # the short side alone
    height = width = crop.resize + max(size) - min(size)
  pad = 2 * crop.pad
  if height + pad < size[0] or width + pad < size[1]:
    least: Any = tuple(side - pad for side in size)
    if isinstance(crop.resize, int):
      least = min(least)
    remedy = f'{least} or more, or config.data.image_size to less'
    if isinstance(given, float):  # a multiple of image_size
      remedy = '1.0 or more'
    raise UserError(
      f'config.{key} is {given}: too small to cut'
      f' config.data.image_size={crop.size} from it: set config.{key} to'
      f' {remedy}'
    )


def _check_fill(key: str, fill: Any, data: ml_collections.ConfigDict) -> None:
  """Checks the values of a border."""
  bits = data.bits or 8
  if len(fill) not in (1, data.channels) or not geometry.is_fill(fill, bits):
    raise UserError(
      f'config.{key} is {data[key.partition(".")[2]]!r}: its border takes one'
      f' value, or one for each of config.data.channels={data.channels}, from 0'
      f' to {2**bits - 1}'
    )


def _check_augment(config: ml_collections.ConfigDict) -> None:
  augment = config.augment
  if augment.policy:
    from vit_jax.data.device import policies  # it imports jax

    with config_lib.explained('config.augment.policy'):
      policies.make(augment.policy)
  augmentations.make(augment.jitter, 'augment.jitter')
  augmentations.make(augment.erase, 'augment.erase')
  for key in ('gray', 'blur', 'solarize'):
    config_lib.check_numbers(config, f'augment.{key}')
    if not all(0 <= x <= 1 for x in augment[key]):
      raise UserError(
        f'config.augment.{key} is {tuple(augment[key])}: write probabilities,'
        ' from 0 to 1: one for each crop of an image, or one for all'
      )
  single = ('mix_probability', 'cutmix_share')
  for key in (*single, *(f'volume.{key}' for key in augment.volume)):
    config_lib.share(config, f'augment.{key}')
  config_lib.at_least(config, 'augment.mixup', 0)
  config_lib.at_least(config, 'augment.cutmix', 0)
  if not 1 <= augment.repeats <= config.train.batch_size:
    raise UserError(
      f'config.augment.repeats is {augment.repeats}: it must be from 1 to'
      f' config.train.batch_size={config.train.batch_size}'
    )


def _check_pairs(config: ml_collections.ConfigDict) -> None:
  """Checks that both images of a mixed pair are in one microbatch."""
  augment, batch_size = config.augment, config.train.batch_size
  parts = config_lib.num_microbatches(config)
  mixes = (augment.mixup or augment.cutmix) and augment.mix_probability
  if mixes and batch_size % (2 * parts):
    in_parts = f' in each of config.train.accumulation={parts} parts'
    if parts > config_lib.accumulation(config):
      in_parts = f' in each of {parts} groups of config.optim.sam'
    in_parts = in_parts if parts > 1 else ''
    raise UserError(
      f'config.augment mixes pairs of images{in_parts}: make'
      f' config.train.batch_size={batch_size} a multiple of {2 * parts}, or set'
      ' config.augment.mixup=0 and config.augment.cutmix=0'
    )
