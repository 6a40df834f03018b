"""The head of DINO, iBOT and DINOv2: features to logits over prototypes.

In comments: D width of a feature, M hidden width, R width of the bottleneck, K
prototypes.
"""

from flax import linen as nn
import jax
import jax.numpy as jnp

from vit_jax.models import projection

_NORM = 1e-12  # least norm, as torch's `normalize` has it
_KERNEL = nn.initializers.truncated_normal(0.02)


class PrototypeHead(nn.Module):
  """An MLP, L2 normalisation, and a weight-normalised layer.

  DINO (arXiv:2104.14294, section 3.1 and appendix C). The logits are cosines
  between the normalised bottleneck and each prototype, times `scale`.

  Attributes:
    prototypes: K.
    hidden: M.
    bottleneck: R.
    layers: Number of the MLP's layers, with an exact GELU between them.
    batch_norm: Whether BatchNorm follows each hidden layer.
    trains_scale: Whether `scale`, the norm of each prototype, is trained;
      otherwise it keeps its initial value, 1.
    dtype: Type in which the MLP computes; logits are float32.
  """

  prototypes: int
  hidden: int = 2048
  bottleneck: int = 256
  layers: int = 3
  batch_norm: bool = False
  trains_scale: bool = True
  dtype: jax.typing.DTypeLike = jnp.float32

  def setup(self) -> None:
    """Makes the layers."""
    widths = [self.hidden] * (self.layers - 1) + [self.bottleneck]
    self.dense = [
      nn.Dense(width, kernel_init=_KERNEL, dtype=self.dtype) for width in widths
    ]
    if self.batch_norm:
      self.norm = [projection.BatchNorm() for _ in widths[1:]]
    self.last_layer = _LastLayer(self.prototypes, self.trains_scale)

  def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
    """Maps features [B, D] to logits, float32 [B, K]."""
    return self.last_layer(self.narrow(x, train))

  def narrow(self, x: jax.Array, train: bool = False) -> jax.Array:
    """Returns the normalised bottleneck, float32 [B, R]."""
    x = x.astype(self.dtype)
    for i, dense in enumerate(self.dense):
      x = dense(x)
      if i == self.layers - 1:
        break
      if self.batch_norm:
        x = self.norm[i](x, train=train).astype(self.dtype)
      x = nn.gelu(x, approximate=False)
    x = x.astype(jnp.float32)
    return x * _inverse_norm(x, axis=-1)

  def fresh_statistics(self) -> dict[str, dict[str, jax.Array]]:
    """Returns the running statistics of BatchNorm before the first batch."""
    norms = range((self.layers - 1) * self.batch_norm)
    m = self.hidden
    return {
      f'norm_{i}': {'mean': jnp.zeros(m), 'var': jnp.ones(m)} for i in norms
    }


class _LastLayer(nn.Module):
  """A layer without bias; `scale` is the norm of each unit's weights.

  Weight normalisation (arXiv:1602.07868).
  """

  prototypes: int
  trains_scale: bool

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Returns the products with the normalised kernel, [B, R] -> [B, K].

    The products are scaled, not the kernel: they are fewer, and the compiler
    for CPUs would compute the scaled kernel anew for each row of the product.
    """
    shape = (x.shape[-1], self.prototypes)
    # Only the directions matter.
    kernel = jnp.asarray(self.param('kernel', projection.TORCH_LINEAR, shape))
    scale = self.param('scale', nn.initializers.ones, (self.prototypes,))
    if not self.trains_scale:
      scale = jax.lax.stop_gradient(scale)
    return x @ kernel * (scale * _inverse_norm(kernel, axis=0))


def _inverse_norm(x: jax.Array, axis: int) -> jax.Array:
  """Returns 1 / the norm of vectors, or 1 / `_NORM` of short ones."""
  squared = jnp.sum(x**2, axis=axis, keepdims=True)
  return jax.lax.rsqrt(jnp.maximum(squared, _NORM**2))
