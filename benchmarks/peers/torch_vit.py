"""A plain ViT in PyTorch, for methods that need a trunk alone.

In comments: B images, T tokens, D width, H heads.
"""

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from vit_jax import models
from vit_jax import objectives
from vit_jax.models import describing
from vit_jax.models import vit


class ViT(nn.Module):
  """A pre-norm ViT whose feature is the normalised class token.

  Attributes:
    width: D.
  """

  def __init__(self, objective: objectives.Objective):
    """Makes a twin of an objective's model, with new parameters."""
    super().__init__()
    model, (height, width, channels) = objective.model, objective.image_shape
    assert isinstance(model, vit.ViT)
    keys = describing.key_values(model)
    self.width = d = model.hidden_size
    p, q = models.patch_of_images(model)
    self.patches = nn.Conv2d(channels, d, (p, q), (p, q))
    self._grid = height // p, width // q
    count = self._grid[0] * self._grid[1]
    learns = keys['positions'].startswith('learned')
    self.token = nn.Parameter(0.02 * torch.randn(1, 1, d))
    self.positions = nn.Parameter(0.02 * torch.randn(1, 1 + count, d), learns)
    self.blocks = nn.Sequential(*[_Block(keys) for _ in range(model.depth)])
    self.norm = nn.LayerNorm(d, keys['layer_norm_epsilon'])

  def forward(self, images: Any) -> Any:
    """Returns features [B, D] of images [B, C, height, width]."""
    return self.norm(self.blocks(self._tokens(images))[:, 0])

  def levels(self, images: Any, layers: Sequence[int]) -> list[Any]:
    """Returns patches after some layers, [B, D, rows, columns] each."""
    x, found = self._tokens(images), []
    for i, block in enumerate(self.blocks):
      x = block(x)
      if i in layers:
        found.append(x[:, 1:].transpose(1, 2).unflatten(2, self._grid))
    return found

  def _tokens(self, images: Any) -> Any:
    """Returns the class token and the patches with positions, [B, T, D]."""
    x = self.patches(images)
    positions = self._resized(x.shape[-2:])
    x = x.flatten(2).transpose(1, 2)
    return torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + positions

  def _resized(self, grid: Any) -> Any:
    """Returns positions for a grid of patches, [1, T, D]."""
    if tuple(grid) == self._grid:
      return self.positions
    token, patches = self.positions[:, :1], self.positions[:, 1:]
    patches = patches.transpose(1, 2).unflatten(2, self._grid)
    patches = functional.interpolate(patches, tuple(grid), mode='bicubic')
    return torch.cat([token, patches.flatten(2).transpose(1, 2)], dim=1)


class _Block(nn.Module):
  """Attention and an MLP, each after a norm and with a shortcut."""

  def __init__(self, keys: Mapping[str, Any]):
    super().__init__()
    d, epsilon = keys['hidden_size'], keys['layer_norm_epsilon']
    self._heads, hidden = keys['num_heads'], keys['mlp_dim']
    self.norm1, self.norm2 = nn.LayerNorm(d, epsilon), nn.LayerNorm(d, epsilon)
    self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
    self.mlp = nn.Sequential(
      nn.Linear(d, hidden), nn.GELU(), nn.Linear(hidden, d)
    )

  def forward(self, x: Any) -> Any:
    qkv = self.qkv(self.norm1(x)).unflatten(-1, (3, self._heads, -1))
    q, k, v = qkv.permute(2, 0, 3, 1, 4)  # [B, H, T, D / H]
    y = functional.scaled_dot_product_attention(q, k, v)
    x = x + self.out(y.transpose(1, 2).flatten(2))
    return x + self.mlp(self.norm2(x))
