"""The decoder of UNETR: tokens of a ViT and the input to logits of its places.

Hatamizadeh et al., 2021, arXiv:2103.10504, section 3.2, as in MONAI, whose
parameter names `weights/formats/dense.py` knows. Patches are of 16 places along
each axis, since four doublings lead from their grid to the input's. In
comments: B volumes, [d, h, w] grid of patches, D width of a token, F features.
"""

from collections.abc import Sequence
import functools

from flax import linen as nn
import jax
import jax.numpy as jnp

from vit_jax.models import maps

PATCH = 16
# Layers whose tokens are skips, from 0. In MONAI these are the fourth, seventh
# and tenth layer.
LEVELS = (3, 6, 9)
_SLOPE = 0.01  # of the leaky ReLU


class ResidualUnit(nn.Module):
  """Two convolutions with InstanceNorm and a shortcut, without biases."""

  features: int
  dtype: jax.typing.DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Maps [B, ..., C] to [B, ..., features]."""
    conv = functools.partial(
      maps.PlainConvolution, self.features, dtype=self.dtype
    )
    y = maps.instance_norm(conv(name='conv1')(x))
    y = nn.leaky_relu(y, _SLOPE)
    y = maps.instance_norm(conv(name='conv2')(y))
    if x.shape[-1] != self.features:
      x = conv(kernel_size=1, name='conv_shortcut')(x)
      x = maps.instance_norm(x)
    return nn.leaky_relu(y + x, _SLOPE)


class Skip(nn.Module):
  """Doubles the grid of a layer's tokens, 1 to 3 times."""

  features: int
  doublings: int
  dtype: jax.typing.DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Maps [B, d, h, w, D] to [B, 2^n d, 2^n h, 2^n w, features]."""
    x = maps.Doubled(self.features, self.dtype, name='first')(x)
    for i in range(self.doublings - 1):
      x = maps.Doubled(self.features, self.dtype, name=f'doubled_{i}')(x)
      x = ResidualUnit(self.features, self.dtype, name=f'unit_{i}')(x)
    return x


class Up(nn.Module):
  """Doubles a grid, adds the channels of a skip, and convolves both."""

  features: int
  dtype: jax.typing.DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array, skip: jax.Array) -> jax.Array:
    """Maps [B, d, h, w, C] to [B, 2 d, 2 h, 2 w, features]."""
    x = maps.Doubled(self.features, self.dtype, name='doubled')(x)
    x = jnp.concatenate([x, skip.astype(x.dtype)], axis=-1)
    return ResidualUnit(self.features, self.dtype, name='unit')(x)


class UNETR(nn.Module):
  """The decoder; its parts have MONAI's names.

  Attributes:
    num_classes: Size of the output.
    features: F, channels at the input's resolution.
    dtype: Type in which convolutions compute.
  """

  num_classes: int
  features: int = 16
  dtype: jax.typing.DTypeLike = jnp.float32

  def setup(self) -> None:
    """Makes the layers."""
    f, dtype = self.features, self.dtype
    self.encoder1 = ResidualUnit(f, dtype)
    self.encoder2 = Skip(2 * f, 3, dtype)
    self.encoder3 = Skip(4 * f, 2, dtype)
    self.encoder4 = Skip(8 * f, 1, dtype)
    self.decoder5, self.decoder4 = Up(8 * f, dtype), Up(4 * f, dtype)
    self.decoder3, self.decoder2 = Up(2 * f, dtype), Up(f, dtype)
    self.classifier = maps.Classifier(self.num_classes)

  def __call__(
    self, volumes: jax.Array, levels: Sequence[jax.Array], last: jax.Array
  ) -> jax.Array:
    """Returns logits, float32 [B, 16 d, 16 h, 16 w, classes].

    Args:
      volumes: The trunk's input, [B, 16 d, 16 h, 16 w, C].
      levels: Tokens after three layers, [B, d, h, w, D] each, before the last
        norm.
      last: Tokens after the last norm, [B, d, h, w, D].
    """
    return self.stages(volumes, levels, last)['logits']

  def stages(
    self, volumes: jax.Array, levels: Sequence[jax.Array], last: jax.Array
  ) -> dict[str, jax.Array]:
    """Returns the logits, and the outputs of most stages by their names."""
    outputs = {'enc1': self.encoder1(volumes)}
    for i, x in enumerate(levels, start=2):
      outputs[f'enc{i}'] = getattr(self, f'encoder{i}')(x)
    x = last
    for i in (5, 4, 3, 2):
      x = getattr(self, f'decoder{i}')(x, outputs[f'enc{i - 1}'])
      outputs[f'dec{i}'] = x
    return outputs | {'logits': self.classifier(x)}
