"""Heads: attention pooling over a trunk's tokens, and the last layer.

In comments: B images, T tokens, D hidden size, H heads, K = D / H.
"""

import functools

from flax import linen as nn
import jax
import jax.numpy as jnp

from vit_jax.models import attention
from vit_jax.models import fields
from vit_jax.models import initializers
from vit_jax.models import mlp
from vit_jax.models import spec as spec_lib

NUM_CLASSES = fields.Field(fields.Kind.FITTED, least=0, most=2**28)


def linear(
  num_classes: int,
  kernel_init: initializers.Initializer,
  bias: float,
) -> nn.Dense:
  """Returns the last layer, [..., D] -> [..., num_classes].

  Args:
    num_classes: Size of its output.
    kernel_init: Initializer of its kernel.
    bias: Initial value of its bias.
  """
  return nn.Dense(
    num_classes,
    kernel_init=kernel_init,
    bias_init=nn.initializers.constant(bias),
  )


class MapHead(nn.Module):
  """Multi-head attention pooling: [B, T, D] -> [B, D].

  One learned query attends to the tokens; an MLP with a residual follows
  (Scaling Vision Transformers, arXiv:2106.04560, section 3.2, as big_vision
  builds it).
  """

  spec: spec_lib.EncoderSpec

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Returns one vector per image."""
    spec, d = self.spec, x.shape[-1]
    k = d // spec.num_heads
    dense = functools.partial(
      nn.DenseGeneral, kernel_init=spec.starts.kernel, dtype=spec.dtype
    )
    probe = self.param('probe', nn.initializers.xavier_uniform(), (1, 1, d))
    heads = (spec.num_heads, k)
    query = dense(heads, name='query')(probe.astype(spec.dtype))[0, 0]  # [H, K]
    key_value = nn.DenseGeneral(
      (2, *heads),
      kernel_init=attention.separate(spec.starts.kernel, 2),
      dtype=spec.dtype,
      name='key_value',
    )(x)  # [B, T, 2, H, K]
    key, value = jnp.moveaxis(key_value, (2, 3), (0, 2))  # [B, H, T, K]
    scores = jnp.einsum(
      'hk,bhtk->bht',
      query * k**-0.5,
      key,
      preferred_element_type=jnp.float32,
    )
    weights = nn.softmax(scores).astype(spec.dtype)
    y = jnp.einsum('bht,bhtk->bhk', weights, value)
    y = dense(d, axis=(-2, -1), name='out')(y)[:, None]  # [B, 1, D]
    z = spec.layer_norm('norm')(y)
    return (y + mlp.Mlp(spec, spec.mlp_dim, name='mlp')(z, None))[:, 0]
