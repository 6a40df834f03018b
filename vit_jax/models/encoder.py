"""What transformers have that are no `vit.ViT`, as text towers and decoders."""

from collections.abc import Mapping
import dataclasses
from typing import Annotated
from typing import Any
from typing import ClassVar

from flax import linen as nn
import jax
import jax.numpy as jnp

from vit_jax.models import fields
from vit_jax.models import initializers as initializers_lib
from vit_jax.models import stack
from vit_jax.models.block import LayerNorm
from vit_jax.models.context import Context


class Encoder(nn.Module):
  """A stack of layers; a class that inherits from it says what is around them.

  `registry.build_model` makes one of sizes, and of options of its parts;
  `class_defaults` says which values it then has that a ViT has not.

  Attributes, with the same meanings as in `vit.ViT`:
    hidden_size: D, the width of a token.
    depth: L, the number of layers.
    block: A layer.
    norm: The norm outside of the layers.
    dropout_rate: Dropout rate after positions are added.
    initializers: Initial values of parameters.
    scan: Whether one layer is compiled and run L times.
    remat: Values that the backward pass recomputes.
    dtype: Type in which layers compute.
  """

  class_defaults: ClassVar[Mapping[str, Any]] = {}

  _: dataclasses.KW_ONLY
  hidden_size: Annotated[int, fields.SIZE]
  depth: Annotated[int, fields.DEPTH]
  block: Annotated[nn.Module, fields.PART]
  norm: Annotated[nn.Module, fields.PART] = LayerNorm()
  dropout_rate: Annotated[float, fields.RATE] = 0.0
  initializers: Annotated[str, initializers_lib.FIELD] = 'vit'
  scan: Annotated[bool, fields.EXECUTION] = False
  remat: Annotated[str, stack.REMAT] = 'auto'
  dtype: Annotated[jax.typing.DTypeLike, fields.EXECUTION] = jnp.float32

  @property
  def starts(self) -> initializers_lib.Initializers:
    """Initializers of each kind of parameter."""
    return initializers_lib.INITIALIZERS[self.initializers]

  def layers(
    self, x: jax.Array, context: Context, block: nn.Module | None = None
  ) -> tuple[jax.Array, dict[str, Any]]:
    """Applies the layers, or `block` in their place; see `stack.apply`."""
    return stack.apply(self, x, context, block=block)
