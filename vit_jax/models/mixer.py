"""MLP-Mixer (Tolstikhin et al., 2021, arXiv:2105.01601).

In comments: B images, T tokens, D hidden size, L layers.
"""

import dataclasses
from typing import Annotated

from flax import linen as nn
import jax
import jax.numpy as jnp

from vit_jax.models import dropout
from vit_jax.models import embedding
from vit_jax.models import fields
from vit_jax.models import heads
from vit_jax.models import initializers as initializers_lib
from vit_jax.models import inputs
from vit_jax.models import mlp
from vit_jax.models import spec as spec_lib
from vit_jax.models import stack

# Hidden size, the two MLPs' sizes, layers: Table 1 of the paper.
SIZES = {
  'S': {'hidden_size': 512, 'tokens_mlp_dim': 256, 'mlp_dim': 2048, 'depth': 8},
  'B': {
    'hidden_size': 768,
    'tokens_mlp_dim': 384,
    'mlp_dim': 3072,
    'depth': 12,
  },
  'L': {
    'hidden_size': 1024,
    'tokens_mlp_dim': 512,
    'mlp_dim': 4096,
    'depth': 24,
  },
}


@dataclasses.dataclass(kw_only=True, unsafe_hash=True)
class MixerSpec(spec_lib.LayerSpec):
  """Fields of layers that mix tokens with an MLP.

  Attributes:
    tokens_mlp_dim: Size of the hidden layer of the MLP over tokens.
  """

  tokens_mlp_dim: Annotated[int, fields.SIZE]


class MixerBlock(nn.Module):
  """One pre-LN layer: an MLP over tokens and one over channels."""

  spec: MixerSpec
  capture: bool

  @nn.compact
  def __call__(
    self,
    x: jax.Array,
    layer: jax.Array,
    dropout_key: dropout.DropoutKey | None,
    context: None = None,
  ) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Applies the layer: equation 1 of the paper.

    Args:
      x: [B, T, D].
      layer: Index of this layer, from 0, as an int32 scalar.
      dropout_key: Key of the step; None when not training.
      context: Not used.

    Returns:
      [B, T, D], and a dict with the same array as `tokens` if intermediates are
      captured.
    """
    del context
    spec, purpose = self.spec, dropout.Purpose
    key = dropout.fold(dropout_key, layer)
    # All channels share one MLP over tokens. It replaces a ViT's attention, and
    # uses the dropout masks of attention.
    y = jnp.swapaxes(spec.layer_norm('norm1')(x), 1, 2)  # [B, D, T]
    y = mlp.Mlp(spec, spec.tokens_mlp_dim, name='token_mlp')(
      y, dropout.fold(key, purpose.ATTENTION_OUTPUT)
    )
    y = jnp.swapaxes(y, 1, 2)  # [B, T, D]
    x = x + dropout.drop_path(y, spec, layer, key, purpose.ATTENTION_PATH)
    y = mlp.Mlp(spec, spec.mlp_dim, name='channel_mlp')(
      spec.layer_norm('norm2')(x), key
    )
    x = x + dropout.drop_path(y, spec, layer, key, purpose.MLP_PATH)
    return x, {'tokens': x} if self.capture else {}


class Mixer(heads.Classifier, MixerSpec):
  """MLP-Mixer for classification.

  The MLPs over tokens fix the number of patches, and so the image size.

  Attributes, beside those of `Classifier`, `LayerSpec` and `MixerSpec`:
    patch_size: (height, width) in pixels.
  """

  patch_size: Annotated[tuple[int, int], fields.FITTED]
  _: dataclasses.KW_ONLY
  initializers: Annotated[str, initializers_lib.FIELD] = 'mixer'

  @nn.compact
  def trunk(
    self,
    images: jax.Array,
    *,
    train: bool = False,
    rows: jax.Array | None = None,
  ) -> dict[str, jax.Array]:
    """Returns tokens and features.

    With `mutable=['intermediates']`, Linen also returns `tokens` [L, B, T, D],
    each layer's output.

    Args:
      images: [B, height, width, C], height and width multiples of the patch.
      train: As of `heads.Classifier`.
      rows: As of `heads.Classifier`.

    Returns:
      `tokens` [B, T, D] after the last LayerNorm, in the dtype of the
      computation, row by row; and `features`, their mean, float32 [B, D].

    Raises:
      ValueError: The image's size is not a multiple of the patch's.
    """
    kernel = 'patch_embedding', 'kernel'
    inputs.check_images(self, images, kernel, self.patch_size)
    key = dropout.key_of(self, images.shape[0], train, rows)
    x = embedding.PatchEmbedding(
      self.hidden_size,
      self.patch_size,
      self.starts.patch,
      self.dtype,
      name='patch_embedding',
    )(images)
    # No position embeddings: the MLP over tokens depends on their order anyway
    # (section 2 of the paper).
    x = jax.lax.collapse(x, 1, 3)  # [B, T, D]
    size = images.shape[1:-1]
    for layers, axis in (('blocks_0', 0), ('blocks', 1)):
      path = layers, 'token_mlp', 'up', 'kernel'
      inputs.check_tokens(self, size, self.patch_size, x.shape[1], path, axis)
    x = stack.apply_blocks(self, MixerBlock, MixerSpec.take(self), x, key)
    x = self.layer_norm('norm')(x)
    return {'tokens': x, 'features': x.mean(axis=1).astype(jnp.float32)}
