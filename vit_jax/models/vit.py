"""The Vision Transformer (Dosovitskiy et al., 2020, arXiv:2010.11929).

A model of parts: patches, positions, blocks of attention and MLPs, a norm and a
pool are modules of their own, which may be replaced.

In comments: B images, T tokens, D hidden size, H heads, L layers, P tokens
before the patches.
"""

from typing import Annotated
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp

from vit_jax.models import context as context_lib
from vit_jax.models import dropout
from vit_jax.models import fields
from vit_jax.models import initializers as initializers_lib
from vit_jax.models import packing
from vit_jax.models import projection
from vit_jax.models import stack
from vit_jax.models.block import LayerNorm
from vit_jax.models.block import scoped
from vit_jax.models.fields import Field
from vit_jax.models.fields import FITTED
from vit_jax.models.fields import Kind
from vit_jax.models.fields import PART

HEAD_NORMS = ('none', 'batch')
NUM_CLASSES = Field(Kind.FITTED, least=0, most=2**28)


class ViT(nn.Module):
  """A Vision Transformer for classification.

  The order of tokens is: class token, distillation token, registers, patches.
  All but the patches are optional.

  Attributes:
    num_classes: Size of the head's output; 0: no head, and the model returns
      what the head would get.
    hidden_size: D, the width of a token.
    depth: L, the number of layers.
    patches: Maps images to patches [B, h, w, D].
    positions: Map tokens and a context to both, one after the other.
    block: A layer.
    pool: Maps tokens to features.
    norm: Follows the last layer.
    last_norm: Whether it does.
    pre_norm: Whether such a norm precedes the layers (CLIP, arXiv:2103.00020,
      section 2.4).
    class_token: Whether there is one; None: only if the pool reads it.
    distillation_token: Whether there is one, with a separate head; the logits
      of both heads are averaged (DeiT, arXiv:2012.12877, section 4).
    distillation_head: False: the distillation token has no head, and its output
      is not used.
    registers: Number of register tokens (arXiv:2309.16588).
    mask_token: Whether there is a learned token for masked patches.
    dropout_rate: Dropout rate after positions are added.
    patch_dropout: Share of the patches that training leaves out at random
      (arXiv:2208.07220); the rest is not scaled.
    pre_logits: Size of a dense layer with tanh before the head; 0: none.
    head_norm: 'batch': a BatchNorm without affine parameters before the head,
      as in the linear probes of MAE (arXiv:2111.06377, appendix A.1); 'none'.
    head_bias: Initial value of the head's bias: with a sigmoid loss, the
      logarithm of a class's frequency.
    initializers: Initial values of parameters, a name in
      `initializers.INITIALIZERS`.
    scan: Whether one layer is compiled and run L times by `nn.scan`, with
      parameters stacked on a leading axis; the function is the same.
    remat: Values that the backward pass recomputes: 'none'; 'activations',
      those within the MLP's activation function, and its dropout; 'products',
      all but the results of dense layers and of attention; 'full', all of them;
      or a name of `jax.checkpoint_policies`. 'auto' is one of these by the
      platform, see `stack.remat_on`.
    dtype: Type in which layers compute. Parameters, the statistics of norms,
      the softmax of attention and logits are float32.
  """

  num_classes: Annotated[int, NUM_CLASSES]
  hidden_size: Annotated[int, fields.SIZE]
  depth: Annotated[int, Field(Kind.SIZE, least=1, most=1_000)]
  patches: Annotated[nn.Module, PART]
  block: Annotated[nn.Module, PART]
  pool: Annotated[nn.Module, PART]
  positions: Annotated[tuple[nn.Module, ...], PART] = ()
  norm: Annotated[nn.Module, PART] = LayerNorm()
  last_norm: Annotated[bool, fields.FUNCTION] = True
  pre_norm: Annotated[bool, fields.FUNCTION] = False
  class_token: Annotated[bool | None, FITTED] = None
  distillation_token: Annotated[bool, FITTED] = False
  distillation_head: Annotated[bool, Field(Kind.FITTED, is_visible=False)] = (
    True
  )
  registers: Annotated[int, Field(Kind.FITTED, least=0, most=2**16)] = 0
  mask_token: Annotated[bool, FITTED] = False
  dropout_rate: Annotated[float, fields.RATE] = 0.0
  patch_dropout: Annotated[float, fields.RATE] = 0.0
  pre_logits: Annotated[int, Field(Kind.FITTED, least=0)] = 0
  head_norm: Annotated[str, Field(Kind.FITTED, choices=HEAD_NORMS)] = 'none'
  head_bias: Annotated[float, fields.TRAINING] = 0.0
  initializers: Annotated[str, initializers_lib.FIELD] = 'vit'
  scan: Annotated[bool, fields.EXECUTION] = False
  remat: Annotated[str, Field(Kind.EXECUTION, choices=stack.REMAT_POLICIES)] = (
    'auto'
  )
  dtype: Annotated[jax.typing.DTypeLike, fields.EXECUTION] = jnp.float32

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
    logits = self._forward(
      images,
      train=train,
      rows=rows,
      features_only=True,
      grids=grids,
      classifies=True,
    )['logits']
    return logits.mean(axis=1) if self.has_two_heads and merge_heads else logits

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
        unless patches are cropped; or volumes [B, depth, height, width, C] with
        a patch of three numbers.
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
      `tokens` [B, T, D] after the last norm (before it where the pool is), in
      the dtype of the computation; patches come last, row by row. `features`,
      float32 [B, D], or as the pool returns them; [B, 2, D] if a distillation
      token has its own head. What the blocks return beside their tokens, as the
      `sizes` and `places` of merged tokens (see `merging`).

    Raises:
      ValueError: The image's size is not a multiple of the patch's, or the
        model cannot mask patches or leave some out.
    """
    return self._forward(
      images,
      train=train,
      rows=rows,
      features_only=features_only,
      masked=masked,
      kept=kept,
      grids=grids,
    )

  @nn.compact
  def _forward(
    self,
    images: jax.Array,
    *,
    train: bool,
    rows: jax.Array | None,
    features_only: bool,
    masked: jax.Array | None = None,
    kept: jax.Array | None = None,
    grids: jax.Array | None = None,
    classifies: bool = False,
  ) -> dict[str, jax.Array]:
    """Returns what `trunk` does, and `logits` if it classifies."""
    # Not len(images), since the batch size may be symbolic.
    key = dropout.key_of(self, images.shape[0], train, rows)
    context = context_lib.Context(
      dropout_key=key,
      depth=self.depth,
      prefix=self.prefix_length,
      class_token='class_token' in self.prefix,
      image_size=images.shape[1:-1] if grids is None else (),
      patch_size=self.patches.pixels,
      kept=kept,
      grids=grids,
    )
    x, context = self._embed(images, masked, context)
    if self.pre_norm:
      x = self.norm.copy(name='norm_before')(x)
    x = dropout.embedded(x, self.dropout_rate, self.depth, key)
    # The last layer needs no queries and no MLP for tokens that the pool does
    # not read, since no further layer attends to them.
    num_read = getattr(self.pool, 'num_read', None) if features_only else None
    if num_read is not None:
      num_read += self.has_two_heads
    x, outputs = stack.apply(
      self,
      self.block,
      x,
      context,
      depth=self.depth,
      scan=self.scan,
      remat=self.remat,
      num_read=num_read,
    )
    if 'balance' in outputs:
      self.sow(
        'losses',
        'balance',
        outputs.pop('balance'),
        reduce_fn=_newest,
      )
    sizes = outputs.get('sizes')
    if sizes is not None:
      context = context.replace(sizes=sizes[-1])
    tokens, features = self._pooled(x, context)
    features = features.astype(jnp.float32)
    result = {'tokens': tokens, 'features': features}
    if classifies:
      result['logits'] = self._classify(features, train)
    return result | {name: values[-1] for name, values in outputs.items()}

  def _classify(self, x: jax.Array, train: bool) -> jax.Array:
    """Returns the logits of all heads, or the features if there is no head."""
    starts = initializers_lib.INITIALIZERS[self.initializers]
    if self.pre_logits:
      layer = nn.Dense(
        self.pre_logits, kernel_init=starts.kernel, name='pre_logits'
      )
      x = nn.tanh(layer(x))
    if not self.num_classes:
      return x
    if self.head_norm == 'batch':
      norm = projection.StoredBatchNorm(
        affine=False, epsilon=1e-6, name='head_norm'
      )
      x = norm(x, train=train)
    head = linear(self.num_classes, starts.head, self.head_bias, name='head')
    if not self.has_two_heads:
      return head(x)
    second = linear(
      self.num_classes, starts.head, self.head_bias, name='head_distillation'
    )
    return jnp.stack([head(x[:, 0]), second(x[:, 1])], axis=1)

  @property
  def prefix(self) -> tuple[str, ...]:
    """Names of the parameters of the tokens before the patches, in order."""
    class_token = self.class_token
    if class_token is None:
      class_token = getattr(self.pool, 'reads_class_token', False)
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
  def has_two_heads(self) -> bool:
    """Whether the distillation token has a head of its own."""
    return self.distillation_token and self.distillation_head

  def _embed(
    self,
    images: jax.Array,
    masked: jax.Array | None,
    context: context_lib.Context,
  ) -> tuple[jax.Array, context_lib.Context]:
    """Returns tokens with their positions, [B, T, D], and the context.

    Equation 1 of the paper: project patches, prepend tokens, add position
    embeddings.
    """
    patches = scoped(self.patches)
    if patches is self.patches:
      nn.share_scope(self, patches)
    x = patches(images)
    b, *grid = x.shape[:-1]
    x = self._mask(jax.lax.collapse(x, 1, x.ndim - 1), masked)
    prefix = self._prefix_tokens()
    prefix = jnp.broadcast_to(prefix, (b, *prefix.shape[1:]))
    kept = context.kept
    if kept is None and self.patch_dropout and context.dropout_key is not None:
      key = context.dropout_key.fold(self.depth)  # as for dropout of embeddings
      kept = dropout.kept_patches(key, x.shape[1], self.patch_dropout)
    if context.grids is not None:
      context = packing.context(self, context, x.shape[1])
    context = context.replace(kept=kept, grid=tuple(grid))
    x = jnp.concatenate([prefix, x], axis=1)
    for part in self.positions:
      nn.share_scope(self, part)
      x, context = part(x, context)
    if kept is not None:
      p = context.prefix
      patches = jnp.take_along_axis(x[:, p:], kept[..., None], axis=1)
      x = jnp.concatenate([x[:, :p], patches], axis=1)
    return x, context

  def _mask(self, x: jax.Array, masked: jax.Array | None) -> jax.Array:
    """Replaces masked patches of [B, N, D] by the mask token."""
    if not self.mask_token:
      if masked is not None:
        raise ValueError('patches are masked, but mask_token is False')
      return x
    shape = (1, 1, self.hidden_size)
    starts = initializers_lib.INITIALIZERS[self.initializers]
    token = self.param('mask_token', starts.position, shape)
    if masked is None:
      return x
    return jnp.where(masked[..., None], token.astype(x.dtype), x)

  def _prefix_tokens(self) -> jax.Array:
    """Returns the tokens before the patches, [1, P, D]."""
    starts = initializers_lib.INITIALIZERS[self.initializers]
    tokens = [jnp.zeros((1, 0, self.hidden_size), self.dtype)]
    for name in self.prefix:
      count = self.registers if name == 'register_tokens' else 1
      # The class token may start at zero. Registers may not: without position
      # embeddings, tokens that start equal would stay equal.
      is_class = name == 'class_token'
      token_init = starts.class_token if is_class else starts.position
      token = self.param(name, token_init, (1, count, self.hidden_size))
      tokens.append(token.astype(self.dtype))
    return jnp.concatenate(tokens, axis=1)

  def _pooled(
    self, x: jax.Array, context: context_lib.Context
  ) -> tuple[jax.Array, jax.Array]:
    """Returns tokens after the last norm, and features; see `trunk`."""
    # Pre-LN layers do not normalise the residual stream, so a last norm follows
    # (equation 4 of the paper).
    norm = self.norm if self.last_norm else lambda x: x
    if getattr(self.pool, 'norm_after', False):
      return x, norm(scoped(self.pool)(x, context))
    x = norm(x)
    if self.has_two_heads:
      return x, x[:, :2]
    features = scoped(self.pool)(x, context)
    is_packed = context.grids is not None and context.grids.ndim == 3
    if features.ndim != 2 + is_packed:
      axes = '[B, S, D]' if is_packed else '[B, D]'
      raise ValueError(
        f'{type(self.pool).__name__} returns features of the shape'
        f' {list(features.shape)}: they must be {axes}'
      )
    return x, features


def _newest(_: Any, new: jax.Array) -> jax.Array:
  return new


def linear(
  num_classes: int,
  kernel_init: initializers_lib.Initializer,
  bias: float,
  name: str | None = None,
) -> nn.Dense:
  """Returns the last layer, [..., D] -> [..., num_classes]."""
  return nn.Dense(
    num_classes,
    kernel_init=kernel_init,
    bias_init=nn.initializers.constant(bias),
    name=name,
  )
