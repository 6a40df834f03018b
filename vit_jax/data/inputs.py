"""Kinds of inputs of a model: images, volumes, videos and sounds.

All are the feature `image` of an example. Each kind says what of an example is
in a batch: the whole of it, if all have one size, which the device crops; or a
crop that the host has cut.
"""

import dataclasses
import math
from typing import Any

SHORT = ('refuse', 'pad')
WINDOWS = ('hamming', 'hann')


@dataclasses.dataclass(frozen=True)
class Feature:
  """A kind of value that each example of a source has."""

  @property
  def names(self) -> tuple[str, ...]:
    """Names of the values: classes, or quantities; by default none."""
    return ()

  def to_dict(self) -> dict[str, Any]:
    """Returns JSON that `from_dict` reads: the kind, and its fields."""
    fields = {
      key: list(value) if isinstance(value, tuple) else value
      for key, value in dataclasses.asdict(self).items()
    }
    return {'kind': type(self).__name__, **fields}


@dataclasses.dataclass(frozen=True)
class Image(Feature):
  """A still image: an encoded file, or uint8 or uint16 [H, W, C].

  Attributes:
    size: (height, width) if all stored images have one size, in which case the
      device crops them; else None.
  """

  size: tuple[int, int] | None = None

  def whole(self, training: bool) -> tuple[int, int] | None:
    """Returns the size of images that the host leaves whole; None: it crops.

    Args:
      training: Whether a batch is for training, and not for evaluation.
    """
    del training
    return self.size


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

  def whole(self, training: bool) -> Any:
    """Returns the size of volumes in a batch unless the host crops them."""
    return self.size if self.fixed or not training else None


@dataclasses.dataclass(frozen=True)
class Video(Image):
  """A video: uint8 [T, H, W, C], or `host.clips.Frames` that are read later.

  A clip of it has the frames of `data.image_size`, which is (frames, height,
  width). Training draws where it begins, evaluation takes the middle. All
  frames of a clip are cropped and mirrored alike.

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

  def span(self, frames: int) -> int:
    """Returns how many frames of a video a clip of some frames spans."""
    return (frames - 1) * self.stride + 1


@dataclasses.dataclass(frozen=True)
class Audio(Image):
  """A sound as a spectrogram: uint16 [T, M, 1], as `spectrogram.py` makes it.

  A crop of it has the frames of `data.image_size`, which is (frames, mels).
  Training draws where it begins, evaluation takes the middle.

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
