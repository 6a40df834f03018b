"""Kinds of inputs of a model other than images: volumes, videos and sounds."""

import dataclasses
import math
from typing import Any
from typing import ClassVar

import ml_collections

from vit_jax import config as config_lib
from vit_jax.config import UserError
from vit_jax.data.features import Image

SHORT = ('refuse', 'pad')
WINDOWS = ('hamming', 'hann')


@dataclasses.dataclass(frozen=True)
class Volume(Image):
  """A scan in three axes: uint8 or uint16 [D, H, W, C].

  Evaluation sees whole volumes. Training cuts crops: of volumes of one size on
  the device, of others on the host. For evaluation, the others are padded at
  the end of each axis; added places have the label that does not count.

  Attributes:
    size: (depth, height, width), the largest ones if volumes differ.
    channels: C, such as one for each kind of a scan.
    fixed: Whether all volumes have this size.
  """

  size: tuple[int, int, int]  # type: ignore[assignment]
  channels: int = 1
  fixed: bool = True
  can_mix: ClassVar[bool] = False
  inputs: ClassVar[str] = 'volumes'
  filler: ClassVar[str] = 'vit_jax.data.host.volumes:VolumeFiller'
  device: ClassVar[str] = 'vit_jax.data.device.volumes'

  def whole_size(self, training: bool) -> Any:
    """Returns the size of volumes in a batch unless the host crops them."""
    return self.size if self.fixed or not training else None

  def check_input(self, config: ml_collections.ConfigDict) -> None:
    """Checks that a crop has three sides, and volumes hold it."""
    size, name = config_lib.sides(config.data.image_size), config.data.name
    if len(size) != 3 or any(
      n > m for n, m in zip(size, self.size, strict=True)
    ):
      raise UserError(
        f'config.data.image_size is {size}, but the examples of {name} are'
        f' volumes of {self.size}: write (depth, height, width) of a crop, at'
        ' most these'
      )
    _check_channels(config, (self.channels,), 'volumes')


def _check_channels(
  config: ml_collections.ConfigDict, channels: tuple[int, ...], inputs: str
) -> None:
  if config.data.channels not in channels:
    raise UserError(
      f'config.data.channels is {config.data.channels}, but the {inputs} of'
      f' {config.data.name} have {" or ".join(map(str, channels))}: write that'
      ' number'
    )


class Recording(Image):
  """A video or a sound, of which batches have parts.

  A part has the frames of `data.image_size`. Training draws where it begins,
  evaluation takes the middle.

  Attributes:
    section: Part of `config.data` with the keys that it follows.
    stride: Frames from one of a part to the next.
    short: What is done with one that is too short, one of SHORT.
  """

  section: ClassVar[str]
  stride: int = 1
  short: str
  filler: ClassVar[str] = 'vit_jax.data.host.clips:ClipFiller'
  device: ClassVar[str] = 'vit_jax.data.device.clips'

  def set_keys(self, config: ml_collections.ConfigDict) -> None:
    """Sets `config.data.video` or `config.data.audio`."""
    for key in config.data[self.section]:
      config.data[self.section][key] = getattr(self, key)

  def span(self, frames: int) -> int:
    """Returns how many stored frames a part of some frames spans."""
    return (frames - 1) * self.stride + 1


@dataclasses.dataclass(frozen=True)
class Video(Recording):
  """A video: uint8 [T, H, W, C], or `host.clips.Frames` that are read later.

  A clip of it has the frames of `data.image_size`, which is (frames, height,
  width). All frames of a clip are cropped and mirrored alike.

  Attributes:
    size: (frames, height, width) if all stored videos have one size, in which
      case the device cuts the clip; else None.
    channels: C, 1 or 3.
    stride: As `config.data.video.stride`.
    short: As `config.data.video.short`.
  """

  size: tuple[int, int, int] | None = None  # type: ignore[assignment]
  channels: int = 3
  stride: int = 1
  short: str = SHORT[0]
  inputs: ClassVar[str] = 'videos'
  section: ClassVar[str] = 'video'
  opener: ClassVar[str] = 'vit_jax.data.host.video_files:open_video'
  bits: ClassVar[int | None] = 8
  part: ClassVar[str] = 'frame'

  def check_input(self, config: ml_collections.ConfigDict) -> None:
    """Checks that the model's input is a clip of these videos."""
    size, name = config_lib.sides(config.data.image_size), config.data.name
    key = f'config.data.image_size is {size}'
    if len(size) != 3:
      raise UserError(
        f'{key}, but the examples of {name} are videos: write (frames, height,'
        ' width) of a clip'
      )
    span = self.span(size[0])
    if self.size is not None and self.size[0] < span:
      raise UserError(
        f'{key}, and a clip spans {span} frames with config.data.video.stride='
        f'{self.stride}, but the videos of {name} have {self.size[0]}: take'
        ' fewer frames'
      )
    channels = (1, 3) if self.size is None else (self.channels,)
    _check_channels(config, channels, 'videos')


@dataclasses.dataclass(frozen=True)
class Audio(Recording):
  """A sound as a spectrogram: uint16 [T, M, 1], as `spectrogram.py` makes it.

  A crop of it has the frames of `data.image_size`, which is (frames, mels).

  Attributes:
    size: (frames, mels) if all stored sounds have one length, in which case the
      device crops them; else None.
    mels: M, bands.
    sample_rate: Of the waveform, per second.
    window: Its kind, one of WINDOWS.
    window_ms: Its length, in milliseconds.
    hop_ms: Time from one frame to the next, in milliseconds.
    resample: As `config.data.audio.resample`.
    short: As `config.data.audio.short`.
  """

  mels: int = 128
  sample_rate: int = 16_000
  window: str = WINDOWS[0]
  window_ms: float = 25.0
  hop_ms: float = 10.0
  resample: bool = True
  short: str = SHORT[1]
  inputs: ClassVar[str] = 'sounds'
  section: ClassVar[str] = 'audio'
  bits: ClassVar[int | None] = 16

  def open(self, path: str, frames: int) -> Any:
    """Returns the spectrogram of a file, uint16 [T, M, 1]."""
    read = config_lib.wing('vit_jax.data.host.sound_files:read')
    return read(path, self, frames)

  def check_input(self, config: ml_collections.ConfigDict) -> None:
    """Checks that the model's input is a part of these sounds."""
    size, name = config_lib.sides(config.data.image_size), config.data.name
    frames = size[0] if self.size is None else self.size[0]
    if len(size) != 2 or size[1] != self.mels or size[0] > frames:
      raise UserError(
        f'config.data.image_size is {size}, but the examples of {name} are'
        f' spectrograms: write (frames, mels), with at most {frames} frames and'
        f' {self.mels} mels'
      )
    if config.data.channels != 1:
      raise UserError(
        f'config.data.channels is {config.data.channels}, but spectrograms have'
        ' one channel: write 1'
      )

  @property
  def window_length(self) -> int:
    """Samples in a window."""
    return round(self.sample_rate * self.window_ms / 1000)

  @property
  def hop_length(self) -> int:
    """Samples from one frame to the next."""
    return round(self.sample_rate * self.hop_ms / 1000)

  @property
  def fft_length(self) -> int:
    """Samples of a transform: the next power of two."""
    return 2 ** math.ceil(math.log2(self.window_length))

  def samples(self, frames: int) -> int:
    """Returns the number of samples that some frames need."""
    return (frames - 1) * self.hop_length + self.window_length
