"""Generates JPEG files like photographs, for folders and for TFDS."""

from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import pathlib
import sys
from typing import Any

import cv2
import numpy as np

CLASSES = ('cat', 'dog')

# For each layer of a picture: pixels between random colours, and their standard
# deviation. Together they give files of about the size of photographs.
_LAYERS = ((64, 45.0), (16, 20.0), (5, 12.0), (2, 8.0))
_QUALITY = 90


def make(count: int, height: int, width: int) -> list[bytes]:
  """Returns JPEG files of quality 90, each different.

  Args:
    count: Number of files.
    height: Height of each image, in pixels.
    width: Width of each image, in pixels.
  """
  rng = np.random.default_rng(0)
  return [_encode(_picture(height, width, rng)) for _ in range(count)]


def _picture(height: int, width: int, rng: np.random.Generator) -> np.ndarray:
  """Returns smooth colours with texture, uint8 [h, w, 3]."""
  result = np.full((height, width, 3), 128, np.float32)
  for distance, spread in _LAYERS:
    coarse = (max(1, height // distance), max(1, width // distance), 3)
    colors = rng.normal(0, spread, coarse).astype(np.float32)
    result += cv2.resize(colors, (width, height), interpolation=cv2.INTER_CUBIC)
  return np.clip(result, 0, 255).astype(np.uint8)


def _encode(picture: np.ndarray) -> bytes:
  quality = (cv2.IMWRITE_JPEG_QUALITY, _QUALITY)
  is_done, jpeg = cv2.imencode('.jpg', picture, quality)
  if not is_done:
    raise OSError('OpenCV cannot write JPEG files')
  return jpeg.tobytes()


def write_folder(
  root: pathlib.Path,
  jpegs: Sequence[bytes],
  count: int | None = None,
  classes: Sequence[str] = CLASSES,
) -> str:
  """Writes `train/<class>/<number>.jpg`; returns the value for `data.name`.

  Args:
    root: The folder.
    jpegs: Content of the first files; the others are links to them.
    count: Number of files; None: as many as `jpegs`.
    classes: Names of the classes, which follow each other.
  """
  paths = [
    root / 'train' / classes[i % len(classes)] / f'{i}.jpg'
    for i in range(len(jpegs) if count is None else count)
  ]
  for i, path in enumerate(paths):
    path.parent.mkdir(parents=True, exist_ok=True)
    if i < len(jpegs):
      path.write_bytes(jpegs[i])
    else:
      path.hardlink_to(paths[i % len(jpegs)])
  return f'folder:{root}'


def write_records(data_dir: pathlib.Path, jpegs: Sequence[bytes]) -> str:
  """Writes a TFDS dataset of ArrayRecord files; returns its name."""
  import tensorflow_datasets as tfds  # slow to import

  # Not registered: it is found by its files.
  class Photographs(  # type: ignore[call-arg]
    tfds.core.GeneratorBasedBuilder, skip_registration=True
  ):
    VERSION = tfds.core.Version('1.0.0')
    code_path = None  # TFDS would look for checksums in its folder

    def _info(self) -> tfds.core.DatasetInfo:
      features = {
        'image': tfds.features.Image(shape=(None, None, 3)),
        'label': tfds.features.ClassLabel(names=CLASSES),
      }
      return tfds.core.DatasetInfo(
        builder=self, features=tfds.features.FeaturesDict(features)
      )

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
      del dl_manager
      return {'train': self._generate_examples()}

    def _generate_examples(self) -> Iterator[tuple[str, dict[str, Any]]]:
      for i, jpeg in enumerate(jpegs):
        yield str(i), {'image': jpeg, 'label': i % len(CLASSES)}

  builder = Photographs(data_dir=data_dir, file_format='array_record')
  with contextlib.redirect_stdout(sys.stderr):
    builder.download_and_prepare()
  return builder.name
