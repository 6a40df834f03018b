"""A layer of the encoder of a Vision Transformer (arXiv:2010.11929).

In comments: B images, T tokens, D hidden size, H heads.
"""

from flax import linen as nn
import jax

from vit_jax.models import attention
from vit_jax.models import dropout
from vit_jax.models import mlp
from vit_jax.models import spec as spec_lib


class EncoderBlock(nn.Module):
  """One pre-LN layer: attention and an MLP, each with a residual.

  Attributes:
    spec: Fields of the layer.
    capture: Whether intermediates are returned.
    num_read: Number of first tokens to compute and return; None: all.
    keep_tokens: Whether the tokens alone are returned as an intermediate.
  """

  spec: spec_lib.EncoderSpec
  capture: bool
  num_read: int | None = None
  keep_tokens: bool = False

  @nn.compact
  def __call__(
    self,
    x: jax.Array,
    layer: jax.Array,
    dropout_key: dropout.DropoutKey | None,
    context: spec_lib.Context | None = None,
    perturbation: jax.Array | None = None,
  ) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Applies the layer: equations 2 and 3 of the paper.

    Args:
      x: [B, T, D].
      layer: Index of this layer, from 0, as an int32 scalar.
      dropout_key: Key of the step; None when not training.
      context: What the layers have in common.
      perturbation: Added to the attention weights, [B, H, T, T].

    Returns:
      [B, T, D], or [B, num_read, D]; and the layer's intermediates, if they are
      captured: attention [B, H, T, T] and tokens [B, T, D].
    """
    spec, whole, purpose = self.spec, x.shape[1:], dropout.Purpose
    key = dropout.fold(dropout_key, layer)
    y, weights = attention.Attention(
      spec, self.num_read, self.capture, name='attention'
    )(spec.layer_norm('norm1')(x), key, context, perturbation)
    y = self._scale('layer_scale1', y)
    y = dropout.dropout(
      y, spec.dropout_rate, dropout.fold(key, purpose.ATTENTION_OUTPUT), whole
    )
    x = x[:, : self.num_read]
    x = x + dropout.drop_path(y, spec, layer, key, purpose.ATTENTION_PATH)
    y = mlp.Mlp(spec, spec.mlp_dim, spec.gated_mlp, spec.mlp_norm, name='mlp')(
      spec.layer_norm('norm2')(x), key, whole[0]
    )
    y = self._scale('layer_scale2', y)
    x = x + dropout.drop_path(y, spec, layer, key, purpose.MLP_PATH)
    if not self.capture:
      return x, {'tokens': x} if self.keep_tokens else {}
    assert weights is not None
    return x, {'attention': weights, 'tokens': x}

  def _scale(self, name: str, y: jax.Array) -> jax.Array:
    # LayerScale starts near zero, so that a deep model starts near the identity
    # (CaiT, arXiv:2103.17239, section 2).
    if self.spec.layer_scale is None:
      return y
    init = nn.initializers.constant(self.spec.layer_scale)
    return y * self.param(name, init, (y.shape[-1],)).astype(y.dtype)
