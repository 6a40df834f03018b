r"""Draws images of dots, squares and stripes, to try the configs for folders.

  python scripts/draw_shapes.py images
  python scripts/draw_shapes.py scenes --masks

The first writes a folder of images by class, images/{train,val}/CLASS/*.jpg,
with one kind of figure in an image. The second writes images of all kinds with
maps of classes, scenes/{images,masks}/*, and scenes/classes.txt, without a val
folder. Sizes are from 96 to 320 pixels a side, and all differ. The same
arguments write the same pixels.
"""

import pathlib

from absl import flags
import cv2
import numpy as np

from vit_jax import cli
from vit_jax.config import UserError

FLAGS = flags.FlagValues()  # separate from the flags of other commands
_MASKS = flags.DEFINE_bool(
  'masks', False, 'Draw all kinds, with maps of classes.', flag_values=FLAGS
)
_TRAIN = flags.DEFINE_integer(
  'train', 30, 'Images of a class.', lower_bound=1, flag_values=FLAGS
)
_VAL = flags.DEFINE_integer(
  'val', 20, 'Images of a class.', lower_bound=1, flag_values=FLAGS
)
_COUNT = flags.DEFINE_integer(
  'count', 200, 'Images with --masks.', lower_bound=1, flag_values=FLAGS
)
_SEED = flags.DEFINE_integer(
  'seed', 0, 'Other images.', lower_bound=0, flag_values=FLAGS
)

KINDS = ('dots', 'squares', 'stripes')
_LEAST, _MOST = 96, 320  # pixels a side


def draw(
  rng: np.random.Generator, kinds: tuple[str, ...]
) -> tuple[np.ndarray, np.ndarray]:
  """Returns an image, uint8 [H, W, 3], and its map of classes, uint8 [H, W].

  Args:
    rng: Draws sizes, places and colours.
    kinds: Kinds of figures in the image. Label 0 is the background, and i + 1
      is `KINDS[i]`.
  """
  height, width = (int(x) for x in rng.integers(_LEAST, _MOST + 1, 2))
  short = min(height, width)
  is_dark = rng.random() < 0.5  # the background, so that figures stand out
  shades = ((130, 255), (0, 110)) if is_dark else ((0, 110), (130, 255))
  image = np.tile(rng.uniform(*shades[1], 3), (height, width, 1))
  labels = np.zeros((height, width), np.uint8)
  angle = rng.uniform(0, np.pi)
  for _ in range(int(rng.integers(3, 7))):
    kind = str(rng.choice(kinds))
    radius = rng.uniform(0.1, 0.22) * short
    center = rng.uniform((0, 0), (width, height))
    mask = _figure(kind, labels.shape, center, radius, angle)
    image[mask] = rng.uniform(*shades[0], 3)
    labels[mask] = 1 + KINDS.index(kind)
  image += rng.normal(0, 12, image.shape)
  return np.clip(image, 0, 255).astype(np.uint8), labels


def _figure(
  kind: str,
  shape: tuple[int, ...],
  center: np.ndarray,
  radius: float,
  angle: float,
) -> np.ndarray:
  """Returns where a figure is, bool [H, W]; `center` is (x, y)."""
  mask = np.zeros(shape, np.uint8)
  x, y = (round(float(v)) for v in center)
  if kind == 'dots':
    cv2.circle(mask, (x, y), round(radius), 1, -1)
  elif kind == 'squares':
    side = 1.8 * radius
    box = cv2.boxPoints(((x, y), (side, side), float(np.degrees(angle))))
    cv2.fillPoly(mask, [box.astype(np.int32)], 1)
  else:
    along = 4 * max(shape) * np.asarray((np.cos(angle), np.sin(angle)))
    ends = [tuple(int(v) for v in center + s * along) for s in (-1, 1)]
    cv2.line(mask, ends[0], ends[1], 1, max(2, round(0.7 * radius)))
  return mask.astype(bool)


def write_classes(root: pathlib.Path, train: int, val: int, seed: int) -> None:
  """Writes a folder of images by class; counts are by class."""
  rng = np.random.default_rng(seed)
  for split, count in (('train', train), ('val', val)):
    for kind in KINDS:
      folder = root / split / kind
      folder.mkdir(parents=True, exist_ok=True)
      for i in range(count):
        _write(folder / f'{i:03}.jpg', draw(rng, (kind,))[0])


def write_maps(root: pathlib.Path, count: int, seed: int) -> None:
  """Writes images with maps of classes, in a folder without splits."""
  rng = np.random.default_rng(seed)
  for name in ('images', 'masks'):
    (root / name).mkdir(parents=True, exist_ok=True)
  (root / 'classes.txt').write_text('\n'.join(('background', *KINDS)))
  for i in range(count):
    image, labels = draw(rng, KINDS)
    _write(root / 'images' / f'{i:03}.jpg', image)
    _write(root / 'masks' / f'{i:03}.png', labels)


def _write(path: pathlib.Path, pixels: np.ndarray) -> None:
  if not cv2.imwrite(str(path), pixels):
    raise UserError(f'{path} cannot be written: name another folder')


def main(argv: list[str]) -> int:
  """Writes a folder, and returns the exit status."""
  if len(argv) != 2:
    raise UserError('name the folder to write, as in draw_shapes.py images')
  root = pathlib.Path(argv[1])
  if root.exists():
    raise UserError(f'{root} is there already: name a new folder')
  if _MASKS.value:
    write_maps(root, _COUNT.value, _SEED.value)
  else:
    write_classes(root, _TRAIN.value, _VAL.value, _SEED.value)
  return 0


if __name__ == '__main__':
  cli.run(main, __doc__, FLAGS)
