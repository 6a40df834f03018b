"""Layer specifications: the fields that a model passes to its layers.

A model inherits these fields, so `create_model('ViT-S/16', qk_norm=True)` can
set one. It passes all of them to the stack, the blocks, attention and MLP as a
single object, `EncoderSpec.take(model)`.
"""

from collections.abc import Callable
from collections.abc import Mapping
import dataclasses
import functools
from typing import Annotated
from typing import Any
from typing import Self

import flax
from flax import linen as nn
import jax
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import layout
import jax.numpy as jnp

from vit_jax.models import fields
from vit_jax.models import initializers as initializers_lib
from vit_jax.models import norms
from vit_jax.models import relative
from vit_jax.models import rotary as rotary_lib
from vit_jax.models.fields import EXECUTION
from vit_jax.models.fields import Field
from vit_jax.models.fields import FUNCTION
from vit_jax.models.fields import Kind
from vit_jax.models.fields import RATE
from vit_jax.models.fields import SIZE
from vit_jax.models.fields import TRAINING

GELUS: Mapping[str, Callable[[jax.Array], jax.Array]] = {
  'tanh': functools.partial(nn.gelu, approximate=True),
  'exact': functools.partial(nn.gelu, approximate=False),
  # An approximation (arXiv:1606.08415, section 2), in iGPT and CLIP.
  'sigmoid': lambda x: x * nn.sigmoid(1.702 * x),
}
# GLU variants (arXiv:2002.05202): SwiGLU, GLU and GEGLU.
GATES: Mapping[str, Callable[[jax.Array], jax.Array]] = {
  'silu': nn.silu,
  'sigmoid': nn.sigmoid,
  'gelu': GELUS['exact'],
}
NORMS = ('layer', 'rms')
ROUTINGS = ('top_experts', 'top_tokens', 'soft')
RELATIVE_POSITIONS = ('none', *relative.TABLES, *relative.MLPS)
REMAT_POLICIES = (
  'auto',
  'none',
  'activations',
  'products',
  'full',
  'dots_saveable',
  'dots_with_no_batch_dims_saveable',
)
_KEPT = 'kept'
# Before JAX 0.11, a constraint of the layout gathers what devices share.
_KEEPS_ORDER = jax.__version_info__ >= (0, 11)
# Name of results of activation functions, for remat='activations'.
_ACTIVATED = 'activated'
ATTENTION_IMPLEMENTATIONS = (
  'auto',
  'plain',
  'einsum',
  'fused',
  'xla',
  'cudnn',
)


def keep(x: jax.Array) -> jax.Array:
  """Marks a result that is not recomputed with remat='products'."""
  return checkpoint_name(x, _KEPT)


def activated(x: jax.Array) -> jax.Array:
  """Marks a result of an activation function, for remat='activations'."""
  return checkpoint_name(x, _ACTIVATED)


def activations_policy() -> Callable[..., bool]:
  """Returns the policy of `jax.checkpoint` for remat='activations'.

  The argument and the result of the activation function are kept, since one
  product of the forward pass writes both. What its derivative needs is
  recomputed. To recompute the result as well would read and write [B, T, M]
  four more times.
  """
  return jax.checkpoint_policies.save_only_these_names(_ACTIVATED)


def products_policy() -> Callable[..., bool]:
  """Returns the policy of `jax.checkpoint` for remat='products'.

  Unlike `dots_saveable` it keeps results after their bias is added, which the
  compiler does in the same operation, and those of kernels.
  """
  return jax.checkpoint_policies.save_only_these_names(_KEPT)


def attention_on(platform: str, implementation: str) -> str:
  """Returns the implementation that 'auto' stands for; others as they are.

  Args:
    platform: 'cpu', 'tpu' or 'gpu'.
    implementation: One of `ATTENTION_IMPLEMENTATIONS`.
  """
  if implementation != 'auto':
    return implementation
  kernels = {'cpu': 'plain', 'tpu': 'fused', 'gpu': 'cudnn'}
  return kernels.get(platform, 'einsum')


