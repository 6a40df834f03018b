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
# Of the products of queries' and keys' kernels, and of those of values and the
# layer after the heads: the scale of a random matrix, and of the identity (the
# paper's section 4).
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
# That of the paper's code; `mimetic` then replaces the kernels of attention.
INITIALIZERS[MIMETIC] = INITIALIZERS['vit']

FIELD = fields.Field(fields.Kind.TRAINING, choices=tuple(INITIALIZERS))


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
      qkv, out = jax.vmap(one)(jax.random.split(key, len(kernels[0])))
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
  of_scores, of_values = jax.random.split(key)
  query, key_kernel = jax.vmap(lambda k: _factors(k, d, *_SCORES))(
    jax.random.split(of_scores, heads)
  )
  value, out = _factors(of_values, d, *_VALUES)
  qkv = [
    jnp.moveaxis(query[..., :size], 0, 1),
    jnp.moveaxis(key_kernel[:, :size], 2, 0),
    value.reshape(d, heads, size),
  ]
  return jnp.stack(qkv, 1), out.reshape(heads, size, d)


def _factors(
  key: jax.Array, d: int, noise: float, identity: float
) -> tuple[jax.Array, jax.Array]:
  """Returns two matrices, [D, D]; the first columns and rows matter most.

  Their product is that share of the identity, and of random values with a
  variance of 1 / D.
  """
  random = jax.random.normal(key, (d, d)) / jnp.sqrt(d)
  left, scale, right = jnp.linalg.svd(noise * random + identity * jnp.eye(d))
  return left * jnp.sqrt(scale), jnp.sqrt(scale)[:, None] * right
