"""A ViT by flat fields, as formats of checkpoints describe it.

`ViT.parts` makes the model of parts, and `flatten` is its inverse.
"""

from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses
from typing import Annotated
from typing import Any
from typing import Self

from flax import linen as nn

from vit_jax.models import attention
from vit_jax.models import block
from vit_jax.models import blocks
from vit_jax.models import context as context_lib
from vit_jax.models import differential
from vit_jax.models import embedding
from vit_jax.models import experts
from vit_jax.models import fields
from vit_jax.models import grouped
from vit_jax.models import heads
from vit_jax.models import merging
from vit_jax.models import mlp
from vit_jax.models import norms
from vit_jax.models import patches as patches_lib
from vit_jax.models import pooling
from vit_jax.models import positions as positions_lib
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


# Kind of part, which is the field that names one: the fields that describe it.
TEXTS: Mapping[str, str] = {
  'block': (
    'layer_scale layer_scale_mlp stochastic_depth_uniform branches post_norm'
    ' parallel_mlp merge merge_decreasing merge_proportional'
  ),
  'attention': (
    'qkv_bias key_bias qk_norm attention_norm causal key_heads full_key_layers'
    ' differential'
  ),
  'mlp': (
    'gelu mlp_norm gated_mlp gate experts routing expert_layers expert_slots'
    ' experts_per_token expert_capacity expert_priority expert_noise'
    ' expert_loss'
  ),
  'positions': (
    'position_embedding position_tokens position_resize position_aspect'
    ' position_grid rotary rotary_base rotary_grid rotary_offset'
    ' relative_positions relative_mlp_dim'
  ),
  'patches': (
    'patch_bias crop_to_patches patch_norm resnet_stages resnet_width'
  ),
  'head': 'pre_logits head_norm head_bias distillation_head',
  'pool': (
    'norm_after_pool map_prefix map_heads map_query map_bias map_mlp_dim'
  ),
}


@dataclasses.dataclass(kw_only=True, unsafe_hash=True)
class ViT(spec_lib.EncoderSpec, heads.PoolSpec):
  """Fields of a Vision Transformer; `vit.ViT` computes it.

  Attributes, beside those of `spec.LayerSpec`, `spec.EncoderSpec` and
  `heads.PoolSpec`:
    num_classes: Size of the head's output; 0: no head, and the model returns
      what the head would get.
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
    pre_logits: Size of a dense layer with tanh before the head; 0: none.
    head_norm: 'batch': a BatchNorm without affine parameters before the head,
      as in the linear probes of MAE (arXiv:2111.06377, appendix A.1); 'none'.
    head_bias: Initial value of the head's bias: with a sigmoid loss, the
      logarithm of a class's frequency.
    positions: Parts of `registry.PARTS`, or of the user's, as 'learned + rope',
      in place of what the other fields describe; '': those.
    patches: As `positions`, of the patch embedding.
    head: As `positions`, of the head.
  """

  num_classes: Annotated[int, vit.NUM_CLASSES] = dataclasses.field(
    kw_only=False
  )
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
    str, Field(Kind.FITTED, choices=patches_lib.TOKENS)
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
  pre_logits: Annotated[int, Field(Kind.FITTED, least=0)] = 0
  head_norm: Annotated[str, Field(Kind.FITTED, choices=vit.HEAD_NORMS)] = 'none'
  head_bias: Annotated[float, fields.TRAINING] = 0.0
  positions: Annotated[str, Field(Kind.FUNCTION, is_visible=False)] = ''
  patches: Annotated[str, Field(Kind.FUNCTION, is_visible=False)] = ''
  head: Annotated[str, Field(Kind.FUNCTION, is_visible=False)] = ''

  def clone(self, **changes: Any) -> Self:
    """Returns these fields with others in the place of some."""
    return dataclasses.replace(self, **changes)

  def parts(self) -> vit.ViT:
    """Returns the model of parts that these fields describe."""
    return vit.ViT(
      hidden_size=self.hidden_size,
      depth=self.depth,
      patches=self.patches_part(),
      block=self.layer_part(),
      pool=self.pool_part(),
      positions=tuple(self.positions_parts()),
      norm=self.norm_part(),
      last_norm=self.last_norm,
      pre_norm=self.pre_norm,
      class_token=self.class_token,
      distillation_token=self.distillation_token,
      registers=self.registers,
      mask_token=self.mask_token,
      dropout_rate=self.dropout_rate,
      patch_dropout=self.patch_dropout,
      num_classes=self.num_classes,
      head=self.head_part(),
      initializers=self.initializers,
      scan=self.scan,
      remat=self.remat,
      dtype=self.dtype,
      parent=None,
    )

  def head_part(self) -> nn.Module:
    """Returns the head."""
    if self.head:
      part: nn.Module = self.named_part('head', self.head)
      return part
    return vit.Linear(
      self.num_classes,
      self.pre_logits,
      self.head_norm,
      self.head_bias,
      self.distillation_head,
      self.initializers,
      parent=None,
    )

  def layer_part(self) -> nn.Module:
    """Returns the block, which may merge tokens."""
    part: nn.Module = self.block_part()
    if not self.merge:
      return part
    merged: nn.Module = context_lib.as_class(
      part,
      merging.Merging,
      merge=self.merge,
      decreasing=self.merge_decreasing,
      proportional=self.merge_proportional,
    )
    return merged

  def patches_part(self) -> nn.Module:
    """Returns the patch embedding."""
    if self.patches:
      return self.named_part('patches', self.patches)
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
    return patches_lib.Patches(**values)

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

  def positions_parts(self) -> Iterator[nn.Module]:
    """Yields the positions."""
    if self.positions:
      kind = 'positions'
      yield from registry.build_sum(
        kind, self.positions, self.part_values(kind), f'model.{kind}'
      )
      return
    kind, is_kept = self.position_embedding, self.position_aspect
    if kind == 'learned':
      yield patches_lib.Learned(
        self.position_tokens,
        self.position_resize,
        is_kept,
        self.position_grid,
        self.initializers,
        parent=None,
      )
    elif kind == 'factorized':
      yield positions_lib.Factorized(
        is_kept, self.position_grid, self.initializers, parent=None
      )
    elif kind != 'none':
      yield positions_lib.SinCos(kind, parent=None)
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


