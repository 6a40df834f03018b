"""Gated variants of the MLP.

In comments: T tokens, M width of the hidden layer.
"""

from typing import ClassVar

from flax import linen as nn
import jax
import jax.numpy as jnp

from vit_jax.models.block import GELUS
from vit_jax.models.block import Mlp


class _Gated(Mlp):
  """The first half of the first layer gates the other, as in DINOv2's code."""

  # The gate is the activation function, so this is no option here.
  gelu: ClassVar[str] = 'none'  # type: ignore[misc]

  @property
  def width(self) -> int:
    """Size of the first layer's output."""
    return 2 * self.hidden_dim

  def gate(self, y: jax.Array) -> jax.Array:
    """Returns the factors of the other half."""
    raise NotImplementedError

  def activate(self, y: jax.Array) -> jax.Array:
    """Maps the first layer's output [..., 2 M] to [..., M]."""
    first, second = jnp.split(y, 2, axis=-1)
    return self.gate(first) * second


class SwiGLU(_Gated):
  """An MLP whose gate is a SiLU (arXiv:2002.05202, equation 6)."""

  def gate(self, y: jax.Array) -> jax.Array:
    """Returns the SiLU."""
    return nn.silu(y)


class GLU(_Gated):
  """An MLP whose gate is a sigmoid (arXiv:2002.05202, equation 4)."""

  def gate(self, y: jax.Array) -> jax.Array:
    """Returns the sigmoid."""
    return nn.sigmoid(y)


class GEGLU(_Gated):
  """An MLP whose gate is a GELU (arXiv:2002.05202, equation 6)."""

  def gate(self, y: jax.Array) -> jax.Array:
    """Returns the exact GELU."""
    return GELUS['exact'](y)
