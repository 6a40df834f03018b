r"""Draws the pictures of README.md and docs/gallery.md anew.

  python scripts/draw_pictures.py /path/to/cifar10

The argument is CIFAR-10 as a folder with train/CLASS/ and test/CLASS/. The
commands of docs/gallery.md run as they stand there, in `--work`. Runs that are
finished there are not repeated. Each picture of the page, pictures/NAME, is
runs/NAME of that folder with fewer bytes. All of it takes about 15 minutes on
two CPU cores.
"""

import pathlib
import re
import subprocess

from absl import flags
import numpy as np
from PIL import Image

from vit_jax import cli
from vit_jax.config import UserError

ROOT = pathlib.Path(__file__).resolve().parent.parent
FLAGS = flags.FlagValues()
_WORK = flags.DEFINE_string(
  'work',
  str(ROOT / 'build' / 'pictures'),
  'Folder of the runs.',
  flag_values=FLAGS,
)
PICTURES = ROOT / 'docs' / 'pictures'
_CIFAR10 = '/path/to/cifar10'  # in the commands of the page
_COLOURS = 256  # of a PNG's palette
_MOST_PIXELS = 1_200  # of the longer side
# Images of the test split of CIFAR-10, and scenes, of the picture of README.md.
_PHOTOS = ('horse/0824.jpg', 'ship/0305.jpg')
_SCENES = (2, 1)
_LAYER = -2  # whose tokens it shows


def commands(page: str) -> list[str]:
  """Returns the commands of the code blocks of a page, in their order."""
  blocks = re.findall(r'^```sh\n(.*?)^```$', page, re.DOTALL | re.MULTILINE)
  lines = ''.join(blocks).replace('\\\n', ' ').splitlines()
  return [line for line in lines if line.startswith('vit-jax ')]


def pictures(page: str) -> list[pathlib.Path]:
  """Returns the paths of the pictures of a page, relative to PICTURES."""
  names = re.findall(r'\]\(pictures/([^)]+)\)', page)
  return [pathlib.Path(name) for name in names]


def run(command: str, folder: pathlib.Path, cifar10: pathlib.Path) -> None:
  """Runs a command of the page in a folder.

  Raises:
    UserError: The command fails.
  """
  print(command, flush=True)
  command = command.replace(_CIFAR10, str(cifar10))
  status = subprocess.call(command, shell=True, cwd=folder)
  if status:
    raise UserError(f'{command} ended with status {status}')


def compress(source: pathlib.Path, target: pathlib.Path) -> None:
  """Writes a smaller copy of a picture, as PNG or JPEG by its name."""
  target.parent.mkdir(parents=True, exist_ok=True)
  with Image.open(source) as picture:
    image = picture.convert('RGB')
  image.thumbnail((_MOST_PIXELS, _MOST_PIXELS), Image.Resampling.LANCZOS)
  if target.suffix == '.png':
    # Colours of a few pixels, as of scales, are kept.
    how = Image.Quantize.MAXCOVERAGE
    image = image.quantize(_COLOURS, how, dither=Image.Dither.NONE)
    image.save(target, optimize=True)
  else:
    image.save(target, quality=80, optimize=True)


def draw_readme(
  runs: pathlib.Path, cifar10: pathlib.Path, target: pathlib.Path
) -> None:
  """Draws what two models see: photos by rows, and scenes beside them.

  Args:
    runs: Folder of the runs cifar10-small and scenes.
    cifar10: CIFAR-10, a folder with test/CLASS/.
    target: File of the picture.
  """
  # After the flags: these import JAX.
  from matplotlib import pyplot as plt

  import vit_jax
  from vit_jax.data import scenes
  from vit_jax.objectives import segmenter
  from vit_jax.plots import class_colours
  from vit_jax.plots import style

  classifier = vit_jax.load(str(runs / 'cifar10-small'))
  photos = [cifar10 / 'test' / name for name in _PHOTOS]
  rollout = vit_jax.explore.attention_rollout(classifier, photos)  # [B, h, w]
  tokens = vit_jax.explore.token_pca(classifier, photos, _LAYER)  # [B, h, w, 3]
  predict_map = segmenter.Segmenter(vit_jax.load(str(runs / 'scenes')))
  source = scenes.ScenesSource('test')
  figure, axes = plt.subplots(
    len(photos), 6, figsize=(9, 3.3), layout='constrained'
  )
  titles = (
    'photo',
    'attention rollout',
    'token PCA',
    'scene',
    'ground truth',
    'prediction',
  )
  for axis, title in zip(axes[0], titles, strict=True):
    axis.set_title(title, fontsize=11)
  colours = class_colours.label_colours(source.features['map'].names)
  for row, photo, attention, components, index in zip(
    axes, photos, rollout, tokens, _SCENES, strict=True
  ):
    scene = source.read(index).values
    row[0].imshow(np.asarray(Image.open(photo)))
    row[1].imshow(attention, cmap=style.HEAT, vmin=0, vmax=rollout.max())
    row[2].imshow(components)
    pixels, prediction = predict_map(scene['image'])
    row[3].imshow(pixels)
    row[4].imshow(colours[np.squeeze(scene['map'])])
    row[5].imshow(colours[prediction])
    for axis in row:
      axis.set_axis_off()
  figure.savefig(target, dpi=140, pil_kwargs={'quality': 85})


def main(argv: list[str]) -> None:
  """Runs the commands, and writes the pictures."""
  if len(argv) != 2:
    raise UserError('name the folder of CIFAR-10, with train/ and test/')
  cifar10 = pathlib.Path(argv[1]).resolve()
  work = pathlib.Path(_WORK.value).resolve()
  work.mkdir(parents=True, exist_ok=True)
  page = (ROOT / 'docs' / 'gallery.md').read_text()
  for command in commands(page):
    run(command, work, cifar10)
  for name in pictures(page):
    compress((work / 'runs' / name).with_suffix('.png'), PICTURES / name)
  draw_readme(work / 'runs', cifar10, PICTURES / 'readme.jpg')


if __name__ == '__main__':
  cli.run(main, __doc__, FLAGS)
