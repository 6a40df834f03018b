"""Patch embeddings, and fixed position embeddings."""

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.models import initializers


class PatchEmbedding(nn.Module):
  """Projects non-overlapping patches: [B, height, width, C] -> [B, h, w, D].

  The kernel [p, q, C, D] is that of a convolution whose stride is its size, but
  it is applied as one matrix product.
  """

  hidden_size: int
  patch_size: tuple[int, int]
  kernel_init: initializers.Initializer
  dtype: jax.typing.DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, images: jax.Array) -> jax.Array:
    """Returns one token per patch; patches must divide the image."""
    b, height, width, c = images.shape
    p, q = self.patch_size
    if height % p or width % q:
      raise ValueError(
        f'the image, {height} x {width}, is not a multiple of the patch,'
        f' {p} x {q}'
      )
    kernel = self.param('kernel', self.kernel_init, (p, q, c, self.hidden_size))
    bias = self.param('bias', nn.initializers.zeros, (self.hidden_size,))
    h, w = height // p, width // q
    x = images.astype(self.dtype).reshape(b, h, p, w, q, c)
    x = x.transpose(0, 1, 3, 2, 4, 5).reshape(b, h, w, p * q * c)
    kernel = kernel.reshape(p * q * c, self.hidden_size)
    return x @ kernel.astype(self.dtype) + bias.astype(self.dtype)


def sincos2d(grid: tuple[int, int], hidden_size: int) -> np.ndarray:
  """Fixed position embeddings, after MoCo v3 (arXiv:2104.02057, section 5.2).

  Args:
    grid: Patches (h, w).
    hidden_size: D, a multiple of 4.

  Returns:
    float32 [1, h * w, D]: sine and cosine of x, then of y, at D / 4 wavelengths
    from 2 pi to 10,000 * 2 pi patches.
  """
  y, x = np.mgrid[: grid[0], : grid[1]]
  omega = 10_000.0 ** -np.linspace(0, 1, hidden_size // 4)
  x, y = x.ravel()[:, None] * omega, y.ravel()[:, None] * omega
  table = np.concatenate([np.sin(x), np.cos(x), np.sin(y), np.cos(y)], axis=1)
  return table[None].astype(np.float32)
