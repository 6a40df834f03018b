"""The Vision Transformer (Dosovitskiy et al., 2020, arXiv:2010.11929).

In comments: B images, T tokens, D hidden size, H heads, L layers, P tokens
before the patches.
"""

from collections.abc import Iterator
import dataclasses
from typing import Annotated
from typing import Any

from flax import linen as nn
import jax
import numpy as np

from vit_jax.models import context as context_lib
from vit_jax.models import embedding
from vit_jax.models import fields
from vit_jax.models import heads
from vit_jax.models import merging
from vit_jax.models import patches
from vit_jax.models import pooling
from vit_jax.models import positions
from vit_jax.models import registry
from vit_jax.models import relative
from vit_jax.models import rotary
from vit_jax.models import spec as spec_lib
from vit_jax.models import stems
from vit_jax.models import vit
from vit_jax.models.fields import Field
from vit_jax.models.fields import FITTED
from vit_jax.models.fields import Kind

# Hidden size, MLP size, heads, layers: Table 1 of the paper; Ti and S of DeiT
# (arXiv:2012.12877); g of Scaling Vision Transformers (arXiv:2106.04560).
SIZES = {
  'Ti': {'hidden_size': 192, 'mlp_dim': 768, 'num_heads': 3, 'depth': 12},
  'S': {'hidden_size': 384, 'mlp_dim': 1536, 'num_heads': 6, 'depth': 12},
  'B': {'hidden_size': 768, 'mlp_dim': 3072, 'num_heads': 12, 'depth': 12},
  'L': {'hidden_size': 1024, 'mlp_dim': 4096, 'num_heads': 16, 'depth': 24},
  'H': {'hidden_size': 1280, 'mlp_dim': 5120, 'num_heads': 16, 'depth': 32},
  'g': {'hidden_size': 1408, 'mlp_dim': 6144, 'num_heads': 16, 'depth': 40},
}

LEARNED = ('learned', 'factorized')
POSITION_EMBEDDINGS = (*LEARNED, *embedding.SINCOS, 'none')


