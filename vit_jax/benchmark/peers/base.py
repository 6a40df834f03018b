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
  """A model, where its parameters start, and a batch.

  Attributes:
    model: With its layers apart; its dtype is that of the computation.
    params: Its parameters, float32 arrays of NumPy's.
    images: float32 [B, H, W, C], normalised.
    labels: int32 [B].
    optim: `config.optim`, of which the settings of AdamW and the clipping
      count.
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
    """Returns what `forward` computes of the batch, float32 [B, classes]."""

  @abc.abstractmethod
  def forward(self, count: int) -> None:
    """Classifies the batch some times, and waits for the end."""

  @abc.abstractmethod
  def train(self, count: int) -> float:
    """Takes training steps on the batch, and waits for their end.

    Args:
      count: How many, at least 1.

    Returns:
      The loss of the last of them, before its update.
    """
