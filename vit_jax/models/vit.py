"""The Vision Transformer (Dosovitskiy et al., 2020, arXiv:2010.11929).

A model of parts: patches, positions, blocks of attention and MLPs, a norm, a
pool and a head are modules of their own, which may be replaced. `stack` applies
the blocks, and `registry` builds the parts that a config names. Code that a
plain ViT does not need is imported where it is used, by `registry.wing`.

In comments: B images, T tokens, D hidden size, H heads, L layers, P tokens
before the patches.
"""

import functools
from typing import Annotated
from typing import Any
from typing import ClassVar

from flax import linen as nn
import jax
import jax.numpy as jnp

from vit_jax.config import registry
from vit_jax.models import dropout
from vit_jax.models import fields
from vit_jax.models import initializers as initializers_lib
from vit_jax.models import stack
from vit_jax.models.block import LayerNorm
from vit_jax.models.block import scoped
from vit_jax.models.context import Context

HEAD_NORMS = ('none', 'batch')
NUM_CLASSES = fields.fitted(least=0, most=2**28)


class ViT(nn.Module):
  """A Vision Transformer for classification.

  The order of tokens is: class token, distillation token, registers, patches.
  All but the patches are optional.

  Attributes:
    num_classes: Size of the head's output, in place of the head's own number;
      0: there is none.
    hidden_size: D, the width of a token.
    depth: L, the number of layers.
    patches: Maps images to patches [B, h, w, D].
    positions: Map tokens and a context to both, one after the other.
    block: A layer.
    pool: Maps tokens and a context to features.
    head: Maps features and a context to logits.
    norm: Follows the last layer.
    last_norm: Whether it does.
    pre_norm: Whether such a norm precedes the layers (CLIP, arXiv:2103.00020,
      section 2.4).
    class_token: Whether there is one; None: only if the pool reads it.
    distillation_token: Whether there is one, with a separate head; the logits
      of both heads are averaged (DeiT, arXiv:2012.12877, section 4).
    registers: Number of register tokens (arXiv:2309.16588).
    mask_token: Whether there is a learned token for masked patches.
    dropout_rate: Dropout rate after positions are added.
    patch_dropout: Share of the patches that training leaves out at random
      (arXiv:2208.07220); the rest is not scaled.
    initializers: Initial values, a name in `initializers.INITIALIZERS`.
    scan: Whether one layer is compiled and run L times by `nn.scan`, with
      parameters stacked on a leading axis; the function is the same.
    remat: Values that the backward pass recomputes, one of `stack.POLICIES`.
    dtype: Type in which layers compute. Parameters, the statistics of norms,
      the softmax of attention and logits are float32.
  """

  num_classes: Annotated[int, NUM_CLASSES]
  hidden_size: Annotated[int, fields.SIZE]
  depth: Annotated[int, fields.DEPTH]
  patches: Annotated[nn.Module, fields.PART]
  block: Annotated[nn.Module, fields.PART]
  pool: Annotated[nn.Module, fields.PART]
  head: Annotated[nn.Module, fields.PART]
  positions: Annotated[tuple[nn.Module, ...], fields.PART] = ()
  norm: Annotated[nn.Module, fields.PART] = LayerNorm()
  last_norm: Annotated[bool, fields.FUNCTION] = True
  pre_norm: Annotated[bool, fields.FUNCTION] = False
  class_token: Annotated[bool | None, fields.FITTED] = None
  distillation_token: Annotated[bool, fields.FITTED] = False
  registers: Annotated[int, fields.fitted(least=0, most=2**16)] = 0
  mask_token: Annotated[bool, fields.FITTED] = False
  dropout_rate: Annotated[float, fields.RATE] = 0.0
  patch_dropout: Annotated[float, fields.RATE] = 0.0
  initializers: Annotated[str, initializers_lib.FIELD] = 'vit'
  scan: Annotated[bool, fields.EXECUTION] = False
  remat: Annotated[str, stack.REMAT] = 'auto'
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
    """Returns logits, float32 [B, num_classes], of the arguments of `trunk`.

    Without `merge_heads`, the logits of two heads are [B, 2, num_classes], the
    class token's first.
    """
    # The head's parameters are at 'head/kernel', with `Linear`'s others beside
    # it. `_encode` is compact, after which Linen has another scope here.
    scope: Any = self.scope
    result, context = self._encode(images, train, rows, grids=grids)
    head = self.sized_head.clone(parent=scope.push('head', reuse=True))
    logits: jax.Array = head(result['features'], context)
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

    `tokens` [B, T, D] are after the last norm (before it where the pool is), in
    the dtype of the computation; patches come last, row by row. `features` are
    float32 [B, D], or as the pool returns them; [B, 2, D] if a distillation
    token has its own head. What blocks return beside tokens is there, too, as
    the `sizes` and `places` of merged tokens (see `merging`). With
    `mutable=['intermediates']`, Linen also returns `attention` [L, B, H, T, T]
    and `tokens` [L, B, T, D], each layer's output; see `stack.apply`.

    Args:
      images: [B, height, width, C], height and width multiples of the patch
        unless patches are cropped; volumes [B, depth, height, width, C].
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
        of images of different shapes, [B, N, p * q * C], with padding behind
        that changes no other token (NaFlex). Or [B, S, 2], S images in a
        sequence, one behind the other (NaViT), (0, 0) for missing ones:
        `features` are then [B, S, D].
    """
    options = grids, masked, kept, features_only
    return self._encode(images, train, rows, *options)[0]

  @nn.compact
  def _encode(
    self,
    images: jax.Array,
    train: bool,
    rows: jax.Array | None,
    grids: jax.Array | None,
    masked: jax.Array | None = None,
    kept: jax.Array | None = None,
    features_only: bool = True,
  ) -> tuple[dict[str, jax.Array], Context]:
    """Returns what `trunk` does, and the context after the layers."""
    context = Context(
      dropout_key=dropout.make_key(self, images, rows) if train else None,
      depth=self.depth,
      prefix=self.prefix_length,
      class_token='class_token' in self.prefix,
      image_size=images.shape[1:-1] if grids is None else (),
      patch_size=self.patches.pixels,
      kept_patches=kept,
      grids=grids,
    )
    x, context = self._embed(images, masked, context)
    if self.pre_norm:
      x = self.norm.copy(name='norm_before')(x)
    if context.dropout_key is not None:
      x = dropout.embedded(
        x, self.dropout_rate, self.depth, context.dropout_key
      )
    # The last layer needs no queries and no MLP for tokens that the pool does
    # not read, since no further layer attends to them.
    num_read = getattr(self.pool, 'num_read', None) if features_only else None
    if num_read is not None:
      num_read += self.has_two_heads
    x, outputs = stack.apply(self, x, context, num_read)
    # Scanned layers return all tokens: the last norm would read each of them.
    x = x[:, :num_read]
    last = {name: values[-1] for name, values in outputs.items()}
    context = context.replace(sizes=last.get('sizes'))
    # Pre-LN layers do not normalise the residual stream, so a last norm follows
    # (equation 4 of the paper).
    norm = self.norm if self.last_norm else lambda x: x
    pool = scoped(self.pool)
    if getattr(pool, 'norm_after', False):
      features = norm(pool(x, context))
    else:
      x = norm(x)
      features = x[:, :2] if self.has_two_heads else pool(x, context)
    ndim = 3 if self.has_two_heads else _ndim(context)
    if features.ndim != ndim:
      error = registry.wing('vit_jax.models.inputs:features_error')
      raise error(self.pool, features, ndim)
    features = features.astype(jnp.float32)
    return {'tokens': x, 'features': features, **last}, context

  @property
  def sized_head(self) -> nn.Module:
    """The head with this model's `num_classes`, which a copy may change."""
    if not hasattr(self.head, 'num_classes'):
      return self.head
    sizes: Any = {'num_classes': self.num_classes}
    return self.head.clone(parent=None, **sizes)

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
    return self.distillation_token and getattr(self.head, 'distillation', False)

  def _embed(
    self, images: jax.Array, masked: jax.Array | None, context: Context
  ) -> tuple[jax.Array, Context]:
    """Equation 1: projects patches, prepends tokens, adds positions."""
    # A copy, since a bound model may be called again. Without a name of its own
    # its parameters are the model's.
    name = getattr(self.patches, 'scope_name', None)
    patches = self.patches.copy(name=name or None)
    if not name:
      nn.share_scope(self, patches)
    x = patches(images)
    b, *grid = x.shape[:-1]
    x = jax.lax.collapse(x, 1, x.ndim - 1)
    has_choice = masked is not None or context.grids is not None
    if has_choice or self.patch_dropout or self.mask_token:
      choose = registry.wing('vit_jax.models.masking:choose')
      x, context = choose(self, x, masked, context)
    context = context.replace(grid=tuple(grid))
    prefix = self._prefix_tokens()
    prefix = jnp.broadcast_to(prefix, (b, *prefix.shape[1:]))
    x = jnp.concatenate([prefix, x], axis=1)
    for positions in self.positions:
      nn.share_scope(self, part := positions.copy())
      x, context = part(x, context)
    if context.kept_patches is not None:
      p, places = context.prefix, context.kept_patches[..., None]
      kept_tokens = jnp.take_along_axis(x[:, p:], places, axis=1)
      x = jnp.concatenate([x[:, :p], kept_tokens], axis=1)
    return x, context

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


