"""A decoder that completes the tokens of an encoder which saw some patches.

In comments: B images, N patches, K of them seen, P tokens before the patches, E
width of the encoder, D of the decoder.
"""

import functools

from flax import linen as nn
import jax
import jax.numpy as jnp

from vit_jax.models import context as context_lib
from vit_jax.models import embedding
from vit_jax.models import encoder


class Decoder(encoder.Encoder):
  """Predicts all patches from those that an encoder saw (arXiv:2111.06377).

  A dense layer to the decoder's width; a learned mask token in the place of
  each patch that was not seen; fixed positions; layers as in the encoder; and a
  dense layer to the outputs of a patch.

  There is no dropout.

  Attributes, beside the ones in `encoder.Encoder`:
    prefix_length: P.
    outputs: Numbers that are predicted for a patch.
  """

  prefix_length: int
  outputs: int

  @nn.compact
  def __call__(
    self, tokens: jax.Array, places: jax.Array, grid: tuple[int, int]
  ) -> jax.Array:
    """Returns the predictions for all patches, float32 [B, N, outputs].

    Args:
      tokens: Of the encoder, [B, P + K, E].
      places: int32 [B, N], each patch's place in an order of which the first K
        are the seen patches, as in `tokens`.
      grid: Patches (h, w), N = h * w.
    """
    d, p = self.hidden_size, self.prefix_length
    dense = functools.partial(
      nn.Dense, kernel_init=self.starts.kernel, dtype=self.dtype
    )
    x = dense(d, name='embedding')(tokens)
    b, n = places.shape
    token = self.param('mask_token', self.starts.position, (1, 1, d))
    count = n - (x.shape[1] - p)  # patches that were not seen
    masks = jnp.broadcast_to(token.astype(x.dtype), (b, count, d))
    patches = jnp.concatenate([x[:, p:], masks], axis=1)
    patches = jnp.take_along_axis(patches, places[..., None], axis=1)
    table = embedding.sincos2d(grid, d, 'sincos2d_mae')
    patches += table.astype(x.dtype)
    x = jnp.concatenate([x[:, :p], patches], axis=1)  # [B, P + N, D]
    x, _ = self.layers(x, context_lib.Context())
    x = self.norm(x[:, p:])
    return dense(self.outputs, name='prediction')(x).astype(jnp.float32)
