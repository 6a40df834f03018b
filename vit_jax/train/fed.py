"""The images that the model gets at a training step, for display."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from vit_jax import config as config_lib
from vit_jax import data
from vit_jax.data import features as features_lib
from vit_jax.data import intensity
from vit_jax.data.device import views
from vit_jax.data.device.rng import Rng
from vit_jax.data.host import batches
from vit_jax.objectives import base
from vit_jax.plots import contact_sheet
from vit_jax.train import step as step_lib


class Fed(NamedTuple):
  """The first examples of a global batch, as the model gets them.

  Attributes:
    images: float32 [b, H, W, C], 0 to 1.
    captions: Their targets as text.
  """

  images: np.ndarray
  captions: list[str]


def load(config: ml_collections.ConfigDict, step: int, count: int) -> Fed:
  """Returns the input of the model at a step of a config.

  Args:
    config: Config of an experiment; is not changed.
    step: Completed updates.
    count: Examples to return, at most.

  Raises:
    UserError: The config or the data cannot be used.
  """
  config_lib.check(config)
  data.check(config)
  source = data.open_split(config)
  config = config.copy_and_resolve_references()
  config.model.num_classes = len(source.classes)
  intensity.fill(config, source)
  return of(config, source, step, count)


def of(
  config: ml_collections.ConfigDict,
  source: data.Source,
  step: int,
  count: int,
) -> Fed:
  """Returns the input of the model at a step, from an open source.

  As `load`, but with a config that has the number of classes.

  Raises:
    UserError: An image cannot be read.
  """
  # The rest of the batch is not needed, except for the partners of mixed pairs.
  count = min(count, config.train.batch_size)
  rows = range(min(count + count % 2, config.train.batch_size))
  batch = batches.train_rows(source, config, step, rows)
  key = step_lib.step_key(config.seed, step)
  rng = Rng(key, jnp.asarray(rows, jnp.int32)).fold(base.Purpose.AUGMENTATION)
  fed = jax.jit(views.train_transform(config, source.features))(batch, rng)
  targets = {
    name: np.asarray(fed[name])[:count]
    for name in features_lib.targets(source.features)
  }
  mean, std = (
    np.asarray(x, np.float32) for x in config_lib.normalization(config)
  )
  return Fed(
    images=np.asarray(fed['image'])[:count] * std + mean,
    captions=contact_sheet.captions(targets, source.features, count),
  )
