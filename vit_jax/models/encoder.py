"""A layer of the encoder of a Vision Transformer (arXiv:2010.11929).

In comments: B images, T tokens, D hidden size, H heads.
"""

import dataclasses
from typing import Any

from flax import linen as nn
import jax

from vit_jax.models import attention
from vit_jax.models import dropout
from vit_jax.models import experts
from vit_jax.models import merging
from vit_jax.models import mlp
from vit_jax.models import spec as spec_lib


class EncoderBlock(nn.Module):
  """One layer: attention and an MLP, each with a residual.

  A norm precedes both, or follows both with `post_norm`.

  Attributes:
    spec: Fields of the layer.
    capture: Whether intermediates are returned.
    num_read: Number of first tokens to compute and return; None: all.
    keep_tokens: Whether the tokens alone are returned as an intermediate.
    merges: Number of tokens that are merged into others (ToMe,
      arXiv:2210.09461), between attention and MLP.
    protected: Number of first tokens that are not merged.
    has_experts: Whether the MLP is a mixture of experts.
  """

  spec: spec_lib.EncoderSpec
  capture: bool
  num_read: int | None = None
  keep_tokens: bool = False
  merges: int = 0
  protected: int = 0
  has_experts: bool = False

  @nn.compact
  def __call__(
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
      [B, T, D].
    """
    context = (context or spec_lib.Context()).at(layer)
    merged = tokens if isinstance(tokens, merging.Merged) else None
    x: jax.Array = tokens if merged is None else merged.tokens
    if merged is not None and merged.is_proportional:
      context = dataclasses.replace(context, sizes=merged.sizes)
    spec, whole, purpose = self.spec, x.shape[1:], dropout.Purpose
    key = dropout.fold(dropout_key, layer)
    y, weights = attention.Attention(
      spec, self.num_read, self.capture, merged is not None, name='attention'
    )(self._norm('norm1', x, after=False), key, context, perturbation)
    y = self._scale('layer_scale1', self._norm('norm1', y, after=True))
    y = dropout.dropout(
      y, spec.dropout_rate, dropout.fold(key, purpose.ATTENTION_OUTPUT), whole
    )
    x = x[:, : self.num_read]
    x = x + dropout.drop_path(y, spec, layer, key, purpose.ATTENTION_PATH)
    if merged is not None and not self.num_read:
      assert weights is not None
      merged = dataclasses.replace(merged, tokens=x)
      merged = merged.merged(weights, self.merges, self.protected)
      x, whole = merged.tokens, merged.tokens.shape[1:]
    y = self._norm('norm2', x, after=False)
    y = self._mlp(y, key, whole[0], context)
    y = self._scale('layer_scale2', self._norm('norm2', y, after=True))
    x = x + dropout.drop_path(y, spec, layer, key, purpose.MLP_PATH)
    if merged is not None:
      return dataclasses.replace(merged, tokens=x), {}
    if not self.capture:
      return x, {'tokens': x} if self.keep_tokens else {}
    assert weights is not None
    return x, {'attention': weights, 'tokens': x}

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
    if self.spec.layer_scale is None:
      return y
    init = nn.initializers.constant(self.spec.layer_scale)
    return y * self.param(name, init, (y.shape[-1],)).astype(y.dtype)
