"""Times modern parts against the plain ViT, and packing against padding.

A step here is the forward and backward pass of a classifier on random images;
nothing is read, and there is no optimizer. All formulations take turns.
"""

from collections.abc import Callable
from collections.abc import Mapping
import functools
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import optax

from benchmarks import timing
from vit_jax import config as config_lib
from vit_jax import models
from vit_jax.data import naflex
from vit_jax.models import describing
from vit_jax.models import vit

Entry = dict[str, Any]

_PLAIN, _PADDED, _PACKED = 'plain', 'padded', 'packed'
_SMALLEST = 0.25  # of images of their own shapes, as a share of the tokens
# Rounding in another order of sums; half-precision types have fewer bits.
_EXACT, _ROUNDED = 1e-4, 5e-2


def fields(model: vit.ViT, tokens: int) -> dict[str, dict[str, Any]]:
  """Returns what differs from a plain ViT, by the name of the part.

  Args:
    model: The plain ViT.
    tokens: Patches of an image.
  """
  # Three matrices, and as many parameters.
  narrower = 2 * describing.key_values(model)['mlp_dim'] // 3
  return {
    _PLAIN: {},
    'rope': {'positions': 'rope'},
    'registers': {'registers': 4},
    'swiglu': {'mlp': f'swiglu({narrower})'},
    'qk_norm': {'attention': 'attention(qk_norm=True)'},
    'rms_norm': {'norm': 'rms_norm'},
    'layer_scale': {'block': 'block(layer_scale=0.1)'},
    'merging': {'block': f'merging({max(1, tokens // (2 * model.depth))})'},
    'experts': {'mlp': "experts(4, routing='soft')"},
  }


