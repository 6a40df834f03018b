"""Opens the source that `config.data.name` names."""

import os
import shlex

import ml_collections

from vit_jax import config as config_lib
from vit_jax.data import base
from vit_jax.data import captions
from vit_jax.data import codes as codes_lib
from vit_jax.data import digits
from vit_jax.data import features as features_lib
from vit_jax.data import folder
from vit_jax.data import hf
from vit_jax.data import moving_digits
from vit_jax.data import pairs
from vit_jax.data import recordings
from vit_jax.data import scan_folder
from vit_jax.data import scenes
from vit_jax.data import skipping
from vit_jax.data import splits
from vit_jax.data import table
from vit_jax.data import tar
from vit_jax.data import tfds
from vit_jax.data import tokenizers
from vit_jax.data import tones
from vit_jax.data import voc
from vit_jax.data import volumes
from vit_jax.data.host import decode
from vit_jax.data.host import transforms


def open_source(config: ml_collections.ConfigDict, split: str) -> base.Source:
  """Opens a split of the data.

  Args:
    config: The full config.
    split: A split specification, such as `config.data.split`.

  Raises:
    UserError: There is no such dataset, folder or split, or it cannot be used;
      or an image has another size than `data.source_size`.
  """
  data = config.data
  source = _without_damaged(config, split)
  _check_sizes(config, source)
  words = tuple(data.words)
  if data.tokenizer == tokenizers.WORDS and not words:
    train = source
    if split != data.split:
      train = _without_damaged(config, data.split)
    words = captions.common_words(train, config)
  return captions.attach(source, config, words)


def _without_damaged(
  config: ml_collections.ConfigDict, split: str
) -> base.Source:
  source = _open(config, split)
  if not config.data.skip_damaged:
    return source
  listed = skipping.read(config.data.skip_damaged, config.data.name)
  return skipping.without(source, listed, f'{config.data.name}, {split}')