class Trunk(nn.Module, spec_lib.EncoderSpec, heads.PoolSpec):
  """A Vision Transformer without a head: images to tokens and features.

  The order of tokens is: class token, distillation token, registers, patches.
  All but the patches are optional.

  Attributes, beside those of `spec.LayerSpec`, `spec.EncoderSpec` and
  `heads.PoolSpec`:
    patch_size: (height, width), in pixels of the image, or in cells of the
      ResNet's output grid; or (depth, height, width), for volumes.
    class_token: Whether there is one; None: only if the pool reads it.
    distillation_token: Whether there is one, with a separate head; the logits
      of both heads are averaged (DeiT, arXiv:2012.12877, section 4).
    distillation_head: False: the distillation token has no head, and its output
      is not used.
    registers: Number of register tokens (arXiv:2309.16588).
    mask_token: Whether there is a learned token for masked patches.
    position_embedding: 'learned'; or, of patches alone, 'factorized', sums of
      learned ones of row and column (NaViT, arXiv:2307.06304), or fixed ones,
      'sincos2d' (as big_vision), 'sincos2d_mae' or 'sincos2d_moco'; or 'none'.
    position_tokens: Tokens with a learned position: 'all'; 'class', the class
      token and patches; or 'patches'.
    position_resize: How learned positions are resized to images of their own
      grids, one of `embedding.RESIZES`.
    position_aspect: Whether they are resized to a square around a grid.
    position_grid: Grid (h, w) of the learned positions; None: a square, or for
      factorised ones that of the first image.
    rotary_base: Base of the frequencies of `rotary`; DINOv3's is 100, EVA-02's
      10,000.
    rotary_grid: Grid (h, w) of patches to which `rotary` scales their indices;
      None: it does not scale them.
    rotary_offset: Added to the indices before that (Perception Encoder,
      arXiv:2504.13181, its code).
    patch_bias: Whether the patch embedding has a bias.
    crop_to_patches: Whether images lose the rows and columns behind their last
      whole patch, as in a convolution without padding; otherwise a patch must
      divide them.
    patch_norm: Whether a norm follows it, before positions are added (AIMv2,
      arXiv:2411.14402, its code).
    pre_norm: Whether a LayerNorm precedes the layers (CLIP, arXiv:2103.00020,
      section 2.4).
    patch_dropout: Share of the patches that training leaves out at random
      (arXiv:2208.07220); the rest is not scaled.
    merge: r of token merging (`merging`): how many tokens an average layer
      merges into others; 0: none.
    merge_decreasing: Whether the first layers merge more than the last.
    merge_proportional: Whether attention counts a merged token as often as it
      stands for patches.
    resnet_stages: Units in each stage of a ResNet before the patch embedding,
      () for only its stem; None: no ResNet.
    resnet_width: Channels of that stem.
    positions: Parts of `registry.PARTS`, or of the user's, as 'learned + rope',
      in place of what the other fields describe; '': those.
  """

  _: dataclasses.KW_ONLY
  patch_size: Annotated[tuple[int, ...], FITTED]
  class_token: Annotated[bool | None, FITTED] = None
  distillation_token: Annotated[bool, FITTED] = False
  distillation_head: Annotated[bool, Field(Kind.FITTED, is_visible=False)] = (
    True
  )
  registers: Annotated[int, Field(Kind.FITTED, least=0, most=2**16)] = 0
  mask_token: Annotated[bool, FITTED] = False
  position_embedding: Annotated[
    str, Field(Kind.FITTED, choices=POSITION_EMBEDDINGS)
  ] = 'learned'
  position_tokens: Annotated[
    str, Field(Kind.FITTED, choices=patches.TOKENS)
  ] = 'all'
  position_resize: Annotated[
    str, Field(Kind.FUNCTION, is_visible=False, choices=embedding.RESIZES)
  ] = 'linear'
  position_aspect: Annotated[bool, Field(Kind.FUNCTION, is_visible=False)] = (
    False
  )
  position_grid: Annotated[
    tuple[int, ...] | None, Field(Kind.FITTED, is_visible=False, least=1)
  ] = None
  rotary_base: Annotated[
    float, Field(Kind.FUNCTION, is_visible=False, interval='(0, inf)')
  ] = 100.0
  rotary_grid: Annotated[
    tuple[int, ...] | None, Field(Kind.FUNCTION, is_visible=False, least=1)
  ] = None
  rotary_offset: Annotated[
    float, Field(Kind.FUNCTION, is_visible=False, interval='[0, inf)')
  ] = 0.0
  patch_bias: Annotated[bool, fields.FUNCTION] = True
  crop_to_patches: Annotated[bool, Field(Kind.FUNCTION, is_visible=False)] = (
    False
  )
  patch_norm: Annotated[bool, fields.FUNCTION] = False
  pre_norm: Annotated[bool, fields.FUNCTION] = False
  patch_dropout: Annotated[float, fields.RATE] = 0.0
  merge: Annotated[int, Field(Kind.TRAINING, least=0)] = 0
  merge_decreasing: Annotated[bool, fields.TRAINING] = False
  merge_proportional: Annotated[bool, fields.TRAINING] = True
  resnet_stages: Annotated[tuple[int, ...] | None, fields.STAGES] = None
  resnet_width: Annotated[int, fields.SIZE] = 64
  positions: Annotated[str, Field(Kind.FUNCTION, is_visible=False)] = ''

  def trunk(
    self,
    images: jax.Array,
    *,
    train: bool = False,
    rows: jax.Array | None = None,
    features_only: bool = False,
    masked: jax.Array | None = None,
    kept: jax.Array | None = None,
    grids: jax.Array | None = None,
  ) -> dict[str, jax.Array]:
    """Returns what `vit.ViT.trunk` does."""
    return self._apply(
      'trunk',
      images,
      train=train,
      rows=rows,
      features_only=features_only,
      masked=masked,
      kept=kept,
      grids=grids,
    )

  @nn.compact
  def _apply(self, method: str, images: jax.Array, **kwargs: Any) -> Any:
    """Applies a method of the model of parts, whose parameters are these."""
    model = self.parts().clone(parent=self.scope)
    return getattr(model, method)(images, **kwargs)

  def head_part(self) -> vit.Linear:
    """Returns the head: there is none."""
    return vit.Linear(0, distillation=self.distillation_head, parent=None)

  def parts(self) -> vit.ViT:
    """Returns the model of parts that these fields describe."""
    block = self.block_part()
    if self.merge:
      block = context_lib.as_class(
        block,
        merging.Merging,
        merge=self.merge,
        decreasing=self.merge_decreasing,
        proportional=self.merge_proportional,
      )
    head = self.head_part()
    return vit.ViT(
      hidden_size=self.hidden_size,
      depth=self.depth,
      patches=self._patches_part(),
      block=block,
      num_classes=head.num_classes,
      pool=self.pool_part(),
      head=head,
      positions=tuple(self._positions_parts()),
      norm=self.norm_part(),
      last_norm=self.last_norm,
      pre_norm=self.pre_norm,
      class_token=self.class_token,
      distillation_token=self.distillation_token,
      registers=self.registers,
      mask_token=self.mask_token,
      dropout_rate=self.dropout_rate,
      patch_dropout=self.patch_dropout,
      initializers=self.initializers,
      scan=self.scan,
      remat=self.remat,
      dtype=self.dtype,
      parent=None,
    )

  def _patches_part(self) -> nn.Module:
    values: dict[str, Any] = {
      'hidden_size': self.hidden_size,
      'patch_size': self.patch_size,
      'bias': self.patch_bias,
      'crop': self.crop_to_patches,
      'initializers': self.initializers,
      'dtype': self.dtype,
      'parent': None,
    }
    if self.resnet_stages is not None:
      return stems.HybridPatches(
        stages=self.resnet_stages, width=self.resnet_width, **values
      )
    if self.patch_norm:
      return stems.NormedPatches(patch_norm=self.norm_part(), **values)
    return patches.Patches(**values)

  def pool_part(self) -> nn.Module:
    """Returns the pool."""
    if self.pool not in heads.POOLS:
      return self.named_part('pool', self.pool)
    if self.pool == 'gap':
      return vit.Mean(self.norm_after_pool, parent=None)
    if self.pool != 'map':
      kinds = {'token': vit.Token, 'token+gap': pooling.TokenAndMean}
      return kinds[self.pool](parent=None)
    width = self.mlp_dim if self.map_mlp_dim is None else self.map_mlp_dim
    return pooling.Map(
      self.map_heads or self.num_heads,
      width,
      self.map_prefix,
      self.map_query,
      self.map_bias,
      self.gelu,
      self.norm_part(),
      self.initializers,
      self.dtype,
      parent=None,
    )

  def _positions_parts(self) -> Iterator[nn.Module]:
    if self.positions:
      kind = 'positions'
      yield from registry.build_sum(
        kind, self.positions, self.part_values(kind), f'model.{kind}'
      )
      return
    kind, is_kept = self.position_embedding, self.position_aspect
    if kind == 'learned':
      yield patches.Learned(
        self.position_tokens,
        self.position_resize,
        is_kept,
        self.position_grid,
        self.initializers,
        parent=None,
      )
    elif kind == 'factorized':
      yield positions.Factorized(
        is_kept, self.position_grid, self.initializers, parent=None
      )
    elif kind != 'none':
      yield positions.SinCos(kind, parent=None)
    if self.rotary != 'none':
      yield rotary.Rope(
        self.num_heads,
        self.rotary,
        self.rotary_base,
        self.rotary_grid,
        self.rotary_offset,
        parent=None,
      )
    relation, _, computed = self.relative_positions.partition('_')
    if computed:
      yield relative.RelativeMlpBias(
        self.num_heads,
        self.relative_mlp_dim,
        relation == 'shared',
        parent=None,
      )
    elif relation != 'none':
      yield relative.RelativeBias(
        self.num_heads, relation == 'shared', parent=None
      )

  @property
  def layer_spec(self) -> spec_lib.EncoderSpec:
    """The fields that the layers are given."""
    return spec_lib.EncoderSpec.take(self)

  @property
  def prefix(self) -> tuple[str, ...]:
    """Names of the parameters of the tokens before the patches, in order."""
    class_token = self.class_token
    if class_token is None:
      class_token = getattr(self.pool_part(), 'reads_class_token', False)
    present = {
      'class_token': class_token,
      'distillation_token': self.distillation_token,
      'register_tokens': self.registers,
    }
    return tuple(name for name, is_there in present.items() if is_there)

  @property
  def prefix_length(self) -> int:
    """Number of tokens before the patches, P."""
    return len(self.prefix) + max(self.registers - 1, 0)

  @property
  def positioned_prefix(self) -> int:
    """Number of tokens before the patches that have a learned position."""
    has_class = int('class_token' in self.prefix)
    if self.position_embedding == 'factorized':
      return 0
    return {'all': self.prefix_length, 'class': has_class, 'patches': 0}[
      self.position_tokens
    ]

  @property
  def has_two_heads(self) -> bool:
    """Whether the distillation token has a head of its own."""
    return self.distillation_token and self.distillation_head

  def rotation(self, grid: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Returns cosines and sines of a grid's patches, float32 [N, K] each."""
    return rotary.table(
      self.rotary,
      grid,
      self.hidden_size // self.num_heads,
      self.rotary_base,
      self.rotary_grid,
      self.rotary_offset,
    )


class ViT(Trunk):
  """A Vision Transformer for classification: a trunk and its heads.

  Attributes, beside those of the trunk:
    num_classes: Size of the head's output; 0: no head, and the model returns
      what the head would get.
    pre_logits: Size of a dense layer with tanh before the head; 0: none.
    head_norm: 'batch': a BatchNorm without affine parameters before the head,
      as in the linear probes of MAE (arXiv:2111.06377, appendix A.1); 'none'.
    head_bias: Initial value of the head's bias: with a sigmoid loss, the
      logarithm of a class's frequency.
  """

  num_classes: Annotated[int, vit.NUM_CLASSES]
  _: dataclasses.KW_ONLY
  pre_logits: Annotated[int, Field(Kind.FITTED, least=0)] = 0
  head_norm: Annotated[str, Field(Kind.FITTED, choices=vit.HEAD_NORMS)] = 'none'
  head_bias: Annotated[float, fields.TRAINING] = 0.0

  def __call__(
    self,
    images: jax.Array,
    *,
    train: bool = False,
    rows: jax.Array | None = None,
    merge_heads: bool = True,
    grids: jax.Array | None = None,
  ) -> jax.Array:
    """Returns what `vit.ViT` does."""
    return self._apply(
      '__call__',
      images,
      train=train,
      rows=rows,
      merge_heads=merge_heads,
      grids=grids,
    )

  def head_part(self) -> vit.Linear:
    """Returns the head."""
    return vit.Linear(
      self.num_classes,
      self.pre_logits,
      self.head_norm,
      self.head_bias,
      self.distillation_head,
      self.initializers,
      parent=None,
    )
