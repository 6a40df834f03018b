"""Other libraries that decode, crop and resize photographs.

TensorFlow is only imported by its own peer.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
import dataclasses
import importlib.util
import io
import itertools
import pathlib
from typing import Any

import cv2
import numpy as np

from vit_jax.data.host import decode
from vit_jax.data.host import transforms
from vit_jax.data.host.geometry import Crop
from vit_jax.data.host.geometry import Size

Work = Callable[[], None]

# The package of each library.
_PACKAGES = {'cv2': 'cv2', 'pillow': 'PIL', 'tensorflow': 'tensorflow'}
NAMES = tuple(_PACKAGES)


@dataclasses.dataclass(frozen=True)
class Cut:
  """The crop of one photograph.

  Attributes:
    jpeg: The file's content, or its path.
    box: (top, left, height, width).
    flip: Whether the image is flipped, left to right.
  """

  jpeg: bytes | pathlib.Path
  box: tuple[int, int, int, int]
  flip: bool

  def read(self) -> bytes:
    """Returns the file's content."""
    return self.jpeg if isinstance(self.jpeg, bytes) else self.jpeg.read_bytes()


def draw(
  jpeg: bytes | pathlib.Path, crop: Crop, rng: np.random.Generator
) -> Cut:
  """Returns the crop of a file by `transforms.transform`.

  Args:
    jpeg: The file's content, or its path.
    crop: A random resized crop with flips.
    rng: As for `transforms.transform`.
  """
  data = jpeg if isinstance(jpeg, bytes) else jpeg.read_bytes()
  size = decode.jpeg_size(data)
  assert size is not None and crop.flip
  box = transforms.sample_box(size, crop, rng)
  return Cut(jpeg, box, bool(rng.random() < 0.5))


def create(name: str) -> 'Peer | None':
  """Returns one of `NAMES`; None if it is not installed."""
  if importlib.util.find_spec(_PACKAGES[name]) is None:
    return None
  if name == 'tensorflow':
    return TensorFlow()
  return Loop(_with_cv2 if name == 'cv2' else _with_pillow)


class Loop:
  """A loop over the images in Python.

  Attributes:
    threads: Numbers of threads that the library supports.
  """

  threads: tuple[int, ...] = (1,)

  def __init__(self, make: Callable[[Cut, Size, bool], np.ndarray]):
    self._make = make

  def work(
    self,
    cuts: Sequence[Cut],
    crop: Crop,
    batch_size: int | None = None,
    threads: int = 1,
  ) -> tuple[Work, Callable[[int], Iterable[np.ndarray]]]:
    """Returns two functions: make all images; return the first n images.

    Args:
      cuts: The crops of the images.
      crop: Gives the size of the images, and whether to antialias.
      batch_size: Size of the batches; None: single images.
      threads: Number of threads.
    """
    assert threads in self.threads

    def images(cuts: Sequence[Cut]) -> Iterable[np.ndarray]:
      return (self._make(cut, crop.size, crop.antialias) for cut in cuts)

    def run() -> None:
      if batch_size is None:
        for _ in images(cuts):
          pass
        return
      for i in range(0, len(cuts), batch_size):
        np.stack(list(images(cuts[i : i + batch_size])))

    return run, lambda n: images(cuts[:n])


def _with_cv2(cut: Cut, size: Size, antialias: bool) -> np.ndarray:
  """Returns uint8 [H, W, 3]."""
  data = np.frombuffer(cut.read(), np.uint8)
  pixels = np.asarray(cv2.imdecode(data, cv2.IMREAD_COLOR_RGB))
  top, left, height, width = cut.box
  kind = cv2.INTER_LINEAR
  if antialias and height >= size[0] and width >= size[1]:
    kind = cv2.INTER_AREA
  part = pixels[top : top + height, left : left + width]
  result = cv2.resize(part, size[::-1], interpolation=kind)
  return cv2.flip(result, 1) if cut.flip else result


def _with_pillow(cut: Cut, size: Size, antialias: bool) -> np.ndarray:
  """Returns uint8 [H, W, 3], always antialiased."""
  from PIL import Image

  assert antialias
  top, left, height, width = cut.box
  with Image.open(io.BytesIO(cut.read())) as image:
    whole = image.size
    # Twice the final size, as `reducing_gap` is by default.
    needed = 2 * whole[0] * size[1] / width, 2 * whole[1] * size[0] / height
    image.draft('RGB', (int(needed[0]), int(needed[1])))
    x, y = image.size[0] / whole[0], image.size[1] / whole[1]
    box = left * x, top * y, (left + width) * x, (top + height) * y
    result = image.convert('RGB').resize(
      size[::-1], Image.Resampling.BILINEAR, box
    )
  if cut.flip:
    result = result.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
  return np.asarray(result)


class TensorFlow:
  """tf.data with `decode_and_crop_jpeg`, as in its guides.

  Its images stay float32, which is less work than in our pipeline.
  """

  threads: tuple[int, ...] = (1, 2)

  def __init__(self) -> None:
    import tensorflow as tf

    self._tf: Any = tf
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.set_visible_devices([], 'GPU')

  def work(
    self,
    cuts: Sequence[Cut],
    crop: Crop,
    batch_size: int | None = None,
    threads: int = 1,
  ) -> tuple[Work, Callable[[int], Iterable[np.ndarray]]]:
    """As `Loop.work`."""
    tf = self._tf
    images = self._images(cuts, crop, threads)
    if batch_size is not None:
      batches = images.batch(batch_size).prefetch(2)

      def run() -> None:
        for _ in batches:
          pass

    else:
      # Counted within TensorFlow, as leaving it costs time for each image.
      count = tf.function(
        lambda: images.reduce(np.int64(0), lambda n, image: n + 1)
      )

      def run() -> None:
        if int(count()) != len(cuts):
          raise RuntimeError('tf.data made fewer images than were asked for')

    return run, lambda n: itertools.islice(images.as_numpy_iterator(), n)

  def _images(self, cuts: Sequence[Cut], crop: Crop, threads: int) -> Any:
    """Returns a dataset of float32 [H, W, 3]."""
    tf = self._tf
    is_in_memory = isinstance(cuts[0].jpeg, bytes)
    files = [c.jpeg if is_in_memory else str(c.jpeg) for c in cuts]

    def make(file: Any, box: Any, flip: Any) -> Any:
      data = file if is_in_memory else tf.io.read_file(file)
      pixels = tf.io.decode_and_crop_jpeg(data, box, channels=3)
      image = tf.image.resize(pixels, crop.size, antialias=crop.antialias)
      return tf.cond(
        flip, lambda: tf.image.flip_left_right(image), lambda: image
      )

    options = tf.data.Options()
    options.autotune.enabled = False
    options.threading.private_threadpool_size = threads
    options.threading.max_intra_op_parallelism = 1
    boxes = np.array([c.box for c in cuts], np.int32)
    flips = np.array([c.flip for c in cuts])
    return (
      tf.data.Dataset.from_tensor_slices((files, boxes, flips))
      .map(make, num_parallel_calls=threads)
      .with_options(options)
    )


Peer = Loop | TensorFlow
