"""What may precede a linear head: a dense layer, and a BatchNorm."""

from typing import Any

from flax import linen as nn
import jax

from vit_jax.models import initializers as initializers_lib
from vit_jax.models import projection
from vit_jax.models.context import Context


def before(head: Any, x: jax.Array, context: Context) -> jax.Array:
  """Maps features [B, D] to those that the last layer reads.

  Args:
    head: The `vit.Linear`, in its compact method.
    x: Features, or those of two tokens, [B, 2, D].
    context: Its context.
  """
  model_scope = head.scope.parent
  if head.pre_logits:
    layer = nn.Dense(
      head.pre_logits,
      kernel_init=initializers_lib.INITIALIZERS[head.initializers].kernel,
      parent=model_scope.push('pre_logits'),
    )
    x = nn.tanh(layer(x))
  if head.norm == 'batch' and head.num_classes:
    norm = projection.StoredBatchNorm(
      affine=False, epsilon=1e-6, parent=model_scope.push('head_norm')
    )
    x = norm(x, train=context.train)
  return x
