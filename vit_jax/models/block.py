"""A layer of the Vision Transformer (arXiv:2010.11929, equations 2 and 3).

In comments: B images, T tokens, R of them that are read, D hidden size.
"""

from typing import Annotated

from flax import linen as nn
import jax

from vit_jax.models import dropout
from vit_jax.models import fields
from vit_jax.models import kernels
from vit_jax.models import norms
from vit_jax.models.context import Context
from vit_jax.models.context import scoped
from vit_jax.models.dropout import Purpose


class Block(nn.Module):
  """Attention and an MLP, each after a norm and with a residual.

  Attributes:
    attention: Maps tokens [B, T, D] and a context to [B, R, D].
    mlp: Maps tokens [B, R, D] and a context to [B, R, D].
    norm: Normalises tokens.
    layer_scale: Initial value of a learned factor per channel after attention
      and MLP (CaiT, arXiv:2103.17239); None: no such factor.
    layer_scale_mlp: Whether it follows the MLP, too; False: attention alone.
    dropout_rate: Dropout rate after attention.
    stochastic_depth: Probability that the last layer is skipped in training; it
      grows linearly from 0 (arXiv:1603.09382).
    stochastic_depth_uniform: Whether all layers have that probability instead
      (DeiT III, arXiv:2204.07118).
  """

  attention: Annotated[nn.Module, fields.PART]
  mlp: Annotated[nn.Module, fields.PART]
  norm: Annotated[nn.Module, fields.PART] = norms.LayerNorm()
  layer_scale: Annotated[float | None, fields.FITTED] = None
  layer_scale_mlp: Annotated[bool, fields.FUNCTION] = True
  dropout_rate: Annotated[float, fields.RATE] = 0.0
  stochastic_depth: Annotated[float, fields.RATE] = 0.0
  stochastic_depth_uniform: Annotated[bool, fields.TRAINING] = False

  @nn.compact
  def __call__(self, x: jax.Array, context: Context) -> jax.Array:
    """Maps tokens [B, T, D] to [B, R, D]."""
    x = self.add(x, self.attend(x, context), context)
    return self.add(x, self.transform(x, context), context)

  def attend(self, x: jax.Array, context: Context) -> jax.Array:
    """Returns what attention adds to x, [B, R, D]."""
    y = self.attention(self.norm.copy(name='norm1')(x), context)
    return self.drop_attention(self.scale(1, y), context)

  def transform(self, x: jax.Array, context: Context) -> jax.Array:
    """Returns what the MLP adds to x, [B, R, D]."""
    y = scoped(self.mlp)(self.norm.copy(name='norm2')(x), context)
    return self.drop_path(self.scale(2, y), context, Purpose.MLP_PATH)

  def add(self, x: jax.Array, y: jax.Array, context: Context) -> jax.Array:
    """Returns the sum of a residual: the first R tokens of x and of y."""
    # A user's attention may return all T tokens.
    x = x[:, : context.num_read] + y[:, : context.num_read]
    return kernels.row_major(x, self.attention)

  def scale(self, index: int, y: jax.Array) -> jax.Array:
    """Applies LayerScale to what attention (1) or the MLP (2) returned.

    It starts near zero, so that a deep model starts near the identity (CaiT,
    section 2).
    """
    if self.layer_scale is None or (index == 2 and not self.layer_scale_mlp):
      return y
    init = nn.initializers.constant(self.layer_scale)
    factor = self.param(f'layer_scale{index}', init, (y.shape[-1],))
    return y * factor.astype(y.dtype)

  def drop_attention(self, y: jax.Array, context: Context) -> jax.Array:
    """Applies dropout and stochastic depth to the output of attention."""
    full_shape = context.num_tokens, y.shape[-1]
    y = context.dropout(
      y, self.dropout_rate, Purpose.ATTENTION_OUTPUT, full_shape
    )
    return self.drop_path(y, context, Purpose.ATTENTION_PATH)

  def drop_path(
    self, y: jax.Array, context: Context, purpose: Purpose
  ) -> jax.Array:
    """Applies stochastic depth: zeroes y [B, R, D] for whole images."""
    if context.dropout_key is None or not self.stochastic_depth:
      return y
    return dropout.drop_path(
      y,
      self.stochastic_depth,
      context.dropout_key.fold(purpose),
      layer=None if self.stochastic_depth_uniform else context.layer,
      depth=context.depth,
    )
