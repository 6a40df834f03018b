"""What precedes a linear head, and the head of models that are no `vit.ViT`.

In comments: B images, T tokens, D hidden size.
"""

import dataclasses
from typing import Annotated
from typing import Any

from flax import linen as nn
import jax

from vit_jax.models import dropout
from vit_jax.models import fields
from vit_jax.models import initializers as initializers_lib
from vit_jax.models import projection
from vit_jax.models import registry
from vit_jax.models import vit
from vit_jax.models.context import Context


def before(head: vit.Linear, x: jax.Array, context: Context) -> jax.Array:
  """Maps features [B, D] or [B, 2, D] to those that the last layer reads."""
  scope: Any = head.scope
  if head.pre_logits:
    layer = nn.Dense(
      head.pre_logits,
      kernel_init=initializers_lib.INITIALIZERS[head.initializers].kernel,
      parent=scope.parent.push('pre_logits'),
    )
    x = nn.tanh(layer(x))
  if head.norm == 'batch' and head.num_classes:
    norm = projection.StoredBatchNorm(
      affine=False, epsilon=1e-6, parent=scope.parent.push('head_norm')
    )
    x = norm(x, train=context.train)
  return x


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


class Classifier(nn.Module):
  """A trunk and a linear head; their parameters are in the same dict.

  Attributes:
    num_classes: Size of the head's output; 0: no head, and the model returns
      the features.
    initializers: Initial values of parameters, a name in `INITIALIZERS`.
    head_bias: Initial value of the head's bias: with a sigmoid loss, the
      logarithm of a class's frequency.
  """

  num_classes: Annotated[int, vit.NUM_CLASSES]
  _: dataclasses.KW_ONLY
  initializers: Annotated[str, initializers_lib.FIELD] = 'vit'
  head_bias: Annotated[float, fields.TRAINING] = 0.0

  @classmethod
  def read_head(cls, text: str) -> float:
    """Returns the bias of a head, all that these families choose of one."""
    head = registry.build('head', text, {'num_classes': 0}, 'model.head')
    bias: float = getattr(head, 'bias', 0.0)
    if head != vit.Linear(0, bias=bias, parent=None):
      raise ValueError(
        f'head is {text!r}: the head of a {cls.__name__} has the option bias'
        " alone, as 'linear(bias=-6.9)'"
      )
    return bias

  def check_model(self, model: nn.Module) -> None:
    """Raises a ValueError if what attention starts with is chosen."""
    if self.initializers == initializers_lib.MIMETIC:
      raise ValueError(
        "initializers='mimetic' does not go with layers without attention"
      )

  @property
  def starts(self) -> initializers_lib.Initializers:
    """Initializers of each kind of parameter."""
    return initializers_lib.INITIALIZERS[self.initializers]

  def setup(self) -> None:
    """Makes the head."""
    if self.num_classes:
      self.head = linear(self.num_classes, self.starts.head, self.head_bias)

  def trunk(
    self, images: jax.Array, *, train: bool = False, rows: dropout.Rows = None
  ) -> dict[str, jax.Array]:
    """Returns `tokens` [B, T, D], and `features` [B, D] in float32."""
    raise NotImplementedError

  def __call__(
    self, images: jax.Array, *, train: bool = False, rows: dropout.Rows = None
  ) -> jax.Array:
    """Returns logits, float32 [B, num_classes]; without a head features [B, D].

    It captures tokens as `trunk` does.

    Args:
      images: [B, height, width, C].
      train: Whether to apply dropout; needs `rngs={'dropout': key}`.
      rows: The images' positions in the global batch, see `dropout.Rows`.
    """
    features = self.trunk(images, train=train, rows=rows)['features']
    return self.head(features) if self.num_classes else features
