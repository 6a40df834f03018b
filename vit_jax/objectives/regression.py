"""Regression: images to numbers, in the units of the data."""

from typing import Any
from typing import ClassVar

from clu import metrics as clu_metrics
import jax
import jax.numpy as jnp
import numpy as np
import optax

from vit_jax import config as config_lib
from vit_jax.data import base as data_base
from vit_jax.data import target_kinds
from vit_jax.data.device.rng import Rng
from vit_jax.evaluation import number_metrics
from vit_jax.objectives import base


class Regression(base.Objective):
  """Learns numbers that belong to an image.

  The model predicts each quantity standardised with the mean and the standard
  deviation of the training split. So quantities with different units have equal
  weight in the loss, and a head of zeros predicts the means. Errors are
  reported in the units of the data.
  """

  target: ClassVar = ('numbers', target_kinds.Number)
  metrics: ClassVar = {
    'r2': 'max',
    'mean_absolute_error': 'min',
    'r2_of/': 'max',
    'mean_absolute_error_of/': 'min',
    'loss': 'min',
    'examples': 'max',
  }
  options: ClassVar = {
    # 'mse', or 'huber', which gives large errors less weight.
    'loss': 'mse',
    # For 'huber': the error from which the loss is linear, in standard
    # deviations.
    'delta': 1.0,
    # Mean of each quantity in the training split. (): the run computes it.
    'mean': (),
    # Standard deviation of each quantity in the training split. (): the run
    # computes it.
    'std': (),
  }
  limits: ClassVar = {
    'loss': ('mse', 'huber'),
    'delta std': '(0, inf)',
    'mean': '(-inf, inf)',
  }

  def __init__(self, config: base.Config, features: base.Features):
    super().__init__(config, features)
    self._options = options = config.objective.options
    count = config.model.num_classes
    # Without data, as when a step is planned, the options are ().
    self._mean = np.float32(options.mean or (0.0,) * count)
    self._std = np.float32(options.std or (1.0,) * count)

  @classmethod
  def fill(cls, config: base.Config, source: data_base.Source) -> None:
    """Sets mean and std from the training split, if they are not set."""
    options, names = config.objective.options, source.features['numbers'].names
    if not (options.mean and options.std):
      numbers = source.column('numbers').astype(np.float64)
      std = numbers.std(axis=0)
      # A quantity that never varies has std 0; divide by 1 instead.
      moments = {'mean': numbers.mean(axis=0), 'std': np.where(std, std, 1.0)}
      for key, values in moments.items():
        options[key] = options[key] or tuple(values.tolist())
    for key in ('mean', 'std'):
      if len(options[key]) != len(names):
        raise config_lib.UserError(
          f'config.objective.options.{key} has {len(options[key])} numbers:'
          f' write one for each of {config_lib.join_first(names)}'
        )

  def output_facts(self) -> dict[str, Any]:
    """Returns how logits become numbers."""
    scale = {'mean': self._mean.tolist(), 'std': self._std.tolist()}
    return {'logits': {'feature': 'numbers', **scale}}

  def loss(
    self, params: base.Params, extra: base.Extra, batch: base.Batch, rng: Rng
  ) -> tuple[jax.Array, base.Scalars, base.Extra]:
    """Returns the mean loss and the mean absolute error of the batch."""
    scaled = self.apply_train(params, batch['image'], rng)
    error = jnp.abs(scaled * self._std + self._mean - batch['numbers'])
    loss = self._loss(scaled, batch['numbers']).mean()
    return loss, {'mean_absolute_error': error.mean()}, extra

  def outputs(self, params: base.Params, batch: base.Batch) -> base.Outputs:
    """Returns logits, and numbers in the units of the data, [B, K]."""
    scaled = self.apply(params, batch['image'])
    return {'logits': scaled, 'numbers': scaled * self._std + self._mean}

  def measure(
    self, outputs: base.Outputs, batch: base.Batch
  ) -> clu_metrics.Collection:
    """Returns R2 and mean absolute error (also by quantity), loss and count."""
    return number_metrics.Regression.single_from_model_output(
      scaled=outputs['logits'],
      truth=(batch['numbers'] - self._mean) / self._std,
      error=jnp.abs(outputs['numbers'] - batch['numbers']),
      loss=self._loss(outputs['logits'], batch['numbers']).mean(axis=-1),
      mask=batch['valid'],
    )

  def _loss(self, scaled: jax.Array, numbers: jax.Array) -> jax.Array:
    truth = (numbers - self._mean) / self._std
    if self._options.loss == 'huber':
      return optax.losses.huber_loss(scaled, truth, delta=self._options.delta)
    return optax.losses.squared_error(scaled, truth)
