"""Image GPT (Chen et al., 2020, Generative Pretraining from Pixels).

A causal Transformer over the colours of an image's pixels, row by row. Colours
are the nearest of a few clusters (section 3.2 of the paper); the clusters are a
parameter that is never trained, so that images can be the input.

In comments: B images, N pixels, C channels, D hidden size, L layers, K colours.
"""

from collections.abc import Mapping
import dataclasses
from typing import Annotated
from typing import Any
from typing import ClassVar

from flax import linen as nn
import jax
import jax.numpy as jnp

from vit_jax.models import block as block_lib
from vit_jax.models import dropout
from vit_jax.models import encoder
from vit_jax.models import fields
from vit_jax.models import heads
from vit_jax.models import inputs
from vit_jax.models.attention import Attention
from vit_jax.models.context import Context
from vit_jax.models.fields import Kind
from vit_jax.models.parts import as_class


def nearest(pixels: jax.Array, clusters: jax.Array) -> jax.Array:
  """Maps pixels [..., C] to their nearest clusters of [K, C], int32 [...]."""
  distance = jnp.zeros((), jnp.float32)
  for c in range(clusters.shape[1]):  # without an array [..., K, C]
    distance += (pixels[..., c, None] - clusters[:, c]) ** 2
  return distance.argmin(axis=-1).astype(jnp.int32)


def shifted(ids: jax.Array, start: int) -> jax.Array:
  """Returns the start token, then all colours [B, N] but the last."""
  return jnp.pad(ids[:, :-1], ((0, 0), (1, 0)), constant_values=start)


class PixelBlock(block_lib.Block):
  """Also returns `layer_features`, the mean of its normed input, [B, D]."""

  def attend(self, x: jax.Array, context: Context) -> jax.Array:
    """Returns what attention adds to x, [B, N, D]."""
    normed = self.norm.copy(name='norm1')(x)
    context.outputs['layer_features'] = normed.mean(axis=1, dtype=jnp.float32)
    y = self.attention(normed, context)
    return self.drop_attention(self.scale(1, y), context)


