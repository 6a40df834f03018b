"""Whether crops have the axes of volumes, videos and spectrograms."""

import ml_collections

from vit_jax import config as config_lib
from vit_jax.data import features as features_lib


def check(
  config: ml_collections.ConfigDict, feature: features_lib.Feature
) -> None:
  """Checks that a crop fits the examples of a medium.

  Args:
    config: The full config.
    feature: What the model sees.

  Raises:
    UserError: It does not.
  """
  size = config_lib.sides(config.data.image_size)
  if isinstance(feature, features_lib.Video):
    _check_video(config, size, feature)
  if isinstance(feature, features_lib.Audio):
    _check_audio(config, size, feature)
  if isinstance(feature, features_lib.Volume):
    _check_volume(config, size, feature)


def _check_volume(
  config: ml_collections.ConfigDict,
  size: tuple[int, ...],
  volume: features_lib.Volume,
) -> None:
  """Raises a UserError if the model's input is no part of these volumes."""
  if len(size) != 3 or any(
    n > m for n, m in zip(size, volume.size, strict=True)
  ):
    raise config_lib.UserError(
      f'config.data.image_size is {size}, but the examples of'
      f' {config.data.name} are volumes of {volume.size}: write (depth, height,'
      ' width) of a crop, at most these'
    )
  if volume.channels != config.data.channels:
    raise config_lib.UserError(
      f'config.data.channels is {config.data.channels}, but the volumes of'
      f' {config.data.name} have {volume.channels}: write that number'
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
  counts = (1, 3) if video.size is None else (video.channels,)
  if config.data.channels not in counts:
    raise config_lib.UserError(
      f'config.data.channels is {config.data.channels}, but the videos of'
      f' {name} have {" or ".join(map(str, counts))}: write that number'
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
