"""A layer of the encoder of a Vision Transformer (arXiv:2010.11929).

In comments: B images, T tokens, D hidden size, H heads.
"""

import dataclasses
import functools
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp

from vit_jax.models import attention
from vit_jax.models import dropout
from vit_jax.models import experts
from vit_jax.models import merging
from vit_jax.models import mlp
from vit_jax.models import spec as spec_lib


class Branch(nn.Module):
  """Attention and an MLP, each with its norm; they return what is added to x.

  Attributes:
    spec: Fields of the layer.
    capture: Whether intermediates are returned.
    num_read: Number of first tokens to compute and return; None: all.
    has_experts: Whether the MLP is a mixture of experts.
  """

  spec: spec_lib.EncoderSpec
  capture: bool
  num_read: int | None = None
  has_experts: bool = False

  @nn.compact
  def __call__(self, part: str, *args: Any) -> Any:
    """Calls `attend` or `transform`, as `part` says."""
    return getattr(self, part)(*args)

  def attend(
    self,
    key: dropout.DropoutKey | None,
    layer: jax.Array,
    x: jax.Array,
    context: spec_lib.Context,
    perturbation: jax.Array | None = None,
    returns_keys: bool = False,
  ) -> tuple[jax.Array, jax.Array | None]:
    """Maps [B, T, D] to [B, R, D], and the weights or keys of `Attention`.

    With `parallel_mlp` the MLP's output is in the sum.
    """
    spec, purpose = self.spec, dropout.Purpose
    normed = self._norm('norm1', x, after=False)
    y, weights = attention.Attention(
      spec, self.num_read, self.capture, returns_keys, name='attention'
    )(normed, key, context, perturbation)
    drop = functools.partial(
      dropout.dropout,
      rate=spec.dropout_rate,
      dropout_key=dropout.fold(key, purpose.ATTENTION_OUTPUT),
      whole=x.shape[1:],
    )
    if spec.parallel_mlp:  # one sum, with one factor
      y = drop(y) + self._mlp(
        normed[:, : self.num_read], key, x.shape[1], context
      )
      y = self._scale('layer_scale1', y)
    else:
      y = self._scale('layer_scale1', self._norm('norm1', y, after=True))
      y = drop(y)
    return dropout.drop_path(y, spec, layer, key, purpose.ATTENTION_PATH), (
      weights
    )

  def transform(
    self,
    key: dropout.DropoutKey | None,
    layer: jax.Array,
    x: jax.Array,
    context: spec_lib.Context,
    tokens: int,
  ) -> jax.Array:
    """Maps [B, R, D] to [B, R, D], the MLP's output.

    Args:
      key: Key of the branch; None when not training.
      layer: Index of the layer.
      x: The first R tokens.
      context: What the layers have in common.
      tokens: Number of all tokens, for which dropout masks are drawn.
    """
    y = self._norm('norm2', x, after=False)
    y = self._mlp(y, key, tokens, context)
    y = self._scale('layer_scale2', self._norm('norm2', y, after=True))
    return dropout.drop_path(y, self.spec, layer, key, dropout.Purpose.MLP_PATH)

  def _mlp(
    self,
    x: jax.Array,
    key: dropout.DropoutKey | None,
    tokens: int,
    context: spec_lib.Context,
  ) -> jax.Array:
    spec = self.spec
    if self.has_experts:
      return experts.MixtureOfExperts(spec, name='moe')(
        x, key, context.attended
      )
    return mlp.Mlp(
      *(spec, spec.mlp_dim, spec.gated_mlp, spec.mlp_norm, spec.gate),
      has_bias=spec.dense_bias,
      name='mlp',
    )(x, key, tokens)

  def _norm(self, name: str, x: jax.Array, after: bool) -> jax.Array:
    """Normalises, if the norm's place is here."""
    if after != self.spec.post_norm:
      return x
    return self.spec.layer_norm(name)(x)

  def _scale(self, name: str, y: jax.Array) -> jax.Array:
    # LayerScale starts near zero, so that a deep model starts near the identity
    # (CaiT, arXiv:2103.17239, section 2).
    is_left_out = name == 'layer_scale2' and not self.spec.layer_scale_mlp
    if self.spec.layer_scale is None or is_left_out:
      return y
    init = nn.initializers.constant(self.spec.layer_scale)
    return y * self.param(name, init, (y.shape[-1],)).astype(y.dtype)


