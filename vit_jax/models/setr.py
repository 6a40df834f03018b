"""Heads that turn the tokens of a ViT into maps: SETR, and a linear one.

SETR (Zheng et al., 2021, arXiv:2012.15840, section 3.2) as in mmsegmentation,
whose parameter names `weights/formats/dense.py` knows. In comments: B images,
[h, w] grid of patches, D width of a token.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import functools
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp

from vit_jax.models import block
from vit_jax.models import maps
from vit_jax.models import projection

_EPSILON = 1e-6  # of LayerNorm

# name -> kernel size and upsampling of the main head and of auxiliary ones, and
# the number of the main head's convolutions.
KINDS: Mapping[str, Mapping[str, Any]] = {
  'linear': {},
  'naive': {'kernel_size': 1, 'convs': 1, 'scale': 4},
  'pup': {'kernel_size': 3, 'convs': 4, 'scale': 2},
  'mla': {},
}
_AUXILIARY_SCALE = 4


class UpHead(nn.Module):
  """Convolutions, each followed by upsampling by `scale`, and a classifier."""

  num_classes: int
  channels: int = 256
  kernel_size: int = 3
  convs: int = 4
  scale: int = 2
  align_corners: bool = False
  dtype: jax.typing.DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array, *, train: bool = False) -> jax.Array:
    """Maps tokens [B, h, w, D] to logits, float32 [B, h', w', classes]."""
    x = block.LayerNorm(_EPSILON, self.dtype, name='norm')(x)
    conv = functools.partial(maps.Convolution, self.channels, dtype=self.dtype)
    for i in range(self.convs):
      convolution = conv(self.kernel_size, name=f'convolutions_{i}')
      x = convolution(x, train=train)
      if i < self.convs - 1:
        x = maps.scaled(x, self.scale, self.align_corners)
    # Resized logits are logits of resized features, as weights sum to 1.
    logits = maps.Classifier(self.num_classes, name='classifier')(x)
    return maps.scaled(logits, self.scale, self.align_corners)


class LinearHead(nn.Module):
  """BatchNorm and a classifier, as DINOv2's linear head (arXiv:2304.07193)."""

  num_classes: int

  @nn.compact
  def __call__(self, x: jax.Array, *, train: bool = False) -> jax.Array:
    """Maps tokens [B, h, w, D] to logits, float32 [B, h, w, classes]."""
    x = projection.StoredBatchNorm(name='norm')(x, train=train)
    return maps.Classifier(self.num_classes, name='classifier')(x)


class Neck(nn.Module):
  """Adds the levels up from the deepest (multi-level feature aggregation)."""

  channels: int = 256
  dtype: jax.typing.DTypeLike = jnp.float32

  @nn.compact
  def __call__(
    self, levels: Sequence[jax.Array], *, train: bool = False
  ) -> list[jax.Array]:
    """Maps levels [B, h, w, D] to [B, h, w, channels], the deepest first."""
    conv = functools.partial(maps.Convolution, self.channels, dtype=self.dtype)
    projected = []
    for i, x in enumerate(levels):
      x = block.LayerNorm(_EPSILON, self.dtype, name=f'norms_{i}')(x)
      projected.append(conv(1, name=f'inputs_{i}')(x, train=train))
    outputs: list[jax.Array] = []
    total: jax.Array | float = 0.0
    for i, x in enumerate(reversed(projected)):
      total = total + x
      outputs.append(conv(name=f'outputs_{i}')(total, train=train))
    return outputs


class MlaHead(nn.Module):
  """Two convolutions for each level; a classifier of them all; upsampling."""

  num_classes: int
  channels: int = 128
  align_corners: bool = False
  dtype: jax.typing.DTypeLike = jnp.float32

  @nn.compact
  def __call__(
    self, levels: Sequence[jax.Array], *, train: bool = False
  ) -> jax.Array:
    """Maps levels [B, h, w, C] to logits, float32 [B, 4 h, 4 w, classes]."""
    conv = functools.partial(maps.Convolution, self.channels, dtype=self.dtype)
    convolved = []
    for i, x in enumerate(levels):
      for j in range(2):
        x = conv(name=f'levels_{i}_{j}')(x, train=train)
      convolved.append(x)
    x = jnp.concatenate(convolved, axis=-1)
    # Resized logits are logits of resized features, as weights sum to 1.
    logits = maps.Classifier(self.num_classes, name='classifier')(x)
    return maps.scaled(logits, 4, self.align_corners)


class SETR(nn.Module):
  """A head on the tokens of several layers, and auxiliary heads.

  Attributes:
    kind: One of `KINDS`.
    num_classes: Size of the output.
    channels: Of the main head's convolutions; of the neck with 'mla'.
    level_channels: Of the convolutions of each level of 'mla'; 0: half as many,
      as published.
    auxiliary: Whether all levels but the last ('mla': all) have a head, too.
    convs: Convolutions of the main head of 'naive' and 'pup'; 0: as published,
      for patches of 16 pixels.
    auxiliary_convs: Convolutions of an auxiliary head of 'naive' and 'pup'.
    align_corners: How maps are resized, see `maps.resize`.
    dtype: Type in which convolutions compute.
  """

  kind: str
  num_classes: int
  channels: int = 256
  level_channels: int = 0
  auxiliary: bool = True
  convs: int = 0
  auxiliary_convs: int = 1
  align_corners: bool = False
  dtype: jax.typing.DTypeLike = jnp.float32

  @nn.compact
  def __call__(
    self, levels: Sequence[jax.Array], *, train: bool = False
  ) -> tuple[jax.Array, list[jax.Array]]:
    """Returns logits, float32 [B, h', w', classes], and the other heads'.

    The grid is that of the levels, or a finer one; the logits of 'mla' are
    [B, 4 h, 4 w, classes]. In training BatchNorm measures this batch.

    Args:
      levels: Tokens of layers before the last norm, [B, h, w, D] each, from the
        first layer to the last.
      train: Whether this is training.
    """
    classes, auxiliary_logits = self.num_classes, list[jax.Array]()
    if self.kind == 'linear':
      head = LinearHead(classes, name='decode')
      return head(levels[-1], train=train), auxiliary_logits
    if self.kind == 'mla':
      neck = Neck(self.channels, self.dtype, name='neck')
      levels = neck(levels, train=train)
      mla = MlaHead(
        classes,
        self.level_channels or self.channels // 2,
        self.align_corners,
        self.dtype,
        name='decode',
      )
      logits = mla(levels, train=train)
      for i, x in enumerate(levels if self.auxiliary else ()):
        classifier = maps.Classifier(classes, name=f'auxiliary_{i}')
        auxiliary_logits.append(classifier(x))
      return logits, auxiliary_logits
    kind = KINDS[self.kind]
    up = functools.partial(
      UpHead,
      classes,
      self.channels,
      kind['kernel_size'],
      align_corners=self.align_corners,
      dtype=self.dtype,
    )
    main = up(
      convs=self.convs or kind['convs'], scale=kind['scale'], name='decode'
    )
    logits = main(levels[-1], train=train)
    for i, x in enumerate(levels[:-1] if self.auxiliary else ()):
      auxiliary = up(
        convs=self.auxiliary_convs,
        scale=_AUXILIARY_SCALE,
        name=f'auxiliary_{i}',
      )
      auxiliary_logits.append(auxiliary(x, train=train))
    return logits, auxiliary_logits
