"""Losses of a student that sorts images into a teacher's prototypes.

Of DINO (arXiv:2104.14294), iBOT (arXiv:2111.07832) and DINOv2
(arXiv:2304.07193). A head gives logits over K prototypes. The teacher's become
probabilities, which are kept from collapsing by a centre or by Sinkhorn-Knopp,
and the student learns them from another crop, or from masked patches.

Everything is float32. Sums over a batch are over the whole batch, on however
many devices it is. In comments: B images, S and T crops of the student and of
the teacher, K prototypes, D the size of a feature.
"""

import math

import jax
import jax.numpy as jnp

from vit_jax.models import projection

_TINY = 1e-8  # of the distances between features, as in DINOv2's code
# Of log(K): so near 0, or log(K), is the entropy of a collapsed teacher.
_COLLAPSED = 0.01
_EXACT = jax.lax.Precision.HIGHEST


def warmed_up(
  start: float, end: float, warmup: int, position: jax.typing.ArrayLike
) -> jax.Array:
  """Returns a value that rises linearly over a warm-up, and then stays.

  It is `start` at position 0, and `end` from the position `warmup` - 1 on; with
  the warm-up 0 it is always `end`. Positions are completed epochs, or steps.
  """
  share = jnp.clip(jnp.asarray(position) / max(warmup - 1, 1), 0, 1)
  rising = start + (end - start) * share
  return jnp.where(jnp.asarray(position) < warmup, rising, end)


def centred(
  logits: jax.Array, centre: jax.Array, temperature: jax.typing.ArrayLike
) -> jax.Array:
  """Returns the teacher's probabilities (DINO, section 3.1, equation 1).

  Logits are [..., K] and the centre is [K].
  """
  return jax.nn.softmax((logits - centre) / temperature)


def update_centre(
  centre: jax.Array,
  logits: jax.Array,
  momentum: float,
  weights: jax.Array | None = None,
) -> jax.Array:
  """Returns the running mean [K] of the teacher's logits (DINO, equation 4).

  Logits are [..., K], and `weights` [...] are 0 for those that do not count;
  None: all count. The centre stays if none counts.
  """
  if weights is None:
    weights = jnp.ones(logits.shape[:-1])
  count = weights.sum()
  mean = jnp.einsum('...,...k->k', weights, logits, precision=_EXACT)
  mean = mean / jnp.maximum(count, 1)
  moved = momentum * centre + (1 - momentum) * mean
  return jnp.where(count > 0, moved, centre)


def sinkhorn_knopp(
  logits: jax.Array,
  temperature: jax.typing.ArrayLike,
  iterations: int,
  weights: jax.Array | None = None,
) -> jax.Array:
  """Returns the teacher's probabilities, with equal use of all prototypes.

  The Sinkhorn-Knopp algorithm of SwAV (arXiv:2006.09882), as in DINOv2's code:
  in turn, the prototypes and the samples are scaled to equal sums. It works
  with logarithms, since exp(logits / temperature) may overflow.

  All but the last axis of the logits [..., K] are samples, whose probabilities
  sum to 1. `weights` [...] are 0 for samples that are left out, else 1; None:
  all are 1.
  """
  samples = tuple(range(logits.ndim - 1))
  sample_weights = None if weights is None else weights[..., None]

  def log_sum(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    scale = sample_weights if axes == samples else None
    return jax.nn.logsumexp(x, axis=axes, b=scale, keepdims=True)

  log = logits / temperature
  for _ in range(iterations):
    shares = log_sum(log, samples)
    log = log - jnp.where(jnp.isfinite(shares), shares, 0.0)
    log = log - log_sum(log, (logits.ndim - 1,))
  return jnp.exp(log)


def between_crops(
  student: jax.Array, teacher: jax.Array, temperature: float
) -> jax.Array:
  """Returns the mean cross-entropy of each pair of crops, [T, S].

  The student has logits, [B, S, K], and the teacher probabilities, [B, T, K].
  """
  log = jax.nn.log_softmax(student / temperature)
  total = jnp.einsum('btk,bsk->ts', teacher, log, precision=_EXACT)
  return -total / len(student)


def cross_crop_loss(pairs: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Returns the loss over the pairs of a crop and another (DINO, equation 3).

  Crop i of the teacher and crop i of the student are the same in `pairs`, which
  `between_crops` gives. The results are the parts of the mean over these
  pairs that come from the student's first T crops, and from its local ones.
  """
  t, s = pairs.shape
  count = t * s - min(t, s)
  is_other = 1 - jnp.eye(t, s)
  shares = (pairs * is_other).sum(axis=0) / count
  return shares[:t].sum(), shares[t:].sum()


def patch_loss(
  student: jax.Array, teacher: jax.Array, weights: jax.Array, temperature: float
) -> jax.Array:
  """Returns the loss of masked patches (iBOT, equation 2).

  It is the mean over all images of the mean over an image's masked patches,
  which is 0 for an image without a mask.

  Args:
    student: Logits, [..., N, K].
    teacher: Probabilities, [..., N, K].
    weights: [..., N], as `patch_weights` returns them.
    temperature: Divides the student's logits.
  """
  log = jax.nn.log_softmax(student / temperature)
  losses = -(teacher * log).sum(axis=-1)
  images = weights[..., 0].size
  return (losses * weights).sum() / images


def patch_weights(masks: jax.Array) -> jax.Array:
  """Returns the weight of each patch in its image's mean, float32 [..., N].

  It is 1 / the number of masked patches of that image, for these; `masks` are
  bool [..., N].
  """
  count = masks.sum(axis=-1, keepdims=True)
  return masks / jnp.maximum(count, 1).astype(jnp.float32)


def koleo(features: jax.Array) -> jax.Array:
  """Returns the KoLeo loss, which spreads features (arXiv:1806.03198).

  Minus the mean logarithm of the distance to the nearest neighbour, after L2
  normalisation, as in DINOv2 (section 4). Features are of one crop of each
  image, [B, D]; B is at least 2.
  """
  x = projection.unit(features)
  similarity = jnp.einsum('id,jd->ij', x, x, precision=_EXACT)
  similarity = jnp.where(jnp.eye(len(x), dtype=bool), -1.0, similarity)
  nearest = x[jax.lax.stop_gradient(similarity).argmax(axis=1)]
  distance = jnp.sqrt(((x - nearest + _TINY) ** 2).sum(axis=-1))
  return -jnp.log(distance + _TINY).mean()


def entropy(probabilities: jax.Array) -> jax.Array:
  """Returns the mean entropy of distributions [..., K], in nats."""
  p = probabilities
  return -(p * jnp.log(jnp.maximum(p, jnp.finfo(p.dtype).tiny))).sum(-1).mean()


def collapse(entropy: float, count: int) -> str:
  """Returns what a collapsed teacher gives to each crop; '': it has not.

  `entropy` is the mean of its probabilities over `count` prototypes, in nats.
  """
  share = entropy / math.log(count)
  if share < _COLLAPSED:
    return 'one prototype'
  if share > 1 - _COLLAPSED:
    return 'equal probabilities of all prototypes'
  return ''
