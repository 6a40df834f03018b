"""SETR-PUP in plain PyTorch."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.peers import torch_step
from benchmarks.peers import torch_vit
from vit_jax.evaluation import windows
from vit_jax.models import setr
from vit_jax.objectives import segmentation


class SETR(torch_step.TorchStep):
  """SETR-PUP (arXiv:2012.15840, section 3.2), with auxiliary heads."""

  def make(self) -> Any:
    """Returns the trunk and the heads."""
    objective = self.task.objective
    assert isinstance(objective, segmentation.Segmentation)
    decoder = objective.decoder
    assert isinstance(decoder, setr.SETR) and decoder.kind == 'pup'
    self._layers = self.task.config.objective.options.layers
    self._labels = self.tensor(self.task.others['map'].astype(np.int64))
    trunk = torch_vit.ViT(objective)
    kind, width = setr.KINDS['pup'], trunk.width
    heads = [
      _up_head(decoder, width, decoder.auxiliary_convs, 4)
      for _ in self._layers[:-1]
    ]
    convs = decoder.convs or kind['convs']
    heads += [_up_head(decoder, width, convs, kind['scale'])]
    return nn.ModuleList([trunk, *heads])

  def loss(self) -> Any:
    """Returns the loss of all heads."""
    trunk, *heads = self.module
    levels = trunk.levels(self.views['image'], self._layers)
    weight = self.task.config.objective.options.auxiliary_weight
    losses = [
      functional.cross_entropy(self._resized(head(x)), self._labels)
      for head, x in zip(heads, levels, strict=True)
    ]
    return losses[-1] + weight * sum(losses[:-1])

  def slide(
    self, images: Any, window: Sequence[int], stride: Sequence[int]
  ) -> Any:
    """Returns the mean logits of all windows of images, [B, K, H, W]."""
    trunk, head = self.module[0], self.module[-1]
    height, width = window
    total: Any = 0
    count = torch.zeros(images.shape[-2:])
    for top, left in windows.starts(images.shape[-2:], window, stride).tolist():
      inner = slice(top, top + height), slice(left, left + width)
      (level,) = trunk.levels(images[:, :, *inner], self._layers[-1:])
      logits = self._resized(head(level))
      if count.max() == 0:
        total = logits.new_zeros((*logits.shape[:2], *images.shape[-2:]))
      total[:, :, *inner] += logits
      count[inner] += 1
    return total / count.to(total.device)

  def _resized(self, logits: Any) -> Any:
    size = self._labels.shape[1:]
    if logits.shape[2:] == size:
      return logits
    return functional.interpolate(logits.float(), size, mode='bilinear')


def _up_head(decoder: setr.SETR, width: int, convs: int, scale: int) -> Any:
  """Returns a norm, convolutions, each with upsampling, and a classifier."""
  layers: list[Any] = [_Norm(width)]
  for i in range(convs):
    layers += [
      nn.Conv2d(
        decoder.channels if i else width,
        decoder.channels,
        3,
        padding=1,
        bias=False,
      ),
      nn.BatchNorm2d(decoder.channels),
      nn.ReLU(),
      nn.Upsample(scale_factor=scale, mode='bilinear'),
    ]
  return nn.Sequential(
    *layers, nn.Conv2d(decoder.channels, decoder.num_classes, 1)
  )


class _Norm(nn.LayerNorm):
  """LayerNorm over the channels of [B, C, H, W]."""

  def forward(self, x: Any) -> Any:
    return super().forward(x.movedim(1, -1)).movedim(-1, 1)
