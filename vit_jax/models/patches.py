"""Patch embeddings (equation 1 of the ViT paper, arXiv:2010.11929).

In comments: B images, [h, w] grid of patches, N patches, D hidden size.
"""

from typing import Annotated

from flax import linen as nn
import jax
import jax.numpy as jnp

from vit_jax.models import embedding
from vit_jax.models import fields
from vit_jax.models import initializers as initializers_lib
from vit_jax.models import inputs
from vit_jax.models import norms
from vit_jax.models import resnet
from vit_jax.models.fields import Field
from vit_jax.models.fields import Kind


class Patches(nn.Module):
  """Projects patches: images [B, height, width, C] -> [B, h, w, D].

  Volumes [B, depth, height, width, C] become [B, d, h, w, D], and patches that
  are cut already, [B, N, p * q * C], become [B, N, D]. The parameters are the
  model's `patch_embedding`.

  Attributes:
    hidden_size: D.
    patch_size: (height, width) in pixels; (depth, height, width) of volumes.
    bias: Whether there is a bias.
    crop: Whether images lose the rows and columns behind their last whole
      patch, as in a convolution without padding; otherwise a patch must divide
      them.
    initializers: Name of the initial values.
    dtype: Type in which it computes.
  """

  hidden_size: Annotated[int, fields.SIZE]
  patch_size: Annotated[tuple[int, ...], fields.FITTED]
  bias: Annotated[bool, fields.FUNCTION] = True
  crop: Annotated[bool, Field(Kind.FUNCTION, is_visible=False)] = False
  initializers: Annotated[str, initializers_lib.FIELD] = 'vit'
  dtype: Annotated[jax.typing.DTypeLike, fields.EXECUTION] = jnp.float32

  @property
  def pixels(self) -> tuple[int, ...]:
    """Sides of what a token stands for, in pixels."""
    return self.patch_size

  @nn.compact
  def __call__(self, images: jax.Array) -> jax.Array:
    """Returns one token per patch.

    Raises:
      ValueError: The images are not those of the parameters, or patches do not
        divide them.
    """
    path = 'patch_embedding', 'kernel'
    inputs.check_images(self, images, path, self.patch_size)
    return self.project(images)

  def project(self, images: jax.Array) -> jax.Array:
    """Applies `patch_embedding`."""
    starts = initializers_lib.INITIALIZERS[self.initializers]
    layer = embedding.PatchEmbedding(
      self.hidden_size,
      self.patch_size,
      starts.patch,
      self.dtype,
      self.bias,
      self.crop,
      name='patch_embedding',
    )
    return layer(images)


class NormedPatches(Patches):
  """Patches with a norm before positions are added.

  AIMv2, arXiv:2411.14402, its code. Its parameters are the model's
  `patch_norm`.

  Attributes, beside those of `Patches`:
    patch_norm: The norm.
  """

  patch_norm: Annotated[nn.Module, Field(Kind.FUNCTION, key='norm')] = (
    norms.LayerNorm()
  )

  def project(self, images: jax.Array) -> jax.Array:
    """Applies `patch_embedding` and the norm."""
    return self.patch_norm(super().project(images))


class HybridPatches(Patches):
  """A ResNet before the patch embedding (section 3.1, "Hybrid Architecture").

  Its parameters are the model's `stem`.

  Attributes, beside those of `Patches`, whose `patch_size` is in cells of the
  ResNet's output:
    stages: Units in each stage; () for only the stem.
    width: Channels of the stem.
  """

  stages: Annotated[tuple[int, ...], fields.STAGES] = ()
  width: Annotated[int, fields.SIZE] = 64

  @property
  def pixels(self) -> tuple[int, ...]:
    """Sides of what a token stands for, in pixels."""
    stride = 4 * 2 ** max(len(self.stages) - 1, 0)
    return tuple(stride * n for n in self.patch_size)

  @nn.compact
  def __call__(self, images: jax.Array) -> jax.Array:
    """Returns one token per patch of the ResNet's output."""
    inputs.check_images(
      self, images, ('stem', 'conv', 'kernel'), self.patch_size
    )
    stem = resnet.ResNetStem(self.stages, self.width, self.dtype, name='stem')
    return self.project(stem(images))
