"""Kernels that compute the standard attention: which one, and why another.

In comments: B images, T tokens, D hidden size, H heads, K = D / H channels of a
head, R tokens with a query.

'plain', for CPUs: heads before tokens, and a softmax that divides after the
product with the values; 'fused', for TPUs: one kernel, see `fused_attention`;
'cudnn', for GPUs, and 'xla', of `jax.nn.dot_product_attention`; 'einsum': the
compiler chooses the order of axes; 'auto': 'plain', 'fused' or 'cudnn', by the
platform. What a kernel cannot compute, such as dropout, 'einsum' computes, and
the log says why. That is also so where the compiler of a TPU refuses the
kernel, and on several TPUs without a mesh in the context (`jax.set_mesh`),
since the compiler cannot split a kernel.
"""

from __future__ import annotations

import functools
from typing import Any
from typing import cast
from typing import Literal
from typing import TYPE_CHECKING

from absl import logging
from flax import linen as nn
import jax
from jax.experimental import layout
import jax.numpy as jnp

from vit_jax.models import refusals
from vit_jax.models.block import LayerNorm
from vit_jax.models.parts import norms

if TYPE_CHECKING:
  from vit_jax.models.attention import Attention
  from vit_jax.models.context import Context

# Before JAX 0.11, a constraint of the layout gathers what devices share.
_KEEPS_ORDER = jax.__version_info__ >= (0, 11)


def on_platform(platform: str, implementation: str) -> str:
  """Returns the implementation that 'auto' stands for; others as they are."""
  if implementation != 'auto':
    return implementation
  by_platform = {'cpu': 'plain', 'tpu': 'fused', 'gpu': 'cudnn'}
  return by_platform.get(platform, 'einsum')


def choose(
  attention: Attention, x: jax.Array, context: Context, bias: jax.Array | None
) -> str:
  """Returns the implementation that can do this and suits it."""
  platform = jax.default_backend()
  chosen = on_platform(platform, attention.implementation)
  if chosen not in ('fused', 'cudnn'):
    is_possible = chosen != 'xla' or chosen in attention.supported
    return chosen if is_possible else 'einsum'
  refusal = _refusal(chosen, attention, x, context, bias)
  log_choice(platform, chosen, refusal)
  return 'einsum' if refusal else chosen


@functools.cache  # once in a process
def log_choice(platform: str, kernel: str, refusal: str) -> None:
  """Logs which implementation of attention is used, and why."""
  choice = f"'einsum', not {kernel!r}: {refusal}" if refusal else f'{kernel!r}'
  logging.info('attention on %s: %s', platform, choice)


def _refusal(
  kernel: str,
  attention: Attention,
  x: jax.Array,
  context: Context,
  bias: jax.Array | None,
) -> str:
  """Returns why 'fused' or 'cudnn' cannot compute this; '' if it can."""
  is_fused = kernel == 'fused'
  drops = context.train and attention.dropout_rate > 0
  name = type(attention).__name__
  normalizes = attention.qk_norm and is_fused
  reason = refusals.first_reason(
    {
      f'it does not compute {name}': kernel not in attention.supported,
      'keys are returned': 'keys' in context.captures,
      'scores have a bias': bias is not None,
      'tokens attend to earlier ones': is_fused and attention.causal,
      'weights are dropped': drops,
      'only first tokens attend': context.num_read,
      'the batch is empty': not x.size,
      f'it does not compute {type(attention.norm).__name__}': normalizes
      and type(attention.norm) not in (LayerNorm, norms.RMSNorm),
    }
  )
  if reason:
    return reason
  size = x.shape[-1] // attention.num_heads
  if not is_fused:
    return _refusal_of_cudnn(attention.dtype, size)
  from vit_jax.models.parts import fused_attention

  return fused_attention.refusal(attention, x, context)