def _check_sizes(
  config: ml_collections.ConfigDict, source: base.Source
) -> None:
  """Checks the sizes of some images before anything is compiled.

  Raises:
    UserError: One has another size than `data.source_size`.
  """
  image_size = getattr(source.features.get('image'), 'size', None) or ()
  # Volumes and videos have three sides; their sources look at them.
  if config.data.source_size is None or len(image_size) != 2:
    return
  step = -(-len(source) // folder.SAMPLE)
  for position in range(0, len(source), step):
    try:
      example = source.read(position)
    except config_lib.UserError:
      continue  # a run names the file when it needs it
    image = example.image
    if isinstance(image, bytes):
      size = decode.upright_size(image)
    else:
      size = (image.shape[0], image.shape[1])
    if size is not None:
      transforms.check_size(size, image_size, example.where)


def _open(config: ml_collections.ConfigDict, split: str) -> base.Source:
  data = config.data
  size = data.source_size
  if size is not None:
    size = config_lib.sides(size, 'data.source_size')
  if data.name == 'volumes':
    return volumes.VolumesSource(split, size or volumes.SIZE)
  if data.name == 'moving_digits':
    size = size or moving_digits.SIZE
    how = data.video.stride, data.video.short
    return moving_digits.MovingDigitsSource(split, size, *how)
  if size is not None:
    size = config_lib.pair(size, 'data.source_size')
  if data.name == 'digits':
    return digits.open_digits(split, data.channels)
  if data.name == 'scenes':
    return scenes.ScenesSource(split, size or scenes.SIZE)
  if data.name == 'tones':
    return tones.TonesSource(split, recordings.audio(config))
  codes = codes_lib.from_config(config)
  if data.name.startswith(FOLDER):
    path = folder_path(data.name)
    if scan_folder.holds_scans(path):
      return scan_folder.ScansSource(path, split, config)
    if pairs.holds_maps(path):
      return pairs.PairsSource(path, split, size, codes)
    return folder.FolderSource(path, split, size)
  if data.name.startswith(VIDEO):
    path = folder_path(data.name, VIDEO)
    return recordings.VideoSource(path, split, recordings.video(config))
  if data.name.startswith(AUDIO):
    path = folder_path(data.name, AUDIO)
    frames = config_lib.sides(data.image_size)[0]
    audio = recordings.audio(config)
    return recordings.AudioSource(path, split, audio, frames)
  if data.name.startswith(TABLE):
    path = os.path.expanduser(data.name.removeprefix(TABLE))
    return table.TableSource(path, split, data.columns, size, codes)
  if data.name.startswith(TAR):
    pattern = data.name.removeprefix(TAR)
    return tar.TarSource(pattern, split, data.columns, size, codes)
  if data.name.startswith(HF):
    name = data.name.removeprefix(HF)
    return hf.HfSource(name, data.dir, split, data.columns, size, codes)
  if config_lib.is_own(data.name):
    kind = config_lib.load_own(data.name, 'data.name', base.Source)
    return kind(config, split)
  return tfds.TfdsSource(data.name, data.dir, split, size)


def open_split(
  config: ml_collections.ConfigDict,
  key: str = 'data.split',
  split: str | None = None,
) -> base.Source:
  """Opens the split that a key of the config holds.

  Args:
    config: The full config.
    key: The key.
    split: The split, if it is only a part of the key's value.

  Raises:
    UserError: As `open_source`; an error about the split names the key.
  """
  try:
    return open_source(
      config, config_lib.value_at(config, key) if split is None else split
    )
  except splits.SplitError as e:
    hint = ''
    if e.only and key.startswith('evals.') and key.endswith('.split'):
      hint = (
        '. To hold some out, set'
        f" --config.data.split='{e.only}[:90%]' --config.{key}='{e.only}[90%:]'"
      )
    raise config_lib.UserError(f'config.{key}: {e}{hint}') from None


def hold_out(config: ml_collections.ConfigDict) -> None:
  """Evaluates on a fifth of the training images, if no others are there.

  Data that has val, or test in its place, keeps the splits of the config. So
  does data that cannot be opened, of which a run says what is wrong.
  """
  try:
    open_source(config, config.evals.val.split)
  except splits.SplitError as e:
    whole = e.only or 'train'
    config.data.split = f'{whole}[:80%]'
    config.evals.val.split = f'{whole}[80%:]'
  except config_lib.UserError:
    return


def damage_advice(
  config: ml_collections.ConfigDict, features: features_lib.Features
) -> str:
  """Returns the end of an error of training about an image that is damaged.

  Args:
    config: The full config.
    features: Features of its examples.
  """
  if isinstance(features['image'], features_lib.Volume):
    return ''
  name = config.data.name
  what = f'CONFIG.py --config.data.name={shlex.quote(name)}'
  if name.startswith(FOLDER) and not features_lib.maps(features):
    what = shlex.quote(folder_path(name))
  return (
    f'; to train without such files, run python -m vit_jax.data check {what}'
    ' --out=damaged.json, and add --config.data.skip_damaged=damaged.json'
  )


FOLDER = 'folder:'
VIDEO = 'video:'
AUDIO = 'audio:'
TABLE = 'table:'
HF = 'hf:'
TAR = 'tar:'


def folder_path(name: str, prefix: str = FOLDER) -> str:
  """Returns the path in 'folder:PATH', or behind another prefix."""
  return os.path.expanduser(name.removeprefix(prefix))


def folder_splits(name: str) -> list[str]:
  """Returns the splits of a folder, in order; [] for data of other kinds.

  Args:
    name: As `config.data.name`.

  Raises:
    UserError: There is no such folder, or its splits are not clear.
  """
  prefix = name[: name.find(':') + 1]
  if prefix not in (FOLDER, VIDEO, AUDIO):
    return []
  path = folder_path(name, prefix)
  if scan_folder.holds_scans(path) and not pairs.holds_pairs(path):
    return ['train']  # of the Decathlon
  if pairs.holds_maps(path):
    return list(voc.lists(path) or pairs.split_folders(path))
  return list(folder.split_folders(path))
