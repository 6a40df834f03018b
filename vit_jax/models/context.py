"""What all parts of a layer are given beside its tokens.

The gradient of the attention weights is the gradient of a variable that is
added to them. Linen's own `Module.perturb` does not work here, for three
reasons. It needs the value itself, but the attention normalises its weights
only after the product with the values. It keeps a variable in each module, so
unrolled and scanned models would need different collections. And it makes these
variables, as large as all attention weights, whenever a model is initialised.

In comments: B images, T tokens, D hidden size, H heads, K channels of a head, N
patches, P tokens before them.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import flax
import jax

from vit_jax.models import dropout as dropout_lib

# A field that is no array.
_static = functools.partial(flax.struct.field, pytree_node=False)


class Outputs(dict[str, jax.Array]):
  """What the parts of a layer return beside its tokens, by name."""

  # JAX compares and hashes what is no array; each layer has its own outputs.
  __hash__ = object.__hash__  # type: ignore[assignment]
  __eq__ = object.__eq__
  __ne__ = object.__ne__


class Context(flax.struct.PyTreeNode):
  """What all parts of a layer are given.

  Attributes:
    dropout_key: Key of the layer, and the positions of the images in the global
      batch; None when not training.
    layer: Index of the layer, an int32 scalar; None outside of the layers.
    depth: Number of layers, L.
    num_tokens: T, the number of tokens of the layer's input.
    num_read: R, the number of first tokens that are read after this layer, so
      that others need not be computed; None: T.
    grid: Grid of the patches, (h, w) or (d, h, w); None: there is none.
    prefix: P, the number of tokens before the patches.
    class_token: Whether the first of them is a class token.
    image_size: Sides of the images in pixels; () if they are not known.
    patch_size: Sides of a patch in pixels; () if they are not known.
    kept_patches: int32 [B, K], the patches that are among the tokens, in their
      order; None: all.
    grids: int32 [B, 2], rows and columns of the patches of images of different
      shapes, with padding behind; or [B, S, 2], S images in a sequence; None:
      all have `grid`.
    attended: bool [B, T], tokens that may be attended to; None: all. With
      `segments`, [B, S, T], the tokens of each image.
    segments: int32 [B, T], the image of a token, if a sequence has several;
      tokens attend only within their image. None: one.
    sizes: float32 [B, T], how often each token counts in attention; None: once.
    bias: Added to the scores of attention, float32 [H, T, T], or None.
    layer_bias: Part that computes such a bias in each layer, from the context,
      with parameters of the layer's attention; or None.
    rotation: Rotates queries and keys [B, T', H, K] of the first T' tokens, as
      `rotation(x, layer)`; or None.
    perturbation: Added to the weights of attention, [B, H, T, T], or None: its
      gradient is theirs.
    captures: Names of what the caller asks for, as 'attention'.
    remat: What the backward pass recomputes within the layer, a policy of
      `stack.POLICIES` but 'auto'.
    previous: What the layer before returned beside its tokens; {} where layers
      are scanned.
    outputs: What this layer returns beside its tokens.
  """

  dropout_key: dropout_lib.DropoutKey | None = None
  layer: jax.Array | None = None
  depth: int = _static(default=1)
  num_tokens: int = _static(default=0)
  num_read: int | None = _static(default=None)
  grid: tuple[int, ...] | None = _static(default=None)
  prefix: int = _static(default=0)
  class_token: bool = _static(default=False)
  image_size: tuple[int, ...] = _static(default=())
  patch_size: tuple[int, ...] = _static(default=())
  kept_patches: jax.Array | None = None
  grids: jax.Array | None = None
  attended: jax.Array | None = None
  segments: jax.Array | None = None
  sizes: jax.Array | None = None
  bias: jax.Array | None = None
  layer_bias: Any = _static(default=None)
  rotation: Any = None
  perturbation: jax.Array | None = None
  captures: tuple[str, ...] = _static(default=())
  remat: str = _static(default='none')
  previous: dict[str, jax.Array] = dataclasses.field(default_factory=dict)
  outputs: Outputs = _static(default_factory=Outputs)

  @property
  def train(self) -> bool:
    """Whether this is training."""
    return self.dropout_key is not None

  def capture(self, name: str, x: jax.Array) -> None:
    """Returns x to the caller of the model, if it asks for that name."""
    if name in self.captures:
      self.outputs[name] = x

  def dropout(
    self,
    x: jax.Array,
    rate: float | jax.Array,
    purpose: int,
    full_shape: tuple[int, ...] | None = None,
  ) -> jax.Array:
    """Applies `dropout.dropout` in training; each purpose has its own mask."""
    if self.dropout_key is None:
      return x
    return dropout_lib.dropout(
      x, rate, self.dropout_key.fold(purpose), full_shape
    )