def _ndim(context: Context) -> int:
  """Axes of features: [B, D], or packed [B, S, D]."""
  return 2 if context.grids is None else context.grids.ndim


class Token(nn.Module):
  """The class token: [B, T, D] -> [B, D]."""

  # Tokens in front that it reads, and how many.
  reads_class_token: ClassVar[bool] = True
  num_read: ClassVar[int] = 1

  def __call__(self, x: jax.Array, context: Context) -> jax.Array:
    """Returns the first token."""
    return x[:, 0]


class Mean(nn.Module):
  """The mean of the patches: [B, T, D] -> [B, D].

  Attributes:
    norm_after: Whether the model's last norm follows the mean, in place of
      preceding it (MAE's fine-tuning, arXiv:2111.06377, its code).
  """

  norm_after: Annotated[bool, fields.FITTED] = False

  def check_model(self, model: ViT) -> None:
    """Raises a ValueError if it is before a norm that is not there."""
    if self.norm_after and not model.last_norm:
      raise ValueError(
        "pool='mean' with norm_after=True has no norm with last_norm=False:"
        ' leave it out'
      )

  def __call__(self, x: jax.Array, context: Context) -> jax.Array:
    """Returns the mean of tokens that are no padding; packed, [B, S, D]."""
    patches = x[:, context.prefix :]
    if context.attended is None and context.sizes is None:
      return patches.mean(axis=1)
    mean = registry.wing('vit_jax.models.packing:mean')
    return jnp.asarray(mean(patches, context))


