"""Parameter initializers, as in the code of the papers."""

from collections.abc import Callable
import dataclasses
import functools
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp

from vit_jax.models import fields

Initializer = Callable[..., jax.Array]

MIMETIC = 'mimetic'
# Scales of a random matrix and of the identity in the product of queries' and
# keys' kernels, and in that of values' kernel and the layer after the heads.
_SCORES, _VALUES = (0.7, 0.7), (0.4, -0.4)


@dataclasses.dataclass(frozen=True)
class Initializers:
  """Initializers of each kind of parameter."""

  kernel: Initializer
  patch: Initializer
  mlp_bias: Initializer
  class_token: Initializer
  position: Initializer
  head: Initializer


INITIALIZERS = {
  # google-research/vision_transformer, the code of the ViT paper.
  'vit': Initializers(
    kernel=nn.initializers.xavier_uniform(),
    patch=nn.initializers.lecun_normal(),
    mlp_bias=nn.initializers.normal(1e-6),
    class_token=nn.initializers.zeros,
    position=nn.initializers.normal(0.02),
    head=nn.initializers.zeros,
  ),
  # MLP-Mixer in the same code: Flax's defaults, and a head of zeros.
  'mixer': Initializers(
    kernel=nn.initializers.lecun_normal(),
    patch=nn.initializers.lecun_normal(),
    mlp_bias=nn.initializers.zeros,
    class_token=nn.initializers.zeros,
    position=nn.initializers.normal(0.02),
    head=nn.initializers.zeros,
  ),
  # Flax's defaults; learned tokens and positions start with unit variance.
  'lecun': Initializers(
    kernel=nn.initializers.lecun_normal(),
    patch=nn.initializers.lecun_normal(),
    mlp_bias=nn.initializers.zeros,
    class_token=nn.initializers.normal(1.0),
    position=nn.initializers.normal(1.0),
    head=nn.initializers.lecun_normal(),
  ),
  # DeiT's code (arXiv:2012.12877); the patch embedding has the default
  # initialization of PyTorch's convolutions.
  'deit': Initializers(
    kernel=nn.initializers.truncated_normal(0.02),
    patch=nn.initializers.variance_scaling(1 / 3, 'fan_in', 'uniform'),
    mlp_bias=nn.initializers.zeros,
    class_token=nn.initializers.truncated_normal(0.02),
    position=nn.initializers.truncated_normal(0.02),
    head=nn.initializers.truncated_normal(0.02),
  ),
  # GPT-2's code; iGPT starts the matrices that make logits at zeros (appendix
  # C of Generative Pretraining from Pixels).
  'igpt': Initializers(
    kernel=nn.initializers.normal(0.02),
    patch=nn.initializers.normal(0.02),
    mlp_bias=nn.initializers.zeros,
    class_token=nn.initializers.normal(0.02),
    position=nn.initializers.normal(0.01),
    head=nn.initializers.zeros,
  ),
  # MoCo v3's code (arXiv:2104.02057); the head is that of its linear probe.
  'moco': Initializers(
    kernel=nn.initializers.xavier_uniform(),
    patch=nn.initializers.xavier_uniform(in_axis=(0, 1, 2), out_axis=3),
    mlp_bias=nn.initializers.zeros,
    class_token=nn.initializers.normal(1e-6),
    position=nn.initializers.normal(0.02),
    head=nn.initializers.normal(0.01),
  ),
}
# As 'vit'; `mimetic` then replaces the kernels of attention in a trunk.
# Decoders and text towers keep these.
INITIALIZERS[MIMETIC] = INITIALIZERS['vit']

FIELD = fields.Field(fields.Kind.TRAINING, choices=tuple(INITIALIZERS))


def separate(init: Initializer, count: int) -> Initializer:
  """Initialises several matrices that are stored as one wide kernel.

  The bounds of Xavier's and LeCun's initializers depend on the matrix shape.
  They must use the shape of one query, key or value matrix, not of all three
  together.

  Args:
    init: Initializer of one matrix.
    count: Number of matrices side by side in the last axis.
  """

  def init_each(
    key: jax.Array,
    shape: tuple[int, ...],
    dtype: jax.typing.DTypeLike = jnp.float32,
  ) -> jax.Array:
    one = (*shape[:-1], shape[-1] // count)
    keys = jax.random.split(key, count)
    return jnp.concatenate([init(k, one, dtype) for k in keys], axis=-1)

  return init_each


def mimetic(params: dict[str, Any], key: jax.Array) -> dict[str, Any]:
  """Starts attention as it is in pre-trained models (arXiv:2305.09828).

  Each token attends to those like itself, and attention takes away a part of
  what it reads. Fixed positions make that local.

  Args:
    params: Parameters of a trunk; layers may be stacked, [L, ...].
    key: Random key.

  Returns:
    The same with other kernels of attention.
  """
  if 'qkv' in params and 'out' in params:
    kernels = [params[name]['kernel'] for name in ('qkv', 'out')]
    one = functools.partial(_mimetic_kernels, shape=kernels[0].shape[-4:])
    if kernels[0].ndim == 5:
      qkv, out = jax.lax.map(one, jax.random.split(key, len(kernels[0])))
    else:
      qkv, out = one(key)
    return params | {
      'qkv': params['qkv'] | {'kernel': qkv},
      'out': params['out'] | {'kernel': out},
    }
  each = jax.random.split(key, len(params))
  keys = dict(zip(sorted(params), each, strict=True))
  return {
    name: mimetic(value, keys[name]) if isinstance(value, dict) else value
    for name, value in params.items()
  }


def _mimetic_kernels(
  key: jax.Array, shape: tuple[int, int, int, int]
) -> tuple[jax.Array, jax.Array]:
  """Returns the kernels of one layer, [D, 3, H, K] and [H, K, D]."""
  d, _, heads, size = shape
  noise, identity = jnp.array([_SCORES] * heads + [_VALUES]).T[..., None, None]
  matrices = noise * jax.random.normal(key, (heads + 1, d, d)) / jnp.sqrt(d)
  left, right = _factors(matrices + identity * jnp.eye(d))
  qkv = [
    jnp.moveaxis(left[:-1, :, :size], 0, 1),
    jnp.moveaxis(right[:-1, :size], 2, 0),
    left[-1].reshape(d, heads, size),
  ]
  return jnp.stack(qkv, 1), right[-1].reshape(heads, size, d)


def _factors(matrices: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Returns two factors of each matrix, [N, D, D].

  Their first columns and rows are those of the largest singular values, by
  whose roots both are scaled.
  """
  product = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)
  # One at a time: on CPUs, calls for several matrices at once wait forever for
  # each other's threads if there are several devices.
  squares, left = jax.lax.map(jnp.linalg.eigh, product(matrices, matrices.mT))
  left = left[..., ::-1]
  scale = jnp.maximum(squares[..., ::-1], 1e-12) ** 0.25
  return left * scale[:, None], product(left.mT, matrices) / scale[..., None]
