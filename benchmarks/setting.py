"""The setting of a benchmark: a model, its batch and its images."""

from collections.abc import Iterator
import contextlib
import dataclasses
import pathlib
import tempfile
from typing import Any

import ml_collections

from benchmarks import photographs
from vit_jax import config as config_lib
from vit_jax import models
from vit_jax.models import describing
from vit_jax.models import vit
from vit_jax.models.parts import stems

CONFIGS = pathlib.Path(__file__).parents[1] / 'configs'
# The ViT of this config.
TUTORIAL = 'tutorial'
CONFIG = str(CONFIGS / 'cifar10_tutorial.py')

_TUTORIAL_BATCH = 128
# Batch sizes for a CPU, by the size of the model.
_BATCHES = {'Ti': 32, 'S': 32, 'B': 16, 'L': 8, 'H': 4, 'g': 4}
# (height, width) of images in CIFAR-10, and of typical photographs.
SMALL, PHOTOGRAPH = (32, 32), (375, 500)
NUM_CLASSES = 10
# Different images in a folder; all others are links to them.
_DIFFERENT_IMAGES = 256
# Number of batches in an epoch.
_BATCHES_OF_IMAGES = 12

Changes = dict[str, Any]

FIXED: Changes = {
  'train.log_every': '1 steps',
  'mesh.data': 1,
  'data.split': 'train',
  'checkpoint.every': '',
  'checkpoint.best': '',
  'evals.val.split': '',
  'evals.test.split': '',
}


@dataclasses.dataclass(frozen=True)
class Setting:
  """The flags of a benchmark; None: the default.

  Attributes:
    model: 'tutorial', or the name of a ViT.
    image_size: Image size in pixels; 32 for the tutorial, else 224.
    batch_size: Number of images in a step.
    dtype: Type of the computation: 'float32' or 'bfloat16'.
    attention: `config.model.attention_implementation`.
    scan: `config.model.scan`.
    remat: `config.model.remat`.
    data: 'folder:PATH' of images; None: they are generated.
  """

  model: str = TUTORIAL
  image_size: int | None = None
  batch_size: int | None = None
  dtype: str = 'float32'
  attention: str | None = None
  scan: bool | None = None
  remat: str | None = None
  data: str | None = None

  def given(self) -> Changes:
    """Returns the keys that are given, but `model.name` and `data.name`."""
    values = {
      'train.batch_size': self.batch_size,
      'train.dtype': self.dtype,
      'data.image_size': self.image_size,
      'model.attention_implementation': self.attention,
      'model.scan': self.scan,
      'model.remat': self.remat,
    }
    return {key: x for key, x in values.items() if x is not None}

  @contextlib.contextmanager
  def changes(self) -> Iterator[Changes]:
    """Yields changes of the tutorial's config, by key.

    Generated images are removed at the end.

    Raises:
      UserError: The benchmark does not support the model.
    """
    changes = _model_changes(self.model) | FIXED | self.given()
    if self.data:
      yield changes | {'data.name': self.data}
      return
    with tempfile.TemporaryDirectory() as folder:
      name = write_images(
        pathlib.Path(folder),
        _BATCHES_OF_IMAGES * changes['train.batch_size'],
        SMALL if self.model == TUTORIAL else PHOTOGRAPH,
      )
      yield changes | {'data.name': name}


def config(changes: Changes) -> ml_collections.ConfigDict:
  """Returns the config.

  Args:
    changes: Changes from `Setting.changes`.

  Raises:
    UserError: A value has a wrong type.
  """
  return config_lib.load(CONFIG, changes)


def flags(changes: Changes) -> list[str]:
  """Returns the command line that gives the same config."""
  return [f'--config={CONFIG}'] + [
    f'--config.{key}={value}' for key, value in changes.items()
  ]


def _model_changes(name: str) -> Changes:
  """Returns the changes of model, data and batch size for a model."""
  if name == TUTORIAL:
    return {'train.batch_size': _TUTORIAL_BATCH}
  with config_lib.explained('--model', ValueError):
    model = models.create_model(name)
  if not isinstance(model, vit.ViT) or isinstance(
    model.patches, stems.HybridPatches
  ):
    raise config_lib.UserError(
      f'--model={name}: there is no plain formulation of it to compare with;'
      f' choose {TUTORIAL} or a ViT, as ViT-B/16'
    )
  keys = describing.key_values(model)
  sizes = ('hidden_size', 'mlp_dim', 'num_heads', 'depth')
  fields = {f'model.{key}': keys[key] for key in sizes}
  size = name.removeprefix('ViT-').split('/')[0]
  return fields | {
    'model.name': name,
    'model.num_classes': 1000,
    'model.dropout_rate': 0.0,
    'data.image_size': 224,
    'data.source_size': None,
    'data.crop': 'random_resized',
    'optim.schedule': 'constant',
    'train.batch_size': _BATCHES[size],
  }


def write_images(
  folder: pathlib.Path, count: int, size: tuple[int, int]
) -> str:
  """Writes JPEG files of 10 classes; returns the value for `data.name`.

  Args:
    folder: Folder for train/<class>/<number>.jpg.
    count: Number of files; after the first 256 they are links.
    size: (height, width).
  """
  jpegs = photographs.make(min(count, _DIFFERENT_IMAGES), *size)
  classes = [f'class{i}' for i in range(NUM_CLASSES)]
  return photographs.write_folder(folder, jpegs, count, classes)
