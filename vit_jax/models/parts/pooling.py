"""Further pools of tokens to the features of an image.

In comments: B images, P tokens before the patches, N patches, T = P + N tokens,
D hidden size, H heads, K = D / H.
"""

import functools
from typing import Annotated
from typing import Any
from typing import ClassVar

from flax import linen as nn
import jax
import jax.numpy as jnp

from vit_jax.models import block as block_lib
from vit_jax.models import fields
from vit_jax.models import initializers as initializers_lib
from vit_jax.models import packing
from vit_jax.models.context import Context
from vit_jax.models.parts import separate


class TokenAndMean(nn.Module):
  """The class token beside the mean of the patches: [B, T, D] -> [B, 2 D].

  DINOv2's linear probe (arXiv:2304.07193, its code).
  """

  reads_class_token: ClassVar[bool] = True

  def __call__(self, x: jax.Array, context: Context) -> jax.Array:
    """Returns both, side by side."""
    patches = packing.mean(x[:, context.prefix :], context)
    return jnp.concatenate([x[:, 0], patches], axis=-1)


class Map(nn.Module):
  """Multi-head attention pooling: [B, T, D] -> [B, D].

  One learned query attends to the patches; an MLP with a residual connection
  follows (Scaling Vision Transformers, arXiv:2106.04560, section 3.2, in the
  form of big_vision).

  Attributes:
    num_heads: H, which divides D.
    mlp_dim: Size of the MLP's hidden layer; 0: no MLP.
    prefix: Whether it attends to the tokens before the patches, too.
    query: Whether its query is a projection of what is learned.
    bias: Whether query, keys and values have biases.
    gelu: As of `block.Mlp`.
    norm: The norm before the MLP.
    initializers: Name of the initial values.
    dtype: Type in which layers compute.
  """

  scope_name: ClassVar[str] = 'map_head'

  num_heads: Annotated[int, fields.fitted(is_visible=False, least=1)]
  mlp_dim: Annotated[int, fields.fitted(least=0)]
  prefix: Annotated[bool, fields.fitted(is_visible=False)] = False
  query: Annotated[bool, fields.FITTED] = True
  bias: Annotated[bool, fields.FITTED] = True
  gelu: Annotated[str, block_lib.GELU] = 'tanh'
  norm: Annotated[nn.Module, fields.PART] = block_lib.LayerNorm()
  initializers: Annotated[str, initializers_lib.FIELD] = 'vit'
  dtype: Annotated[jax.typing.DTypeLike, fields.EXECUTION] = jnp.float32

  def check_model(self, model: Any) -> None:
    """Raises a ValueError if its heads do not divide the model's width."""
    if model.hidden_size % self.num_heads:
      raise ValueError(
        f"pool='map': num_heads={self.num_heads} does not divide"
        f' hidden_size={model.hidden_size}: change one of them'
      )

  @nn.compact
  def __call__(self, x: jax.Array, context: Context) -> jax.Array:
    """Returns one vector per image, [B, D].

    Where a sequence has the tokens of S images (`context.attended` is
    [B, S, T]), it is [B, S, D], 0 for missing images. With
    `mutable=['pooling']`, Linen also returns the `weights` of the tokens,
    float32 [B, H, T], or [B, H, S, T].
    """
    attended, front = context.attended, context.prefix
    has_patches: jax.Array | None = None
    if attended is not None and attended.ndim == 3:
      has_patches = attended[..., front:].any(axis=-1)
    if not self.prefix:
      x = x[:, front:]
      attended = None if attended is None else attended[..., front:]
    y = self._attend(x, attended)  # [B, S, D]
    if self.mlp_dim:
      mlp = block_lib.Mlp(
        self.mlp_dim,
        self.gelu,
        initializers=self.initializers,
        dtype=self.dtype,
        name='mlp',
      )
      y += mlp(self.norm(y), Context())
    if has_patches is None:
      return y[:, 0]
    return jnp.where(has_patches[..., None], y, 0)

  def _attend(self, x: jax.Array, attended: jax.Array | None) -> jax.Array:
    """Returns what the query attends to in [B, T, D], [B, S, D]; S may be 1."""
    starts = initializers_lib.INITIALIZERS[self.initializers]
    d = x.shape[-1]
    heads = (h := self.num_heads, k := d // h)
    dense = functools.partial(
      nn.DenseGeneral, kernel_init=starts.kernel, dtype=self.dtype
    )
    probe = self.param('probe', nn.initializers.xavier_uniform(), (1, 1, d))
    query = probe.astype(self.dtype)
    if self.query:
      query = dense(heads, use_bias=self.bias, name='query')(query)
    query = query.reshape(heads)
    key_value = nn.DenseGeneral(
      (2, *heads),
      use_bias=self.bias,
      kernel_init=separate(starts.kernel, 2),
      dtype=self.dtype,
      name='key_value',
    )(x)  # [B, T, 2, H, K]
    key, value = jnp.moveaxis(key_value, (2, 3), (0, 2))  # [B, H, T, K]
    scores = jnp.einsum(
      'hk,bhtk->bht', query * k**-0.5, key, preferred_element_type=jnp.float32
    )
    is_packed = attended is not None and attended.ndim == 3
    if is_packed:
      scores = scores[:, :, None]
    if attended is not None:
      hidden = jnp.finfo(scores.dtype).min  # a missing image has no tokens
      scores = jnp.where(attended[:, None], scores, hidden)
    weights = nn.softmax(scores)
    # Kept only where this collection is mutable.
    self.sow('pooling', 'weights', weights, reduce_fn=lambda _, new: new)
    weights = weights.astype(self.dtype)
    if not is_packed:
      weights = weights[:, :, None]
    y = jnp.einsum('bhst,bhtk->bshk', weights, value)
    return dense(d, axis=(-2, -1), name='out')(y)
