"""Heads: pooling of a trunk's tokens, and the last layer.

In comments: B images, T tokens, D hidden size, H heads, K = D / H.
"""

import dataclasses
from typing import Annotated

from flax import linen as nn
import jax

from vit_jax.models import fields
from vit_jax.models import initializers as initializers_lib
from vit_jax.models import vit
from vit_jax.models.fields import Field
from vit_jax.models.fields import Kind

POOLS = ('token', 'gap', 'map', 'token+gap')


@dataclasses.dataclass(kw_only=True, unsafe_hash=True)
class PoolSpec:
  """Fields of how a trunk's tokens become features.

  Attributes:
    pool: Pooling of tokens to features: 'token', the class token; 'gap', the
      mean over patch tokens; 'map', attention over them by a learned query;
      'token+gap', the first two side by side (DINOv2, arXiv:2304.07193); or a
      part of the user's.
    last_norm: Whether a norm follows the last layer.
    norm_after_pool: For 'gap', whether the last norm is applied to the mean,
      and not to the tokens.
    map_prefix: For 'map', whether it also attends to the tokens before the
      patches.
    map_heads: For 'map', its number of heads, which divides D; None: num_heads.
    map_query: For 'map', whether its query is a projection of what is learned.
    map_bias: For 'map', whether its query, keys and values have biases.
    map_mlp_dim: For 'map', size of the hidden layer of its MLP; 0: it has none;
      None: mlp_dim.
  """

  pool: Annotated[str, fields.FITTED] = 'token'
  last_norm: Annotated[bool, fields.FUNCTION] = True
  norm_after_pool: Annotated[bool, fields.FITTED] = False
  map_prefix: Annotated[bool, Field(Kind.FITTED, is_visible=False)] = False
  map_heads: Annotated[
    int | None, Field(Kind.FITTED, is_visible=False, least=1)
  ] = None
  map_query: Annotated[bool, fields.FITTED] = True
  map_bias: Annotated[bool, fields.FITTED] = True
  map_mlp_dim: Annotated[int | None, Field(Kind.FITTED, least=0)] = None


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

  @property
  def starts(self) -> initializers_lib.Initializers:
    """Initializers of each kind of parameter."""
    return initializers_lib.INITIALIZERS[self.initializers]

  def setup(self) -> None:
    """Makes the head."""
    if self.num_classes:
      self.head = linear(self.num_classes, self.starts.head, self.head_bias)

  def trunk(
    self,
    images: jax.Array,
    *,
    train: bool = False,
    rows: jax.Array | None = None,
  ) -> dict[str, jax.Array]:
    """Returns `tokens` [B, T, D], and `features` [B, D] in float32."""
    raise NotImplementedError

  def __call__(
    self,
    images: jax.Array,
    *,
    train: bool = False,
    rows: jax.Array | None = None,
  ) -> jax.Array:
    """Classifies images; captures tokens as `trunk` does.

    Args:
      images: [B, height, width, C].
      train: Whether to apply dropout; needs `rngs={'dropout': key}`.
      rows: int32 [B], the images' positions in the global batch, if this is a
        part of one; by default 0 to B - 1.

    Returns:
      Logits, float32 [B, num_classes]; features [B, D] if num_classes is 0.

    Raises:
      ValueError: The image's size is not a multiple of the patch's.
    """
    features = self.trunk(images, train=train, rows=rows)['features']
    return self.head(features) if self.num_classes else features
