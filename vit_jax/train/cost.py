"""The floating-point operations of a training step."""

from collections.abc import Sequence
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from vit_jax import config as config_lib
from vit_jax import models
from vit_jax import objectives
from vit_jax.data import features as features_lib
from vit_jax.data.device.rng import Rng
from vit_jax.data.host import batches as batches_lib
from vit_jax.optim import rules as rules_lib
from vit_jax.train import flops as flops_lib


@dataclasses.dataclass(frozen=True)
class StepFlops:
  """Floating-point operations of the matrix products in one training step.

  Augmentation and recomputation (remat) are not counted.

  Attributes:
    forward: Operations of the forward pass.
    step: Operations of the whole step.
    everything: Operations of the whole step if no parameter were frozen.
  """

  forward: int
  step: int
  everything: int


def step_flops(
  config: ml_collections.ConfigDict,
  features: features_lib.Features,
  params: Any,
) -> StepFlops:
  """Counts the operations of the step of a config; evaluates only shapes.

  `params` are the shapes of the parameters in the train state.
  """
  # A fused attention kernel would hide its matrix products from the count.
  config = config.copy_and_resolve_references()
  if config.model.attention_implementation or config.model.attention:
    config = config_lib.wing('vit_jax.models.platforms:without_kernel')(config)
  config.model.remat = 'none'
  config = models.on_platform(config, 'cpu')
  objective = objectives.create(config, features)
  rules = rules_lib.make(config.optim, params, objective.frozen)
  # Tracing a scanned model takes a tenth of the time of a deep one; `_unread`
  # then traces two of one layer, which those that read several layers lack.
  is_twin = (
    models.has_equal_layers(objective.model)
    and objective.model.depth > 2
    and not config.model.scan
    and rules.trains_layers_alike
    and not objective.reads_layers
  )
  if is_twin:
    config.model.scan = True
  flops = _count(config, features, rules)
  if not is_twin:
    return flops
  forward, everything = _unread(config, features)
  trains = any(
    x.trains for name, x in rules.parameters.items() if 'blocks' in name
  )
  return StepFlops(
    flops.forward - forward,
    flops.step - (everything if trains else forward),
    flops.everything - everything,
  )


def mean(
  counts: Sequence[StepFlops], weights: Sequence[float] | None = None
) -> StepFlops:
  """Returns the mean of the operations of several steps.

  `weights` sum to 1; None: all steps count alike.
  """
  if weights is None:
    weights = [1 / len(counts)] * len(counts)
  table = np.array([dataclasses.astuple(x) for x in counts])
  return StepFlops(*np.rint(weights @ table).astype(int).tolist())


def _unread(
  config: ml_collections.ConfigDict, features: features_lib.Features
) -> tuple[int, int]:
  """Counts the operations that an unrolled model saves in its last layer.

  There it does not compute tokens that the head does not read. The config is
  that of the scanned model, and is changed. Returns what is saved in a forward
  pass, and in a step that trains everything.
  """
  for key in ('trainable', 'freeze'):
    config.optim[key] = ''
  config.optim.rules, config.optim.layer_decay = (), 1.0
  config_lib.set_value(config, 'model.depth', 1)
  if '(' in config.model.name:
    renamed = config_lib.wing('vit_jax.models.describing:renamed')
    config.model.name = renamed(config.model.name, feature_layer=None)
  scanned = _count(config, features)
  config.model.scan = False
  read = _count(config, features)
  return scanned.forward - read.forward, scanned.everything - read.everything


def _count(
  config: ml_collections.ConfigDict,
  features: features_lib.Features,
  rules: rules_lib.Rules | None = None,
) -> StepFlops:
  """Counts the operations of a step; evaluates only shapes.

  Without `rules`, the config has them.
  """
  objective = objectives.create(config, features)
  parts = config_lib.num_microbatches(config)
  params = jax.eval_shape(objective.init, jax.random.key(0))
  if rules is None:
    rules = rules_lib.make(config.optim, params, objective.frozen)

  # Shapes and types of a microbatch as the objective's loss sees it.
  channels, views = config.data.channels, objective.views
  images = batches_lib.image_shapes(None, views, channels)
  maps = batches_lib.map_sizes(None, views, objective.features)
  targets = features_lib.targets(objective.features)
  arrays: dict[str, tuple[tuple[int, ...], Any]] = {
    **{name: (shape, jnp.float32) for name, shape in images.items()},
    **{name: (shape, jnp.int32) for name, shape in maps.items()},
    **{name: (x.shape, x.dtype) for name, x in targets.items()},
    'index': ((), jnp.int32),
  }
  size = config.train.batch_size // parts
  batch = {
    name: jax.ShapeDtypeStruct((size, *shape), dtype)
    for name, (shape, dtype) in arrays.items()
  }
  key = jax.random.key(0, impl='threefry2x32')

  def loss_and_grads(params: Any, batch: Any, rows: Any) -> Any:
    def loss_fn(params: Any) -> Any:
      extra = objective.init_extra(params)
      loss, *means_and_extra = objective.loss(
        params, extra, batch, Rng(key, rows)
      )
      return loss, means_and_extra

    (loss, _), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
    return loss, grads

  # Trace once with all gradients. Each count below then leaves out the
  # operations that its outputs do not need.
  jaxpr = jax.make_jaxpr(loss_and_grads)(params, batch, batch['index'])
  trains = [
    x is not None
    for x in jax.tree.leaves(rules.trained(params), is_leaf=lambda x: x is None)
  ]
  no, yes = [False] * len(trains), [True] * len(trains)
  passes = 2 if config.optim.sam else 1
  return StepFlops(
    *(
      parts * passes * flops_lib.count_jaxpr(jaxpr, [True, *grads])
      for grads in (no, trains, yes)
    )
  )


def show(flops: StepFlops, batch_size: int) -> str:
  """Returns the GFLOP per image as text for people."""
  gflop = {
    name: f'{x / batch_size / 1e9:.4g}'
    for name, x in dataclasses.asdict(flops).items()
  }
  line = f'{gflop["forward"]} forward, {gflop["step"]} in a training step'
  if flops.step < flops.everything:
    line += f' (training everything: {gflop["everything"]})'
  return line