def _same(text: str) -> dict[str, str]:
  return {name: name for name in text.split()}


# Class -> flat field: the option of the part that it is. A part has the rows of
# all of its classes.
_OPTIONS: Mapping[type[nn.Module], Mapping[str, str]] = {
  block.LayerNorm: {'layer_norm_epsilon': 'epsilon'},
  norms.RMSNorm: {'layer_norm_epsilon': 'epsilon'},
  patches_lib.Patches: {
    'patch_size': 'patch_size',
    'patch_bias': 'bias',
    'crop_to_patches': 'crop',
  },
  stems.HybridPatches: {
    'resnet_stages': 'stages',
    'resnet_width': 'width',
  },
  block.Block: _same(
    'layer_scale layer_scale_mlp stochastic_depth stochastic_depth_uniform'
  ),
  blocks.Branches: {'branches': 'count'},
  merging.Merging: {
    'merge': 'merge',
    'merge_decreasing': 'decreasing',
    'merge_proportional': 'proportional',
  },
  patches_lib.Learned: {
    'position_tokens': 'tokens',
    'position_resize': 'resize',
    'position_aspect': 'keep_aspect',
    'position_grid': 'grid',
  },
  positions_lib.Factorized: {
    'position_aspect': 'keep_aspect',
    'position_grid': 'grid',
  },
  positions_lib.SinCos: {'position_embedding': 'kind'},
  rotary.Rope: {
    'rotary': 'kind',
    'rotary_base': 'base',
    'rotary_grid': 'grid',
    'rotary_offset': 'offset',
  },
  relative.RelativeMlpBias: {'relative_mlp_dim': 'hidden_dim'},
  attention.Attention: {
    'dense_bias': 'out_bias',
    'attention_norm': 'out_norm',
    'attention_dropout_rate': 'dropout_rate',
    'attention_implementation': 'implementation',
  }
  | _same('num_heads qkv_bias key_bias qk_norm causal'),
  grouped.Grouped: {'key_heads': 'key_heads', 'full_key_layers': 'full_layers'},
  mlp.Mlp: {
    'mlp_dim': 'hidden_dim',
    'gelu': 'gelu',
    'dense_bias': 'bias',
    'mlp_norm': 'hidden_norm',
  },
  experts.Experts: {
    'experts': 'count',
    'routing': 'routing',
    'experts_per_token': 'per_token',
  }
  | {
    f'expert_{name}': name
    for name in 'layers slots capacity priority noise loss'.split()
  },
  vit.Linear: {
    'pre_logits': 'pre_logits',
    'head_norm': 'norm',
    'head_bias': 'bias',
    'distillation_head': 'distillation',
  },
  vit.Mean: {'norm_after_pool': 'norm_after'},
  pooling.Map: {
    'map_prefix': 'prefix',
    'map_query': 'query',
    'map_bias': 'bias',
    'map_heads': 'num_heads',
    'map_mlp_dim': 'mlp_dim',
  },
}
# Class -> values of flat fields that it stands for.
_VALUES: Mapping[type[nn.Module], Mapping[str, Any]] = {
  block.LayerNorm: {'norm': 'layer'},
  norms.RMSNorm: {'norm': 'rms'},
  stems.NormedPatches: {'patch_norm': True},
  blocks.PostNorm: {'post_norm': True},
  blocks.Parallel: {'parallel_mlp': True},
  patches_lib.Learned: {'position_embedding': 'learned'},
  positions_lib.Factorized: {'position_embedding': 'factorized'},
  differential.Differential: {'differential': True},
  **{
    kind: {'gated_mlp': True, 'gate': gate}
    for gate, kind in spec_lib.GATES.items()
  },
  vit.Token: {'pool': 'token'},
  vit.Mean: {'pool': 'gap'},
  pooling.TokenAndMean: {'pool': 'token+gap'},
  pooling.Map: {'pool': 'map'},
}