def remat_on(platform: str, scan: bool, remat: str) -> str:
  """Returns the recomputation that 'auto' stands for; others as they are.

  A compiler keeps every value that the backward pass takes out of a scan. Where
  layers are unrolled, TPUs' compiler recomputes elementwise functions by
  itself; that of GPUs does not, and would keep several values of [B, T, M]
  within the activation function. On CPUs memory is plentiful, and to compute
  is slow.

  Args:
    platform: 'cpu', 'tpu' or 'gpu'.
    scan: Whether layers are scanned.
    remat: One of `REMAT_POLICIES`.
  """
  if remat != 'auto':
    return remat
  if platform == 'cpu':
    return 'none'
  if scan:
    return 'products'
  return 'none' if platform == 'tpu' else 'activations'


@flax.struct.dataclass
class Context:
  """What all layers of a stack are given beside their tokens.

  Attributes:
    bias: Added to the scores of attention, float32 [H, T, T], or None.
    rotation: Cosines and sines by which queries and keys are rotated, float32
      [T, K] each, [B, T, K] or [B, T, H, K]; or None.
    frequencies: Those of all layers, if they are learned, float32
      [2, L, H, K / 2]; or None.
    coordinates: Columns and rows of the tokens, [1 or B, T, 2], if there are
      learned frequencies.
    grid: (h, w) of the patches, or None.
    prefix: P, the number of tokens before the patches, if there is a grid.
    attended: bool [B, T], tokens that others attend to; None: all. With
      `segments`, [B, S, T], the tokens of each image.
    segments: int32 [B, T], the image of a token, if a sequence has several;
      tokens attend to those of their image alone. None: one.
    sizes: float32 [B, T], how often each token counts in attention; None: once.
    layer: Index of the layer, an int32 scalar; None outside of the layers.
  """

  bias: jax.Array | None = None
  rotation: rotary_lib.Rotation | None = None
  frequencies: jax.Array | None = None
  coordinates: jax.Array | None = None
  grid: tuple[int, int] | None = flax.struct.field(
    pytree_node=False, default=None
  )
  prefix: int = flax.struct.field(pytree_node=False, default=0)
  attended: jax.Array | None = None
  segments: jax.Array | None = None
  sizes: jax.Array | None = None
  layer: jax.Array | None = None

  def at(self, layer: jax.Array) -> Self:
    """Returns what one layer is given, with a rotation of its own.

    Args:
      layer: Index of the layer, an int32 scalar.
    """
    if self.frequencies is None:
      return dataclasses.replace(self, layer=layer)
    assert self.coordinates is not None
    own = rotary_lib.mixed(self.coordinates, self.frequencies[:, layer])
    return dataclasses.replace(
      self, rotation=own, frequencies=None, coordinates=None, layer=layer
    )


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
      platform, see `remat_on`.
    dtype: Type in which layers compute. Parameters, LayerNorm's statistics and
      logits are float32; that of the softmax depends on the attention.
  """

  hidden_size: Annotated[int, SIZE]
  mlp_dim: Annotated[int, SIZE]
  depth: Annotated[int, Field(Kind.SIZE, least=1, most=1_000)]
  dropout_rate: Annotated[float, RATE] = 0.0
  stochastic_depth: Annotated[float, RATE] = 0.0
  stochastic_depth_uniform: Annotated[bool, TRAINING] = False
  gelu: Annotated[
    str, Field(Kind.FUNCTION, is_visible=False, choices=tuple(GELUS))
  ] = 'tanh'
  layer_norm_epsilon: Annotated[
    float, Field(Kind.FUNCTION, is_visible=False, interval='(0, 1)')
  ] = 1e-6
  initializers: Annotated[str, initializers_lib.FIELD] = 'vit'
  scan: Annotated[bool, EXECUTION] = False
  remat: Annotated[str, Field(Kind.EXECUTION, choices=REMAT_POLICIES)] = 'auto'
  dtype: Annotated[jax.typing.DTypeLike, EXECUTION] = jnp.float32

  @classmethod
  def take(cls, model: Any) -> Self:
    """Returns a model's values of these fields."""
    return cls(**{name: getattr(model, name) for name in fields.of(cls)})

  def __setattr__(self, name: str, value: Any) -> None:
    if name in self.__dict__:
      raise dataclasses.FrozenInstanceError(f'cannot assign to {name!r}')
    super().__setattr__(name, value)

  def of_layer(self, layer: int) -> Self:
    """Returns the fields of one layer, counted from 0."""
    del layer
    return self

  @property
  def starts(self) -> initializers_lib.Initializers:
    """Initializers of each kind of parameter."""
    return initializers_lib.INITIALIZERS[self.initializers]

  def layer_norm(self, name: str) -> nn.Module:
    """Returns a LayerNorm, to be called in a module's compact method.

    Its statistics are always computed in float32.
    """
    return norms.LayerNorm(self.layer_norm_epsilon, self.dtype, name=name)


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
    attention_implementation: 'plain', for CPUs: heads before tokens, and a
      softmax in float32 that divides after the product with the values;
      'fused', for TPUs: one kernel, see `fused_attention`; 'cudnn', for GPUs,
      and 'xla', of `jax.nn.dot_product_attention`, all with a softmax in
      float32; 'einsum': the compiler chooses the order of axes, and scores and
      softmax are in `dtype`; 'auto': 'plain', 'fused' or 'cudnn', by the
      platform. What a kernel cannot compute, such as dropout, 'einsum'
      computes, and the log says why. That is also so on several TPUs without a
      mesh in the context (`jax.set_mesh`), since the compiler cannot split a
      kernel. Where the attention weights are captured, 'plain' is always used.
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
  norm: Annotated[str, Field(Kind.FUNCTION, choices=NORMS)] = 'layer'
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
  routing: Annotated[str, Field(Kind.FUNCTION, choices=ROUTINGS)] = (
    'top_experts'
  )
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
    str, Field(Kind.EXECUTION, choices=ATTENTION_IMPLEMENTATIONS)
  ] = 'auto'

  def of_layer(self, layer: int) -> Self:
    """Returns the fields of one layer, whose keys may have all heads."""
    if self.full_key_layers <= layer < self.depth - self.full_key_layers:
      return self
    return dataclasses.replace(self, key_heads=None)

  def row_major(self, x: jax.Array) -> jax.Array:
    """Keeps the order of tokens [B, T, D] in memory on GPUs.

    Their compiler would store the sums of the residuals as [T, D, B], and so
    transpose them before and after each product. Only layers with cuDNN's
    attention, the default on GPUs, are constrained: exported programs have
    another attention, and cannot hold the constraint.
    """
    platform, attention = jax.default_backend(), self.attention_implementation
    if not _KEEPS_ORDER or attention_on(platform, attention) != 'cudnn':
      return x
    order = layout.Layout(tuple(range(x.ndim)))
    return layout.with_layout_constraint(x, order)

  @property
  def captured_heads(self) -> int:
    """Number of heads in the attention of a layer that is captured."""
    return self.num_heads * self.branches

  def layer_norm(self, name: str) -> nn.Module:
    """Returns a normalisation, to be called in a module's compact method.

    `_NormParameters` has the same parameters.
    """
    if self.norm == 'layer':
      return super().layer_norm(name)
    return nn.RMSNorm(self.layer_norm_epsilon, self.dtype, name=name)

  def norm_parameters(self, name: str, size: int) -> jax.Array:
    """Returns scale and bias of a norm that other code applies, [2, size]."""
    return _NormParameters(size, self.norm == 'layer', name=name)()


class _NormParameters(nn.Module):
  """The parameters of a `LayerNorm` or `RMSNorm`, by their names.

  Attributes:
    size: Number of channels.
    has_bias: Whether there is a bias; else it is 0.
  """

  size: int
  has_bias: bool

  @nn.compact
  def __call__(self) -> jax.Array:
    """Returns scale and bias, [2, size]."""
    shape = (self.size,)
    scale = self.param('scale', nn.initializers.ones, shape)
    if not self.has_bias:
      return jnp.stack([scale, jnp.zeros_like(scale)])
    return jnp.stack([scale, self.param('bias', nn.initializers.zeros, shape)])
