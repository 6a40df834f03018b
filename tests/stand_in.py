"""Small data for tests: a folder of images and a TFDS dataset, as users have.

Their pixels are exact: PNG, and JPEG files of fixed bytes in tests/data.
"""

from collections.abc import Sequence
import io
import itertools
import pathlib
import struct
import tarfile
from typing import Any
import zlib

import commands
import cv2
import jax
import ml_collections
import numpy as np
import pytest
import tiny

import vit_jax
from vit_jax import data
from vit_jax import evaluate
from vit_jax.data.device import views
from vit_jax.data.device.rng import Rng
from vit_jax.predict import __main__ as predict

CLASSES = ('ant', 'bee', 'cow')
JPEGS = sorted((pathlib.Path(__file__).parent / 'data').glob('*.jpg'))


def pixels(number: int, height: int, width: int) -> np.ndarray:
  """Returns smooth colours that differ with the number, uint8 [h, w, 3]."""
  y, x = np.mgrid[:height, :width]
  ramps = np.stack([5 * y, 4 * x, 3 * (x + y)], axis=-1)
  return ((ramps + 41 * number) % 256).astype(np.uint8)


def png(image: np.ndarray) -> bytes:
  """Encodes uint8 or uint16, [h, w] or [h, w, 3 or 4] (RGB)."""
  if image.ndim == 3:
    order = [2, 1, 0, 3][: image.shape[-1]]
    image = image[..., order]
  return cv2.imencode('.png', image)[1].tobytes()


def raw_png(
  rows: list[bytes],
  size: tuple[int, int],
  bits: int,
  kind: int = 0,
  transparent: bytes = b'',
) -> bytes:
  """Returns a PNG of formats that libraries do not write.

  Args:
    rows: Bytes of each row, as the format packs them.
    size: (height, width).
    bits: Of each channel.
    kind: The colour type: 0 for grey.
    transparent: What the part tRNS has, if there shall be one.
  """

  def chunk(name: bytes, content: bytes) -> bytes:
    checksum = struct.pack('>I', zlib.crc32(name + content))
    return struct.pack('>I', len(content)) + name + content + checksum

  header = struct.pack('>IIBBBBB', size[1], size[0], bits, kind, 0, 0, 0)
  parts = [chunk(b'IHDR', header), transparent and chunk(b'tRNS', transparent)]
  lines = b''.join(b'\0' + row for row in rows)
  parts += [chunk(b'IDAT', zlib.compress(lines)), chunk(b'IEND', b'')]
  return b'\x89PNG\r\n\x1a\n' + b''.join(parts)


def write_shard(
  path: pathlib.Path, samples: dict[str, dict[str, bytes]]
) -> None:
  """Writes a shard of WebDataset: files by the endings of their names."""
  with tarfile.open(path, 'w') as archive:
    for key, files in samples.items():
      for ending, content in files.items():
        info = tarfile.TarInfo(f'{key}.{ending}')
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))


def write_folder(root: pathlib.Path, **sizes: int) -> pathlib.Path:
  """Writes `<split>/<class>/N.png`: so many images of differing size each."""
  number = 0
  for split, size in sizes.items():
    for name in CLASSES:
      folder = root / split / name
      folder.mkdir(parents=True)
      for i in range(size):
        image = pixels(number, 20 + number % 7, 24 - number % 5)
        (folder / f'{i}.png').write_bytes(png(image))
        number += 1
  return root


def config(folder: pathlib.Path, **overrides: Any) -> ml_collections.ConfigDict:
  """Returns the tiny config for a folder with train/ and val/."""
  settings = {
    'data__name': f'folder:{folder}',
    'data__split': 'train',
    'data__channels': 3,
    'evals__val__split': 'val',
    'evals__test__split': '',
  }
  return tiny.config(**(settings | overrides))


def rows(*numbers: int, key: int = 0) -> Rng:
  """Returns the random numbers of rows of the global batch."""
  return Rng(jax.random.key(key), np.array(numbers, np.int32))


