"""Relative positions: biases of attention by the distance of two patches.

Either a table has a number for each distance (BEiT, arXiv:2106.08254), or a
small MLP computes it from the distance (Swin Transformer V2, arXiv:2111.09883,
section 3.2, in the form of timm).

In comments: P tokens before the patches, T tokens, H heads.
"""

from typing import Annotated
from typing import Any
from typing import ClassVar

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.models import embedding
from vit_jax.models import fields
from vit_jax.models.context import Context
from vit_jax.models.parts import positions


def index(grid: tuple[int, int]) -> np.ndarray:
  """Returns the row of BEiT's table of relative positions for two tokens.

  Tokens are a class token and the patches of a grid (h, w), row by row. The
  table has a row for each distance (rows, columns) between patches, then one
  each for class token to patch, patch to class token, and class token to
  itself. The result is int32 [T, T], T = 1 + h * w, by query and key.
  """
  h, w = grid
  y, x = (c.ravel() for c in np.mgrid[:h, :w])
  down = y[:, None] - y + h - 1
  across = x[:, None] - x + w - 1
  count = rows(grid)
  index = np.empty((1 + h * w, 1 + h * w), np.int32)
  index[1:, 1:] = down * (2 * w - 1) + across
  index[0, 1:], index[1:, 0], index[0, 0] = count - 3, count - 2, count - 1
  return index


def rows(grid: tuple[int, int]) -> int:
  """Returns the number of rows of a table of relative positions."""
  return (2 * grid[0] - 1) * (2 * grid[1] - 1) + 3


class _Table(nn.Module):
  """A number for each distance and head; zero at first, as in BEiT's code."""

  num_heads: int

  @nn.compact
  def __call__(self, context: Context) -> jax.Array:
    """Returns the bias of scores, float32 [H, T, T]."""
    if not context.class_token or context.prefix != 1:
      raise ValueError(
        'relative_bias is of a class token and patches: no other tokens'
      )
    grid = embedding.pair(context.grid or ())
    shape = (rows(grid), self.num_heads)
    init = nn.initializers.zeros
    table = self.param('relative_position_bias', init, shape)
    return jnp.moveaxis(table[index(grid)], 2, 0)


class _Mlp(nn.Module):
  """Maps distances of patches [N, 2] to biases [N, H]."""

  num_heads: int
  hidden: int

  @nn.compact
  def __call__(self, logs: np.ndarray) -> jax.Array:
    z = nn.relu(nn.Dense(self.hidden, name='up')(logs))
    return nn.Dense(self.num_heads, name='down')(z)


class _Computed(nn.Module):
  """Biases that an MLP computes; 0 for tokens before the patches."""

  num_heads: int
  hidden: int

  @nn.compact
  def __call__(self, context: Context) -> jax.Array:
    """Returns the bias of scores, float32 [H, T, T]."""
    (h, w), prefix = embedding.pair(context.grid or ()), context.prefix
    y, x = (c.ravel() for c in np.mgrid[:h, :w])
    steps = np.stack([y[:, None] - y, x[:, None] - x], axis=-1)  # [N, N, 2]
    # Each distance once, and where it is in the matrix.
    distances, inverse = np.unique(
      steps.reshape(-1, 2), axis=0, return_inverse=True
    )
    logs = (np.sign(distances) * np.log1p(np.abs(distances))).astype(np.float32)
    z = _Mlp(self.num_heads, self.hidden, name='relative_mlp')(logs)
    z = jnp.moveaxis(z[inverse.reshape(steps.shape[:2])], 2, 0)
    return jnp.pad(z, ((0, 0), (prefix, 0), (prefix, 0)))


class RelativeBias(nn.Module):
  """A learned bias of attention for each distance between two patches.

  BEiT, its code, after T5 (arXiv:1910.10683, section 2.1).

  Attributes:
    num_heads: H, of the layers.
    shared: Whether all layers have the same; else each has its own.
  """

  in_attention: ClassVar[bool] = True

  num_heads: Annotated[int, fields.HEADS]
  shared: Annotated[bool, fields.FITTED] = True

  @nn.compact
  def __call__(
    self, x: jax.Array, context: Context
  ) -> tuple[jax.Array, Context]:
    """Says in the context what is added to scores; tokens stay as they are."""
    part = _Table(self.num_heads, parent=None)
    return x, _with_bias(self, part, context)


class RelativeMlpBias(nn.Module):
  """A bias of attention that a small MLP computes from the distance.

  Swin Transformer V2 (arXiv:2111.09883, section 3.2).

  Attributes:
    num_heads: H, of the layers.
    hidden_dim: Size of the MLP's hidden layer.
    shared: Whether all layers have the same MLP; else each has its own.
  """

  in_attention: ClassVar[bool] = True

  num_heads: Annotated[int, fields.HEADS]
  hidden_dim: Annotated[int, fields.fitted(least=1)] = 128
  shared: Annotated[bool, fields.FITTED] = True

  @nn.compact
  def __call__(
    self, x: jax.Array, context: Context
  ) -> tuple[jax.Array, Context]:
    """As of `RelativeBias`; there may be any tokens before the patches."""
    part = _Computed(self.num_heads, self.hidden_dim, parent=None)
    return x, _with_bias(self, part, context)


def _with_bias(module: Any, part: nn.Module, context: Context) -> Context:
  """Returns a context with the bias of a part, for all layers or for each."""
  positions.refuse_grids(context)
  if context.kept_patches is not None:
    raise ValueError('relative positions need all patches: none left out')
  if not module.shared:
    return context.replace(layer_bias=part)
  part = part.copy(parent=module, name='bias')
  nn.share_scope(module, part)
  return context.replace(bias=part(context))
