"""The training step of a method in PyTorch, whatever the method.

Ordinary PyTorch in eager mode: scaled_dot_product_attention where the library
has it, fused AdamW, a thread for each core, and autocast for bfloat16. Its
module has as many trained parameters as ours.
"""

import abc
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import functools
from typing import Any
from typing import ClassVar

import ml_collections
import numpy as np
import torch

from benchmarks.peers import torch_models
from vit_jax import objectives
from vit_jax.data.host import batches
from vit_jax.optim import optimizers


@dataclasses.dataclass(frozen=True)
class Task:
  """A method with its initial state, and a batch.

  Attributes:
    objective: The objective.
    config: Its full config.
    params: Initial parameters, float32 NumPy arrays.
    extra: Initial state beside the parameters, NumPy arrays.
    views: Crops as the loss sees them, float32 [B, H, W, C], [B, n, H, W, C] or
      of volumes [B, D, H, W, C].
    others: What else a batch has, as captions and maps.
  """

  objective: objectives.Objective
  config: ml_collections.ConfigDict
  params: Any
  extra: Any
  views: Mapping[str, np.ndarray]
  others: Mapping[str, np.ndarray]


class TorchStep(abc.ABC):
  """A method's module and optimizer, and a batch that is on the device.

  Attributes:
    task: The method, its parameters and a batch.
    module: What is trained.
    is_ours: Whether it has our parameters.
  """

  is_ours: ClassVar[bool] = False

  def __init__(self, task: Task):
    """Makes the module, and copies the batch to the device."""
    torch.set_num_threads(batches.num_cores())
    torch.manual_seed(0)
    self.task = task
    self._device = torch_models.device(torch, '--objective')
    self.module = self.make().to(self._device).train()
    optim = task.config.optim
    adamw: Any = optimizers.method(optim)
    self._optimizer = torch.optim.AdamW(
      self._trained,
      lr=optim.learning_rate,
      betas=(adamw.b1, adamw.b2),
      eps=adamw.eps,
      weight_decay=optim.weight_decay,
      fused=True,
    )

  @abc.abstractmethod
  def make(self) -> Any:
    """Returns the module."""

  @functools.cached_property
  def views(self) -> dict[str, Any]:
    """The images by view, [B, C, H, W]; of n crops [n, B, C, H, W]."""
    return {
      name: self.tensor(np.moveaxis(_crops_first(x), -1, -3))
      for name, x in self.task.views.items()
    }

  @abc.abstractmethod
  def loss(self) -> Any:
    """Returns the loss of the batch, a scalar tensor."""

  def before_step(self) -> None:
    """Called before each step, as to move a momentum encoder."""

  def tensor(self, x: np.ndarray) -> Any:
    """Returns an array as a tensor on the device."""
    return torch.from_numpy(np.ascontiguousarray(x)).to(self._device)

  @property
  def parameters(self) -> int:
    """Number of parameters that train."""
    return sum(x.numel() for x in self._trained)

  @property
  def _trained(self) -> list[Any]:
    return [x for x in self.module.parameters() if x.requires_grad]

  def train(self, count: int) -> float:
    """Takes steps; returns the loss of the last one, before its update."""
    clip_norm = self.task.config.optim.clip_norm
    is_half = self.task.config.train.dtype == 'bfloat16'
    for _ in range(count):
      self.before_step()
      self._optimizer.zero_grad(set_to_none=True)
      with torch.autocast(self._device.type, torch.bfloat16, enabled=is_half):
        loss = self.loss()
      loss.backward()
      if clip_norm:
        torch.nn.utils.clip_grad_norm_(self._trained, clip_norm)
      self._optimizer.step()
    return loss.item()  # waits for a GPU

  def slide(
    self, images: Any, window: Sequence[int], stride: Sequence[int]
  ) -> Any:
    """Returns logits [B, K, ...] of images [B, C, ...], from those of windows.

    Only of segmentation.

    Args:
      images: Images or volumes, at least as large as a window.
      window: Lengths of a window's axes.
      stride: Distances of windows along each axis.
    """
    raise NotImplementedError(f'{type(self).__name__} predicts no maps')

  def infer(
    self,
    images: np.ndarray,
    window: Sequence[int],
    stride: Sequence[int],
    count: int,
  ) -> np.ndarray:
    """Returns what `slide` does for images [B, ..., C], as [B, ..., K].

    Args:
      images: Images or volumes, float32.
      window: As for `slide`.
      stride: As for `slide`.
      count: How often it is computed.
    """
    self.module.eval()
    inputs = self.tensor(np.moveaxis(images, -1, 1))
    with torch.inference_mode():
      for _ in range(count):
        found = self.slide(inputs, window, stride)
    return np.moveaxis(found.float().cpu().numpy(), 1, -1)


def _crops_first(x: np.ndarray) -> np.ndarray:
  """Returns [n, B, ...] for crops [B, n, ...]; other images as they are."""
  return x.swapaxes(0, 1) if x.ndim == 5 else x
