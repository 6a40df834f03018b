r"""Draws the images of a training step, as the model gets them, with labels.

  python -m vit_jax.explore data --config=configs/digits.py
  python -m vit_jax.explore data --config=configs/cifar10_tutorial.py \
      --config.augment.mixup=0.8 --step=100 --count=32 --out=mixed.png

Reads the data alone, no checkpoint. The images are the first of the step's
global batch, cropped, augmented and mixed as in training with this config. Only
the normalisation is undone. The picture has all crops of a method such as DINO,
the patches that a method such as MAE masks, and the label maps of segmentation.
The caption of a mixed image has the shares of its classes.

Prints the path of the PNG.
"""

import pathlib
import sys

from absl import flags

from vit_jax import cli
from vit_jax import config as config_lib
from vit_jax.config import UserError

USAGE = 'explore data --config=FILE.py [--config.KEY=VALUE ...]'
FLAGS = flags.FlagValues()  # its own: other commands have flags of these names
_CONFIG = cli.define_config(FLAGS)
cli.define_compile_cache(FLAGS)
_OUT = cli.define_path(
  'out',
  None,
  'FILE.png to draw. Default: runs/data-<config>-<step>.png.',
  flag_values=FLAGS,
)
_STEP = flags.DEFINE_integer(
  'step',
  0,
  'Number of completed updates. The batch of the next update is drawn.',
  lower_bound=0,
  flag_values=FLAGS,
)
_COUNT = flags.DEFINE_integer(
  'count',
  64,
  'Largest number of images to draw.',
  lower_bound=1,
  flag_values=FLAGS,
)


def main(argv: list[str]) -> None:
  """Draws the images, and prints the path of the picture."""
  cli.refuse_arguments(argv)
  config, step = _CONFIG.value, _STEP.value
  if config is None:
    raise cli.missing('config', 'a config file', 'configs/digits.py')
  name = config_lib.file_name(cli.config_path(sys.argv) or '')
  path = pathlib.Path(_OUT.value or f'runs/data-{name}-{step}.png')
  if path.suffix != '.png':
    raise UserError(f'--out={path}: what is written is a .png file')
  if _OUT.value and not path.parent.is_dir():
    raise UserError(f'--out={path}: there is no folder {path.parent}')
  from vit_jax.plots import paper
  from vit_jax.train import model_inputs  # imports jax

  batch = model_inputs.load(config, step, _COUNT.value)
  title = (
    f'{len(batch.captions)} of {config.train.batch_size} examples of step'
    f' {step}: {config.data.name}, {config.data.split}'
  )
  paper.save(path, model_inputs.sheet(batch, title))
  print(path)
