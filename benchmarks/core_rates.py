"""Rates at which cores decode and crop images from files."""

from collections.abc import Callable
from collections.abc import Sequence
import pathlib
import resource
import time
from typing import Any

import cv2
import numpy as np

from benchmarks import input as input_lib
from benchmarks import photographs
from vit_jax import config as config_lib
from vit_jax import tables

_BATCH, _EPOCHS = 32, 2
_SHORT_SIDE = 256

# Encodes a picture, uint8 [h, w, 3]; qualities that look about the same.
_FORMS: dict[str, tuple[str, tuple[int, int]]] = {
  'jpeg': ('.jpg', (cv2.IMWRITE_JPEG_QUALITY, 90)),
  'webp': ('.webp', (cv2.IMWRITE_WEBP_QUALITY, 90)),
  'avif': ('.avif', (cv2.IMWRITE_AVIF_QUALITY, 80)),
}


def measure(
  root: pathlib.Path,
  count: int,
  threads: Sequence[int],
  blocks: int,
  rate: float,
) -> list[dict[str, Any]]:
  """Returns a row for each kind of files and number of threads.

  Args:
    root: An empty folder.
    count: Number of files.
    threads: Numbers of threads.
    blocks: Number of timed blocks.
    rate: Images/s of the accelerator.
  """
  files = photographs.make(count, 375, 500)
  config = config_lib.default()
  config.train.batch_size, config.data.image_size = _BATCH, 224
  config.data.dir = str(root / 'records')
  kinds = {
    'jpeg': files,
    'jpeg_256': _encoded(files, *_FORMS['jpeg'], short_side=_SHORT_SIDE),
    'webp': _encoded(files, *_FORMS['webp']),
    'avif': _encoded(files, *_FORMS['avif']),
  }
  names = {
    name: photographs.write_folder(root / name, encoded)
    for name, encoded in kinds.items()
  }
  names['records'] = photographs.write_records(root / 'records', files)
  functions = {}
  for name, data_name in names.items():
    config.data.name = data_name
    for number in threads:
      functions[name, number] = input_lib.batching(
        config, _EPOCHS * count // _BATCH, number
      )
  images = _EPOCHS * count // _BATCH * _BATCH
  times = _times(functions, blocks)
  rows = []
  for (name, number), (seconds, processor) in times.items():
    each = processor / images
    sizes = [len(x) for x in kinds.get(name, files)]
    rows.append(
      {
        'files': name,
        'threads': number,
        'kilobytes': float(np.mean(sizes)) / 1e3,
        'processor_milliseconds': 1e3 * each,
        'images_per_second': images / seconds,
        'cores': rate * each,
      }
    )
  return rows


def _encoded(
  files: Sequence[bytes],
  suffix: str,
  quality: tuple[int, int],
  short_side: int | None = None,
) -> list[bytes]:
  """Returns JPEG files in another form, maybe smaller."""
  encoded = []
  for file in files:
    picture = cv2.imdecode(np.frombuffer(file, np.uint8), cv2.IMREAD_COLOR)
    assert picture is not None
    if short_side is not None:
      scale = short_side / min(picture.shape[:2])
      picture = cv2.resize(
        picture, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA
      )
    is_done, data = cv2.imencode(suffix, picture, quality)
    if not is_done:
      raise OSError(f'OpenCV cannot write {suffix} files')
    encoded.append(data.tobytes())
  return encoded


def _times(
  functions: dict[tuple[str, int], Callable[[], None]], blocks: int
) -> dict[tuple[str, int], tuple[float, float]]:
  """Returns the medians of elapsed and processor seconds, taken in turns."""
  taken: dict[tuple[str, int], list[tuple[float, float]]] = {}
  for block in range(-1, blocks):  # the first one warms up
    for key, function in functions.items():
      start, before = time.perf_counter(), _processor_seconds()
      function()
      both = time.perf_counter() - start, _processor_seconds() - before
      if block >= 0:
        taken.setdefault(key, []).append(both)
  return {
    key: (float(np.median(x, 0)[0]), float(np.median(x, 0)[1]))
    for key, x in taken.items()
  }


def _processor_seconds() -> float:
  usage = resource.getrusage(resource.RUSAGE_SELF)
  return usage.ru_utime + usage.ru_stime


def table(rows: Sequence[dict[str, Any]]) -> str:
  """Returns the rows as text."""
  names = ('files', 'threads', 'KB', 'ms of a core', 'images/s', 'cores needed')
  cells = [
    (
      row['files'],
      str(row['threads']),
      f'{row["kilobytes"]:.0f}',
      f'{row["processor_milliseconds"]:.2f}',
      f'{row["images_per_second"]:,.0f}',
      f'{row["cores"]:.1f}',
    )
    for row in rows
  ]
  return tables.Table(names, cells).text()
