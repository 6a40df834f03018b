"""Layers with small additions that train while the layer itself is frozen.

LoRA (arXiv:2106.09685), and adapters, MLPs with a narrow hidden layer:
AdaptFormer's (arXiv:2205.13535) and Houlsby et al.'s (arXiv:1902.00751).
The parameters of the layer keep their paths. What is added starts at zero, so
that a layer begins as the one that it adapts.

In comments: B images, T tokens, R of them that are read, D hidden size, H heads
of K channels, r the rank.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import re
from typing import Annotated
from typing import Any
from typing import cast
from typing import ClassVar

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.config.errors import join_first
from vit_jax.config.errors import UserError
from vit_jax.models import attention
from vit_jax.models import fields
from vit_jax.models.block import Block
from vit_jax.models.block import scoped
from vit_jax.models.context import Context
from vit_jax.models.dropout import Purpose
from vit_jax.models.parts import as_class

_PROJECTIONS = ('query', 'key', 'value')  # the order of a kernel `qkv`
_FACTOR = re.compile(r'(?P<name>(?P<home>.*)/lora_((?P<part>\w+)_)?)a')


class Adapted(nn.Module):
  """A layer that adds parameters to another class's.

  A class inherits from it, or from `LowRank`, before it does from the class of
  the layer.

  Attributes:
    added: Regular expression for the paths of the parameters that it adds.
    can_merge: Whether the layer alone computes the same with other values of
      its parameters, which `merged` returns.
  """

  added: ClassVar[str]
  can_merge: ClassVar[bool] = False

  def bare(self) -> nn.Module:
    """Returns the layer alone."""
    return as_class(self, bare_class(type(self)))

  def merged(self, params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parameters that `bare` needs otherwise to compute the same.

    Both are arrays by path, layers unrolled.
    """
    raise NotImplementedError


def block(model: Any) -> Adapted | None:
  """Returns the layer of a model if it is adapted; None: it is not."""
  layer = getattr(model, 'block', None)
  return layer if isinstance(layer, Adapted) else None


def bare_class(kind: type[nn.Module]) -> type[nn.Module]:
  """Returns the class that a class of adapted layers adds to, or itself."""
  bases = (x for x in kind.__mro__ if not issubclass(x, Adapted))
  return cast(type[nn.Module], next(bases))


