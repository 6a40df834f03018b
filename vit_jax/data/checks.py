"""Checks `config.data` and `config.augment` before anything slow starts."""

import ml_collections

from vit_jax import config as config_lib
from vit_jax.config import UserError
from vit_jax.data import sources
from vit_jax.data import splits
from vit_jax.data.host import geometry
from vit_jax.data.host import levels

# Checks by wings, and the starts of the keys that they check.
_WINGS: dict[str, tuple[str, ...]] = {
  'vit_jax.data.scans:check': ('data.volume.',),
  'vit_jax.data.codes:check': ('data.map.', 'data.columns.map'),
  'vit_jax.data.recordings:check': (
    'data.video.',
    'data.audio.',
    'augment.audio.',
  ),
  'vit_jax.data.balance:check': ('data.balance',),
  'vit_jax.data.captions:check': (
    'data.tokenizer',
    'data.captions',
    'data.text_',
  ),
  'vit_jax.data.augment_checks:check': ('augment.',),
  'vit_jax.data.size_checks:check': (
    'data.source_size',
    'data.resize',
    'data.eval_resize',
  ),
}


def check(config: ml_collections.ConfigDict) -> None:
  """Checks `config.data`, `config.augment` and the splits of all evaluations.

  This reads nothing: a missing dataset or folder is found when it is opened.
  """
  data = config.data
  source = sources.find(data.name)
  source.check_config(config)
  specs = {f'evals.{name}': x.split for name, x in config.evals.items()}
  for key, spec in {'data': data.split, **specs}.items():
    if spec or key == 'data':
      with config_lib.explained(f'config.{key}.split'):
        splits.parse(spec)
  config_lib.within(config, 'data.num_workers', '[0, inf)')
  config_lib.within(config, 'data.num_threads', '[1, inf)')
  config_lib.check_choice(config, 'data.cache', ('none', 'host', 'device'))
  choices = {
    'interpolation': geometry.INTERPOLATIONS,
    'resize_like': geometry.LIKE,
  }
  for key, values in choices.items():
    if data[key]:
      config_lib.check_choice(config, f'data.{key}', values)
  key = 'resize_like' if data.resize_like else 'interpolation'
  if not data.antialias and data[key] in ('bicubic', *geometry.LIKE):
    raise UserError(
      f'config.data.antialias is False, but config.data.{key}={data[key]} is as'
      ' Pillow resizes, which always smooths what it shrinks: leave one of them'
      ' out'
    )
  if not (source.has_columns or config_lib.is_own(data.name)):
    for key, value in data.columns.items():
      if value:
        raise UserError(
          f'config.data.columns.{key} is {value!r}, but {data.name} has no'
          ' columns: leave it out'
        )
  _check_wings(config)
  config_lib.within(config, 'data.channels', '[1, inf)')
  is_volume = len(config_lib.sides(data.image_size)) == 3
  if data.channels not in (1, 3, 4) and not is_volume:
    raise UserError(
      f'config.data.channels is {data.channels}: choose 1 (grey), 3 (RGB) or'
      ' 4 (RGB and alpha)'
    )
  _check_normalization(config)
  levels.check(config)
  geometry.train_crop(config)


def _check_wings(config: ml_collections.ConfigDict) -> None:
  """Lets wings check the keys that they read, if one is not at its default."""
  default = config_lib.default()
  changed = [
    f'{part}.{key}'
    for part in ('data', 'augment')
    for key, value in config_lib.flatten(config[part])
    if value != config_lib.value_at(default[part], key)
  ]
  for wing, prefixes in _WINGS.items():
    if any(key.startswith(prefixes) for key in changed):
      config_lib.wing(wing)(config)


def _check_normalization(config: ml_collections.ConfigDict) -> None:
  data = config.data
  for key in ('mean', 'std'):
    config_lib.within(config, f'data.{key}', '(-inf, inf)')
    if len(data[key]) not in (0, 1, data.channels):
      raise UserError(
        f'config.data.{key} has {len(data[key])} numbers: write one, or one for'
        f' each of the config.data.channels={data.channels}'
      )
  if min(data.std, default=1) <= 0:
    raise UserError(
      f'config.data.std is {tuple(data.std)}: it must be more than 0'
    )
