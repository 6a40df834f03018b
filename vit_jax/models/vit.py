"""The Vision Transformer (Dosovitskiy et al., 2020, arXiv:2010.11929).

In comments: B images, T tokens, D hidden size, H heads, L layers, P tokens
before the patches.
"""

import dataclasses
from typing import Annotated
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.models import dropout
from vit_jax.models import embedding
from vit_jax.models import encoder
from vit_jax.models import experts
from vit_jax.models import fields
from vit_jax.models import heads
from vit_jax.models import inputs
from vit_jax.models import merging
from vit_jax.models import positions
from vit_jax.models import projection
from vit_jax.models import resnet
from vit_jax.models import rotary
from vit_jax.models import spec as spec_lib
from vit_jax.models import stack
from vit_jax.models.fields import Field
from vit_jax.models.fields import FITTED
from vit_jax.models.fields import Kind

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

LEARNED = ('learned', 'factorized')
POSITION_EMBEDDINGS = (*LEARNED, *embedding.SINCOS, 'none')
HEAD_NORMS = ('none', 'batch')
POSITION_TOKENS = ('all', 'class', 'patches')


class Trunk(nn.Module, spec_lib.EncoderSpec, heads.PoolSpec):
  """A Vision Transformer without a head: images to tokens and features.

  The order of tokens is: class token, distillation token, registers, patches.
  All but the patches are optional.

  Attributes, beside those of `spec.LayerSpec`, `spec.EncoderSpec` and
  `heads.PoolSpec`:
    patch_size: (height, width), in pixels of the image, or in cells of the
      ResNet's output grid; or (depth, height, width), for volumes.
    class_token: Whether there is one; None: only if the pool reads it.
    distillation_token: Whether there is one, with a separate head; the logits
      of both heads are averaged (DeiT, arXiv:2012.12877, section 4).
    distillation_head: False: the distillation token has no head, and its output
      is not used.
    registers: Number of register tokens (arXiv:2309.16588).
    mask_token: Whether there is a learned token for masked patches.
    position_embedding: 'learned'; or, of patches alone, 'factorized', sums of
      learned ones of row and column (NaViT, arXiv:2307.06304), or fixed ones,
      'sincos2d' (as big_vision), 'sincos2d_mae' or 'sincos2d_moco'; or 'none'.
    position_tokens: Tokens with a learned position: 'all'; 'class', the class
      token and patches; or 'patches'.
    position_resize: How learned positions are resized to images of their own
      grids, one of `embedding.RESIZES`.
    position_aspect: Whether they are resized to a square around a grid.
    position_grid: Grid (h, w) of the learned positions; None: a square, or for
      factorised ones that of the first image.
    rotary_base: Base of the frequencies of `rotary`; DINOv3's is 100, EVA-02's
      10,000.
    rotary_grid: Grid (h, w) of patches to which `rotary` scales their indices;
      None: it does not scale them.
    rotary_offset: Added to the indices before that (Perception Encoder,
      arXiv:2504.13181, its code).
    patch_bias: Whether the patch embedding has a bias.
    crop_to_patches: Whether images lose the rows and columns behind their last
      whole patch, as in a convolution without padding; otherwise a patch must
      divide them.
    patch_norm: Whether a norm follows it, before positions are added (AIMv2,
      arXiv:2411.14402, its code).
    pre_norm: Whether a LayerNorm precedes the layers (CLIP, arXiv:2103.00020,
      section 2.4).
    patch_dropout: Share of the patches that training leaves out at random
      (arXiv:2208.07220); the rest is not scaled.
    merge: r of token merging (`merging`): how many tokens an average layer
      merges into others; 0: none.
    merge_decreasing: Whether the first layers merge more than the last.
    merge_proportional: Whether attention counts a merged token as often as it
      stands for patches.
    resnet_stages: Units in each stage of a ResNet before the patch embedding,
      () for only its stem; None: no ResNet.
    resnet_width: Channels of that stem.
  """

  _: dataclasses.KW_ONLY
  patch_size: Annotated[tuple[int, ...], FITTED]
  class_token: Annotated[bool | None, FITTED] = None
  distillation_token: Annotated[bool, FITTED] = False
  distillation_head: Annotated[bool, Field(Kind.FITTED, is_visible=False)] = (
    True
  )
  registers: Annotated[int, Field(Kind.FITTED, least=0, most=2**16)] = 0
  mask_token: Annotated[bool, FITTED] = False
  position_embedding: Annotated[
    str, Field(Kind.FITTED, choices=POSITION_EMBEDDINGS)
  ] = 'learned'
  position_tokens: Annotated[
    str, Field(Kind.FITTED, choices=POSITION_TOKENS)
  ] = 'all'
  position_resize: Annotated[
    str, Field(Kind.FUNCTION, is_visible=False, choices=embedding.RESIZES)
  ] = 'linear'
  position_aspect: Annotated[bool, Field(Kind.FUNCTION, is_visible=False)] = (
    False
  )
  position_grid: Annotated[
    tuple[int, ...] | None, Field(Kind.FITTED, is_visible=False, least=1)
  ] = None
  rotary_base: Annotated[
    float, Field(Kind.FUNCTION, is_visible=False, interval='(0, inf)')
  ] = 100.0
  rotary_grid: Annotated[
    tuple[int, ...] | None, Field(Kind.FUNCTION, is_visible=False, least=1)
  ] = None
  rotary_offset: Annotated[
    float, Field(Kind.FUNCTION, is_visible=False, interval='[0, inf)')
  ] = 0.0
  patch_bias: Annotated[bool, fields.FUNCTION] = True
  crop_to_patches: Annotated[bool, Field(Kind.FUNCTION, is_visible=False)] = (
    False
  )
  patch_norm: Annotated[bool, fields.FUNCTION] = False
  pre_norm: Annotated[bool, fields.FUNCTION] = False
  patch_dropout: Annotated[float, fields.RATE] = 0.0
  merge: Annotated[int, Field(Kind.TRAINING, least=0)] = 0
  merge_decreasing: Annotated[bool, fields.TRAINING] = False
  merge_proportional: Annotated[bool, fields.TRAINING] = True
  resnet_stages: Annotated[tuple[int, ...] | None, fields.STAGES] = None
  resnet_width: Annotated[int, fields.SIZE] = 64

  @nn.compact
  def trunk(
    self,
    images: jax.Array,
    *,
    train: bool = False,
    rows: jax.Array | None = None,
    features_only: bool = False,
    masked: jax.Array | None = None,
    kept: jax.Array | None = None,
    grids: jax.Array | None = None,
  ) -> dict[str, jax.Array]:
    """Returns tokens and features.

    With `mutable=['intermediates']`, Linen also returns `attention`
    [L, B, H, T, T] and `tokens` [L, B, T, D], each layer's output. With
    `mutable=['levels']` it returns these tokens alone.

    If there is also a variable `attention` [L, B, H, T, T] in the collection
    `perturbations`, it is added to the attention weights. Its gradient is then
    the gradient of the attention weights.

    Args:
      images: [B, height, width, C], height and width multiples of the patch
        unless `crop_to_patches`; or volumes [B, depth, height, width, C] with a
        patch of three numbers.
      train: Whether to apply dropout; needs `rngs={'dropout': key}`.
      rows: int32 [B], the images' positions in the global batch, if this is a
        part of one; by default 0 to B - 1.
      features_only: Whether the last layer may skip tokens that the features do
        not depend on; `tokens` then lacks them.
      masked: bool [B, N], patches that the mask token replaces (BEiT); their
        positions are kept.
      kept: int32 [B, K], the patches that the layers see, in this order (MAE);
        None: all. `tokens` then has only these patches.
      grids: int32 [B, 2], rows and columns of patches, if `images` are patches
        of images of different shapes, [B, N, p * q * C], each with padding
        behind (NaFlex). Padding changes no other token and no feature. Or
        [B, S, 2], S images in a sequence, one behind the other (NaViT), (0, 0)
        for missing ones: `features` are then [B, S, D].

    Returns:
      `tokens` [B, T, D] after the last LayerNorm (before it with
      `norm_after_pool`), in the dtype of the computation; patches come last,
      row by row. `features`, float32 [B, D]; [B, 2 D] with 'token+gap', and
      [B, 2, D] if a distillation token has its own head. With `merge`, also
      `sizes` [B, T], how many patches each token stands for, and `places`, the
      token that has each of the N first ones, int32 [B, N].

    Raises:
      ValueError: The image's size is not a multiple of the patch's, or the
        model cannot mask patches or leave some out.
    """
    # Not len(images), since the batch size may be symbolic.
    key = dropout.key_of(self, images.shape[0], train, rows)
    own = dropout.fold(key, self.depth)  # as for the dropout of embeddings
    x, context = self._embed(images, masked, kept, grids, own)
    if self.pre_norm:
      x = self.layer_norm('norm_before')(x)
    x = dropout.embedded(x, self, key)
    # The last layer needs no queries and no MLP for tokens that the pool does
    # not read, since no further layer attends to them.
    reads, is_routed = {}, self.depth - 1 in experts.layers(self)
    if features_only and self.pool == 'token' and not is_routed:
      reads = {'num_read': 1 + self.has_two_heads}
    x, each = self._mergeable(x, context)
    inputs = x, key, reads, context, experts.fields(self, each)
    x = stack.apply_blocks(self, encoder.EncoderBlock, self.layer_spec, *inputs)
    if isinstance(x, merging.Merged):
      return heads.read(self, x.tokens, x.sizes) | x.counts
    return heads.read(self, x[:, : reads.get('num_read')], context.attended)

  @property
  def layer_spec(self) -> spec_lib.EncoderSpec:
    """The fields that the layers are given."""
    return spec_lib.EncoderSpec.take(self)

  @property
  def prefix(self) -> tuple[str, ...]:
    """Names of the parameters of the tokens before the patches, in order."""
    class_token = self.class_token
    if class_token is None:
      class_token = 'token' in self.pool
    present = {
      'class_token': class_token,
      'distillation_token': self.distillation_token,
      'register_tokens': self.registers,
    }
    return tuple(name for name, is_there in present.items() if is_there)

  @property
  def prefix_length(self) -> int:
    """Number of tokens before the patches, P."""
    return len(self.prefix) + max(self.registers - 1, 0)

  @property
  def positioned_prefix(self) -> int:
    """Number of tokens before the patches that have a learned position."""
    has_class = int('class_token' in self.prefix)
    if self.position_embedding == 'factorized':
      return 0
    return {'all': self.prefix_length, 'class': has_class, 'patches': 0}[
      self.position_tokens
    ]

  @property
  def has_two_heads(self) -> bool:
    """Whether the distillation token has a head of its own."""
    return self.distillation_token and self.distillation_head

  def rotation(self, grid: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Returns cosines and sines of a grid's patches, float32 [N, K] each."""
    return rotary.table(
      self.rotary,
      grid,
      self.hidden_size // self.num_heads,
      self.rotary_base,
      self.rotary_grid,
      self.rotary_offset,
    )

  def _embed(
    self,
    images: jax.Array,
    masked: jax.Array | None,
    kept: jax.Array | None,
    grids: jax.Array | None,
    key: dropout.DropoutKey | None,
  ) -> tuple[jax.Array, spec_lib.Context]:
    """Returns tokens with their positions, [B, T, D], and the context."""
    d, starts = self.hidden_size, self.starts
    if grids is None:
      is_plain = self.resnet_stages is None
      first = ('patch_embedding',) if is_plain else ('stem', 'conv')
      inputs.check_images(self, images, (*first, 'kernel'), self.patch_size)
    x = images
    if self.resnet_stages is not None:
      x = resnet.ResNetStem(
        self.resnet_stages, self.resnet_width, self.dtype, name='stem'
      )(x)
    # Equation 1 of the paper: project patches, prepend tokens, add position
    # embeddings.
    x = embedding.PatchEmbedding(
      d,
      self.patch_size,
      starts.patch,
      self.dtype,
      self.patch_bias,
      self.crop_to_patches,
      name='patch_embedding',
    )(x)
    if self.patch_norm:
      x = self.layer_norm('patch_norm')(x)
    b, *grid = x.shape[:-1]
    x = self._mask(jax.lax.collapse(x, 1, x.ndim - 1), masked)
    prefix = self._prefix_tokens()
    if self.position_embedding in embedding.SINCOS:
      table = embedding.sincos2d(
        embedding.pair(grid), d, self.position_embedding
      )
      x += table.astype(x.dtype)
    if self.position_embedding in LEARNED:
      p = self.positioned_prefix
      if grids is None:
        inputs.check_tokens(
          self,
          images.shape[1:-1],
          self.patch_size if self.resnet_stages is None else (),
          p + x.shape[1],
          ('position_embedding',),
          axis=1,
          others=p,
        )
      position = positions.learned(self, tuple(grid), grids).astype(x.dtype)
      x += position[:, p:]
      others = (0, prefix.shape[1] - p)
      prefix += jnp.pad(position[:, :p], ((0, 0), others, (0, 0)))
    if kept is None and self.patch_dropout:
      kept = dropout.kept_patches(key, x.shape[1], self.patch_dropout)
    if kept is not None:
      x = jnp.take_along_axis(x, kept[..., None], axis=1)
    prefix = jnp.broadcast_to(prefix, (b, *prefix.shape[1:]))
    context = positions.context(self, tuple(grid), kept, grids)
    return jnp.concatenate([prefix, x], axis=1), context

  def _mask(self, x: jax.Array, masked: jax.Array | None) -> jax.Array:
    """Replaces masked patches of [B, N, D] by the mask token."""
    if not self.mask_token:
      if masked is not None:
        raise ValueError('patches are masked, but mask_token is False')
      return x
    shape = (1, 1, self.hidden_size)
    token = self.param('mask_token', self.starts.position, shape)
    if masked is None:
      return x
    return jnp.where(masked[..., None], token.astype(x.dtype), x)

  def _prefix_tokens(self) -> jax.Array:
    """Returns the tokens before the patches, [1, P, D]."""
    d, starts = self.hidden_size, self.starts
    tokens = [jnp.zeros((1, 0, d), self.dtype)]
    for name in self.prefix:
      count = self.registers if name == 'register_tokens' else 1
      is_class = name == 'class_token'
      # The class token may start at zero. Registers may not: without position
      # embeddings, tokens that start equal would stay equal.
      token_init = starts.class_token if is_class else starts.position
      token = self.param(name, token_init, (1, count, d))
      tokens.append(token.astype(self.dtype))
    return jnp.concatenate(tokens, axis=1)

  def _mergeable(
    self, x: jax.Array, context: spec_lib.Context
  ) -> tuple[Any, list[dict[str, int]]]:
    """Returns what the layers are given, and fields of each layer.

    Raises:
      ValueError: Merged tokens are captured, or some tokens are padding.
    """
    if not self.merge or self.is_initializing():
      return x, []
    if any(map(self.is_mutable_collection, ('intermediates', stack.LEVELS))):
      raise ValueError(
        'layers that merge tokens have different numbers of them: set merge=0'
        ' to capture their intermediates'
      )
    if context.attended is not None:
      raise ValueError('padding cannot be merged: set merge=0')
    counts = merging.schedule(self.depth, self.merge, self.merge_decreasing)
    each = [{'merges': n, 'protected': self.prefix_length} for n in counts]
    return merging.Merged.start(x, self.merge_proportional), each


class ViT(Trunk):
  """A Vision Transformer for classification: a trunk and its heads.

  Attributes, beside those of the trunk:
    num_classes: Size of the head's output; 0: no head, and the model returns
      what the head would get.
    pre_logits: Size of a dense layer with tanh before the head; 0: none.
    head_norm: 'batch': a BatchNorm without affine parameters before the head,
      as in the linear probes of MAE (arXiv:2111.06377, appendix A.1); 'none'.
    head_bias: Initial value of the head's bias: with a sigmoid loss, the
      logarithm of a class's frequency.
  """

  num_classes: Annotated[int, heads.NUM_CLASSES]
  _: dataclasses.KW_ONLY
  pre_logits: Annotated[int, Field(Kind.FITTED, least=0)] = 0
  head_norm: Annotated[str, Field(Kind.FITTED, choices=HEAD_NORMS)] = 'none'
  head_bias: Annotated[float, fields.TRAINING] = 0.0

  def setup(self) -> None:
    """Makes the heads; their parameters are in the same dict as the trunk's."""
    starts = self.starts
    if self.pre_logits:
      self.before_head = nn.Dense(
        self.pre_logits, kernel_init=starts.kernel, name='pre_logits'
      )
    if self.num_classes and self.head_norm == 'batch':
      self.batch_norm = projection.StoredBatchNorm(
        affine=False, epsilon=1e-6, name='head_norm'
      )
    if self.num_classes:
      head = (self.num_classes, starts.head, self.head_bias)
      self.head = heads.linear(*head)
      if self.has_two_heads:
        self.head_distillation = heads.linear(*head)

  def __call__(
    self,
    images: jax.Array,
    *,
    train: bool = False,
    rows: jax.Array | None = None,
    merge_heads: bool = True,
    grids: jax.Array | None = None,
  ) -> jax.Array:
    """Classifies images; captures and perturbs attention as `trunk` does.

    Args:
      images: As of `trunk`.
      train: As of `trunk`.
      rows: As of `trunk`.
      merge_heads: Whether the logits of two heads are averaged.
      grids: As of `trunk`.

    Returns:
      Logits, float32 [B, num_classes]; without `merge_heads` the logits of two
      heads are [B, 2, num_classes], the class token's first.

    Raises:
      ValueError: The image's size is not a multiple of the patch's.
    """
    seen = self.trunk(
      images, train=train, rows=rows, features_only=True, grids=grids
    )
    x = self._classify(seen['features'], train)
    return x.mean(axis=1) if self.has_two_heads and merge_heads else x

  def _classify(self, x: jax.Array, train: bool) -> jax.Array:
    """Returns the logits of all heads, or the features if there is no head."""
    if self.pre_logits:
      x = nn.tanh(self.before_head(x))
    if not self.num_classes:
      return x
    if self.head_norm == 'batch':
      x = self.batch_norm(x, train=train)
    if not self.has_two_heads:
      return self.head(x)
    both = self.head(x[:, 0]), self.head_distillation(x[:, 1])
    return jnp.stack(both, axis=1)
