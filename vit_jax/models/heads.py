"""Heads: pooling of a trunk's tokens, and the last layer.

In comments: B images, T tokens, D hidden size, H heads, K = D / H.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Annotated
from typing import TYPE_CHECKING

from flax import linen as nn
import jax
import jax.numpy as jnp

from vit_jax.models import embedding
from vit_jax.models import fields
from vit_jax.models import initializers as initializers_lib
from vit_jax.models import mlp
from vit_jax.models import qkv as qkv_lib
from vit_jax.models import spec as spec_lib
from vit_jax.models.fields import Field
from vit_jax.models.fields import Kind

if TYPE_CHECKING:
  from vit_jax.models import vit

POOLS = ('token', 'gap', 'map', 'token+gap')
NUM_CLASSES = fields.Field(fields.Kind.FITTED, least=0, most=2**28)


@dataclasses.dataclass(kw_only=True, unsafe_hash=True)
class PoolSpec:
  """Fields of how a trunk's tokens become features.

  Attributes:
    pool: Pooling of tokens to features: 'token', the class token; 'gap', the
      mean over patch tokens; 'map', attention over them by a learned query;
      'token+gap', the first two side by side (DINOv2, arXiv:2304.07193).
    last_norm: Whether a norm follows the last layer.
    norm_after_pool: For 'gap', whether the last norm is applied to the mean,
      and not to the tokens.
    map_prefix: For 'map', whether it also attends to the tokens before the
      patches.
    map_heads: For 'map', its number of heads, which divides D; None: num_heads.
    map_query: For 'map', whether its query is a projection of what is learned.
    map_bias: For 'map', whether its query, keys and values have biases.
    map_mlp_dim: For 'map', size of the hidden layer of its MLP; 0: it has none;
      None: mlp_dim.
  """

  pool: Annotated[str, Field(Kind.FITTED, choices=POOLS)] = 'token'
  last_norm: Annotated[bool, fields.FUNCTION] = True
  norm_after_pool: Annotated[bool, fields.FITTED] = False
  map_prefix: Annotated[bool, Field(Kind.FITTED, is_visible=False)] = False
  map_heads: Annotated[
    int | None, Field(Kind.FITTED, is_visible=False, least=1)
  ] = None
  map_query: Annotated[bool, fields.FITTED] = True
  map_bias: Annotated[bool, fields.FITTED] = True
  map_mlp_dim: Annotated[int | None, Field(Kind.FITTED, least=0)] = None


def linear(
  num_classes: int,
  kernel_init: initializers_lib.Initializer,
  bias: float,
) -> nn.Dense:
  """Returns the last layer, [..., D] -> [..., num_classes]."""
  return nn.Dense(
    num_classes,
    kernel_init=kernel_init,
    bias_init=nn.initializers.constant(bias),
  )


class Classifier(nn.Module):
  """A trunk and a linear head; their parameters are in the same dict.

  Attributes:
    num_classes: Size of the head's output; 0: no head, and the model returns
      the features.
    initializers: Initial values of parameters, a name in `INITIALIZERS`.
    head_bias: Initial value of the head's bias: with a sigmoid loss, the
      logarithm of a class's frequency.
  """

  num_classes: Annotated[int, NUM_CLASSES]
  _: dataclasses.KW_ONLY
  initializers: Annotated[str, initializers_lib.FIELD] = 'vit'
  head_bias: Annotated[float, fields.TRAINING] = 0.0

  @property
  def starts(self) -> initializers_lib.Initializers:
    """Initializers of each kind of parameter."""
    return initializers_lib.INITIALIZERS[self.initializers]

  def setup(self) -> None:
    """Makes the head."""
    if self.num_classes:
      self.head = linear(self.num_classes, self.starts.head, self.head_bias)

  def trunk(
    self,
    images: jax.Array,
    *,
    train: bool = False,
    rows: jax.Array | None = None,
  ) -> dict[str, jax.Array]:
    """Returns `tokens` [B, T, D], and `features` [B, D] in float32."""
    raise NotImplementedError

  def __call__(
    self,
    images: jax.Array,
    *,
    train: bool = False,
    rows: jax.Array | None = None,
  ) -> jax.Array:
    """Classifies images; captures tokens as `trunk` does.

    Args:
      images: [B, height, width, C].
      train: Whether to apply dropout; needs `rngs={'dropout': key}`.
      rows: int32 [B], the images' positions in the global batch, if this is a
        part of one; by default 0 to B - 1.

    Returns:
      Logits, float32 [B, num_classes]; features [B, D] if num_classes is 0.

    Raises:
      ValueError: The image's size is not a multiple of the patch's.
    """
    features = self.trunk(images, train=train, rows=rows)['features']
    return self.head(features) if self.num_classes else features


class MapHead(nn.Module):
  """Multi-head attention pooling: [B, T, D] -> [B, D].

  One learned query attends to the tokens; an MLP with a residual connection
  follows (Scaling Vision Transformers, arXiv:2106.04560, section 3.2, in the
  form of big_vision).

  Attributes:
    spec: Fields of the layers before it.
    num_heads: H; None: as the layers have.
    has_query: Whether the query is a projection of what is learned.
    has_bias: Whether query, keys and values have biases.
    mlp_dim: Size of the MLP's hidden layer; 0: no MLP; None: as of the layers.
  """

  spec: spec_lib.EncoderSpec
  num_heads: int | None = None
  has_query: bool = True
  has_bias: bool = True
  mlp_dim: int | None = None

  @nn.compact
  def __call__(
    self, x: jax.Array, attended: jax.Array | None = None
  ) -> jax.Array:
    """Returns one vector per image, [B, D].

    Args:
      x: [B, T, D].
      attended: bool [B, T], tokens that are no padding; None: all. [B, S, T]
        for S images in a sequence: the result is [B, S, D].

    With `mutable=['pooling']`, Linen also returns the `weights` of the tokens,
    float32 [B, H, T], or [B, H, S, T].
    """
    spec, d = self.spec, x.shape[-1]
    heads = (h := self.num_heads or spec.num_heads, k := d // h)
    dense = functools.partial(
      nn.DenseGeneral, kernel_init=spec.starts.kernel, dtype=spec.dtype
    )
    probe = self.param('probe', nn.initializers.xavier_uniform(), (1, 1, d))
    query = probe.astype(spec.dtype)
    if self.has_query:
      query = dense(heads, use_bias=self.has_bias, name='query')(query)
    query = query.reshape(heads)
    key_value = nn.DenseGeneral(
      (2, *heads),
      use_bias=self.has_bias,
      kernel_init=qkv_lib.separate(spec.starts.kernel, 2),
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
    is_packed = attended is not None and attended.ndim == 3
    if is_packed:
      scores = scores[:, :, None]
    if attended is not None:
      hidden = jnp.finfo(scores.dtype).min  # a missing image has no tokens
      scores = jnp.where(attended[:, None], scores, hidden)
    weights = nn.softmax(scores)
    # Kept only where this collection is mutable.
    self.sow('pooling', 'weights', weights, reduce_fn=lambda _, new: new)
    weights = weights.astype(spec.dtype)
    if not is_packed:
      weights = weights[:, :, None]
    y = jnp.einsum('bhst,bhtk->bshk', weights, value)
    y = dense(d, axis=(-2, -1), name='out')(y)  # [B, S, D]
    width = spec.mlp_dim if self.mlp_dim is None else self.mlp_dim
    if width:
      z = spec.layer_norm('norm')(y)
      y += mlp.Mlp(spec, width, name='mlp')(z, None)
    return y if is_packed else y[:, 0]


def map_head(trunk: vit.Trunk, name: str | None = None) -> MapHead:
  """Returns the attention pooling of a trunk."""
  own = trunk.map_heads, trunk.map_query, trunk.map_bias, trunk.map_mlp_dim
  return MapHead(trunk.layer_spec, *own, name=name)


def read(
  trunk: vit.Trunk, x: jax.Array, weights: jax.Array | None
) -> dict[str, jax.Array]:
  """Normalises the last layer's tokens, and pools them.

  Args:
    trunk: The trunk, in its compact method.
    x: The tokens, [B, T, D].
    weights: [B, T], of the tokens in a mean of patches; None: 1. [B, S, T] for
      S images in a sequence: features are then [B, S, D], 0 for missing images.

  Returns:
    `tokens` and `features`, as `vit.Trunk.trunk` does.
  """
  front = trunk.prefix_length
  if weights is not None:
    weights = weights[..., front:]
  # Pre-LN layers do not normalise the residual stream, so a last LayerNorm
  # follows (equation 4 of the ViT paper). MAE fine-tunes with this norm after
  # the mean (arXiv:2111.06377, its code).
  norm = trunk.layer_norm('norm') if trunk.last_norm else lambda x: x
  if trunk.pool == 'gap' and trunk.norm_after_pool:
    features = norm(embedding.weighted_mean(x[:, front:], weights))
    return {'tokens': x, 'features': features.astype(jnp.float32)}
  x = norm(x)
  patches = x[:, front:]
  if trunk.pool == 'token':
    features = x[:, :2] if trunk.has_two_heads else x[:, 0]
  elif trunk.pool == 'gap':
    features = embedding.weighted_mean(patches, weights)
  elif trunk.pool == 'map':
    features = _attended(trunk, x, weights)
    if weights is not None and weights.ndim == 3:
      features = jnp.where(weights.any(axis=-1)[..., None], features, 0)
  else:
    both = x[:, 0], embedding.weighted_mean(patches, weights)
    features = jnp.concatenate(both, axis=-1)
  return {'tokens': x, 'features': features.astype(jnp.float32)}


def _attended(
  trunk: vit.Trunk, x: jax.Array, weights: jax.Array | None
) -> jax.Array:
  """Pools tokens [B, T, D] by attention; `weights` are those of `read`."""
  head, front = map_head(trunk, name='map_head'), trunk.prefix_length
  if not trunk.map_prefix:
    return head(x[:, front:], weights)
  if weights is not None:
    before = (*[(0, 0)] * (weights.ndim - 1), (front, 0))
    weights = jnp.pad(weights, before, constant_values=1)
  return head(x, weights)
