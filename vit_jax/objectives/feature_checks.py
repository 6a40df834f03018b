"""Whether the examples of a source have what an objective needs."""

import ml_collections

from vit_jax import config as config_lib
from vit_jax import models
from vit_jax.data import features as features_lib


def check(
  target: tuple[str, type[features_lib.Feature]] | None,
  config: ml_collections.ConfigDict,
  features: features_lib.Features,
) -> None:
  """Checks that examples have what an objective sees and learns.

  Args:
    target: Name and kind of the feature that it learns; None: only images.
    config: The full config.
    features: Features of the examples, by name.

  Raises:
    UserError: They do not.
  """
  _check_sides(config, features)
  if target is None:
    return
  name, kind = target
  if not isinstance(features.get(name), kind):
    has = ', '.join(f'{k} ({type(x).__name__})' for k, x in features.items())
    raise config_lib.UserError(
      f'config.objective.name={config.objective.name} learns {name!r}'
      f' ({kind.__name__}), but the examples of {config.data.name} have {has}:'
      ' choose another objective, or data that have it'
    )


def described_model(config: ml_collections.ConfigDict) -> models.Model | None:
  """Returns the trunk of a config; None where only a checkpoint knows it."""
  if config.model.name == config_lib.INIT_FROM:
    return None
  try:
    return models.from_config(config.model, 0)
  except ValueError:
    return None  # `models.check` tells what is wrong


def _check_sides(
  config: ml_collections.ConfigDict, features: features_lib.Features
) -> None:
  """Checks that crops have the axes of the examples, and volumes hold them.

  Raises:
    UserError: They do not.
  """
  size, image = config_lib.sides(config.data.image_size), features['image']
  key = f'config.data.image_size is {size}'
  if isinstance(image, features_lib.Video):
    _check_video(config, size, image)
    return
  if isinstance(image, features_lib.Audio):
    _check_audio(config, size, image)
    return
  if not isinstance(image, features_lib.Volume):
    if len(size) == 3:
      raise config_lib.UserError(
        f'{key}, but the examples of {config.data.name} are images: write'
        ' (height, width)'
      )
    return
  if len(size) != 3 or any(
    n > m for n, m in zip(size, image.size, strict=True)
  ):
    raise config_lib.UserError(
      f'{key}, but the examples of {config.data.name} are volumes of'
      f' {image.size}: write (depth, height, width) of a crop, at most these'
    )
  if image.channels != config.data.channels:
    raise config_lib.UserError(
      f'config.data.channels is {config.data.channels}, but the volumes of'
      f' {config.data.name} have {image.channels}: write that number'
    )


def _check_video(
  config: ml_collections.ConfigDict,
  size: tuple[int, ...],
  video: features_lib.Video,
) -> None:
  """Raises a UserError if the model's input is no clip of these videos."""
  name, key = config.data.name, f'config.data.image_size is {size}'
  if len(size) != 3:
    raise config_lib.UserError(
      f'{key}, but the examples of {name} are videos: write (frames, height,'
      ' width) of a clip'
    )
  span = video.span(size[0])
  if video.size is not None and video.size[0] < span:
    raise config_lib.UserError(
      f'{key}, and a clip spans {span} frames with config.data.video.stride='
      f'{video.stride}, but the videos of {name} have {video.size[0]}: take'
      ' fewer frames'
    )
  wanted = (1, 3) if video.size is None else (video.channels,)
  if config.data.channels not in wanted:
    raise config_lib.UserError(
      f'config.data.channels is {config.data.channels}, but the videos of'
      f' {name} have {" or ".join(map(str, wanted))}: write that number'
    )


def _check_audio(
  config: ml_collections.ConfigDict,
  size: tuple[int, ...],
  audio: features_lib.Audio,
) -> None:
  """Raises a UserError if the model's input is no part of these sounds."""
  name, key = config.data.name, f'config.data.image_size is {size}'
  frames = size[0] if audio.size is None else audio.size[0]
  if len(size) != 2 or size[1] != audio.mels or size[0] > frames:
    raise config_lib.UserError(
      f'{key}, but the examples of {name} are spectrograms: write (frames,'
      f' mels), with at most {frames} frames and {audio.mels} mels'
    )
  if config.data.channels != 1:
    raise config_lib.UserError(
      f'config.data.channels is {config.data.channels}, but spectrograms have'
      ' one channel: write 1'
    )
