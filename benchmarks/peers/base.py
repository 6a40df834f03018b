"""The interface of each formulation of a model."""

import abc
import dataclasses
from typing import Any

import ml_collections
import numpy as np

from vit_jax import data
from vit_jax.models import vit


@dataclasses.dataclass(frozen=True)
class Task:
  """A model with its initial parameters, and a batch.

  Attributes:
    model: The module, with unrolled layers; its dtype is that of the
      computation.
    params: Initial parameters, float32 NumPy arrays.
    images: Normalised images, float32 [B, H, W, C].
    labels: int32 [B].
    optim: `config.optim`; only the settings of AdamW and clipping are used.
    preprocess: The preprocessing before the model.
  """

  model: vit.ViT
  params: Any
  images: np.ndarray
  labels: np.ndarray
  optim: ml_collections.ConfigDict
  preprocess: data.Preprocess


class Peer(abc.ABC):
  """A model with its parameters, and a batch that is on the device.

  Attributes:
    name: Name of the formulation.
  """

  name: str

  @abc.abstractmethod
  def logits(self) -> np.ndarray:
    """Returns the logits of the batch, float32 [B, classes]."""

  @abc.abstractmethod
  def forward(self, count: int) -> None:
    """Classifies the batch `count` times, and waits for the end."""

  @abc.abstractmethod
  def train(self, count: int) -> float:
    """Takes training steps on the batch, and waits for their end.

    Args:
      count: Number of steps, at least 1.

    Returns:
      The loss of the last step, before its update.
    """
