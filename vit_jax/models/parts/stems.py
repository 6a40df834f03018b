"""Patch embeddings with more than a projection: a norm, a ResNet.

In comments: B images, [h, w] grid of patches, D hidden size.
"""

from typing import Annotated
from typing import Any
from typing import ClassVar

from flax import linen as nn
import jax

from vit_jax.models import fields
from vit_jax.models import inputs
from vit_jax.models import resnet
from vit_jax.models.block import LayerNorm
from vit_jax.models.parts import as_class
from vit_jax.models.patches import Patches


class NormedPatches(Patches):
  """Patches with a norm before positions are added.

  AIMv2, arXiv:2411.14402, its code. Its parameters are the model's
  `patch_embedding` and `patch_norm`.

  Attributes, beside the ones in `Patches`:
    patch_norm: The norm.
  """

  scope_name: ClassVar[str] = ''

  patch_norm: Annotated[nn.Module, fields.function(key='norm')] = LayerNorm()

  @nn.compact
  def __call__(self, images: jax.Array) -> jax.Array:
    """Returns normalised tokens, one per patch."""
    tokens = as_class(self, Patches, parent=self, name=Patches.scope_name)
    return self.patch_norm(tokens(images))


class HybridPatches(Patches):
  """A ResNet before the patch embedding (section 3.1, "Hybrid Architecture").

  Its parameters are the model's `stem` and `patch_embedding`.

  Attributes, beside the ones in `Patches`, whose `patch_size` is in cells of
  the ResNet's output:
    stages: Units in each stage; () for only the stem.
    width: Channels of the stem.
  """

  scope_name: ClassVar[str] = ''

  stages: Annotated[tuple[int, ...], fields.STAGES] = ()
  width: Annotated[int, fields.SIZE] = 64

  def check_model(self, model: Any) -> None:
    """Raises a ValueError if images were to be cropped to patches."""
    if self.crop:
      raise ValueError(
        "patches='hybrid' does not go with crop=True, since its convolutions"
        ' pad: leave it out'
      )

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
    cells = as_class(self, Patches, parent=self, name=Patches.scope_name)
    return cells.project(stem(images))
