"""A layer of the Vision Transformer (arXiv:2010.11929, equations 2 and 3).

Its residuals, its norm and its MLP; `attention` is the other half. In comments:
B images, T tokens, R of them that are read, D hidden size, M width of the MLP's
hidden layer.
"""

from collections.abc import Callable
from collections.abc import Mapping
import functools
from typing import Annotated
from typing import Any

from flax import linen as nn
import jax
from jax.ad_checkpoint import checkpoint_name
import jax.numpy as jnp

from vit_jax.config import registry
from vit_jax.models import dropout
from vit_jax.models import fields
from vit_jax.models import initializers as initializers_lib
from vit_jax.models import stack
from vit_jax.models.context import Context
from vit_jax.models.dropout import Purpose

GELUS: Mapping[str, Callable[[jax.Array], jax.Array]] = {
  'tanh': functools.partial(nn.gelu, approximate=True),
  'exact': functools.partial(nn.gelu, approximate=False),
  # An approximation (arXiv:1606.08415, section 2), in iGPT and CLIP.
  'sigmoid': lambda x: x * nn.sigmoid(1.702 * x),
}
GELU = fields.unseen(choices=tuple(GELUS))


def keep(x: jax.Array) -> jax.Array:
  """Marks a result that is not recomputed with remat='products'."""
  return checkpoint_name(x, stack.PRODUCTS)


def suits_cpu(x: jax.Array) -> bool:
  """Whether to compute from x in the form that suits XLA's compiler for CPUs.

  Programs that are compiled here for other devices are in bfloat16.
  """
  return jax.default_backend() == 'cpu' and x.dtype == jnp.float32


def product(
  x: jax.Array, kernel: jax.Array, *_: Any, **options: Any
) -> jax.Array:
  """Returns the product of [..., D] and [D, ...], a sum over D.

  On CPUs it is one of matrices. For a kernel's gradient, the compiler would
  otherwise copy the gradient of [B, T, D] to transpose it.

  Args:
    x: Left side.
    kernel: Right side.
    *_: The axes, if this is the `dot_general` of one of Linen's layers.
    **options: Options of `jax.lax.dot_general`.
  """
  rows, columns = x, kernel
  if suits_cpu(x):
    rows = x.reshape(-1, x.shape[-1])
    columns = kernel.reshape(kernel.shape[0], -1)
  axes = ((rows.ndim - 1,), (0,)), ((), ())
  y = jax.lax.dot_general(rows, columns, axes, **options)
  return y.reshape(*x.shape[:-1], *kernel.shape[1:])


