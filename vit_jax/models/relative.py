"""Relative positions: biases of attention by the distance of two patches.

Either a table has a number for each distance (BEiT, arXiv:2106.08254), or a
small MLP computes it from the distance (Swin Transformer V2, arXiv:2111.09883,
section 3.2, in the form of timm).

In comments: P tokens before the patches, T tokens, H heads.
"""

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

# Kinds of tables and of MLPs: one for all layers, or one in each.
TABLES = ('shared', 'layers')
MLPS = ('shared_mlp', 'layers_mlp')


def index(grid: tuple[int, int]) -> np.ndarray:
  """Returns the row of BEiT's table of relative positions for two tokens.

  Tokens are a class token and the patches, row by row. The table has a row for
  each distance (rows, columns) between patches, then one each for class token
  to patch, patch to class token, and class token to itself.

  Args:
    grid: Patches (h, w).

  Returns:
    int32 [T, T], T = 1 + h * w, by query and key.
  """
  h, w = grid
  y, x = (c.ravel() for c in np.mgrid[:h, :w])
  down = y[:, None] - y + h - 1
  across = x[:, None] - x + w - 1
  count = rows(grid)
  found = np.empty((1 + h * w, 1 + h * w), np.int32)
  found[1:, 1:] = down * (2 * w - 1) + across
  found[0, 1:], found[1:, 0], found[0, 0] = count - 3, count - 2, count - 1
  return found


def rows(grid: tuple[int, int]) -> int:
  """Returns the number of rows of a table of relative positions."""
  return (2 * grid[0] - 1) * (2 * grid[1] - 1) + 3


def bias(
  module: nn.Module,
  kind: str,
  grid: tuple[int, int],
  num_heads: int,
  *,
  prefix: int,
  hidden: int,
) -> jax.Array:
  """Returns the bias of a module's table or MLP, float32 [H, T, T].

  A table is the parameter `relative_position_bias`; it starts at zero, as in
  BEiT's code. An MLP is `relative_mlp`.

  Args:
    module: Linen module, in its compact method.
    kind: One of `TABLES` or `MLPS`.
    grid: Patches (h, w).
    num_heads: H.
    prefix: P; a table needs a class token, and no other.
    hidden: Size of the MLP's hidden layer.
  """
  if kind in MLPS:
    return RelativeMlp(num_heads, hidden, name='relative_mlp')(grid, prefix)
  table = module.param(
    'relative_position_bias', nn.initializers.zeros, (rows(grid), num_heads)
  )
  return jnp.moveaxis(table[index(grid)], 2, 0)


class RelativeMlp(nn.Module):
  """Maps distances of patches to biases of attention.

  Attributes:
    num_heads: H.
    hidden: Size of the hidden layer.
  """

  num_heads: int
  hidden: int

  @nn.compact
  def __call__(self, grid: tuple[int, int], prefix: int) -> jax.Array:
    """Returns biases, float32 [H, T, T]; 0 for tokens before the patches.

    Args:
      grid: Patches (h, w).
      prefix: P.
    """
    y, x = (c.ravel() for c in np.mgrid[: grid[0], : grid[1]])
    steps = np.stack([y[:, None] - y, x[:, None] - x], axis=-1)  # [N, N, 2]
    # Each distance once, and where it is in the matrix.
    each, where = np.unique(steps.reshape(-1, 2), axis=0, return_inverse=True)
    logs = (np.sign(each) * np.log1p(np.abs(each))).astype(np.float32)
    z = nn.relu(nn.Dense(self.hidden, name='up')(logs))
    z = nn.Dense(self.num_heads, name='down')(z)
    z = jnp.moveaxis(z[where.reshape(steps.shape[:2])], 2, 0)
    return jnp.pad(z, ((0, 0), (prefix, 0), (prefix, 0)))
