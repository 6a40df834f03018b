"""Metrics of predicted numbers, as collections of clu."""

from typing import Self

from clu import metrics
import flax
import jax
import jax.numpy as jnp

from vit_jax.evaluation import metrics as metrics_lib


@flax.struct.dataclass
class _Errors(metrics_lib.Sum):
  """Sums over examples, [K].

  The truth is standardised, so that float32 sums of squares stay precise.
  """

  examples: jax.Array
  truth: jax.Array
  squared_truth: jax.Array
  squared_error: jax.Array
  absolute_error: jax.Array

  @classmethod
  def from_model_output(
    cls,
    scaled: jax.Array,
    truth: jax.Array,
    error: jax.Array,
    mask: jax.Array,
    **_: jax.Array,
  ) -> Self:
    terms = [truth, truth**2, (scaled - truth) ** 2, error]
    sums = [jnp.where(mask[:, None], x, 0).sum(axis=0) for x in terms]
    return cls(mask.sum(dtype=jnp.float32), *sums)


@flax.struct.dataclass
class R2(_Errors):
  """R2 of each quantity, [K]; nan if the quantity never varies.

  It is 1 - (sum of squared errors) / (sum of squared distances from the mean of
  the truth).
  """

  def compute(self) -> jax.Array:
    """Returns float32 [K]."""
    spread = self.squared_truth - self.truth**2 / self.examples
    return jnp.where(spread > 0, 1 - self.squared_error / spread, jnp.nan)


@flax.struct.dataclass
class MeanR2(R2):
  """The mean of `R2` over the quantities that vary."""

  def compute(self) -> jax.Array:
    """Returns a scalar."""
    return jnp.nanmean(super().compute())


@flax.struct.dataclass
class AbsoluteError(_Errors):
  """The mean absolute error of each quantity."""

  def compute(self) -> jax.Array:
    """Returns float32 [K]."""
    return self.absolute_error / self.examples


@flax.struct.dataclass
class MeanAbsoluteError(AbsoluteError):
  """The mean of `AbsoluteError` over the quantities."""

  def compute(self) -> jax.Array:
    """Returns a scalar."""
    return super().compute().mean()


# Takes scaled and truth [B, K] (in standard deviations), error
# [B, K] (absolute, in the units of the data), loss [B] and mask [B].
Regression = metrics.Collection.create(
  r2=MeanR2,
  mean_absolute_error=MeanAbsoluteError,
  r2_of=R2,
  mean_absolute_error_of=AbsoluteError,
  loss=metrics.Average.from_output('loss'),
  examples=metrics_lib.Count,
)