class IGPT(heads.Classifier, encoder.Encoder):
  """Image GPT: images, or colours, to features and the logits of colours.

  Position i sees the start token and the pixels before i, and predicts pixel i.

  Attributes, beside the ones in `Classifier` and `Encoder`:
    colours: Number of colours, K.
    feature_layer: Index l of the layer that gives the features, from 0: the
      mean over positions of its input after its first norm (f^l in section 2.3
      of the paper). The depth: of the last layer's output after the last norm.
      None: the middle, depth // 2.
    has_clusters: Whether the model has the clusters; without them its input is
      the ids of colours, and no images.
  """

  class_defaults: ClassVar[Mapping[str, Any]] = {
    'norm': 'rms_norm',
    'initializers': 'igpt',
    'causal': True,
    'gelu': 'sigmoid',
    'layer_norm_epsilon': 1e-5,
  }

  pixels: ClassVar[tuple[int, int]] = (1, 1)  # of a token

  _: dataclasses.KW_ONLY
  colours: Annotated[int, fields.Field(Kind.SIZE, least=1, most=2**16)] = 512
  feature_layer: Annotated[int | None, fields.fitted(least=0)] = None
  has_clusters: Annotated[bool, fields.FITTED] = True

  @property
  def read(self) -> int:
    """The layer that gives the features, from 0 to the depth."""
    chosen = self.feature_layer
    return self.depth // 2 if chosen is None else chosen

  def blank_images(self, shape: tuple[int, ...]) -> jax.Array:
    """Returns what it is initialised with, for images (height, width, C)."""
    if self.has_clusters:
      return jnp.zeros((1, *shape), jnp.float32)
    return jnp.zeros((1, *shape[:2]), jnp.int32)

  def check_model(self, model: nn.Module) -> None:
    """Raises a ValueError if the parts do not fit together."""
    del model
    if self.read > self.depth:
      raise ValueError(
        f'feature_layer is {self.feature_layer}: it must be at most the depth,'
        f' {self.depth}'
      )
    block, mlp = self.block, getattr(self.block, 'mlp', None)
    if type(block) is not block_lib.Block or hasattr(mlp, 'routes_tokens'):
      raise ValueError(
        f'a {type(block).__name__} with a {type(mlp).__name__}: the layers of'
        " an iGPT are of the kind 'block', with one MLP each"
      )
    # The samples need a cache of keys and values (`pixel_cache`).
    attention = getattr(block, 'attention', None)
    if type(attention) is not Attention or attention.out_norm:
      raise ValueError(
        f'{type(attention).__name__}: the attention of an iGPT is of the kind'
        " 'attention', without out_norm"
      )
    if not attention.causal:
      raise ValueError('an iGPT predicts the next pixel: leave causal at True')

  @nn.compact
  def trunk(
    self, images: jax.Array, *, train: bool = False, rows: dropout.Rows = None
  ) -> dict[str, jax.Array]:
    """Returns tokens, features, and what is predicted.

    `embedded` [B, N, D] is the input of the first layer; `tokens` [B, N, D],
    the output of the last norm; both in the dtype of the computation;
    `features` are float32 [B, D]; `ids`, int32 [B, N], the colours; and
    `colour_logits`, float32 [B, N, K], whose position i predicts ids[:, i].
    With `mutable=['intermediates']`, Linen also returns `attention`
    [L, B, H, N, N] and `tokens` [L, B, N, D], each layer's output.

    Args:
      images: float [B, height, width, C], normalised; or ids of colours, of an
        integer type, [B, height, width] or [B, N].
      train: As of `heads.Classifier`.
      rows: As of `heads.Classifier`.
    """
    ids = self._ids(images)
    starts, d, n = self.starts, self.hidden_size, ids.shape[1]
    path = ('position_embedding',)
    inputs.check_tokens(self, images.shape[1:-1], (1, 1), n, path, axis=1)
    # The last row is the start token.
    table = self.param('token_embedding', starts.patch, (self.colours + 1, d))
    position = self.param('position_embedding', starts.position, (1, n, d))
    before = shifted(ids, self.colours)
    embedded = table.astype(self.dtype)[before] + position.astype(self.dtype)
    key = dropout.make_key(self, ids, rows) if train else None
    x = dropout.embedded(embedded, self.dropout_rate, self.depth, key)
    block = as_class(self.block, PixelBlock)
    x, outputs = self.layers(x, Context(dropout_key=key), block)
    x = self.norm(x)
    if self.read == self.depth:
      features = x.mean(axis=1, dtype=jnp.float32)
    else:
      features = outputs['layer_features'][self.read]
    logits = output_layer(self)(x)
    return {
      'embedded': embedded,
      'tokens': x,
      'features': features,
      'ids': ids,
      'colour_logits': logits.astype(jnp.float32),
    }

  def _ids(self, images: jax.Array) -> jax.Array:
    """Returns the colours of images, int32 [B, N]."""
    if jnp.issubdtype(images.dtype, jnp.integer):
      return jax.lax.collapse(images, 1).astype(jnp.int32)
    if not self.has_clusters:
      raise ValueError(
        'this model has no colour clusters, so that its input cannot be an'
        ' image: give the ids of colours, or load it with a'
        ' preprocessor_config.json that has clusters'
      )
    inputs.check_images(self, images, ('clusters',))
    shape = (self.colours, images.shape[-1])
    clusters = self.param('clusters', nn.initializers.normal(1.0), shape)
    clusters = jax.lax.stop_gradient(clusters)
    pixels = jax.lax.collapse(images, 1, 3)
    return nearest(pixels.astype(jnp.float32), clusters)


def output_layer(model: IGPT) -> nn.Dense:
  """Returns the layer that maps tokens to the logits of colours."""
  return nn.Dense(
    model.colours,
    use_bias=False,
    kernel_init=model.starts.head,
    dtype=model.dtype,
    name='output',
  )
