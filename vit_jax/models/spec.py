"""Layer specifications: the fields from which a model makes its parts.

A model inherits these fields, so `create_model('ViT-S/16', qk_norm=True)` can
set one.
"""

import dataclasses
from typing import Annotated
from typing import Any
from typing import Self

from flax import linen as nn
import jax
import jax.numpy as jnp

from vit_jax.models import attention as attention_lib
from vit_jax.models import block as block_lib
from vit_jax.models import blocks
from vit_jax.models import context as context_lib
from vit_jax.models import differential
from vit_jax.models import experts as experts_lib
from vit_jax.models import fields
from vit_jax.models import grouped
from vit_jax.models import initializers as initializers_lib
from vit_jax.models import kernels
from vit_jax.models import mlp as mlp_lib
from vit_jax.models import registry
from vit_jax.models import relative
from vit_jax.models import remat as remat_lib
from vit_jax.models import rotary as rotary_lib
from vit_jax.models import stack
from vit_jax.models.fields import EXECUTION
from vit_jax.models.fields import Field
from vit_jax.models.fields import FUNCTION
from vit_jax.models.fields import Kind
from vit_jax.models.fields import RATE
from vit_jax.models.fields import SIZE
from vit_jax.models.fields import TRAINING

# GLU variants (arXiv:2002.05202), by their gates.
GATES = {
  'silu': mlp_lib.SwiGLU,
  'sigmoid': mlp_lib.GLU,
  'gelu': mlp_lib.GEGLU,
}
NORMS = {'layer': 'layer_norm', 'rms': 'rms_norm'}
_TEXT = Field(Kind.FUNCTION, is_visible=False)
RELATIVE_POSITIONS = ('none', *relative.TABLES, *relative.MLPS)


