"""Trans2Seg: a transformer on a convolutional network's features.

Xie et al., 2021, arXiv:2101.08461: an encoder over the deepest features, and a
decoder whose queries are learned prototypes of the classes. Each query's scores
over the places are a coarse mask of its class. Details follow the authors' code
(github.com/xieenze/Trans2Seg, commit 3972916). In comments: B images, [h, w]
grid of the deepest features, N = h * w places, D width of a token, H heads, K
classes.
"""

from collections.abc import Mapping
import functools
from typing import Any
from typing import ClassVar

from flax import linen as nn
import jax
import jax.numpy as jnp

from vit_jax.models import context as context_lib
from vit_jax.models import encoder
from vit_jax.models import initializers as initializers_lib
from vit_jax.models import maps

MLP_RATIO = 3  # width of an MLP as a multiple of the token's


class CrossAttention(nn.Module):
  """Attention of classes to places, which also returns its scores.

  Attributes:
    encoders: Attention of the encoder, which has the same options.
  """

  encoders: nn.Module

  @nn.compact
  def __call__(
    self, query: jax.Array, places: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    """Returns queries [B, K, D], and scores before softmax, [B, K, H, N]."""
    (b, k, d), n, h = query.shape, places.shape[1], self.encoders.num_heads
    starts = initializers_lib.INITIALIZERS[self.encoders.initializers]
    dense = functools.partial(
      nn.Dense, dtype=self.encoders.dtype, kernel_init=starts.kernel
    )
    q = dense(d, use_bias=False, name='query')(query)
    # The authors do not move the heads before the classes: a head mixes
    # channels of several classes. Their weights were trained so.
    q = q.reshape(b, h, k, d // h)
    keys_values = dense(2 * d, use_bias=False, name='key_value')(places)
    keys, values = jnp.moveaxis(keys_values.reshape(b, n, 2, h, d // h), 2, 0)
    scores = jnp.einsum('bhkc,bnhc->bhkn', q, keys) * (d // h) ** -0.5
    weights = jax.nn.softmax(scores.astype(jnp.float32), axis=-1)
    x = jnp.einsum('bhkn,bnhc->bhkc', weights.astype(values.dtype), values)
    x = dense(d, name='out')(x.reshape(b, k, d))
    return x, scores.transpose(0, 2, 1, 3)


class ClassDecoder(nn.Module):
  """One layer of the decoder: classes attend to places; all are refined.

  Attributes:
    block: The layer of the encoder, whose parts these are.
  """

  block: nn.Module

  @nn.compact
  def __call__(
    self, query: jax.Array, places: jax.Array
  ) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns new queries [B, K, D] and places [B, N, D]; maps [B, K, H, N]."""
    n, norm = places.shape[1], self.block.norm
    cross = CrossAttention(self.block.attention, name='attention')
    query = norm.copy(name='norm_classes')(query)
    query, scores = cross(query, norm.copy(name='norm_places')(places))
    width = self.block.mlp.hidden_dim
    query = self._refined(query, 'query', width)
    places = self._refined(places, 'features', width)
    flat = scores.reshape(len(scores), -1, n)
    masks = self._refined(flat, 'masks', 3 * n)
    return query, places, masks.reshape(scores.shape)

  def _refined(self, x: jax.Array, name: str, width: int) -> jax.Array:
    """Returns 2 x + MLP(LayerNorm(2 x)), x [B, T, C].

    The authors add x to itself where other layers add it to their input.
    """
    x = x + x
    y = self.block.norm.copy(name=f'norm_{name}')(x)
    mlp = self.block.mlp.copy(hidden_dim=width, name=f'mlp_{name}')
    return x + mlp(y, context_lib.Context())


class Trans2Seg(encoder.Encoder):
  """The transformer, and the head that draws its masks in a finer grid.

  It has as many layers in the encoder as in the decoder.

  Attributes, beside the ones in `encoder.Encoder`:
    num_classes: K.
    channels: Of the head's convolutions.
  """

  class_defaults: ClassVar[Mapping[str, Any]] = {
    'qkv_bias': False,
    'gelu': 'exact',
    'layer_norm_epsilon': 1e-5,
  }

  num_classes: int
  channels: int = 64

  @nn.compact
  def __call__(
    self, deep: jax.Array, fine: jax.Array, *, train: bool = False
  ) -> dict[str, jax.Array]:
    """Returns logits and what leads to them.

    `logits` are float32 [B, h', w', K]; `features` of the encoder,
    [B, h, w, D]; `masks_0`, `masks_1`, ..., of the decoder's layers,
    [B, K, H, N]. In training BatchNorm measures this batch.

    Args:
      deep: The deepest features, [B, h, w, C]; the number of places is that of
        training.
      fine: Features of a high resolution, [B, h', w', C'].
      train: Whether this is training.
    """
    (b, h, w, _), d, k = deep.shape, self.hidden_size, self.num_classes
    starts, count = self.starts, h * w
    embed = nn.Dense(
      d, kernel_init=starts.kernel, dtype=self.dtype, name='embedding'
    )
    x = embed(deep.reshape(b, count, -1))
    token = self.param('class_token', starts.class_token, (1, 1, d))
    token = jnp.broadcast_to(token, (b, 1, d)).astype(x.dtype)
    position = self.param(
      'position_embedding', starts.position, (1, 1 + count, d)
    )
    x = jnp.concatenate([token, x], axis=1) + position.astype(x.dtype)
    x, _ = self.layers(x, context_lib.Context())
    places = self.norm(x)[:, 1:]
    outputs = {'features': places.reshape(b, h, w, d)}
    prototypes = self.param('class_prototypes', starts.position, (1, k, d))
    query = jnp.broadcast_to(prototypes, (b, k, d))
    for i in range(self.depth):
      query = query + prototypes if i else query
      layer = ClassDecoder(self.block, name=f'decoder_{i}')
      query, places, masks = layer(query, places)
      outputs[f'masks_{i}'] = masks
    logits = self._drawn(outputs['features'], masks, fine, train)
    return outputs | {'logits': logits}

  def _drawn(
    self, features: jax.Array, masks: jax.Array, fine: jax.Array, train: bool
  ) -> jax.Array:
    """Returns logits [B, h', w', K]: one map for each image and class."""
    (b, h, w, _), (_, k, heads, _) = features.shape, masks.shape
    coarse = masks.transpose(0, 1, 3, 2).reshape(b * k, h, w, heads)
    x = jnp.repeat(features, k, axis=0)
    x = jnp.concatenate([x, coarse.astype(x.dtype)], axis=-1)
    x = self._separable(x, 0, train)
    x = self._separable(x, 1, train)
    x = maps.resize(x, fine.shape[1:3], align_corners=True)
    conv = maps.Convolution(self.channels, 1, dtype=self.dtype, name='fine')
    x += jnp.repeat(conv(fine, train=train), k, axis=0)
    x = self._separable(x, 2, train)
    x = maps.Classifier(1, name='classifier')(x)
    return jnp.moveaxis(x.reshape(b, k, *fine.shape[1:3]), 1, -1)

  def _separable(self, x: jax.Array, index: int, train: bool) -> jax.Array:
    """Convolves each channel, then all at each place."""
    c, dtype = x.shape[-1], self.dtype
    for name, features, size, groups in (
      ('depthwise', c, 3, c),
      ('pointwise', self.channels, 1, 1),
    ):
      convolution = maps.Convolution(
        features, size, groups, dtype, name=f'{name}_{index}'
      )
      x = convolution(x, train=train)
    return x
