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
import jax
import jax.numpy as jnp

from vit_jax.models import attention
from vit_jax.models import block
from vit_jax.models import context as context_lib
from vit_jax.models import embedding
from vit_jax.models import fields
from vit_jax.models import initializers as initializers_lib
from vit_jax.models import patches as patches_lib
from vit_jax.models import registry
from vit_jax.models import remat as remat_lib
from vit_jax.models import vit
from vit_jax.models.fields import EXECUTION
from vit_jax.models.fields import Field
from vit_jax.models.fields import FITTED
from vit_jax.models.fields import FUNCTION
from vit_jax.models.fields import Kind
from vit_jax.models.fields import RATE
from vit_jax.models.fields import SIZE
from vit_jax.models.fields import TRAINING
from vit_jax.models.parts import blocks
from vit_jax.models.parts import differential
from vit_jax.models.parts import experts as experts_lib
from vit_jax.models.parts import grouped
from vit_jax.models.parts import kernels
from vit_jax.models.parts import merging
from vit_jax.models.parts import mlp
from vit_jax.models.parts import norms
from vit_jax.models.parts import pooling
from vit_jax.models.parts import positions as positions_lib
from vit_jax.models.parts import relative
from vit_jax.models.parts import rotary as rotary_lib
from vit_jax.models.parts import stems
from vit_jax.models.zoo.vit import SIZES as SIZES

POOLS = ('token', 'gap', 'map', 'token+gap')
# GLU variants (arXiv:2002.05202), by their gates.
GATES = {
  'silu': mlp.SwiGLU,
  'sigmoid': mlp.GLU,
  'gelu': mlp.GEGLU,
}
NORMS = {'layer': 'layer_norm', 'rms': 'rms_norm'}
_TEXT = Field(Kind.FUNCTION, is_visible=False)
RELATIVE_POSITIONS = ('none', *relative.TABLES, *relative.MLPS)
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


