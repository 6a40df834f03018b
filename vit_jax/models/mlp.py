"""The MLP of a layer, and its gated variants.

In comments: B images, T tokens, D hidden size, M width of the hidden layer.
"""

from collections.abc import Callable
from collections.abc import Mapping
import functools
from typing import Annotated

from flax import linen as nn
import jax
from jax.ad_checkpoint import checkpoint_name
import jax.numpy as jnp

from vit_jax.models import fields
from vit_jax.models import initializers as initializers_lib
from vit_jax.models import norms
from vit_jax.models.context import Context
from vit_jax.models.dropout import Purpose
from vit_jax.models.fields import Field
from vit_jax.models.fields import Kind

GELUS: Mapping[str, Callable[[jax.Array], jax.Array]] = {
  'tanh': functools.partial(nn.gelu, approximate=True),
  'exact': functools.partial(nn.gelu, approximate=False),
  # An approximation (arXiv:1606.08415, section 2), in iGPT and CLIP.
  'sigmoid': lambda x: x * nn.sigmoid(1.702 * x),
}
# Names of results that the backward pass does not recompute: of dense layers,
# attention and kernels with remat='products', and of activation functions with
# remat='activations'.
KEPT, ACTIVATED = 'kept', 'activated'


def keep(x: jax.Array) -> jax.Array:
  """Marks a result that is not recomputed with remat='products'."""
  return checkpoint_name(x, KEPT)


class Mlp(nn.Module):
  """Two dense layers with a GELU between: [B, T, D] -> [B, T, D].

  Attributes:
    hidden_dim: M, the width of the hidden layer.
    gelu: 'tanh' (an approximation), 'exact', or 'sigmoid' (that of CLIP).
    bias: Whether both layers have biases.
    hidden_norm: Whether a norm follows the activation function (sub-LN of
      EVA-02, arXiv:2303.11331, section 2).
    dropout_rate: Dropout rate after both layers.
    norm: The norm of `hidden_norm`.
    initializers: Name of the initial values.
    dtype: Type in which layers compute.
  """

  hidden_dim: Annotated[int, Field(Kind.SIZE, least=1, key='mlp_dim')]
  gelu: Annotated[
    str, Field(Kind.FUNCTION, is_visible=False, choices=tuple(GELUS))
  ] = 'tanh'
  bias: Annotated[bool, fields.FUNCTION] = True
  hidden_norm: Annotated[bool, fields.FUNCTION] = False
  dropout_rate: Annotated[float, fields.RATE] = 0.0
  norm: Annotated[nn.Module, fields.PART] = norms.LayerNorm()
  initializers: Annotated[str, initializers_lib.FIELD] = 'vit'
  dtype: Annotated[jax.typing.DTypeLike, fields.EXECUTION] = jnp.float32

  @property
  def width(self) -> int:
    """Size of the first layer's output."""
    return self.hidden_dim

  def activate(self, y: jax.Array) -> jax.Array:
    """Maps the first layer's output [..., width] to [..., M]."""
    return GELUS[self.gelu](y)

  @nn.compact
  def __call__(self, x: jax.Array, context: Context) -> jax.Array:
    """Returns the output [B, T, D]; x may hold the first tokens alone."""
    starts, d = initializers_lib.INITIALIZERS[self.initializers], x.shape[-1]
    # Masks are drawn for all tokens, so that the first ones get theirs.
    tokens = context.num_tokens or x.shape[1]
    dense = functools.partial(
      nn.Dense,
      use_bias=self.bias,
      kernel_init=starts.kernel,
      bias_init=starts.mlp_bias,
      dtype=self.dtype,
    )

    def finish(mlp: Mlp, y: jax.Array, context: Context) -> jax.Array:
      y = checkpoint_name(mlp.activate(y), ACTIVATED)
      whole = tokens, y.shape[-1]
      y = context.dropout(y, self.dropout_rate, Purpose.MLP_HIDDEN, whole)
      if self.hidden_norm:
        y = mlp.norm(y)
      y = keep(dense(d, name='down')(y))
      whole = tokens, d
      return context.dropout(y, self.dropout_rate, Purpose.MLP_OUTPUT, whole)

    if context.remat == 'activations':
      # The argument and the result of the activation function are kept, since
      # one product of the forward pass writes both. What its derivative needs
      # is recomputed. To recompute the result as well would read and write [B,
      # T, M] four more times.
      policy = jax.checkpoint_policies.save_only_these_names(ACTIVATED)
      finish = nn.remat(finish, policy=policy)
    hidden = keep(dense(self.width, name='up')(x))
    return finish(self, hidden, context)


class _Gated(Mlp):
  """The first layer has twice the width: one half gates the other.

  The gate is the first half, as in DINOv2's code.
  """

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