def without_named(
  values: Mapping[str, Any], overrides: Mapping[str, Any]
) -> dict[str, Any]:
  """Returns values of fields but for those of parts that overrides name."""
  dropped = {
    name
    for kind, names in TEXTS.items()
    if overrides.get(kind) and overrides[kind] not in heads.POOLS
    for name in names.split()
  }
  return {name: x for name, x in values.items() if name not in dropped}


def flatten(model: vit.ViT) -> ViT:
  """Returns the flat fields of a model of parts, the inverse of `ViT.parts`.

  A part that no flat field describes, as one of the user's, is a text.
  """
  if isinstance(model.block, merging.Merging) and not model.block.merge:
    model = model.clone(block=context_lib.as_class(model.block, block.Block))
  layer = model.block
  hidden = getattr(layer, 'mlp', None)
  parts = [
    *(model.norm, model.patches, layer, *model.positions, model.pool),
    model.head,
    *(getattr(hidden, 'mlp', None), hidden, getattr(layer, 'attention', None)),
  ]
  values: dict[str, Any] = {
    # Parts of the user's may have no such options.
    'num_heads': 1,
    'mlp_dim': model.hidden_size,
    'patch_size': model.patches.pixels,
    'position_embedding': 'none',
  }
  values |= {
    name: getattr(model, name)
    for name in fields.of(ViT)
    if hasattr(model, name) and name not in registry.PARTS
  }
  for part in parts:
    values |= _flat_values(part)
  if values.get('map_heads') == values['num_heads']:
    del values['map_heads']
  if values.get('map_mlp_dim') == values['mlp_dim']:
    del values['map_mlp_dim']
  result = ViT(**values)
  for kind in ('norm', 'patches', 'attention', 'mlp', 'block', 'pool', 'head'):
    result = _with_text(result, kind, model)
  if tuple(result.positions_parts()) != model.positions:
    kind = 'positions'
    result = _without_kind(result, kind)
    values = result.part_values(kind)
    text = registry.describe_sum(kind, model.positions, values)
    result = result.clone(positions=text)
  return result


def _flat_values(part: nn.Module | None) -> dict[str, Any]:
  """Returns the flat fields that a part says."""
  values: dict[str, Any] = {}
  for kind, options in _OPTIONS.items():
    if isinstance(part, kind):
      known = registry.options_of(type(part))
      values |= {
        name: getattr(part, x) for name, x in options.items() if x in known
      }
  for kind, constants in _VALUES.items():
    if isinstance(part, kind):
      values |= constants
  if isinstance(part, relative.RelativeBias | relative.RelativeMlpBias):
    relation = 'shared' if part.shared else 'layers'
    is_computed = isinstance(part, relative.RelativeMlpBias)
    values['relative_positions'] = relation + '_mlp' * is_computed
  return values


def _with_text(spec: ViT, kind: str, model: vit.ViT) -> ViT:
  """Returns flat fields with a text if they describe another part."""
  home = model.block if kind in ('attention', 'mlp') else model
  part = getattr(home, kind, None)
  described = {
    'norm': spec.norm_part,
    'patches': spec.patches_part,
    'attention': spec.attention_part,
    'mlp': spec.hidden_part,
    'block': spec.layer_part,
    'pool': spec.pool_part,
    'head': spec.head_part,
  }[kind]()
  if kind == 'head':
    part = model.sized_head
  if part is None or part == described:
    return spec
  spec = _without_kind(spec, kind)
  return spec.clone(
    **{kind: registry.describe(kind, part, spec.part_values(kind))}
  )


def _without_kind(spec: ViT, kind: str) -> ViT:
  """Returns flat fields with the defaults of those that describe a kind."""
  defaults = {x.name: x.default for x in dataclasses.fields(ViT)}
  names = TEXTS.get(kind, '').split()
  return spec.clone(**{name: defaults[name] for name in names})
