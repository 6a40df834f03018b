r"""Draws what the model is fed at a step of training, with labels.

  python -m vit_jax.explore data --config=configs/digits.py
  python -m vit_jax.explore data --config=configs/cifar10_tutorial.py \
      --config.augment.mixup=0.8 --step=100 --count=32 --out=mixed.png

Reads the data alone, no model and no checkpoint. The images are the first of
the step's global batch, cropped, augmented and mixed just as training with this
config does it; only the normalisation is undone. Under an image that is mixed
of two are the shares of their classes.

Prints the path of the PNG.
"""

import pathlib
import sys
from typing import NamedTuple
from typing import TYPE_CHECKING

from absl import flags

from vit_jax import cli
from vit_jax.config import UserError

if TYPE_CHECKING:
  import ml_collections
  import numpy as np

FLAGS = flags.FlagValues()  # its own: other commands have flags of these names
_CONFIG = cli.define_config(FLAGS)
cli.define_compile_cache(FLAGS)
_OUT = flags.DEFINE_string(
  'out',
  None,
  'The PNG. Default: runs/data-<config>-<step>.png.',
  flag_values=FLAGS,
)
_STEP = flags.DEFINE_integer(
  'step',
  0,
  'Completed updates: the batch is that of the next one.',
  lower_bound=0,
  flag_values=FLAGS,
)
_COUNT = flags.DEFINE_integer(
  'count', 64, 'Images to draw, at most.', lower_bound=1, flag_values=FLAGS
)


class Fed(NamedTuple):
  """The first examples of a global batch, as the model is fed them.

  Attributes:
    images: float32 [b, H, W, C], 0 to 1.
    labels: int32 [b], or shares of the classes, float32 [b, classes].
    classes: Their names.
  """

  images: 'np.ndarray'
  labels: 'np.ndarray'
  classes: tuple[str, ...]


def main(argv: list[str]) -> None:
  """Draws, and prints where."""
  if argv[1:]:
    raise UserError(f'unexpected argument {argv[1]!r}')
  config, step = _CONFIG.value, _STEP.value
  if config is None:
    raise UserError(
      '--config is missing: name a config file, as in'
      ' --config=configs/digits.py'
    )
  name = cli.config_name(cli.config_path(sys.argv) or '')
  path = pathlib.Path(_OUT.value or f'runs/data-{name}-{step}.png')
  if path.suffix != '.png':
    raise UserError(f'--out={path}: what is written is a .png file')
  if _OUT.value and not path.parent.is_dir():
    raise UserError(f'--out={path}: there is no folder {path.parent}')
  fed = load(config, step, _COUNT.value)
  from vit_jax.explore import contact_sheet

  contact_sheet.draw(
    list(fed.images),
    [contact_sheet.caption(label, fed.classes) for label in fed.labels],
    path,
    title=f'{len(fed.images)} of {config.train.batch_size}, step {step}:'
    f' {config.data.name}, {config.data.split}',
  )
  print(path)


def load(config: 'ml_collections.ConfigDict', step: int, count: int) -> Fed:
  """Returns what the model is fed.

  Args:
    config: Of an experiment; is not changed.
    step: Completed updates.
    count: Examples to return, at most.

  Raises:
    UserError: The config or the data cannot be used.
  """
  import jax
  import numpy as np

  from vit_jax import config as config_lib
  from vit_jax import data
  from vit_jax import train_step
  from vit_jax.data import batches
  from vit_jax.data import device
  from vit_jax.data import intensity
  from vit_jax.objectives import base

  config_lib.check(config)
  data.check(config)
  source = data.open_split(config)
  config = config.copy_and_resolve_references()
  config.model.num_classes = len(source.classes)
  intensity.fill(config, source)
  # The rest of the batch is not needed, but for the second half of a pair.
  count = min(count, config.train.batch_size)
  rows = range(min(count + count % 2, config.train.batch_size))
  batch = batches.train_rows(source, config, step, rows)
  key = base.augmentation_key(train_step.step_key(config.seed, step))
  transform = jax.jit(device.train_transform(config, source.image_shape))
  fed = transform(batch, key, np.asarray(rows, np.int32))
  mean, std = (
    np.asarray(x, np.float32) for x in config_lib.normalization(config)
  )
  return Fed(
    images=np.asarray(fed['image'])[:count] * std + mean,
    labels=np.asarray(fed['label'])[:count],
    classes=source.classes,
  )
