"""Embeddings, tokens and attention of a model for images.

In comments: B images, N tokens (class and other tokens, then patches), D hidden
size, H heads, L layers, (h, w) grid of patches.
"""

from collections.abc import Callable
from collections.abc import Sequence
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax import models
from vit_jax import weights
from vit_jax.config import UserError
from vit_jax.models import mixer
from vit_jax.models import resnet
from vit_jax.weights import batched

_BATCH = 16  # maximum number of images at a time
_MOST_ATTENTION = 2**30  # maximum bytes of attention at a time


def features(
  vit: weights.Loaded,
  images: Any,
  layers: Sequence[int] | None = None,
  batch_size: int = 32,
) -> np.ndarray:
  """Returns the output tokens of layers, float32 [len(layers), B, N, D].

  These are values of the residual stream, before the last LayerNorm. The first
  `prefix_length(vit)` tokens are not patches; the patches follow row by row.

  Args:
    vit: A ViT, hybrid or Mixer.
    images: Input of `vit.preprocess`, or its result.
    layers: Indices from 0; negative ones count from the end. None: all.
    batch_size: Images at a time.
  """
  chosen = range(depth(vit)) if layers is None else layers
  index = np.asarray([layer_index(vit, layer) for layer in chosen], np.int32)
  return reduced_array(vit, images, 'tokens', lambda x: x[index], 1, batch_size)


def embeddings(
  vit: weights.Loaded, images: Any, batch_size: int = 32
) -> np.ndarray:
  """Returns the input of the head, float32 [B, D'], of any model.

  For two heads (DeiT's), this is the mean of their inputs. `images` are the
  input of `vit.preprocess`, or its result.
  """
  model = vit.model.clone(num_classes=0)
  return batched.apply(model, vit.params, prepared(vit, images), batch_size)


def check_tokens(vit: weights.Loaded) -> None:
  """Raises a UserError if the model has no tokens."""
  if isinstance(vit.model, resnet.BiT):
    raise UserError(
      'the model is a BiT, a ResNet, which has no tokens to look at: choose a'
      ' ViT, a hybrid or a Mixer'
    )


def check_attention(vit: weights.Loaded) -> None:
  """Raises a UserError if the model has no attention."""
  check_tokens(vit)
  if isinstance(vit.model, mixer.Mixer):
    raise UserError(
      'the model is a Mixer, which has no attention to look at (an MLP mixes'
      ' its tokens): choose a ViT or a hybrid'
    )


def depth(vit: weights.Loaded) -> int:
  """Returns the number of layers."""
  check_tokens(vit)
  return getattr(vit.model, 'depth', 0)


def layer_index(vit: weights.Loaded, layer: int) -> int:
  """Returns a layer's index from 0; a negative one counts from the end."""
  count = depth(vit)
  if not -count <= layer < count:
    raise UserError(
      f'there is no layer {layer}: the model has {count}, 0 to {count - 1},'
      ' or -1 for the last'
    )
  return layer % count


def prefix_length(vit: weights.Loaded) -> int:
  """Returns the number of tokens before the patches."""
  return getattr(vit.model, 'prefix_length', 0)


def num_tokens(vit: weights.Loaded) -> int:
  """Returns the number of tokens, patches among them."""
  h, w = patch_grid(vit)
  return prefix_length(vit) + h * w


def patch_grid(vit: weights.Loaded) -> tuple[int, int]:
  """Returns the grid of patches, (h, w)."""
  check_tokens(vit)
  return weights.grid(vit.model, vit.preprocess.image_size)


def patch_index(vit: weights.Loaded, patch: tuple[int, int]) -> int:
  """Returns the position of a patch (row, column) in their rows."""
  h, w = patch_grid(vit)
  row, column = patch
  if not (0 <= row < h and 0 <= column < w):
    raise UserError(
      f'there is no patch ({row}, {column}): rows are 0 to {h - 1}, columns 0'
      f' to {w - 1}'
    )
  return row * w + column


def prepared(vit: weights.Loaded, images: Any) -> np.ndarray:
  """Returns images as the model takes them, float32 [B, H, W, C]."""
  is_prepared = (
    getattr(images, 'dtype', None) == np.float32 and images.ndim == 4
  )
  if not is_prepared:
    return vit.preprocess(images)
  shape = (*vit.preprocess.image_size, vit.preprocess.channels)
  if not len(images) or images.shape[1:] != shape:
    raise UserError(
      f'images is a float32 array of shape {images.shape}: what this model'
      f' takes is [B, {", ".join(map(str, shape))}], as vit.preprocess makes it'
    )
  return np.asarray(images)


def reduced(
  vit: weights.Loaded,
  images: Any,
  names: Sequence[str],
  reduce: Callable[[dict[str, jax.Array]], Any],
  axis: int = 0,
  batch_size: int = _BATCH,
) -> Any:
  """Reduces logits, tokens or attention of images, batch by batch.

  The model is compiled once for each batch size and choice of names, and not
  again for another `reduce`.

  Args:
    vit: A ViT, hybrid or Mixer.
    images: Input of `vit.preprocess`, or its result.
    names: Some of 'logits', 'tokens' and 'attention'.
    reduce: Maps these arrays of a batch to an array or a tree of arrays. They
      are float32, on the device: logits [B, classes], tokens [L, B, N, D] as
      from `features`, and attention [L, B, H, N, N], whose rows sum to one.
    axis: Axis of the images in the results of `reduce`.
    batch_size: Maximum number of images at a time; large attention reduces it.
  """
  if 'attention' in names:
    batch_size = min(batch_size, attention_batch(vit))
  elif 'tokens' in names:
    check_tokens(vit)
  params = jax.tree.map(jnp.asarray, vit.params)
  look = functools.partial(_look, vit.model, tuple(names), params)
  inputs = [prepared(vit, images)]
  return batched.in_batches(lambda x: reduce(look(x)), inputs, batch_size, axis)


def reduced_array(
  vit: weights.Loaded,
  images: Any,
  name: str,
  reduce: Callable[[jax.Array], Any],
  axis: int = 0,
  batch_size: int = _BATCH,
) -> Any:
  """Returns what `reduced` does, of one array: 'tokens' or 'attention'."""
  return reduced(
    vit, images, (name,), lambda x: reduce(x[name]), axis, batch_size
  )


def attention_batch(vit: weights.Loaded) -> int:
  """Returns the number of images whose attention fits in memory at a time."""
  shape = attention_shape(vit)
  return int(np.clip(_MOST_ATTENTION // (4 * math.prod(shape)), 1, _BATCH))


def attention_shape(vit: weights.Loaded) -> tuple[int, ...]:
  """Returns the shape of the attention for one image, (L, H, N, N)."""
  check_attention(vit)
  size = (1, *vit.preprocess.image_size, vit.preprocess.channels)
  images = jax.ShapeDtypeStruct(size, jnp.float32)
  look = functools.partial(_look, vit.model, ('attention',))
  depth, _, *shape = jax.eval_shape(look, vit.params, images)['attention'].shape
  return depth, *shape


@functools.partial(jax.jit, static_argnums=(0, 1))
def _look(
  model: models.Model, names: tuple[str, ...], params: Any, images: jax.Array
) -> dict[str, jax.Array]:
  variables = {'params': params}
  logits, state = model.apply(variables, images, mutable=['intermediates'])
  outputs = {'logits': logits, **state['intermediates']}
  if 'attention' in names and 'attention' not in outputs:
    raise UserError(
      'the attention of the model does not return its weights: let its class'
      " call context.capture('attention', weights), [B, H, T, T]"
    )
  return {name: outputs[name].astype(jnp.float32) for name in names}
