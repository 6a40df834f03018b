"""MLP-Mixer (Tolstikhin et al., 2021, arXiv:2105.01601).

In comments: B images, T tokens, D hidden size, L layers.
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
from vit_jax.models.context import Context
from vit_jax.models.dropout import Purpose
from vit_jax.models.patches import Patches


class MixerBlock(nn.Module):
  """One pre-LN layer: an MLP over tokens and one over channels.

  All channels share one MLP over tokens. It replaces a ViT's attention, and
  uses the dropout masks of attention.

  Attributes, beside those that `block.Block` has, too:
    mlp: The MLP over channels; that over tokens differs in its width.
    tokens_mlp_dim: Size of the hidden layer of the MLP over tokens.
  """

  mlp: Annotated[nn.Module, fields.PART]
  tokens_mlp_dim: Annotated[int, fields.SIZE]
  norm: Annotated[nn.Module, fields.PART] = block_lib.LayerNorm()
  stochastic_depth: Annotated[float, fields.RATE] = 0.0
  stochastic_depth_uniform: Annotated[bool, fields.TRAINING] = False

  _drop_path: ClassVar[Any] = block_lib.Block.drop_path

  @nn.compact
  def __call__(self, x: jax.Array, context: Context) -> jax.Array:
    """Applies the layer: equation 1 of the paper, [B, T, D] -> [B, T, D]."""
    key = context.dropout_key
    key = key and key.fold(Purpose.ATTENTION_OUTPUT)
    of_channels = context.replace(dropout_key=key, num_tokens=x.shape[2])
    width: Any = {'hidden_dim': self.tokens_mlp_dim}
    y = jnp.swapaxes(self.norm.copy(name='norm1')(x), 1, 2)  # [B, D, T]
    y = self.mlp.copy(name='token_mlp', **width)(y, of_channels)
    y = jnp.swapaxes(y, 1, 2)  # [B, T, D]
    x = x + self._drop_path(y, context, Purpose.ATTENTION_PATH)
    y = self.norm.copy(name='norm2')(x)
    y = self.mlp.copy(name='channel_mlp')(y, context)
    return x + self._drop_path(y, context, Purpose.MLP_PATH)


class Mixer(heads.Classifier, encoder.Encoder):
  """MLP-Mixer for classification.

  The MLPs over tokens fix the number of patches, and so the image size.

  Attributes, beside the ones in `Classifier` and `Encoder`:
    patch_size: (height, width) in pixels.
  """

  class_defaults: ClassVar[Mapping[str, Any]] = {
    'block': f'{__name__}:MixerBlock',
    'initializers': 'mixer',
  }

  _: dataclasses.KW_ONLY
  patch_size: Annotated[tuple[int, int], fields.FITTED]
  block: Annotated[MixerBlock, fields.PART]

  @property
  def pixels(self) -> tuple[int, int]:
    """Sides of what a token stands for, in pixels."""
    return self.patch_size

  @nn.compact
  def trunk(
    self, images: jax.Array, *, train: bool = False, rows: dropout.Rows = None
  ) -> dict[str, jax.Array]:
    """Returns tokens and features, of the arguments of `heads.Classifier`.

    `tokens` [B, T, D] are after the last LayerNorm, in the dtype of the
    computation, row by row; `features` are their mean, float32 [B, D]. With
    `mutable=['intermediates']`, Linen also returns `tokens` [L, B, T, D], each
    layer's output.
    """
    key = dropout.make_key(self, images, rows) if train else None
    x = Patches(
      self.hidden_size,
      self.patch_size,
      initializers=self.initializers,
      dtype=self.dtype,
      name='patch_embedding',
    )(images)
    # No position embeddings: the MLP over tokens depends on their order anyway
    # (section 2 of the paper).
    x = jax.lax.collapse(x, 1, 3)  # [B, T, D]
    size = images.shape[1:-1]
    for layers, axis in (('blocks_0', 0), ('blocks', 1)):
      path = layers, 'token_mlp', 'up', 'kernel'
      inputs.check_tokens(self, size, self.patch_size, x.shape[1], path, axis)
    x, _ = self.layers(x, Context(dropout_key=key))
    x = self.norm(x)
    return {'tokens': x, 'features': x.mean(axis=1).astype(jnp.float32)}