@dataclasses.dataclass(kw_only=True, unsafe_hash=True)
class LayerSpec:
  """Fields of any stack of layers.

  `__setattr__` freezes instances. `frozen=True` is not possible: Linen modules
  inherit these fields, and Python does not let a dataclass that is not frozen
  inherit from a frozen one.

  Attributes:
    hidden_size: D, the width of a token.
    mlp_dim: Size of the MLP's hidden layer; in a Mixer, of the channel MLP.
    depth: Number of layers, L.
    dropout_rate: Dropout rate after the position embeddings, after attention
      and after both MLP layers.
    stochastic_depth: Rate of the last layer; the rate grows linearly from 0.
    stochastic_depth_uniform: Whether all layers have that rate instead.
    gelu: 'tanh' (an approximation) or 'exact'.
    layer_norm_epsilon: Epsilon of every LayerNorm.
    initializers: Initial values of parameters, a name in
      `initializers.INITIALIZERS`.
    scan: Whether one layer is compiled and run L times by `nn.scan`, with
      parameters stacked on a leading axis; the function is the same.
    remat: Values that the backward pass recomputes: 'none'; 'activations',
      those within the MLP's activation function, and its dropout; 'products',
      all but the results of dense layers and of attention; 'full', all of them;
      or a name of `jax.checkpoint_policies`. 'auto' is one of these by the
      platform, see `remat.on_platform`.
    dtype: Type in which layers compute. Parameters, LayerNorm's statistics and
      logits are float32, as is the softmax.
  """

  hidden_size: Annotated[int, SIZE]
  mlp_dim: Annotated[int, SIZE]
  depth: Annotated[int, Field(Kind.SIZE, least=1, most=1_000)]
  dropout_rate: Annotated[float, RATE] = 0.0
  stochastic_depth: Annotated[float, RATE] = 0.0
  stochastic_depth_uniform: Annotated[bool, TRAINING] = False
  gelu: Annotated[
    str, Field(Kind.FUNCTION, is_visible=False, choices=tuple(block_lib.GELUS))
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

  @classmethod
  def take(cls, model: Any) -> Self:
    """Returns a model's values of these fields."""
    return cls(**{name: getattr(model, name) for name in fields.of(cls)})

  def __setattr__(self, name: str, value: Any) -> None:
    if name in self.__dict__:
      raise dataclasses.FrozenInstanceError(f'cannot assign to {name!r}')
    super().__setattr__(name, value)

  @property
  def starts(self) -> initializers_lib.Initializers:
    """Initializers of each kind of parameter."""
    return initializers_lib.INITIALIZERS[self.initializers]

  def norm_part(self) -> nn.Module:
    """Returns the norm of the layers."""
    return block_lib.LayerNorm(self.layer_norm_epsilon, self.dtype, parent=None)

  def layer_norm(self, name: str) -> nn.Module:
    """Returns such a norm, to be called in a module's compact method."""
    return self.norm_part().copy(name=name)

  def mlp_part(self, width: int | None = None) -> block_lib.Mlp:
    """Returns an MLP of a width, or that of the layers."""
    return block_lib.Mlp(
      width or self.mlp_dim,
      self.gelu,
      dropout_rate=self.dropout_rate,
      initializers=self.initializers,
      dtype=self.dtype,
      parent=None,
    )


@dataclasses.dataclass(kw_only=True, unsafe_hash=True)
class EncoderSpec(LayerSpec):
  """Fields of layers with attention.

  Attributes:
    num_heads: H, which divides D.
    key_heads: Heads of keys and of values, each of which several heads of
      queries share (grouped queries, arXiv:2305.13245); None: H.
    full_key_layers: Number of first layers, and of last ones, whose keys have H
      heads all the same (Sapiens2, arXiv:2604.21681).
    attention_dropout_rate: Dropout rate of the attention weights.
    layer_scale: Initial value of a learned factor per channel after attention
      and MLP (CaiT, arXiv:2103.17239); None: no such factor.
    layer_scale_mlp: Whether it follows the MLP, too; False: attention alone.
    qk_norm: Whether a LayerNorm over each head's channels follows queries and
      keys (Scaling Vision Transformers to 22 Billion Parameters,
      arXiv:2302.05442).
    qkv_bias: Whether queries, keys and values have biases.
    key_bias: Whether keys have one where `qkv_bias` is True. Without rotation
      it does not change the softmax (BEiT, arXiv:2106.08254, its code).
    dense_bias: Whether the layer after the heads and the MLP have biases.
    attention_norm: Whether a norm over the channels of all heads precedes the
      layer after them (sub-LN of Magneto, arXiv:2210.06423, section 2).
    post_norm: Whether the two norms of a layer follow attention and MLP, before
      the sum (Swin Transformer V2, arXiv:2111.09883, section 3.1), instead of
      preceding them.
    parallel_mlp: Whether the MLP reads what attention reads, after one norm,
      and both have one residual (arXiv:2302.05442, section 2).
    branches: Number of attentions beside each other, each with its norm, whose
      outputs are added, and then of MLPs (Three things everyone should know
      about Vision Transformers, arXiv:2203.09795, section 3).
    differential: Whether the weights of a head are the difference of two
      softmaxes (`differential`).
    causal: Whether a token attends only to itself and those before it.
    relative_positions: 'shared' or 'layers': a learned bias of the scores for
      each distance between two patches (BEiT, its code, after T5,
      arXiv:1910.10683, section 2.1), shared by all layers or one in each;
      'shared_mlp' or 'layers_mlp': a small MLP computes it (Swin Transformer
      V2, section 3.2); 'none'.
    relative_mlp_dim: Size of that MLP's hidden layer.
    norm: 'layer', LayerNorm; 'rms', which only scales (arXiv:1910.07467).
    rotary: Which rotary position embedding rotates the patches' queries and
      keys, a name in `rotary.KINDS`, or 'none'.
    gated_mlp: Whether the MLP is a SwiGLU (arXiv:2002.05202).
    gate: Function of its gate, one of `GATES`: 'silu', that of SwiGLU.
    mlp_norm: Whether a norm follows the MLP's activation function (sub-LN of
      EVA-02, arXiv:2303.11331, section 2).
    experts: Number of MLPs in a layer that is a mixture of experts (`experts`);
      0: each layer has one MLP.
    routing: How tokens come to experts: 'top_experts' (V-MoE), 'top_tokens'
      (expert choice) or 'soft' (Soft MoE).
    expert_layers: Layers with experts, counted from 1; (): every second one,
      or with 'soft' the second half.
    expert_slots: With 'soft', slots of an expert; 0: of all experts together as
      many as the image has tokens with which the model is initialised.
    experts_per_token: With 'top_experts', how many a token goes to.
    expert_capacity: Places that all experts have, as a share of those that the
      tokens of an image need; tokens without a place skip the MLP.
    expert_priority: Whether tokens with larger gates get their places first.
    expert_noise: Standard deviation of the noise that training adds to the
      router's logits, times the number of experts.
    expert_loss: Weight of the loss by which 'top_experts' learns to use all
      experts.
    attention_implementation: One of `kernels.IMPLEMENTATIONS`, see `Attention`.
    block: A part of `registry.PARTS`, or of the user's, in place of the block
      that the other fields describe; '': that one.
    attention: As `block`, of attention.
    mlp: As `block`, of the MLP.
  """

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

  @property
  def captured_heads(self) -> int:
    """Number of heads in the attention of a layer that is captured."""
    return self.num_heads * self.branches

  def norm_part(self) -> nn.Module:
    """Returns the norm of the layers."""
    part: nn.Module = self.named_part('norm', NORMS.get(self.norm, self.norm))
    return part

  def mlp_part(self, width: int | None = None) -> block_lib.Mlp:
    """Returns an MLP of a width, or that of the layers."""
    if width:
      return super().mlp_part(width)
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
    return block_lib.Mlp(gelu=self.gelu, **options)

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
    return attention_lib.Attention(**values)

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

  def block_part(self, kind: type[block_lib.Block] | None = None) -> Any:
    """Returns the layers' block.

    Args:
      kind: Its class; None: that of the fields.
    """
    if self.block and kind is None:
      return self.named_part('block', self.block)
    further: dict[str, Any] = {}
    if kind is None:
      kind = block_lib.Block
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

  def layers(
    self,
    model: nn.Module,
    x: jax.Array,
    context: context_lib.Context,
    kind: type[block_lib.Block] | None = None,
  ) -> tuple[jax.Array, dict[str, Any]]:
    """Applies a stack of the block, as `stack.apply` does."""
    return stack.apply(
      model,
      self.block_part(kind),
      x,
      context,
      depth=self.depth,
      scan=self.scan,
      remat=self.remat,
    )
