"""Images, videos and sounds in files that are given one by one."""

from collections.abc import Sequence
import dataclasses
from typing import Any

from vit_jax.data import base
from vit_jax.data import features
from vit_jax.data import folder
from vit_jax.data import input_kinds
from vit_jax.data.host import sound_files
from vit_jax.data.host import video_files


class FilesSource(base.Source):
  """Files given by their paths, with no other feature."""

  def __init__(
    self,
    paths: Sequence[str],
    kind: features.Image | None = None,
    frames: int = 1,
  ):
    """Reads nothing yet.

    `kind` is what a model takes, as `Preprocess.input`; None: images. A sound's
    spectrogram has at least `frames` frames.
    """
    if not isinstance(kind, input_kinds.Video | input_kinds.Audio):
      kind = features.Image()
    self.features = {'image': dataclasses.replace(kind, size=None)}
    self._paths, self._kind, self._frames = tuple(paths), kind, frames

  def __len__(self) -> int:
    return len(self._paths)

  def read(self, position: int) -> base.Example:
    """Returns an example; an image or a video is not decoded."""
    path = self._paths[position]
    image: Any
    if isinstance(self._kind, input_kinds.Video):
      image = video_files.open_video(path)
    elif isinstance(self._kind, input_kinds.Audio):
      image = sound_files.read(path, self._kind, self._frames)
    else:
      image = folder.read_image(path)
    return base.Example({'image': image}, position, path)

  def file(self, position: int) -> str:
    """Returns the path of an example's file."""
    return self._paths[position]

  def fingerprint(self) -> str:
    """Returns a digest of the names of the files."""
    return base.digest(self._paths)