class Linear(nn.Module):
  """A linear head: features [B, D] -> logits [B, num_classes], float32.

  The features of a class and a distillation token, [B, 2, D], have a head each.
  The other parameters are beside `head`: `pre_logits`, `head_norm` and
  `head_distillation`.

  Attributes:
    num_classes: Size of the output; 0: no head, and features are returned.
    pre_logits: Size of a dense layer with tanh before the head; 0: none.
    norm: 'batch': a BatchNorm without affine parameters before the head, as in
      the linear probes of MAE (arXiv:2111.06377, appendix A.1); 'none'.
    bias: Initial value of the bias: with a sigmoid loss, the logarithm of a
      class's frequency.
    distillation: False: the distillation token has no head, and its output is
      not used.
    initializers: Name of the initial values.
  """

  num_classes: Annotated[int, NUM_CLASSES]
  pre_logits: Annotated[int, fields.fitted(least=0)] = 0
  norm: Annotated[str, fields.fitted(choices=HEAD_NORMS)] = 'none'
  bias: Annotated[float, fields.TRAINING] = 0.0
  distillation: Annotated[bool, fields.fitted(is_visible=False)] = True
  initializers: Annotated[str, initializers_lib.FIELD] = 'vit'

  @nn.compact
  def __call__(self, x: jax.Array, context: Context) -> jax.Array:
    """Returns logits; of features [B, 2, D], [B, 2, num_classes]."""
    scope: Any = self.scope  # a parent, which Linen's types do not allow
    if self.pre_logits or self.norm != 'none':
      x = registry.wing('vit_jax.models.heads:before')(self, x, context)
    if not self.num_classes:
      return x
    dense = functools.partial(
      nn.Dense,
      self.num_classes,
      kernel_init=initializers_lib.INITIALIZERS[self.initializers].head,
      bias_init=nn.initializers.constant(self.bias),
    )
    head = dense(parent=scope)
    if x.ndim == _ndim(context):
      return head(x)
    second = dense(parent=scope.parent.push('head_distillation'))
    return jnp.stack([head(x[:, 0]), second(x[:, 1])], axis=1)
