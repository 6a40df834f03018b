"""The Vision Transformer (Dosovitskiy et al., 2020, arXiv:2010.11929).

In comments: B images, T tokens, D hidden size, H heads, L layers.
"""

from collections.abc import Mapping
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp

from vit_jax.models import layers

# Hidden size, MLP size, heads, layers: Table 1 of the paper; Ti and S of DeiT
# (arXiv:2012.12877); g of Scaling Vision Transformers (arXiv:2106.04560).
SIZES = {
  'Ti': {'hidden_size': 192, 'mlp_dim': 768, 'num_heads': 3, 'depth': 12},
  'S': {'hidden_size': 384, 'mlp_dim': 1536, 'num_heads': 6, 'depth': 12},
  'B': {'hidden_size': 768, 'mlp_dim': 3072, 'num_heads': 12, 'depth': 12},
  'L': {'hidden_size': 1024, 'mlp_dim': 4096, 'num_heads': 16, 'depth': 24},
  'H': {'hidden_size': 1280, 'mlp_dim': 5120, 'num_heads': 16, 'depth': 32},
  'g': {'hidden_size': 1408, 'mlp_dim': 6144, 'num_heads': 16, 'depth': 40},
}

POOLS = ('token', 'gap')
POSITION_EMBEDDINGS = ('learned', 'sincos2d', 'none')
REMAT_POLICIES = (
  'none',
  'full',
  'dots_saveable',
  'dots_with_no_batch_dims_saveable',
)