class LayerNorm(nn.Module):
  """Normalises the channels of each token: [..., D] -> [..., D].

  Attributes:
    epsilon: Added to the variance.
    dtype: Type of the result. Mean and variance are float32.
  """

  epsilon: Annotated[float, fields.EPSILON] = 1e-6
  dtype: Annotated[jax.typing.DTypeLike, fields.EXECUTION] = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Returns normalised tokens, with a learned scale and bias."""
    shape = x.shape[-1:]
    scale = self.param('scale', nn.initializers.ones, shape)
    bias = self.param('bias', nn.initializers.zeros, shape)
    x, factor = centered(x, (-1,), self.epsilon)
    return (x * (factor * scale) + bias).astype(self.dtype)


def centered(
  x: jax.Array, axes: tuple[int, ...], epsilon: float
) -> tuple[jax.Array, jax.Array]:
  """Returns x without its mean over axes, and the reciprocal of its deviation.

  Linen computes the variance as E[x^2] - E[x]^2, in one pass over x. In float32
  that leaves no digit of it where the mean is a few thousand deviations from 0.
  Both results are float32 or wider; `epsilon` is added to the variance.
  """
  is_wide = x.dtype.itemsize > 2
  x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
  if is_wide:
    if jax.default_backend() == 'cpu':
      # Else the compiler adds up all residuals again for each of the passes,
      # and a step takes 1.8 times as long.
      x = jax.lax.optimization_barrier(x)
    # The results do not depend on this shift, so it needs no gradient, and no
    # more exactness than a sum of large numbers has. A mean that is large for
    # float32 leaves types of 16 bits no digits for the deviation, so that these
    # are spared another pass.
    x -= jax.lax.stop_gradient(x.mean(axes, keepdims=True))
  mean = x.mean(axes, keepdims=True)
  variance = jnp.square(x).mean(axes, keepdims=True) - jnp.square(mean)
  # Rounding may make the variance of equal numbers negative.
  return x - mean, jax.lax.rsqrt(jnp.maximum(variance, 0) + epsilon)


class Mlp(nn.Module):
  """Two dense layers with a GELU between: [B, T, D] -> [B, T, D].

  Attributes:
    hidden_dim: M, the width of the hidden layer.
    gelu: 'tanh' (an approximation), 'exact', or 'sigmoid' (that of CLIP).
    bias: Whether both layers have biases.
    hidden_norm: Whether a norm follows the activation function (sub-LN of
      EVA-02, arXiv:2303.11331, section 2).
    dropout_rate: Dropout rate after both layers.
    norm: The norm of `hidden_norm`.
    initializers: Name of the initial values.
    dtype: Type in which layers compute.
  """

  hidden_dim: Annotated[int, fields.MLP_DIM]
  gelu: Annotated[str, GELU] = 'tanh'
  bias: Annotated[bool, fields.FUNCTION] = True
  hidden_norm: Annotated[bool, fields.FUNCTION] = False
  dropout_rate: Annotated[float, fields.RATE] = 0.0
  norm: Annotated[nn.Module, fields.PART] = LayerNorm()
  initializers: Annotated[str, initializers_lib.FIELD] = 'vit'
  dtype: Annotated[jax.typing.DTypeLike, fields.EXECUTION] = jnp.float32

  @property
  def width(self) -> int:
    """Size of the first layer's output."""
    return self.hidden_dim

  def activate(self, y: jax.Array) -> jax.Array:
    """Maps the first layer's output [..., width] to [..., M]."""
    return GELUS[self.gelu](y)

  @nn.compact
  def __call__(self, x: jax.Array, context: Context) -> jax.Array:
    """Returns the output [B, T, D]; x may hold the first tokens alone."""
    starts, d = initializers_lib.INITIALIZERS[self.initializers], x.shape[-1]
    dense = functools.partial(
      nn.Dense,
      use_bias=self.bias,
      kernel_init=starts.kernel,
      bias_init=starts.mlp_bias,
      dtype=self.dtype,
      dot_general=product,
    )

    def finish(mlp: Mlp, y: jax.Array, context: Context) -> jax.Array:
      y = checkpoint_name(mlp.activate(y), stack.ACTIVATED)
      y = drop(y, self.dropout_rate, Purpose.MLP_HIDDEN, context)
      if self.hidden_norm:
        y = mlp.norm(y)
      y = keep(dense(d, name='down')(y))
      return drop(y, self.dropout_rate, Purpose.MLP_OUTPUT, context)

    if context.remat == 'activations':
      finish = stack.activations(finish)
    return finish(self, keep(dense(self.width, name='up')(x)), context)


