"""Trained models, from where they are stored to where they predict."""

import dataclasses
import functools
import os
import pathlib
from typing import Any

import jax
import numpy as np

from vit_jax import checkpoint
from vit_jax import config as config_lib
from vit_jax import data
from vit_jax import models
from vit_jax import workdir as workdir_lib
from vit_jax.models import vit


@dataclasses.dataclass(frozen=True)
class Loaded:
  """A model with its parameters, and what it takes to feed it.

  Attributes:
    model: Linen module: [B, H, W, C] -> logits [B, classes].
    params: Its parameters, float32 arrays in a nested dict.
    preprocess: Images (paths, PIL images, arrays) -> float32 [B, H, W, C].
  """

  model: vit.ViT
  params: Any = dataclasses.field(repr=False)
  preprocess: data.Preprocess

  @property
  def classes(self) -> tuple[str, ...]:
    """Names of the classes, in the order of the logits."""
    return self.preprocess.classes

  def predict(self, images: Any) -> np.ndarray:
    """Classifies images.

    Args:
      images: What `preprocess` takes: one, or a sequence.

    Returns:
      Logits, float32 [B, classes].

    Raises:
      UserError: An image cannot be read.
    """
    return np.asarray(self._apply(self.params, self.preprocess(images)))

  @functools.cached_property
  def _apply(self) -> Any:
    return jax.jit(lambda params, x: self.model.apply({'params': params}, x))


def load(path: str | os.PathLike[str], **model_overrides: Any) -> Loaded:
  """Loads a model for prediction.

  Args:
    path: A work directory: its best checkpoint is read if there is one, else
      the newest good one; averaged parameters if there are any.
    **model_overrides: Fields of the model in place of those in config.json.

  Raises:
    UserError: There is no work directory, or no good checkpoint in it.
    ValueError: A model override does not exist or does not fit.
  """
  workdir = pathlib.Path(path)
  stored = preprocess = None
  if workdir.is_dir():
    stored = workdir_lib.read_json(workdir / 'config.json')
    preprocess = workdir_lib.read_json(workdir / 'preprocess.json')
  if stored is None or preprocess is None:
    raise config_lib.UserError(
      f'{workdir} is not a work directory: config.json or preprocess.json is'
      ' missing'
    )
  config = config_lib.from_dict(stored)
  preprocess = data.Preprocess.from_dict(preprocess)
  model = models.from_config(
    config.model.to_dict() | model_overrides,
    len(preprocess.classes),
    config.train.dtype,
  )
  params, _, _ = checkpoint.restore_params(workdir)
  return Loaded(model, params, preprocess)