class EncoderBlock(nn.Module):
  """One pre-LN layer: attention and an MLP, each with a residual."""

  num_heads: int
  mlp_dim: int
  depth: int
  dropout_rate: float
  attention_dropout_rate: float
  stochastic_depth: float
  gelu: str
  layer_norm_epsilon: float
  initializers: str
  capture: bool
  dtype: jax.typing.DTypeLike

  @nn.compact
  def __call__(
    self, x: jax.Array, layer: jax.Array, mask: layers.Mask | None
  ) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Applies the layer.

    Args:
      x: [B, T, D].
      layer: Index of this layer, from 0, as an int32 scalar.
      mask: Key of the step and rows of the global batch; None when not
        training.

    Returns:
      [B, T, D], and the layer's intermediates where they are captured:
      attention [B, H, T, T] and tokens [B, T, D].
    """
    init = layers.INITIALIZERS[self.initializers]
    mask = layers.fold(mask, layer)
    rate = self.stochastic_depth * layer / max(self.depth - 1, 1)
    y = self._norm('norm1')(x)
    y, attention = layers.Attention(
      self.num_heads,
      self.attention_dropout_rate,
      init.kernel,
      self.dtype,
      name='attention',
    )(y, mask)
    purpose = layers.Purpose.ATTENTION_OUTPUT
    y = layers.dropout(y, self.dropout_rate, layers.fold(mask, purpose))
    x = x + self._drop_path(y, rate, mask, layers.Purpose.ATTENTION_PATH)
    y = self._norm('norm2')(x)
    y = layers.Mlp(
      self.mlp_dim,
      self.dropout_rate,
      self.gelu,
      init.kernel,
      init.mlp_bias,
      self.dtype,
      name='mlp',
    )(y, mask)
    x = x + self._drop_path(y, rate, mask, layers.Purpose.MLP_PATH)
    return x, {'attention': attention, 'tokens': x} if self.capture else {}

  def _norm(self, name: str) -> nn.LayerNorm:
    # Statistics are in float32 whatever the dtype.
    return nn.LayerNorm(self.layer_norm_epsilon, self.dtype, name=name)

  def _drop_path(
    self,
    y: jax.Array,
    rate: jax.Array,
    mask: layers.Mask | None,
    purpose: layers.Purpose,
  ) -> jax.Array:
    if not self.stochastic_depth:
      return y
    return layers.drop_path(y, rate, layers.fold(mask, purpose))


class ViT(nn.Module):
  """Vision Transformer for classification.

  Attributes:
    num_classes: Size of the head's output.
    patch_size: (height, width) in pixels.
    hidden_size: D, divisible by num_heads.
    mlp_dim: Size of the MLP's hidden layer.
    num_heads: H.
    depth: L.
    pool: 'token' reads a class token, 'gap' the mean over patch tokens.
    position_embedding: 'learned', 'sincos2d' (fixed; patches alone) or 'none'.
    dropout_rate: After the positions, after attention, after both MLP layers.
    attention_dropout_rate: On the attention weights.
    stochastic_depth: Rate of the last layer; it grows linearly from 0.
    gelu: 'tanh' or 'exact'.
    layer_norm_epsilon: Of every LayerNorm.
    initializers: A name in `layers.INITIALIZERS`.
    scan: Whether the layers are one `nn.scan`ned layer, with parameters
      stacked on a leading axis; the function is the same.
    remat: What the backward pass computes anew: 'none'; 'full', everything; or
      a name of `jax.checkpoint_policies`.
    dtype: Of the computation. Parameters, softmax, LayerNorm's statistics and
      logits are float32.
  """

  num_classes: int
  patch_size: tuple[int, int]
  hidden_size: int
  mlp_dim: int
  num_heads: int
  depth: int
  pool: str = 'token'
  position_embedding: str = 'learned'
  dropout_rate: float = 0.0
  attention_dropout_rate: float = 0.0
  stochastic_depth: float = 0.0
  gelu: str = 'tanh'
  layer_norm_epsilon: float = 1e-6
  initializers: str = 'vit'
  scan: bool = False
  remat: str = 'none'
  dtype: jax.typing.DTypeLike = jnp.float32

  @nn.compact
  def __call__(
    self,
    images: jax.Array,
    *,
    train: bool = False,
    rows: jax.Array | None = None,
  ) -> jax.Array:
    """Classifies images.

    With `mutable=['intermediates']`, `attention` [L, B, H, T, T] and `tokens`
    [L, B, T, D] (each layer's output) are returned beside the logits.

    Args:
      images: [B, height, width, C], height and width multiples of the patch.
      train: Whether to drop out; needs `rngs={'dropout': key}`.
      rows: int32 [B], the images' positions in the global batch, where this is
        a part of one; by default 0 to B - 1.

    Returns:
      Logits, float32 [B, num_classes].

    Raises:
      ValueError: The image's size is not a multiple of the patch's.
    """
    key = self.make_rng('dropout') if train else None
    if rows is None:
      rows = jnp.arange(len(images), dtype=jnp.int32)
    mask = None if key is None else (key, rows)
    x = self._embed(images)
    # The layers count from 0; the embedding is not one of them.
    before = layers.fold(
      layers.fold(mask, self.depth), layers.Purpose.EMBEDDING
    )
    x = layers.dropout(x, self.dropout_rate, before)
    x = self._encode(x, mask)
    x = self._pool(x)
    return nn.Dense(
      self.num_classes,
      kernel_init=layers.INITIALIZERS[self.initializers].head,
      name='head',
    )(x.astype(jnp.float32))

  def _embed(self, images: jax.Array) -> jax.Array:
    """Returns patch tokens, after the class token, with positions [B, T, D]."""
    init = layers.INITIALIZERS[self.initializers]
    d = self.hidden_size
    x = layers.PatchEmbedding(
      d, self.patch_size, init.patch, self.dtype, name='patch_embedding'
    )(images)
    b, h, w, _ = x.shape
    x = x.reshape(b, h * w, d)
    if self.position_embedding == 'sincos2d':
      x += layers.sincos2d((h, w), d).astype(x.dtype)
    if self.pool == 'token':
      token = self.param('class_token', init.class_token, (1, 1, d))
      token = jnp.broadcast_to(token.astype(x.dtype), (b, 1, d))
      x = jnp.concatenate([token, x], axis=1)
    if self.position_embedding == 'learned':
      shape = (1, x.shape[1], d)
      position = self.param('position_embedding', init.position, shape)
      x += position.astype(x.dtype)
    return x

  def _encode(self, x: jax.Array, mask: layers.Mask | None) -> jax.Array:
    """Applies all layers to x [B, T, D]; sows the intermediates."""
    capture = not self.is_initializing() and self.is_mutable_collection(
      'intermediates'
    )
    block = EncoderBlock
    if self.remat != 'none':
      policy = getattr(jax.checkpoint_policies, self.remat, None)
      # Inside a scan nothing can be merged across the loop's body anyway.
      block = nn.remat(block, policy=policy, prevent_cse=not self.scan)
    fields = {
      name: getattr(self, name)
      for name in EncoderBlock.__dataclass_fields__
      if name not in ('capture', 'parent', 'name')
    }
    indices = jnp.arange(self.depth, dtype=jnp.int32)
    if self.scan:
      stack = nn.scan(
        block,
        variable_axes={'params': 0},
        split_rngs={'params': True},
        in_axes=(0, nn.broadcast),
        length=self.depth,
      )
      x, captured = stack(**fields, capture=capture, name='blocks')(
        x, indices, mask
      )
    else:
      each = []
      for layer in range(self.depth):
        encoder_block = block(**fields, capture=capture, name=f'blocks_{layer}')
        x, intermediates = encoder_block(x, indices[layer], mask)
        each.append(intermediates)
      captured = jax.tree.map(lambda *layer: jnp.stack(layer), *each)
    for name, value in captured.items():
      self.sow('intermediates', name, value, reduce_fn=lambda _, new: new)
    return x

  def _pool(self, x: jax.Array) -> jax.Array:
    """Returns one normalised vector per image, [B, D]."""
    norm = nn.LayerNorm(self.layer_norm_epsilon, self.dtype, name='norm')
    if self.pool == 'gap':
      return norm(x).mean(axis=1)
    return norm(x[:, 0])  # before the norm: only this token is read

  def flops(self, image_shape: tuple[int, int, int]) -> int:
    """Returns the matrix products' work in a forward pass of one image.

    Args:
      image_shape: (height, width, C).

    Returns:
      Floating-point operations, 2 per multiply-add. Training takes three times
      as many.
    """
    height, width, c = image_shape
    p, q = self.patch_size
    n, d = (height // p) * (width // q), self.hidden_size
    t = n + (self.pool == 'token')
    layer = 4 * t * d * d + 2 * t * t * d + 2 * t * d * self.mlp_dim
    total = n * p * q * c * d + self.depth * layer + d * self.num_classes
    return 2 * total


def stack_layers(params: Mapping[str, Any]) -> dict[str, Any]:
  """Returns an unrolled model's parameters as its scanned twin has them.

  `blocks_0`, `blocks_1`, ... become `blocks`, with a leading axis of depth.
  """
  names = [name for name in params if name.startswith('blocks_')]
  names.sort(key=lambda name: int(name.removeprefix('blocks_')))
  stacked = {k: v for k, v in params.items() if k not in names}
  blocks = [params[name] for name in names]
  stacked['blocks'] = jax.tree.map(lambda *x: jnp.stack(x), *blocks)
  return stacked


def unstack_layers(params: Mapping[str, Any]) -> dict[str, Any]:
  """The inverse of `stack_layers`."""
  unrolled = {k: v for k, v in params.items() if k != 'blocks'}
  for i in range(len(jax.tree.leaves(params['blocks'])[0])):
    unrolled[f'blocks_{i}'] = jax.tree.map(
      lambda x, i=i: x[i], params['blocks']
    )
  return unrolled