def _refusal_of_cudnn(dtype: jax.typing.DTypeLike, size: int) -> str:
  """Returns why cuDNN cannot attend with heads of `size` channels, or ''."""
  dtype, device = jnp.dtype(dtype), jax.devices()[0]
  if dtype.itemsize != 2:
    return f'the type is {dtype.name}'
  if size % 8 or size > 128:
    return f'heads have {size} channels'
  if device.platform != 'gpu':  # ahead of time
    return ''
  # Flash attention came with Ampere, 8.0. AMD's GPUs have names: 'gfx942'.
  capability = str(getattr(device, 'compute_capability', ''))
  major = capability.partition('.')[0]
  is_new = major.isdecimal() and int(major) >= 8
  return '' if is_new else f'cuDNN needs compute capability 8, not {capability}'


def attend(
  attention: Attention, x: jax.Array, bias: jax.Array | None, context: Context
) -> jax.Array:
  """Maps [B, T, D] to the values [B, R, H, K], with a kernel where one can."""
  implementation = choose(attention, x, context, bias)
  if implementation == 'fused':
    from vit_jax.models.parts import fused_attention

    return fused_attention.attend(attention, x, context)
  qkv = attention.prepare(*attention.project(x, context), context)
  if implementation != 'einsum':
    return attend_by_jax(*qkv, bias, attention.causal, implementation)
  # The compiler chooses the order of axes, as a transpose of [B, T, H, K] would
  # be a copy in memory. Scores and softmax are float32, as in
  # `Attention.attend`.
  query, key, value = qkv
  scores = jnp.einsum(
    'bqhk,bthk->bhqt',
    query * query.shape[-1] ** -0.5,
    key,
    preferred_element_type=jnp.float32,
  )
  weights = nn.softmax(attention.masked(scores, bias)).astype(attention.dtype)
  weights = attention.dropped(weights, context)
  return jnp.einsum('bhqt,bthk->bqhk', weights, value)


def attend_by_jax(
  query: jax.Array,
  key: jax.Array,
  value: jax.Array,
  bias: jax.Array | None,
  causal: bool,
  implementation: str,
) -> jax.Array:
  """Maps [B, T, H, K] to the values [B, R, H, K] by `jax.nn`.

  Args:
    query: Queries, [B, R, H, K].
    key: Keys, [B, T, H, K].
    value: Values, [B, T, H, K].
    bias: Added to the scores, [H, R, T] or [B, H, R, T], or None.
    causal: Whether a token attends only to itself and those before it.
    implementation: 'xla' or 'cudnn'.
  """
  lengths: dict[str, Any] = {}
  if bias is not None and bias.ndim < query.ndim:
    bias = bias[None]
  b, r = query.shape[:2]
  t = key.shape[1]
  if implementation == 'cudnn' and (r % 2 or t % 2):
    # The backward pass of cuDNN needs even lengths, and 14 x 14 patches with a
    # class token are 197.
    query, key, value = (
      jnp.pad(x, ((0, 0), (0, x.shape[1] % 2), (0, 0), (0, 0)))
      for x in (query, key, value)
    )
    lengths = {
      'query_seq_lengths': jnp.full((b,), r, jnp.int32),
      'key_value_seq_lengths': jnp.full((b,), t, jnp.int32),
    }
  y = jax.nn.dot_product_attention(
    query,
    key,
    value,
    bias if bias is None else bias.astype(query.dtype),
    is_causal=causal,
    implementation=cast(Literal['xla', 'cudnn'], implementation),
    **lengths,
  )
  return y[:, :r]


def row_major(x: jax.Array, attention: nn.Module) -> jax.Array:
  """Keeps the order of tokens [B, T, D] in memory on GPUs.

  Their compiler would store the sums of the residuals as [T, D, B], and so
  transpose them before and after each product. Only layers with cuDNN's
  attention, the default on GPUs, are constrained: exported programs have
  another attention, and cannot hold the constraint.
  """
  implementation = getattr(attention, 'implementation', '')
  platform = jax.default_backend()
  if not _KEEPS_ORDER or on_platform(platform, implementation) != 'cudnn':
    return x
  order = layout.Layout(tuple(range(x.ndim)))
  return layout.with_layout_constraint(x, order)