class EncoderBlock(Branch):
  """One layer: attention and an MLP, each with a residual.

  A norm precedes both, or follows both with `post_norm`. With `parallel_mlp`
  they have one residual; with `branches` there are several of each beside each
  other, the further ones in `branch_1`, `branch_2`, ...

  Attributes, beside those of `Branch`:
    keep_tokens: Whether the tokens alone are returned as an intermediate.
    merges: Number of tokens that are merged into others (ToMe,
      arXiv:2210.09461), between attention and MLP.
    protected: Number of first tokens that are not merged.
  """

  keep_tokens: bool = False
  merges: int = 0
  protected: int = 0

  @nn.compact
  def __call__(  # type: ignore[override]
    self,
    tokens: Any,
    layer: jax.Array,
    dropout_key: dropout.DropoutKey | None,
    context: spec_lib.Context | None = None,
    perturbation: jax.Array | None = None,
  ) -> tuple[Any, dict[str, jax.Array]]:
    """Applies the layer: equations 2 and 3 of the paper.

    Args:
      tokens: [B, T, D]; or, where tokens are merged, `merging.Merged`.
      layer: Index of this layer, from 0, as an int32 scalar.
      dropout_key: Key of the step; None when not training.
      context: What the layers have in common.
      perturbation: Added to the attention weights, [B, H, T, T].

    Returns:
      As `tokens`: [B, T, D], or [B, num_read, D]; and the layer's
      intermediates, if they are captured: attention [B, H, T, T] and tokens
      [B, T, D]. H are the heads of all branches.
    """
    context = (context or spec_lib.Context()).at(layer)
    merged = tokens if isinstance(tokens, merging.Merged) else None
    x: jax.Array = tokens if merged is None else merged.tokens
    if merged is not None and merged.is_proportional:
      context = dataclasses.replace(context, sizes=merged.sizes)
    spec, whole = self.spec, x.shape[1]
    further = [
      Branch(spec, self.capture, self.num_read, name=f'branch_{i}')
      for i in range(1, spec.branches)
    ]
    keys = self._keys(dropout.fold(dropout_key, layer))
    added: list[jax.Array | None] = [None] * spec.branches
    if perturbation is not None:
      added = [*jnp.split(perturbation, spec.branches, axis=1)]
    y, weights = self.attend(
      keys[0], layer, x, context, added[0], merged is not None
    )
    for branch, key, each in zip(further, keys[1:], added[1:], strict=True):
      one, of_branch = branch('attend', key, layer, x, context, each)
      y += one
      if weights is not None:
        weights = jnp.concatenate([weights, of_branch], axis=1)
    x = spec.row_major(x[:, : self.num_read] + y)
    if merged is not None and not self.num_read:
      assert weights is not None
      merged = dataclasses.replace(merged, tokens=x)
      merged = merged.merged(weights, self.merges, self.protected)
      x, whole = merged.tokens, merged.tokens.shape[1]
    if not spec.parallel_mlp:
      y = self.transform(keys[0], layer, x, context, whole)
      for branch, key in zip(further, keys[1:], strict=True):
        y += branch('transform', key, layer, x, context, whole)
      x = spec.row_major(x + y)
    if merged is not None:
      return dataclasses.replace(merged, tokens=x), {}
    if not self.capture:
      return x, {'tokens': x} if self.keep_tokens else {}
    assert weights is not None
    return x, {'attention': weights, 'tokens': x}

  def _keys(
    self, key: dropout.DropoutKey | None
  ) -> list[dropout.DropoutKey | None]:
    """Returns the key of each branch; that of the first is the layer's."""
    others = dropout.fold(key, dropout.Purpose.BRANCHES)
    further = range(1, self.spec.branches)
    return [key, *(dropout.fold(others, i) for i in further)]
