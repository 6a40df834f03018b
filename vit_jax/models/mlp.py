"""The MLP of a layer."""

import functools

from flax import linen as nn
import jax
import jax.numpy as jnp

from vit_jax.models import dropout
from vit_jax.models import spec as spec_lib


class Mlp(nn.Module):
  """Two dense layers with a GELU between: [B, T, D] -> [B, T, D].

  With `gated`, the first layer has twice the width, and the SiLU of one half of
  its output multiplies the other half (SwiGLU, arXiv:2002.05202).

  Attributes:
    spec: Fields of the layer.
    mlp_dim: M, the size of the hidden layer.
    gated: Whether the MLP is a SwiGLU.
  """

  spec: spec_lib.LayerSpec
  mlp_dim: int
  gated: bool = False

  @nn.compact
  def __call__(
    self,
    x: jax.Array,
    dropout_key: dropout.DropoutKey | None,
    tokens: int | None = None,
  ) -> jax.Array:
    """Returns the output [B, T, D].

    Args:
      x: [B, T, D].
      dropout_key: Key of the layer; None when not training.
      tokens: Length of the full sequence, if x holds only its first T tokens;
        None: T. Dropout masks are drawn for the full sequence.
    """
    spec, tokens = self.spec, tokens or x.shape[1]
    dense = functools.partial(
      nn.Dense,
      kernel_init=spec.starts.kernel,
      bias_init=spec.starts.mlp_bias,
      dtype=spec.dtype,
    )
    if self.gated:  # the gate is the first half, as in DINOv2's code
      gate, y = jnp.split(dense(2 * self.mlp_dim, name='up')(x), 2, axis=-1)
      y = nn.silu(gate) * y  # [B, T, M]
    else:
      y = spec_lib.GELUS[spec.gelu](dense(self.mlp_dim, name='up')(x))
    hidden, output = (
      dropout.fold(dropout_key, purpose)
      for purpose in (dropout.Purpose.MLP_HIDDEN, dropout.Purpose.MLP_OUTPUT)
    )
    y = dropout.dropout(y, spec.dropout_rate, hidden, (tokens, y.shape[-1]))
    y = dense(x.shape[-1], name='down')(y)
    return dropout.dropout(y, spec.dropout_rate, output, (tokens, y.shape[-1]))
