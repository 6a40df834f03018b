"""Attention that starts as it is in pre-trained models (arXiv:2305.09828)."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

# Scales of a random matrix and of the identity in the product of queries' and
# keys' kernels, and in that of values' kernel and the layer after the heads.
_SCORES, _VALUES = (0.7, 0.7), (0.4, -0.4)


def mimetic(params: dict[str, Any], key: jax.Array) -> dict[str, Any]:
  """Returns parameters of a trunk with other kernels of attention.

  Each token attends to those like itself, and attention takes away a part of
  what it reads. Fixed positions make that local. Layers may be stacked,
  [L, ...].
  """
  if 'qkv' in params and 'out' in params:
    kernels = [params[name]['kernel'] for name in ('qkv', 'out')]
    initialize = functools.partial(
      _mimetic_kernels, shape=kernels[0].shape[-4:]
    )
    if kernels[0].ndim == 5:
      qkv, out = jax.lax.map(initialize, jax.random.split(key, len(kernels[0])))
    else:
      qkv, out = initialize(key)
    return params | {
      'qkv': params['qkv'] | {'kernel': qkv},
      'out': params['out'] | {'kernel': out},
    }
  subkeys = jax.random.split(key, len(params))
  keys = dict(zip(sorted(params), subkeys, strict=True))
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

  Their first columns and rows belong to the largest singular values, by whose
  roots both are scaled.
  """
  product = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)
  # One at a time: on CPUs, calls for several matrices at once wait forever for
  # each other's threads if there are several devices.
  squares, left = jax.lax.map(jnp.linalg.eigh, product(matrices, matrices.mT))
  left = left[..., ::-1]
  scale = jnp.maximum(squares[..., ::-1], 1e-12) ** 0.25
  return left * scale[:, None], product(left.mT, matrices) / scale[..., None]
