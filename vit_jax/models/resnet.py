"""Residual networks with GroupNorm and weight standardisation.

The stem of the ViT paper's hybrids (arXiv:2010.11929) is a post-activation
ResNet: its last ReLU follows the residual sum. BiT (Kolesnikov et al., 2020,
arXiv:1912.11370) is pre-activation: norms and ReLUs precede the convolutions.
Weight standardisation is arXiv:1903.10520.

In comments: B images, [h, w] the grid of features, F features.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import functools
from typing import Annotated
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp

from vit_jax.models import dropout
from vit_jax.models import fields
from vit_jax.models import heads
from vit_jax.models import initializers as initializers_lib
from vit_jax.models import inputs
from vit_jax.models import stack
from vit_jax.models.parts import norms


class StdConv(nn.Module):
  """A convolution without bias whose kernel is standardised.

  Each filter [kh, kw, in] is given mean 0 and variance 1, in float32. Padding
  is 'SAME', as TensorFlow and JAX pad: more after than before; or 'FIXED', as
  PyTorch and BiT do: (k - 1) / 2 on both sides. `epsilon` is added to the
  standard deviation, `variance_epsilon` to the variance.
  """

  features: int
  kernel_size: tuple[int, int]
  stride: int = 1
  padding: str = 'SAME'
  epsilon: float = 0.0
  variance_epsilon: float = 1e-8
  kernel_init: initializers_lib.Initializer = nn.initializers.lecun_normal()
  dtype: jax.typing.DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Maps [B, H, W, C] to [B, h, w, features]."""
    shape = (*self.kernel_size, x.shape[-1], self.features)
    kernel = jnp.asarray(self.param('kernel', self.kernel_init, shape))
    variance = kernel.var(axis=(0, 1, 2)) + self.variance_epsilon
    # With large batches, GroupNorm networks train as well as BatchNorm networks
    # only with weight standardisation (BiT, section 4.3).
    kernel -= kernel.mean(axis=(0, 1, 2))
    kernel /= jnp.sqrt(variance) + self.epsilon
    sides = [((k - 1) // 2, k // 2) for k in self.kernel_size]
    return jax.lax.conv_general_dilated(
      x.astype(self.dtype),
      kernel.astype(self.dtype),
      (self.stride, self.stride),
      sides if self.padding == 'FIXED' else self.padding,
      dimension_numbers=('NHWC', 'HWIO', 'NHWC'),
    )


class _Unit(nn.Module):
  """A bottleneck of three convolutions, with a shortcut.

  It has F channels, the bottleneck a quarter of them. The stride is that of the
  3 x 3 convolution and of the shortcut, which is a convolution if `project`.
  `conv` and `norm` are a partial `StdConv` and `norms.GroupNorm`.
  """

  features: int
  stride: int
  project: bool
  conv: Callable[..., nn.Module]
  norm: Callable[..., nn.Module]


class PostActivationUnit(_Unit):
  """A unit with norms after its convolutions, and a ReLU after the sum."""

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Maps [B, H, W, C] to [B, h, w, F]."""
    f, mid = self.features, self.features // 4
    shortcut = x
    if self.project:
      shortcut = self.conv(f, (1, 1), self.stride, name='conv_proj')(x)
      shortcut = self.norm(name='norm_proj')(shortcut)
    y = self.conv(mid, (1, 1), name='conv1')(x)
    y = nn.relu(self.norm(name='norm1')(y))
    y = self.conv(mid, (3, 3), self.stride, name='conv2')(y)
    y = nn.relu(self.norm(name='norm2')(y))
    y = self.conv(f, (1, 1), name='conv3')(y)
    # Scale 0, so that a new unit computes only its shortcut.
    y = self.norm(name='norm3', scale_init=nn.initializers.zeros)(y)
    return nn.relu(shortcut + y)


class PreActivationUnit(_Unit):
  """A unit with norms and ReLUs before its convolutions."""

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Maps [B, H, W, C] to [B, h, w, F]."""
    f, mid = self.features, self.features // 4
    y = nn.relu(self.norm(name='norm1')(x))
    if self.project:
      x = self.conv(f, (1, 1), self.stride, name='conv_proj')(y)
    y = self.conv(mid, (1, 1), name='conv1')(y)
    y = nn.relu(self.norm(name='norm2')(y))
    y = self.conv(mid, (3, 3), self.stride, name='conv2')(y)
    y = nn.relu(self.norm(name='norm3')(y))
    return x + self.conv(f, (1, 1), name='conv3')(y)


class Stage(nn.Module):
  """Units of one width; the first has the stride and the projection."""

  unit: Any
  depth: int
  features: int
  stride: int
  conv: Callable[..., nn.Module]
  norm: Callable[..., nn.Module]

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Maps [B, H, W, C] to [B, h, w, F]."""
    for i in range(self.depth):
      x = self.unit(
        self.features,
        self.stride if i == 0 else 1,
        i == 0,
        self.conv,
        self.norm,
        name=f'unit{i + 1}',
      )(x)
    return x


def _stages(
  x: jax.Array,
  unit: Any,
  depths: Sequence[int],
  features: Sequence[int],
  conv: Callable[..., nn.Module],
  norm: Callable[..., nn.Module],
) -> list[jax.Array]:
  """Returns the outputs [B, h, w, F] of all stages, or x without any."""
  outputs = [x] if not depths else []
  for i, (depth, channels) in enumerate(zip(depths, features, strict=True)):
    stride = 1 if i == 0 else 2
    stage = Stage(
      unit, depth, channels, stride, conv, norm, name=f'stage{i + 1}'
    )
    x = stage(x)
    outputs.append(x)
  return outputs


class ResNetStem(nn.Module):
  """The ResNet before a hybrid's encoder, of stride 4 to 32.

  It computes the same as google-research/vision_transformer.

  Attributes:
    stages: Units in each stage; (): only the first convolution and pooling.
      The second stage and those after it halve the grid.
    width: Features of the first convolution; stage i gives width * 4 * 2^i.
    dtype: Type of the convolutions. Parameters and statistics are float32.
    initializers: A name in `initializers_lib.INITIALIZERS`.
  """

  stages: tuple[int, ...]
  width: int = 64
  dtype: jax.typing.DTypeLike = jnp.float32
  initializers: str = 'vit'

  @nn.compact
  def __call__(self, images: jax.Array) -> jax.Array:
    """Maps images [B, H, W, C] to features [B, h, w, F]."""
    conv = functools.partial(
      StdConv,
      epsilon=1e-5,
      # This only keeps the gradient of a constant filter finite.
      variance_epsilon=1e-20,
      kernel_init=initializers_lib.INITIALIZERS[self.initializers].patch,
      dtype=self.dtype,
    )
    norm = functools.partial(norms.GroupNorm, 32, dtype=self.dtype)
    x = conv(self.width, (7, 7), 2, name='conv')(images)
    x = nn.relu(norm(name='norm')(x))
    x = nn.max_pool(x, (3, 3), (2, 2), 'SAME')
    features = [self.width * 4 * 2**i for i in range(len(self.stages))]
    return _stages(x, PostActivationUnit, self.stages, features, conv, norm)[-1]


class BiTStem(nn.Module):
  """BiT's first convolution and pool, of stride 4."""

  width: int
  zero_padded_pool: bool
  conv: Callable[..., nn.Module]

  @nn.compact
  def __call__(self, images: jax.Array) -> jax.Array:
    """Maps images [B, H, W, C] to [B, h, w, width]."""
    x = self.conv(self.width, (7, 7), 2, name='conv')(images)
    border = ((1, 1), (1, 1))
    if self.zero_padded_pool:
      x = jnp.pad(x, ((0, 0), *border, (0, 0)))
      border = ((0, 0), (0, 0))
    return nn.max_pool(x, (3, 3), (2, 2), border)


class BiT(heads.Classifier):
  """Big Transfer's ResNet-v2 for classification.

  Attributes, beside the ones in `Classifier`:
    stages: Units in each stage. The second and later stages halve the grid.
    width_factor: Factor that multiplies all numbers of channels.
    stem_width: Channels of the first convolution.
    channels: Channels of each stage's output; the bottlenecks have a quarter.
    num_groups: Groups of every GroupNorm; divides all numbers of channels.
    zero_padded_pool: Whether the input of the first max pooling is padded with
      zeros, as in BiT; False: with -infinity, as in timm's plain ResNetV2. A
      checkpoint's arrays do not show which.
    dtype: Type of the convolutions. Parameters, statistics and logits are
      float32.
  """

  stages: Annotated[tuple[int, ...], fields.STAGES] = (3, 4, 6, 3)
  width_factor: Annotated[int, fields.SIZE] = 1
  stem_width: Annotated[int, fields.SIZE] = 64
  channels: Annotated[tuple[int, ...], fields.SIZE] = (256, 512, 1024, 2048)
  num_groups: Annotated[int, fields.unseen(least=1)] = 32
  zero_padded_pool: Annotated[bool, fields.UNSEEN] = True
  dtype: Annotated[jax.typing.DTypeLike, fields.EXECUTION] = jnp.float32

  @staticmethod
  def scaled_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns values of its fields with the width factor multiplied in."""
    factor = values['width_factor']
    scaled = {name: x for name, x in values.items() if name != 'width_factor'}
    scaled['stem_width'] *= factor
    scaled['channels'] = tuple(factor * x for x in values['channels'])
    return scaled

  @nn.compact
  def trunk(
    self, images: jax.Array, *, train: bool = False, rows: dropout.Rows = None
  ) -> dict[str, jax.Array]:
    """Returns tokens and features of images [B, height, width, C] of any size.

    `tokens` [B, h * w, F] are the last grid row by row, in the dtype of the
    computation; `features` are their mean, float32 [B, F]. The first stage's
    output [B, h, w, F] is `tokens` of the collection `levels`, if that is
    mutable. Nothing is random in training.
    """
    inputs.check_images(self, images, ('stem', 'conv', 'kernel'))
    conv = functools.partial(
      StdConv,
      padding='FIXED',
      variance_epsilon=1e-8,
      kernel_init=self.starts.patch,
      dtype=self.dtype,
    )
    norm = functools.partial(
      norms.GroupNorm, self.num_groups, epsilon=1e-5, dtype=self.dtype
    )
    factor = self.width_factor
    channels = [factor * n for n in self.channels]
    x = BiTStem(
      factor * self.stem_width, self.zero_padded_pool, conv, name='stem'
    )(images)
    outputs = _stages(x, PreActivationUnit, self.stages, channels, conv, norm)
    if not self.is_initializing():  # else `init` returned it, too
      self.sow(stack.LEVELS, 'tokens', outputs[0])
    x = nn.relu(norm(name='norm')(outputs[-1]))
    return {
      'tokens': jax.lax.collapse(x, 1, 3),
      'features': x.mean(axis=(1, 2)).astype(jnp.float32),
    }
