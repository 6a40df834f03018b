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
    norm: Whether a norm follows the activation function.
    gate: Function of the half that is the gate, one of `GATES`.
    has_bias: Whether both layers have biases.
  """

  spec: spec_lib.LayerSpec
  mlp_dim: int
  gated: bool = False
  norm: bool = False
  gate: str = 'silu'
  has_bias: bool = True

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
    spec, d, tokens = self.spec, x.shape[-1], tokens or x.shape[1]
    dense = functools.partial(
      nn.Dense,
      use_bias=self.has_bias,
      kernel_init=spec.starts.kernel,
      bias_init=spec.starts.mlp_bias,
      dtype=spec.dtype,
    )

    def finish(
      _: Mlp, y: jax.Array, dropout_key: dropout.DropoutKey | None
    ) -> jax.Array:
      hidden, output = (
        dropout.fold(dropout_key, purpose)
        for purpose in (dropout.Purpose.MLP_HIDDEN, dropout.Purpose.MLP_OUTPUT)
      )
      y = spec_lib.activated(activate(spec, y, self.gated, self.gate))
      y = dropout.dropout(y, spec.dropout_rate, hidden, (tokens, y.shape[-1]))
      if self.norm:
        y = spec.layer_norm('norm')(y)
      y = spec_lib.keep(dense(d, name='down')(y))
      return dropout.dropout(y, spec.dropout_rate, output, (tokens, d))

    remat = spec_lib.remat_on(jax.default_backend(), spec.scan, spec.remat)
    if remat == 'activations':
      finish = nn.remat(finish, policy=spec_lib.activations_policy())
    width = 2 * self.mlp_dim if self.gated else self.mlp_dim
    hidden = spec_lib.keep(dense(width, name='up')(x))
    return finish(self, hidden, dropout_key)


def activate(
  spec: spec_lib.LayerSpec, y: jax.Array, gated: bool, gate: str
) -> jax.Array:
  """Maps the first layer's output to [..., M].

  Args:
    spec: Fields of the layer.
    y: [..., M], or [..., 2 M] where the MLP is gated.
    gated: As of `Mlp`.
    gate: As of `Mlp`.
  """
  if not gated:
    return spec_lib.GELUS[spec.gelu](y)
  # The gate is the first half, as in DINOv2's code.
  first, y = jnp.split(y, 2, axis=-1)
  return spec_lib.GATES[gate](first) * y
