"""MONAI's UNETR."""

from collections.abc import Sequence
import pathlib
import tempfile
from typing import Any

from monai import inferers
from monai import losses
from monai.networks import nets
import numpy as np
from safetensors import torch as safetensors_torch

from benchmarks.peers import torch_step
from vit_jax.models import describing
from vit_jax.models import vit
from vit_jax.objectives import segmentation
from vit_jax.weights.formats import dense


class UNETR(torch_step.TorchStep):
  """MONAI's UNETR with our parameters, and its DiceCELoss."""

  is_ours = True

  def make(self) -> Any:
    """Returns the module."""
    task, objective = self.task, self.task.objective
    assert isinstance(objective, segmentation.Segmentation)
    decoder, keys = objective.decoder, describing.key_values(objective.model)
    (volumes,) = task.views.values()
    self._volumes = self.tensor(np.moveaxis(volumes, -1, 1))
    self._labels = self.tensor(task.others['map'].astype(np.int64)[:, None])
    self._loss = losses.DiceCELoss(to_onehot_y=True, softmax=True)
    module = nets.UNETR(
      in_channels=volumes.shape[-1],
      out_channels=decoder.num_classes,
      img_size=volumes.shape[1:-1],
      feature_size=decoder.features,
      hidden_size=keys['hidden_size'],
      mlp_dim=keys['mlp_dim'],
      num_heads=keys['num_heads'],
      proj_type='conv',
    )
    with tempfile.TemporaryDirectory() as folder:
      path = pathlib.Path(folder, 'model.safetensors')
      trunk, size = objective.model, volumes.shape[1:-1]
      assert isinstance(trunk, vit.ViT)
      dense.write(trunk, size, task.params, path, 'monai')
      module.load_state_dict(safetensors_torch.load_file(path))
    for name, x in module.named_parameters():
      # MONAI's blocks have these, and UNETR does not use them.
      x.requires_grad_('norm_cross_attn' not in name)
    return module

  def loss(self) -> Any:
    """Returns the loss of the batch."""
    return self._loss(self.module(self._volumes).float(), self._labels)

  def slide(
    self, images: Any, window: Sequence[int], stride: Sequence[int]
  ) -> Any:
    """Returns the logits [B, K, ...] of volumes, by MONAI's own function."""
    overlap = [1 - x / n for x, n in zip(stride, window, strict=True)]
    return inferers.sliding_window_inference(
      images, window, 1, self.module, overlap
    )
