"""An image tower and a text tower whose embeddings are compared.

Images and captions that belong together have similar embeddings: CLIP
(arXiv:2103.00020), LiT (arXiv:2111.07991), SigLIP (arXiv:2303.15343).

In comments: B images, C texts, E the size of an embedding.
"""

import math

from flax import linen as nn
import jax
import jax.numpy as jnp

from vit_jax.models import initializers
from vit_jax.models import projection
from vit_jax.models import text
from vit_jax.models import vit

# The temperature at the start: CLIP's is 0.07 (section 2.5), SigLIP's 0.1, with
# a bias of -10 (algorithm 1).
_SOFTMAX, _SIGMOID = math.log(1 / 0.07), math.log(10)
_BIAS = -10.0


class TwoTowers(nn.Module):
  """Images and texts to embeddings of unit length.

  Parameters are in `image`, `text`, `log_scale` and, as the fields say,
  `image_projection` and `logit_bias`.

  Attributes:
    image: The image tower, without a head or with one that gives E numbers.
    text: The text tower.
    projection: E, where a layer without a bias follows the image tower, as in
      CLIP; 0: none does.
    has_bias: Whether the logits have a bias, as SigLIP's.
    any_grid: Whether images come as patches of any grid (SigLIP 2's NaFlex).
  """

  image: vit.ViT
  text: text.TextTower | text.Bert
  projection: int = 0
  has_bias: bool = False
  any_grid: bool = False

  def setup(self) -> None:
    """Makes what is beside the towers."""
    start = _SIGMOID if self.has_bias else _SOFTMAX
    self.log_scale = self.param(
      'log_scale', nn.initializers.constant(start), ()
    )
    if self.has_bias:
      bias = nn.initializers.constant(_BIAS)
      self.logit_bias = self.param('logit_bias', bias, ())
    if self.projection:
      starts = initializers.INITIALIZERS[self.image.initializers]
      self.image_projection = nn.Dense(
        self.projection, use_bias=False, kernel_init=starts.kernel
      )

  def embed_images(
    self,
    images: jax.Array,
    *,
    train: bool = False,
    rows: jax.Array | None = None,
    grids: jax.Array | None = None,
  ) -> dict[str, jax.Array]:
    """Returns `embedding` and, before it is normalised, `features` [B, E].

    `images` are [B, height, width, channels]; with `grids` they are patches, as
    in `vit.ViT`, which says what `rows` are, too. `train` applies dropout.
    """
    x = self.project(self.image(images, train=train, rows=rows, grids=grids))
    return {'features': x, 'embedding': projection.unit(x)}

  def project(self, x: jax.Array) -> jax.Array:
    """Returns the image tower's output [B, D] as `features` [B, E]."""
    return self.image_projection(x) if self.projection else x

  def embed_texts(
    self,
    tokens: jax.Array,
    attended: jax.Array | None = None,
    *,
    train: bool = False,
    rows: jax.Array | None = None,
  ) -> dict[str, jax.Array]:
    """Returns what `text.TextTower` does, and `embedding` [C, E].

    `tokens` are int32 [C, T]; `attended` and `rows` are as in `text.TextTower`.
    `train` applies dropout.
    """
    outputs = self.text(tokens, attended, train=train, rows=rows)
    return outputs | {'embedding': projection.unit(outputs['features'])}

  def scale(self) -> jax.Array:
    """Returns the inverse of the temperature."""
    return jnp.exp(self.log_scale)

  def logits(self, images: jax.Array, texts: jax.Array) -> jax.Array:
    """Returns the logits [B, C] of embeddings [B, E] and [C, E]."""
    similarity = jnp.matmul(
      images, texts.T, precision=jax.lax.Precision.HIGHEST
    )
    logits = self.scale() * similarity
    return logits + self.logit_bias if self.has_bias else logits

  def __call__(
    self,
    images: jax.Array,
    tokens: jax.Array,
    attended: jax.Array | None = None,
  ) -> jax.Array:
    """Returns the logits of all images and texts, float32 [B, C]."""
    return self.logits(
      self.embed_images(images)['embedding'],
      self.embed_texts(tokens, attended)['embedding'],
    )
