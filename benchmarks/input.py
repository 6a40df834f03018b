"""Measures the input: decoding, and batches of images.

Each row of the entry is measured in turns with a rival, with the same number of
threads unless the name says otherwise:

  crop, crop_smooth   a 500x375 JPEG in memory, decoded, cropped at random,
                      resized to 224x224 and flipped; without and with
                      antialiasing
  large               the same for a 1600x1200 JPEG, with antialiasing
  large_eval          its centre; `whole` decodes it at its full size
  folder, records     batches of 500x375 images from files, or from ArrayRecord
  folder_smooth       the same from files, with antialiasing, as by default
  small               batches of 32x32 JPEG files, unchanged
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import pathlib
import tempfile
from typing import Any

import cv2
import ml_collections
import numpy as np

from benchmarks import input_peers
from benchmarks import photographs
from benchmarks import timing
from vit_jax import config as config_lib
from vit_jax import data
from vit_jax.data.host import decode
from vit_jax.data.host import transforms
from vit_jax.data.host.geometry import Crop

Entry = dict[str, Any]
Rows = dict[str, Entry]

_SIZE = (224, 224)
_TRAIN = Crop(
  'random_resized', _SIZE, None, (0.08, 1.0), (3 / 4, 4 / 3), flip=True
)
_EVAL = Crop('center', _SIZE, 256)
_PLAIN = dataclasses.replace(_TRAIN, antialias=False)

# The key of a crop is (seed, _CROP, row of the batch); see `data.batches`.
_CROP = 1

# Largest mean absolute difference, in grey levels, between the results of two
# libraries, which round and antialias in different ways.
_CLOSE = 3.0
_CHECKED = 4  # images that are compared before timing


@dataclasses.dataclass(frozen=True)
class Sizes:
  """Numbers of images in a block.

  Attributes:
    photographs: Images of 500x375 pixels.
    large: Images of 1600x1200.
    small: Images of 32x32.
    batch: Images in a batch of photographs.
    epochs: Number of times that each image is in a batch.
  """

  photographs: int = 256
  large: int = 16
  small: int = 1024
  batch: int = 32
  epochs: int = 2


def measure(
  config: ml_collections.ConfigDict,
  blocks: int,
  rivals: Sequence[str] = input_peers.NAMES,
  sizes: Sizes | None = None,
) -> Rows:
  """Returns rates of decoding and of batches, in images/s.

  Args:
    config: Config with the seed, and the batch size for small images.
    blocks: Number of timed blocks.
    rivals: Names in `input_peers.NAMES`; missing libraries are left out.
    sizes: Numbers of images.

  Returns:
    Rows from `timing.compare` by 'ours/rival'; `difference` is the mean in grey
    levels, if images were compared.

  Raises:
    UserError: The images of a rival or of a batch differ from ours.
  """
  sizes = sizes or Sizes()
  threads, peers = cv2.getNumThreads(), {}
  for name in rivals:
    if (peer := input_peers.create(name)) is not None:
      peers[name] = peer
  # Pillow always antialiases.
  plain = {name: peer for name, peer in peers.items() if name != 'pillow'}
  cv2.setNumThreads(1)
  try:
    files = photographs.make(sizes.photographs, 375, 500)
    rows = _crops('crop', files, _PLAIN, plain, blocks)
    rows |= _crops('crop_smooth', files, _TRAIN, peers, blocks)
    large = photographs.make(sizes.large, 1200, 1600)
    rows |= _crops('large', large, _TRAIN, peers, blocks)
    rows |= _whole('large', large, _TRAIN, blocks)
    rows |= _whole('large_eval', large, _EVAL, blocks)
    with tempfile.TemporaryDirectory() as folder:
      root = pathlib.Path(folder)
      rows |= _batches(root, files, config.seed, plain, blocks, sizes)
      rows |= _small(root, config, blocks, sizes)
  finally:
    cv2.setNumThreads(threads)
  return rows


def _crops(
  name: str,
  files: Sequence[bytes],
  crop: Crop,
  peers: Mapping[str, input_peers.Peer],
  blocks: int,
) -> Rows:
  """Times single images on one thread."""
  first = [_image(files, i, crop) for i in range(min(_CHECKED, len(files)))]
  functions = {'ours': lambda: _all(files, crop)}
  differences = {}
  for rival, peer in peers.items():
    cuts = [
      input_peers.draw(file, crop, _rng(i)) for i, file in enumerate(files)
    ]
    functions[rival], images = peer.work(cuts, crop)
    differences[rival] = _compare(first, images(len(first)), rival)
  times = timing.in_turns(functions, blocks)
  return {
    f'{name}/{rival}': _row(times, 'ours', rival, len(files))
    | {'difference': difference}
    for rival, difference in differences.items()
  }


def _whole(name: str, files: Sequence[bytes], crop: Crop, blocks: int) -> Rows:
  """Times decoding at a reduced size, against the full size."""

  def whole(i: int) -> np.ndarray:
    pixels = decode.decode(files[i], 3)
    return transforms.transform(pixels, 3, crop, _rng(i))

  def all_whole() -> None:
    for i in range(len(files)):
      whole(i)

  errors = [
    np.mean((_image(files, i, crop).astype(float) - whole(i)) ** 2)
    for i in range(len(files))
  ]
  # Equal images were not decoded at a reduced size.
  psnr = [float(10 * np.log10(255**2 / error)) for error in errors if error]
  times = timing.in_turns(
    {'ours': lambda: _all(files, crop), 'whole': all_whole}, blocks
  )
  return {
    f'{name}/whole': _row(times, 'ours', 'whole', len(files))
    | {
      'reduced': len(psnr) / len(files),
      'psnr': float(np.mean(psnr)) if psnr else None,
      'least_psnr': min(psnr, default=None),
    }
  }


def _batches(
  root: pathlib.Path,
  files: Sequence[bytes],
  seed: int,
  peers: Mapping[str, input_peers.Peer],
  blocks: int,
  sizes: Sizes,
) -> Rows:
  """Times batches of photographs, from a folder and from ArrayRecord files."""
  steps = sizes.epochs * len(files) // sizes.batch
  functions = _our_batches(root, files, seed, steps, sizes.batch)
  paths = sorted((root / 'folder').rglob('*.jpg')) * sizes.epochs
  cuts = [
    input_peers.draw(path, _PLAIN, _rng(i))
    for i, path in enumerate(paths[: steps * sizes.batch])
  ]
  first = transforms.transform(cuts[0].read(), 3, _PLAIN, _rng(0))
  pairs = []
  for rival, peer in peers.items():
    for threads in peer.threads:
      run, images = peer.work(cuts, _PLAIN, sizes.batch, threads)
      _compare([first], images(1), rival)
      functions[f'{rival}_{threads}'] = run
      pairs.append((f'folder_{threads}', f'{rival}_{threads}'))
  pairs += [
    ('folder_2', 'folder_1'),
    ('records_2', 'records_1'),
    ('records_1', 'folder_1'),
    ('records_2', 'folder_2'),
    ('folder_smooth_2', 'folder_2'),
  ]
  times = timing.in_turns(functions, blocks)
  return {f'{a}/{b}': _row(times, a, b, len(cuts)) for a, b in pairs}


def _our_batches(
  root: pathlib.Path,
  files: Sequence[bytes],
  seed: int,
  steps: int,
  batch_size: int,
) -> dict[str, Callable[[], None]]:
  """Writes the files; returns functions that make our batches, by name."""
  config = config_lib.default()
  config.seed, config.train.batch_size = seed, batch_size
  config.data.dir = str(root / 'records')
  config.data.image_size, config.data.antialias = _SIZE[0], False
  folder = photographs.write_folder(root / 'folder', files)
  records = photographs.write_records(root / 'records', files)
  functions = {}
  for kind, name in {'folder': folder, 'records': records}.items():
    config.data.name = name
    _check_batch(config, _PLAIN, kind)
    for threads in (1, 2):
      functions[f'{kind}_{threads}'] = batching(config, steps, threads)
  config.data.name, config.data.antialias = folder, True
  _check_batch(config, _TRAIN, 'folder_smooth')
  functions['folder_smooth_2'] = batching(config, steps, 2)
  return functions


def _check_batch(
  config: ml_collections.ConfigDict, crop: Crop, kind: str
) -> None:
  """Compares the images of the first batch with its files.

  Raises:
    UserError: They differ.
  """
  source = data.open_source(config, 'train')
  batch = _first_batch(source, config)
  expected = [
    transforms.transform(
      source.read(int(index)).image,
      3,
      crop,
      np.random.default_rng((config.seed, _CROP, row)),
    )
    for row, index in enumerate(batch['index'])
  ]
  _compare(batch['image'], expected, f'the files of {kind}')


def _small(
  root: pathlib.Path,
  given: ml_collections.ConfigDict,
  blocks: int,
  sizes: Sizes,
) -> Rows:
  """Times batches of small files, unchanged, against `cv2.imread`."""
  config = config_lib.default()
  config.seed, config.train.batch_size = given.seed, given.train.batch_size
  config.data.name = photographs.write_folder(
    root / 'small', photographs.make(sizes.small, 32, 32)
  )
  config.data.source_size, config.data.image_size = (32, 32), 32
  source = data.open_source(config, 'train')
  size = config.train.batch_size
  steps = max(1, sizes.epochs * sizes.small // size)
  paths = [source.read(i % sizes.small).origin for i in range(steps * size)]

  def loop() -> None:
    for i in range(0, len(paths), size):
      np.stack([_read(path) for path in paths[i : i + size]])

  batch = _first_batch(source, config)
  theirs = [_read(source.read(int(i)).origin) for i in batch['index']]
  difference = _compare(batch['image'], theirs, 'cv2.imread')
  functions = {f'small_{n}': batching(config, steps, n) for n in (1, 2)}
  times = timing.in_turns(functions | {'imread': loop}, blocks)
  pairs = [('small_1', 'imread'), ('small_2', 'imread'), ('small_2', 'small_1')]
  return {
    f'{a}/{b}': _row(times, a, b, len(paths)) | {'difference': difference}
    for a, b in pairs
  }


def _read(path: str) -> np.ndarray:
  """Returns an image by OpenCV, uint8 [H, W, 3]."""
  return np.asarray(cv2.imread(path))[:, :, ::-1]


def _first_batch(
  source: data.Source, config: ml_collections.ConfigDict
) -> data.Batch:
  made = data.train_batches(source, config, start_step=0, num_steps=1)
  batch = next(made)
  made.close()
  return batch


def batching(
  config: ml_collections.ConfigDict, steps: int, threads: int
) -> Callable[[], None]:
  """Returns a function that makes the batches of some steps."""
  config = config.copy_and_resolve_references()
  config.data.num_threads = threads
  source = data.open_source(config, 'train')

  def run() -> None:
    for _ in data.train_batches(source, config, start_step=0, num_steps=steps):
      pass

  return run


def _all(files: Sequence[bytes], crop: Crop) -> None:
  for i in range(len(files)):
    _image(files, i, crop)


def _image(files: Sequence[bytes], i: int, crop: Crop) -> np.ndarray:
  """Returns the image of our pipeline for a file, uint8 [H, W, 3]."""
  return transforms.transform(files[i], 3, crop, _rng(i))


def _rng(i: int) -> np.random.Generator:
  """Returns the random generator for the crop of a file."""
  return np.random.default_rng((0, i))


def _compare(
  ours: Sequence[np.ndarray] | np.ndarray,
  theirs: Iterable[np.ndarray],
  rival: str,
) -> float:
  """Returns the mean absolute difference, in grey levels.

  Raises:
    UserError: The difference is too large.
  """
  differences = [
    np.abs(a.astype(np.float32) - b).mean()
    for a, b in zip(ours, theirs, strict=True)
  ]
  difference = float(np.mean(differences))
  if not max(differences) < _CLOSE:
    raise config_lib.UserError(
      f'images differ from those of {rival}: by {max(differences):.3g} levels,'
      f' and less than {_CLOSE:g} is allowed; what is not the same is not timed'
    )
  return difference


def _row(times: timing.Times, ours: str, rival: str, images: int) -> Entry:
  entry: Entry = timing.compare(times[ours], times[rival], images)
  return entry | {'against': rival}
