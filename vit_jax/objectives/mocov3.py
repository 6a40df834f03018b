"""MoCo v3: contrast with a momentum encoder (arXiv:2104.02057).

Two views of each image. The base encoder, a projector and a predictor make a
query of each; the momentum encoder and its projector make a key of the other
view. A query shall be closest to the key of its own image among all keys of the
batch. The momentum encoder is a moving average of the base encoder; its
BatchNorms measure their own batches.

In comments: B images, D hidden size, C size of an embedding.
"""

from collections.abc import Mapping
from typing import Any
from typing import ClassVar

import jax
import jax.numpy as jnp
import optax

from vit_jax import config as config_lib
from vit_jax import optim
from vit_jax.data.device.rng import Rng
from vit_jax.data.host import geometry
from vit_jax.models import projection
from vit_jax.objectives import base
from vit_jax.weights.formats import moco
from vit_jax.weights.formats import objective_tables


class MoCoV3(base.Objective):
  """Learns features that tell the views of an image from other images."""

  options: ClassVar = {
    # T: similarities of unit vectors are divided by it.
    'temperature': 0.2,
    # Weight of the old momentum encoder in its moving average, at the start of
    # the run. It rises to 1 by half a cosine.
    'momentum': 0.99,
    # Hidden size of the projector and the predictor.
    'width': 4096,
    # C, the size of an embedding.
    'dim': 256,
    # Number of dense layers of the projector.
    'projector_layers': 3,
    # Number of dense layers of the predictor.
    'predictor_layers': 2,
    # Whether the patch embedding keeps its random parameters, which makes
    # training more stable (section 4.2).
    'freeze_patches': True,
  }
  limits: ClassVar = {
    'temperature': '(0, inf)',
    'momentum': '[0, 1]',
    'width dim projector_layers predictor_layers': '[1, inf)',
  }
  couples_examples: ClassVar = True

  def __init__(self, config: base.Config, features: base.Features):
    super().__init__(config, features)
    self.views = {'pair': geometry.View(geometry.train_crop(config), 2)}
    self._options = options = config.objective.options
    self.projector, self.predictor = (
      projection.BatchNormMlp(
        (options.width,) * (layers - 1) + (options.dim,), config.train.dtype
      )
      for layers in (options.projector_layers, options.predictor_layers)
    )

  @staticmethod
  def check(config: base.Config) -> None:
    """Checks that there are other images to tell apart."""
    if config.train.batch_size < 2:
      raise config_lib.UserError(
        f'config.train.batch_size is {config.train.batch_size}, but mocov3'
        ' tells the images of a batch apart: make it at least 2'
      )

  @property
  def frozen(self) -> str:
    """The patch embedding, if `freeze_patches` says so."""
    return '/patch_embedding/' if self._options.freeze_patches else ''

  def init(self, key: jax.Array) -> base.Params:
    """Returns fresh parameters of the trunk and of both heads."""
    keys = jax.random.split(key, 3)
    trunk = super().init(keys[0])
    images = jax.ShapeDtypeStruct((1, *self.image_shape), jnp.float32)
    features = jax.eval_shape(self.apply, trunk, images)
    x = jnp.zeros(features.shape, jnp.float32)
    projector = self.projector.init(keys[1], x)['params']
    embedding = jnp.zeros((1, self._options.dim), jnp.float32)
    predictor = self.predictor.init(keys[2], embedding)['params']
    return {'trunk': trunk, 'projector': projector, 'predictor': predictor}

  def init_extra(self, params: base.Params) -> base.Extra:
    """Returns the momentum encoder, and running statistics of all heads."""
    momentum = {k: params[k] for k in ('trunk', 'projector')}
    return {
      'momentum': jax.tree.map(jnp.copy, momentum),
      'statistics': {
        'projector': self.projector.fresh_statistics(),
        'predictor': self.predictor.fresh_statistics(),
        'momentum_projector': self.projector.fresh_statistics(),
      },
      'step': jnp.zeros((), jnp.int32),
    }

  def loss(
    self, params: base.Params, extra: base.Extra, batch: base.Batch, rng: Rng
  ) -> tuple[jax.Array, base.Scalars, base.Extra]:
    """Returns the contrastive loss (nats, times 2 T) and its accuracy.

    The momentum encoder moves towards the base encoder before it makes keys.
    """
    t, start = self._options.temperature, self._options.momentum
    schedule = optim.half_cosine(start, 1.0, self.lengths.total)
    m = jnp.asarray(schedule(extra['step']))
    keys, extra = self.keys(params, extra, batch['pair'], m)
    queries, extra = self.queries(params, extra, batch['pair'], rng)
    loss = contrast(queries[0], keys[1], t) + contrast(queries[1], keys[0], t)
    nearest = similarity(queries[0], keys[1]).argmax(axis=1)
    accuracy = (nearest == jnp.arange(len(nearest))).mean()
    scalars = {'contrast_accuracy': accuracy, 'momentum': m}
    return loss, scalars, extra

  def queries(
    self, params: base.Params, extra: base.Extra, views: jax.Array, rng: Rng
  ) -> tuple[list[jax.Array], base.Extra]:
    """Returns the queries of views [B, 2, H, W, C], two of float32 [B, C].

    The views differ in their dropout. The extra gets new running statistics.
    """
    statistics, queries = dict(extra['statistics']), []
    for i in range(2):
      key = rng.fold(base.Purpose.OBJECTIVE + i)
      x = self.apply_train(params['trunk'], views[:, i], key)
      for name in ('projector', 'predictor'):
        x, statistics[name] = apply_head(
          getattr(self, name), params[name], statistics[name], x
        )
      queries.append(x)
    return queries, extra | {'statistics': statistics}

  def keys(
    self,
    params: base.Params,
    extra: base.Extra,
    views: jax.Array,
    momentum: jax.typing.ArrayLike,
  ) -> tuple[list[jax.Array], base.Extra]:
    """Moves the momentum encoder; returns its keys, two of float32 [B, C].

    `views` are [B, 2, H, W, C]. The extra gets the moved encoder and its
    running statistics.
    """
    online = jax.lax.stop_gradient({k: params[k] for k in extra['momentum']})
    # In this form, what does not train stays the same to the bit.
    moved = jax.tree.map(
      lambda old, new: old + (1 - momentum) * (new - old),
      extra['momentum'],
      online,
    )
    statistics, keys = dict(extra['statistics']), []
    for i in range(2):
      x = self.apply(moved['trunk'], views[:, i])
      x, statistics['momentum_projector'] = apply_head(
        self.projector, moved['projector'], statistics['momentum_projector'], x
      )
      keys.append(x)
    return keys, extra | {'momentum': moved, 'statistics': statistics}

  def after_update(
    self, extra: base.Extra, params: base.Params, step: jax.Array
  ) -> base.Extra:
    """Counts the step, for the schedule of the momentum."""
    del params
    return extra | {'step': step + 1}

  def foreign(self, format_name: str) -> objective_tables.ObjectiveTable | None:
    """Returns how the authors' files, under timm's names, have the heads."""
    return moco.OBJECTIVE_TABLE if format_name == 'timm' else None

  def outputs(self, params: base.Params, batch: base.Batch) -> base.Outputs:
    """Returns the features [B, D] of the base encoder."""
    return {'features': self.apply(params['trunk'], batch['image'])}


def apply_head(
  head: projection.BatchNormMlp,
  params: base.Params,
  statistics: Mapping[str, Any],
  x: jax.Array,
) -> tuple[jax.Array, Any]:
  """Applies a head to x [B, D] in training.

  Returns [B, C], and its running statistics after this batch.
  """
  variables = {'params': params, 'statistics': statistics}
  x, changed = head.apply(variables, x, train=True, mutable=['statistics'])
  return x, changed['statistics']


def similarity(queries: jax.Array, keys: jax.Array) -> jax.Array:
  """Returns the cosine similarity of each query and each key, [B, B]."""
  q, k = projection.unit(queries), projection.unit(keys)
  return jnp.matmul(q, k.T, precision=jax.lax.Precision.HIGHEST)


def contrast(
  queries: jax.Array, keys: jax.Array, temperature: float
) -> jax.Array:
  """Returns InfoNCE over the batch times 2 T (algorithm 1 of the paper).

  Queries are of one view, float32 [B, C], and keys of the other view of the
  same images.
  """
  logits = similarity(queries, jax.lax.stop_gradient(keys)) / temperature
  targets = jnp.arange(len(logits))
  losses = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
  return 2 * temperature * losses.mean()