@dataclasses.dataclass(kw_only=True, frozen=True)
class ViT:
  """Fields of a Vision Transformer; `vit.ViT` computes it.

  They are those of `vit.ViT`, or options of its parts: `_OPTIONS` says of
  which, `_VALUES` and `parts` which parts they choose.
  """

  num_classes: Annotated[int, vit.NUM_CLASSES] = dataclasses.field(
    kw_only=False
  )
  pool: Annotated[str, fields.FITTED] = 'token'
  last_norm: Annotated[bool, fields.FUNCTION] = True
  norm_after_pool: Annotated[bool, fields.FITTED] = False
  map_prefix: Annotated[bool, Field(Kind.FITTED, is_visible=False)] = False
  map_heads: Annotated[
    int | None, Field(Kind.FITTED, is_visible=False, least=1)
  ] = None
  map_query: Annotated[bool, fields.FITTED] = True
  map_bias: Annotated[bool, fields.FITTED] = True
  map_mlp_dim: Annotated[int | None, Field(Kind.FITTED, least=0)] = None
  hidden_size: Annotated[int, SIZE]
  mlp_dim: Annotated[int, SIZE]
  depth: Annotated[int, Field(Kind.SIZE, least=1, most=1_000)]
  dropout_rate: Annotated[float, RATE] = 0.0
  stochastic_depth: Annotated[float, RATE] = 0.0
  stochastic_depth_uniform: Annotated[bool, TRAINING] = False
  gelu: Annotated[
    str, Field(Kind.FUNCTION, is_visible=False, choices=tuple(block.GELUS))
  ] = 'tanh'
  layer_norm_epsilon: Annotated[
    float, Field(Kind.FUNCTION, is_visible=False, interval='(0, 1)')
  ] = 1e-6
  initializers: Annotated[str, initializers_lib.FIELD] = 'vit'
  scan: Annotated[bool, EXECUTION] = False
  remat: Annotated[str, Field(Kind.EXECUTION, choices=remat_lib.POLICIES)] = (
    'auto'
  )
  dtype: Annotated[jax.typing.DTypeLike, EXECUTION] = jnp.float32
  num_heads: Annotated[int, Field(Kind.SIZE, is_visible=False, least=1)]
  key_heads: Annotated[int | None, Field(Kind.FUNCTION, least=1)] = None
  full_key_layers: Annotated[int, Field(Kind.FUNCTION, least=0, most=1_000)] = 0
  attention_dropout_rate: Annotated[float, RATE] = 0.0
  layer_scale: Annotated[float | None, fields.FITTED] = None
  layer_scale_mlp: Annotated[bool, FUNCTION] = True
  qk_norm: Annotated[bool, FUNCTION] = False
  qkv_bias: Annotated[bool, FUNCTION] = True
  key_bias: Annotated[bool, FUNCTION] = True
  dense_bias: Annotated[bool, FUNCTION] = True
  attention_norm: Annotated[bool, FUNCTION] = False
  post_norm: Annotated[bool, Field(Kind.FUNCTION, is_visible=False)] = False
  parallel_mlp: Annotated[bool, FUNCTION] = False
  branches: Annotated[int, Field(Kind.FUNCTION, least=1, most=100)] = 1
  differential: Annotated[bool, FUNCTION] = False
  causal: Annotated[bool, Field(Kind.FUNCTION, is_visible=False)] = False
  relative_positions: Annotated[
    str, Field(Kind.FITTED, choices=RELATIVE_POSITIONS)
  ] = 'none'
  relative_mlp_dim: Annotated[int, Field(Kind.FITTED, least=1)] = 128
  norm: Annotated[str, FUNCTION] = 'layer'
  rotary: Annotated[
    str,
    Field(Kind.FUNCTION, is_visible=False, choices=('none', *rotary_lib.KINDS)),
  ] = 'none'
  gated_mlp: Annotated[bool, FUNCTION] = False
  gate: Annotated[
    str, Field(Kind.FUNCTION, is_visible=False, choices=tuple(GATES))
  ] = 'silu'
  mlp_norm: Annotated[bool, FUNCTION] = False
  experts: Annotated[int, Field(Kind.FUNCTION, least=0, most=2**16)] = 0
  routing: Annotated[
    str, Field(Kind.FUNCTION, choices=experts_lib.ROUTINGS)
  ] = 'top_experts'
  expert_layers: Annotated[
    tuple[int, ...], Field(Kind.FUNCTION, least=1, most=1_000)
  ] = ()
  expert_slots: Annotated[int, Field(Kind.FUNCTION, least=0)] = 0
  experts_per_token: Annotated[
    int, Field(Kind.FUNCTION, is_visible=False, least=1)
  ] = 2
  expert_capacity: Annotated[
    float, Field(Kind.TRAINING, interval='(0, inf)')
  ] = 1.05
  expert_priority: Annotated[bool, TRAINING] = False
  expert_noise: Annotated[float, Field(Kind.TRAINING, interval='[0, inf)')] = (
    1.0
  )
  expert_loss: Annotated[float, Field(Kind.TRAINING, interval='[0, inf)')] = (
    0.01
  )
  attention_implementation: Annotated[
    str, Field(Kind.EXECUTION, choices=kernels.IMPLEMENTATIONS)
  ] = 'auto'
  block: Annotated[str, _TEXT] = ''
  attention: Annotated[str, _TEXT] = ''
  mlp: Annotated[str, _TEXT] = ''
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

  def norm_part(self) -> nn.Module:
    """Returns the norm of the layers."""
    part: nn.Module = self.named_part('norm', NORMS.get(self.norm, self.norm))
    return part

  def mlp_part(self) -> nn.Module:
    """Returns the MLP of the layers."""
    options: dict[str, Any] = {
      'hidden_dim': self.mlp_dim,
      'bias': self.dense_bias,
      'hidden_norm': self.mlp_norm,
      'dropout_rate': self.dropout_rate,
      'norm': self.norm_part(),
      'initializers': self.initializers,
      'dtype': self.dtype,
      'parent': None,
    }
    if self.gated_mlp:
      return GATES[self.gate](**options)
    return block.Mlp(gelu=self.gelu, **options)

  def attention_part(self) -> nn.Module:
    """Returns the attention of the layers."""
    if self.attention:
      return self.named_part('attention', self.attention)
    values: dict[str, Any] = {
      'num_heads': self.num_heads,
      'qkv_bias': self.qkv_bias,
      'key_bias': self.key_bias,
      'out_bias': self.dense_bias,
      'qk_norm': self.qk_norm,
      'out_norm': self.attention_norm,
      'causal': self.causal,
      'dropout_rate': self.attention_dropout_rate,
      'norm': self.norm_part(),
      'implementation': self.attention_implementation,
      'initializers': self.initializers,
      'dtype': self.dtype,
      'parent': None,
    }
    if self.differential:
      return differential.Differential(**values)
    if self.key_heads:
      return grouped.Grouped(
        key_heads=self.key_heads, full_layers=self.full_key_layers, **values
      )
    return attention.Attention(**values)

  def experts_part(self) -> nn.Module:
    """Returns the experts of the layers."""
    return experts_lib.Experts(
      self.experts,
      self.mlp_part(),
      self.routing,
      self.expert_layers,
      self.expert_slots,
      self.experts_per_token,
      self.expert_capacity,
      self.expert_priority,
      self.expert_noise,
      self.expert_loss,
      self.dropout_rate,
      self.dtype,
      parent=None,
    )

  def hidden_part(self) -> nn.Module:
    """Returns what follows attention: an MLP, or experts."""
    if self.mlp:
      return self.named_part('mlp', self.mlp)
    return self.experts_part() if self.experts else self.mlp_part()

  def block_part(self) -> Any:
    """Returns the layers' block."""
    if self.block:
      return self.named_part('block', self.block)
    kind: type[block.Block] = block.Block
    further: dict[str, Any] = {}
    if self.post_norm:
      kind = blocks.PostNorm
    if self.parallel_mlp:
      kind = blocks.Parallel
    if self.branches > 1:
      kind, further = blocks.Branches, {'count': self.branches}
    return kind(
      self.attention_part(),
      self.hidden_part(),
      self.norm_part(),
      self.layer_scale,
      self.layer_scale_mlp,
      self.dropout_rate,
      self.stochastic_depth,
      self.stochastic_depth_uniform,
      **further,
      parent=None,
    )

  def named_part(self, kind: str, text: str) -> Any:
    """Returns the part of a kind that a text names."""
    return registry.build(kind, text, self.part_values(kind), f'model.{kind}')

  def part_values(self, kind: str) -> dict[str, Any]:
    """Returns the values that fill the fields of a part, by names of keys."""
    values = {name: getattr(self, name) for name in fields.of(type(self))}
    values['norm'] = NORMS.get(self.norm, self.norm)
    if kind == 'block':
      parts = {'attention': self.attention_part, 'mlp': self.hidden_part}
      for name, part in parts.items():
        values[name] = values[name] or registry.describe(name, part(), values)
    return {
      name: None if value == '' else value for name, value in values.items()
    }

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
    if self.pool not in POOLS:
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
      yield rotary_lib.Rope(
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
  rotary_lib.Rope: {
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
  experts_lib.Experts: {
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
  **{kind: {'gated_mlp': True, 'gate': gate} for gate, kind in GATES.items()},
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
    if overrides.get(kind) and overrides[kind] not in POOLS
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