class Block(nn.Module):
  """Attention and an MLP, each after a norm and with a residual.

  Attributes:
    attention: Maps tokens [B, T, D] and a context to [B, R, D].
    mlp: Maps tokens [B, R, D] and a context to [B, R, D].
    norm: Normalises tokens.
    layer_scale: Initial value of a learned factor per channel after attention
      and MLP (CaiT, arXiv:2103.17239); None: no such factor.
    layer_scale_mlp: Whether it follows the MLP, too; False: attention alone.
    dropout_rate: Dropout rate after attention.
    stochastic_depth: Probability that the last layer is skipped in training; it
      grows linearly from 0 (arXiv:1603.09382).
    stochastic_depth_uniform: Whether all layers have that probability instead
      (DeiT III, arXiv:2204.07118).
  """

  attention: Annotated[nn.Module, fields.PART]
  mlp: Annotated[nn.Module, fields.PART]
  norm: Annotated[nn.Module, fields.PART] = LayerNorm()
  layer_scale: Annotated[float | None, fields.FITTED] = None
  layer_scale_mlp: Annotated[bool, fields.FUNCTION] = True
  dropout_rate: Annotated[float, fields.RATE] = 0.0
  stochastic_depth: Annotated[float, fields.RATE] = 0.0
  stochastic_depth_uniform: Annotated[bool, fields.TRAINING] = False

  @nn.compact
  def __call__(self, x: jax.Array, context: Context) -> jax.Array:
    """Maps tokens [B, T, D] to [B, R, D]."""
    x = self.add(x, self.attend(x, context), context)
    return self.add(x, self.transform(x, context), context)

  def attend(self, x: jax.Array, context: Context) -> jax.Array:
    """Returns what attention adds to x, [B, R, D]."""
    y = self.attention(self.norm.copy(name='norm1')(x), context)
    return self.drop_attention(self.scale(1, y), context)

  def transform(self, x: jax.Array, context: Context) -> jax.Array:
    """Returns what the MLP adds to x, [B, R, D]."""
    y = scoped(self.mlp)(self.norm.copy(name='norm2')(x), context)
    return self.drop_path(self.scale(2, y), context, Purpose.MLP_PATH)

  def add(self, x: jax.Array, y: jax.Array, context: Context) -> jax.Array:
    """Returns the sum of a residual: the first R tokens of x and of y."""
    # A user's attention may return all T tokens.
    x = x[:, : context.num_read] + y[:, : context.num_read]
    if not getattr(self.attention, 'is_plain', True):  # as kernels read it
      row_major = registry.wing('vit_jax.models.parts.kernels:row_major')
      x = row_major(x, self.attention)
    return x

  def scale(self, index: int, y: jax.Array) -> jax.Array:
    """Applies LayerScale to what attention (1) or the MLP (2) returned.

    It starts near zero, so that a deep model starts near the identity (CaiT,
    section 2).
    """
    if self.layer_scale is None or (index == 2 and not self.layer_scale_mlp):
      return y
    init = nn.initializers.constant(self.layer_scale)
    factor = self.param(f'layer_scale{index}', init, (y.shape[-1],))
    return y * factor.astype(y.dtype)

  def drop_attention(self, y: jax.Array, context: Context) -> jax.Array:
    """Applies dropout and stochastic depth to the output of attention."""
    y = drop(y, self.dropout_rate, Purpose.ATTENTION_OUTPUT, context)
    return self.drop_path(y, context, Purpose.ATTENTION_PATH)

  def drop_path(
    self, y: jax.Array, context: Context, purpose: Purpose
  ) -> jax.Array:
    """Applies stochastic depth: zeroes y [B, R, D] for whole images."""
    if context.dropout_key is None or not self.stochastic_depth:
      return y
    return dropout.drop_path(
      y,
      self.stochastic_depth,
      context.dropout_key.fold(purpose),
      layer=None if self.stochastic_depth_uniform else context.layer,
      depth=context.depth,
    )


def drop(
  y: jax.Array, rate: float, purpose: Purpose, context: Context
) -> jax.Array:
  """Applies dropout in training to the first tokens [B, R, D] of a layer."""
  if context.dropout_key is None:
    return y
  # Masks are drawn for all tokens, so that the first ones get theirs.
  full_shape = context.num_tokens or y.shape[1], y.shape[-1]
  return context.dropout(y, rate, purpose, full_shape)


def scoped(part: nn.Module) -> nn.Module:
  """Returns a part that is called in the scope of its parameters.

  That is the field which holds the part, or what its class says in
  `scope_name`.
  """
  name = getattr(part, 'scope_name', None)
  return part.copy(name=name) if name else part