def modern(config: ml_collections.ConfigDict, blocks: int) -> Entry:
  """Times steps of each part, with the plain ViT as the baseline of all.

  Args:
    config: The config of the model; layers are unrolled, without dropout.
    blocks: Number of timed blocks.
  """
  plain = _plain(config)
  size = config_lib.pair(config.data.image_size, 'data.image_size')
  shape = (config.train.batch_size, *size, config.data.channels)
  rng = np.random.default_rng(0)
  images = rng.standard_normal(shape, np.float32)
  labels = rng.integers(plain.num_classes, size=shape[0])
  p, q = models.patch_of_images(plain)
  tokens = (size[0] // p) * (size[1] // q)
  steps = {}
  for name, changes in fields(plain, tokens).items():
    model = _with(plain, changes)
    params = models.init_params(model, jax.random.key(0), shape[1:])
    steps[name] = _step(model, params, images, labels)
  times = _in_turns(steps, blocks)
  entry = _compared(times, _PLAIN, shape[0])
  return {name: entry[name] for name in steps if name != _PLAIN}


def packing(config: ml_collections.ConfigDict, blocks: int) -> Entry:
  """Times steps on images of their own sizes, packed against padded.

  Args:
    config: The config of the model, as of `modern`; its pool becomes 'mean'.
    blocks: Number of timed blocks.

  Raises:
    UserError: The losses or the gradients differ.
  """
  plain = _plain(config)
  model = _with(
    plain,
    {'pool': 'mean', 'class_token': False, 'positions': 'learned'},
  )
  size = config_lib.pair(config.data.image_size, 'data.image_size')
  image_shape = (*size, config.data.channels)
  params = models.init_params(model, jax.random.key(0), image_shape)
  padded, packed = _images(config, model)
  steps = {
    _PADDED: _step(model, params, *padded),
    _PACKED: _step(model, params, *packed),
  }
  losses = [float(step()[0]) for step in steps.values()]
  exact = config.train.dtype == 'float32' and jax.default_backend() == 'cpu'
  if abs(losses[0] - losses[1]) > (_EXACT if exact else _ROUNDED):
    raise config_lib.UserError(
      f'the loss of packed images is {losses[1]:.6g}, of padded ones'
      f' {losses[0]:.6g}: what is not the same is not timed'
    )
  images, tokens = len(padded[0]), int(padded[2].prod(axis=-1).sum())
  entry = _compared(_in_turns(steps, blocks), _PADDED, images)[_PACKED]
  return entry | {
    'loss': losses[1],
    'sequences': len(packed[0]),
    'filled': tokens / packed[0][..., 0].size,
    'filled_padded': tokens / padded[0][..., 0].size,
  }


def _images(
  config: ml_collections.ConfigDict, model: vit.ViT
) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
  """Returns random images of their own grids, padded and packed.

  Returns:
    (patches, labels, grids) twice: [B, N, p * q * C], [B] and [B, 2]; and
    [R, N, p * q * C], [R, S] and [R, S, 2], -1 the label of no image.
  """
  p, q = models.patch_of_images(model)
  size = config_lib.pair(config.data.image_size, 'data.image_size')
  rows, columns = size[0] // p, size[1] // q
  most, depth = rows * columns, p * q * config.data.channels
  b, rng = config.train.batch_size, np.random.default_rng(0)
  share = np.sqrt(rng.uniform(_SMALLEST, 1, (b, 1)))
  grids = np.maximum(1, np.array([rows, columns]) * share).astype(np.int32)
  counts = grids.prod(axis=1)
  patches = rng.standard_normal((b, most, depth), np.float32)
  patches *= (np.arange(most) < counts[:, None])[..., None]
  labels = rng.integers(model.num_classes, size=b)
  sequences = naflex.packed(counts.tolist(), most)
  width = max(map(len, sequences))
  x = np.zeros((len(sequences), most, depth), np.float32)
  own = np.full((len(sequences), width), -1)
  where = np.zeros((len(sequences), width, 2), np.int32)
  for row, sequence in enumerate(sequences):
    start = 0
    for place, i in enumerate(sequence):
      x[row, start : start + counts[i]] = patches[i, : counts[i]]
      own[row, place], where[row, place] = labels[i], grids[i]
      start += counts[i]
  return (patches, labels, grids), (x, own, where)


def _plain(config: ml_collections.ConfigDict) -> vit.ViT:
  """Returns the plain ViT of a config: unrolled, and without dropout.

  Raises:
    UserError: The model is no ViT.
  """
  count = config.model.num_classes or 10
  model = models.from_config(config.model, count, config.train.dtype)
  if not isinstance(model, vit.ViT):
    raise config_lib.UserError(
      '--parts=modern and packing are for a ViT: leave --model out, or give the'
      ' name of one'
    )
  return _with(
    model, {'scan': False, 'dropout_rate': 0.0, 'stochastic_depth': 0.0}
  )


def _with(model: vit.ViT, changes: Mapping[str, Any]) -> vit.ViT:
  """Returns a ViT with other fields, which are checked."""
  made = describing.with_keys(model, **changes)
  assert isinstance(made, vit.ViT)
  return made


def _step(
  model: vit.ViT,
  params: Any,
  images: np.ndarray,
  labels: np.ndarray,
  grids: np.ndarray | None = None,
) -> Callable[[], Any]:
  """Returns a function that computes the loss and all gradients once."""

  @jax.jit
  def step(
    params: Any, images: jax.Array, labels: jax.Array, grids: Any
  ) -> Any:
    def loss(params: Any) -> jax.Array:
      logits = model.apply({'params': params}, images, grids=grids)
      assert isinstance(logits, jax.Array)
      is_image = labels >= 0
      each = optax.softmax_cross_entropy_with_integer_labels(
        logits, jnp.maximum(labels, 0)
      )
      return jnp.where(is_image, each, 0).sum() / is_image.sum()

    return jax.value_and_grad(loss)(params)

  return functools.partial(
    step, *jax.device_put((params, images, labels, grids))
  )


def _in_turns(
  steps: Mapping[str, Callable[[], Any]], blocks: int
) -> dict[str, list[float]]:
  """Returns the seconds of a step in each block, by name."""

  def several(step: Callable[[], Any], count: int) -> None:
    for _ in range(count):
      found = step()
    jax.block_until_ready(found)

  run = {k: functools.partial(several, step) for k, step in steps.items()}
  count = timing.steps_per_block([*run.values()])
  times = timing.in_turns(
    {k: functools.partial(x, count) for k, x in run.items()}, blocks
  )
  return {k: [x / count for x in seconds] for k, seconds in times.items()}


def _compared(
  times: Mapping[str, list[float]], baseline: str, images: int
) -> dict[str, Entry]:
  """Returns the entry of each name, against one of them."""
  return {
    name: timing.compare(seconds, times[baseline], images)
    | {'against': baseline}
    for name, seconds in times.items()
  }