def train_batch(
  config: ml_collections.ConfigDict, split: str = 'train'
) -> tuple[Any, Any]:
  """Returns the first training batch as the device prepares it, and as is."""
  source = data.open_source(config, split)
  batch = next(data.train_batches(source, config, start_step=0, num_steps=1))
  transform = views.train_transform(config, source.features)
  numbers = range(config.train.batch_size)
  return jax.jit(transform)(batch, rows(*numbers)), batch


def train_on_files(
  name: str,
  run: pathlib.Path,
  paths: Sequence[pathlib.Path],
  capsys: pytest.CaptureFixture[str],
  **settings: Any,
) -> tuple[Any, list[str]]:
  """Trains on a folder of videos or sounds until all of val is right.

  Returns the model, and the classes that `predict` prints for files.
  """
  config = tiny.config(
    data__name=name,
    data__split='train',
    train__batch_size=6,
    train__ema_decay=0.0,
    optim__learning_rate=1e-2,
    checkpoint__every='',
    evals__val__split='val',
    evals__val__every='',
    **settings,
  )
  assert vit_jax.train(config, run).metrics['val/accuracy'] == 1.0
  arguments = f'--from={run}', f'--data={name}', '--split=val'
  assert commands.run(evaluate, *arguments) == 0
  capsys.readouterr()
  assert commands.run(predict, f'--from={run}', '--top=1', *paths) == 0
  _, *lines = capsys.readouterr().out.splitlines()
  return vit_jax.load(run), [line.split()[-1] for line in lines]


def same_neighbours(labels: np.ndarray) -> np.ndarray:
  """Returns where all neighbours have one label, bool [B, H, W].

  There interpolation changes nothing.
  """
  uniform = np.ones(labels.shape, bool)
  for y, x in itertools.product((-1, 0, 1), repeat=2):
    uniform &= np.roll(labels, (y, x), (1, 2)) == labels
  uniform[:, [0, -1]] = uniform[:, :, [0, -1]] = False
  return uniform


def write_dataset(
  data_dir: pathlib.Path,
  dataset: str,
  features: dict[str, Any],
  **splits: list[dict[str, Any]],
) -> str:
  """Prepares a TFDS dataset of given examples, and returns its name."""
  import tensorflow_datasets as tfds

  # Not registered: it is found by its files, as where its code is missing.
  class StandIn(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    VERSION = tfds.core.Version('1.0.0')
    name = dataset

    def _info(self) -> tfds.core.DatasetInfo:
      return tfds.core.DatasetInfo(
        builder=self, features=tfds.features.FeaturesDict(features)
      )

    def _split_generators(self, dl_manager):
      return {k: self._generate_examples(x) for k, x in splits.items()}

    def _generate_examples(self, examples):
      for i, example in enumerate(examples):
        yield f'{i}', example

  builder = StandIn(data_dir=data_dir, file_format='array_record')
  builder.download_and_prepare()
  return dataset


def write_tfds(data_dir: pathlib.Path, train: int = 9, test: int = 4) -> str:
  """Prepares a TFDS dataset of PNG and JPEG files, and returns its name."""
  import tensorflow_datasets as tfds

  features = {
    'image': tfds.features.Image(shape=(None, None, 3)),
    'label': tfds.features.ClassLabel(names=['wasp', 'ant', 'bee']),
    'comment': tfds.features.Text(),
  }

  def example(i):
    image = png(pixels(i, 20 + i, 24))
    if i % 3 == 2:
      image = JPEGS[i // 3 % len(JPEGS)].read_bytes()
    return {'image': image, 'label': i % 3, 'comment': 'none'}

  splits = {'train': range(train), 'test': range(test)}
  examples = {name: list(map(example, x)) for name, x in splits.items()}
  return write_dataset(data_dir, 'stand_in', features, **examples)