class LowRank(Adapted):
  """Adds a product of two small matrices to kernels of a layer (LoRA).

  A dense layer W x becomes W x + (alpha / rank) B A x (arXiv:2106.09685,
  equation 3). It finds the dense layers of any part by their names.

  Attributes:
    rank: The rank of B A.
    alpha: The size of what is added, which does not depend on the rank.
    layers: Names of the dense layers: 'query', 'key', 'value' and 'out' are of
      attention, 'up' and 'down' of an MLP; other parts may have others.
  """

  added: ClassVar[str] = r'(^|/)lora_(\w+_)?[ab]$'
  can_merge: ClassVar[bool] = True

  rank: Annotated[int, fields.function(least=1)] = 8
  alpha: Annotated[float, fields.function(interval='(0, inf)')] = 16.0
  layers: Annotated[tuple[str, ...], fields.FUNCTION] = ('query', 'value')

  @nn.compact
  def __call__(self, x: jax.Array, context: Context) -> jax.Array:
    """Maps tokens [B, T, D] to [B, R, D]."""
    names: set[str] = set()  # of dense layers

    def intercept(
      call: Callable[..., Any],
      args: Sequence[Any],
      kwargs: Mapping[str, Any],
      inner: nn.module.InterceptorContext,
    ) -> Any:
      y, module = call(*args, **kwargs), inner.module
      if inner.method_name != '__call__':
        return y
      if isinstance(module, attention.Projection):
        names.update(_PROJECTIONS)
        return self._with_projections(module, args[1], y)
      if isinstance(module, attention.Output):
        names.add(str(module.name))
        return self._with_product(module, args[1], y, (-2, -1))
      if isinstance(module, nn.Dense | nn.DenseGeneral):
        names.add(str(module.name))
        axes = getattr(module, 'axis', -1)
        axes = (axes,) if isinstance(axes, int) else tuple(axes)
        return self._with_product(module, args[0], y, axes)
      return y

    with nn.intercept_methods(intercept):
      x = super().__call__(x, context)
    if missing := {*self.layers} - names:
      raise UserError(
        f'config.model.block: layers={self.layers}: no dense layer is named'
        f' {join_first(sorted(missing))}: there are {", ".join(sorted(names))}'
      )
    return x

  @nn.nowrap
  def _with_projections(
    self, projection: nn.Module, x: jax.Array, y: Any
  ) -> Any:
    """Adds to queries, keys and values: three [B, T, H, K], or [B, T, 3, D]."""
    parts = [*y] if isinstance(y, tuple) else [*jnp.moveaxis(y, 2, 0)]
    heads = projection.variables['params']['kernel'].shape[2:]
    for i, name in enumerate(_PROJECTIONS):
      if name in self.layers:
        tokens = x[:, : parts[i].shape[1]].astype(parts[i].dtype)
        added = self._product(projection, tokens, (-1,), heads, f'{name}_')
        parts[i] += added.reshape(parts[i].shape)
    return tuple(parts) if isinstance(y, tuple) else jnp.stack(parts, axis=2)

  @nn.nowrap
  def _with_product(
    self, dense: nn.Module, x: jax.Array, y: jax.Array, axes: tuple[int, ...]
  ) -> jax.Array:
    """Adds to a dense layer over some axes of x, unless it is not named."""
    if dense.name not in self.layers:
      return y
    features = y.shape[x.ndim - len(axes) :]
    return y + self._product(dense, x.astype(y.dtype), axes, features)

  @nn.nowrap
  def _product(
    self,
    dense: nn.Module,
    x: jax.Array,
    axes: tuple[int, ...],
    features: tuple[int, ...],
    name: str = '',
  ) -> jax.Array:
    """Returns (alpha / r) B A x; factors are parameters of the dense layer."""
    inputs = tuple(x.shape[i] for i in axes)
    # The initial values of the paper: A is Gaussian, and B is zero.
    init = nn.initializers.normal(np.prod(inputs) ** -0.5)
    a = dense.param(f'lora_{name}a', init, (*inputs, self.rank))
    shape = (self.rank, *features)
    b = dense.param(f'lora_{name}b', nn.initializers.zeros, shape)
    y = jnp.tensordot(x, a.astype(x.dtype), (axes, tuple(range(len(axes)))))
    return self.alpha / self.rank * jnp.tensordot(y, b.astype(x.dtype), 1)

  def merged(self, params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns kernels with the products of their factors added, float64."""
    kernels: dict[str, Any] = {}
    for match in filter(None, map(_FACTOR.fullmatch, params)):
      kernel, name = f'{match["home"]}/kernel', match['name']
      a, b = (np.asarray(params[f'{name}{x}'], float) for x in 'ab')
      product = self.alpha / self.rank * np.tensordot(a, b, 1)
      sums = kernels.setdefault(kernel, np.array(params[kernel], float))
      if match['part']:  # one of [D, 3, H, K]
        sums[:, _PROJECTIONS.index(match['part'])] += product
      else:
        sums += product
    return kernels


class LoRA(LowRank, Block):
  """A layer whose kernels have products of two small matrices added.

  LoRA (arXiv:2106.09685). `convert` and `export` add them to the kernels.
  """


class Bottleneck(nn.Module):
  """A dense layer to few channels, and one back: [..., D] -> [..., D].

  Attributes:
    width: Number of these channels.
    activation: Maps them.
    dtype: Type in which layers compute.
  """

  width: int
  activation: Callable[[jax.Array], jax.Array]
  dtype: jax.typing.DTypeLike

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Returns zeros at first."""
    down = nn.Dense(self.width, dtype=self.dtype, name='down')
    zeros = nn.initializers.zeros
    up = nn.Dense(x.shape[-1], kernel_init=zeros, dtype=self.dtype, name='up')
    return up(self.activation(down(x)))


class _Bottlenecks(Adapted):
  """A layer with bottlenecks.

  Attributes:
    width: Number of their hidden channels.
    dtype: Type in which they compute.
  """

  added: ClassVar[str] = r'(^|/)adapter\d?/'

  width: Annotated[int, fields.function(least=1)] = 64
  dtype: Annotated[jax.typing.DTypeLike, fields.EXECUTION] = jnp.float32


class AdaptFormer(_Bottlenecks, Block):
  """A layer with a bottleneck beside its MLP (AdaptFormer, arXiv:2205.13535).

  Attributes, beside a layer's:
    width: Number of hidden channels of the bottleneck.
    factor: Multiplies its output.
  """

  factor: Annotated[float, fields.function(interval='(0, inf)')] = 0.1

  def transform(self, x: jax.Array, context: Context) -> jax.Array:
    """Returns what MLP and bottleneck add to x, [B, R, D]: equation 5."""
    x = self.norm.copy(name='norm2')(x)
    y = self.scale(2, scoped(self.mlp)(x, context))
    adapter = Bottleneck(self.width, nn.relu, self.dtype, name='adapter')
    y += self.factor * adapter(x)
    return self.drop_path(y, context, Purpose.MLP_PATH)


class Houlsby(_Bottlenecks, Block):
  """A layer with a bottleneck behind attention, and one behind the MLP.

  Adapters of Houlsby et al. (arXiv:1902.00751, section 2.1).
  """

  def scale(self, index: int, y: jax.Array) -> jax.Array:
    """Returns y, after LayerScale, and what the bottleneck makes of it."""
    y, name = super().scale(index, y), f'adapter{index}'
    return y + Bottleneck(self.width, nn.gelu, self.dtype, name=name)(y)
