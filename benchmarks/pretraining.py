"""Times a method in turns with PyTorch's.

That is its training step and, for segmentation, windows that slide over a
larger input. The settings are the recipe's of the method, with a smaller
model, and without what PyTorch's programs do in their data loaders (changes of
colours) or leave to chance (dropout, stochastic depth). Images, captions and
maps are random numbers: no data are read.
"""

import dataclasses
import functools
import importlib
import math
import statistics
from typing import Any

from absl import logging
import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from benchmarks import methods
from benchmarks import setting as setting_lib
from benchmarks import timing
from benchmarks.peers import ours as ours_lib
from vit_jax import config as config_lib
from vit_jax import models
from vit_jax.ahead import plan
from vit_jax.data import features as features_lib
from vit_jax.data import target_kinds
from vit_jax.data import text_kind
from vit_jax.data.device import rng as rng_lib
from vit_jax.data.device import views
from vit_jax.evaluation import windows
from vit_jax.models import describing
from vit_jax.models import layouts

Entry = dict[str, Any]

# The losses of the first step may differ by so much of their size: masks and
# some parameters are drawn anew.
_TOLERANCE = 0.1
# Windows slide along the last axis of an input that is so much longer.
_LONGER = 1.5

_CHANGES: setting_lib.Changes = {
  'augment.jitter': '',
  'augment.gray': (),
  'augment.blur': (),
  'augment.solarize': (),
  'model.scan': False,
  'model.num_classes': 0,
  'model.stochastic_depth': 0.0,
  'optim.freeze': '',
}


def config(
  name: str, setting: setting_lib.Setting
) -> ml_collections.ConfigDict:
  """Returns the config of a method.

  Args:
    name: One of `methods.METHODS`.
    setting: Flags of the benchmark; `data` is not used.

  Raises:
    UserError: There is no such method or model, or a value has a wrong type.
  """
  method = methods.named(name)
  if setting.model != setting_lib.TUTORIAL:
    method = dataclasses.replace(method, model=setting.model)
  with config_lib.explained('--model', ValueError):
    values = describing.key_values(models.create_model(method.model))
  changes = _CHANGES | setting_lib.FIXED | {'model.name': method.model}
  for key in ('hidden_size', 'mlp_dim', 'num_heads', 'depth'):
    changes[f'model.{key}'] = values.get(key)
  changes |= {'train.batch_size': method.batch_size, **method.changes}
  changes |= setting.given()
  file = setting_lib.CONFIGS / f'{method.config}.py'
  result = config_lib.load(file, changes)
  for spec in result.evals.values():
    spec.split = ''
  return plan.complete(result)


class Bench:
  """Our step of a method, and PyTorch's.

  Attributes:
    name: One of `methods.METHODS`.
    config: The config.
    blocks: Number of timed blocks.
    program: Our compiled functions.
  """

  def __init__(self, name: str, config: ml_collections.ConfigDict, blocks: int):
    """Makes our state, and one batch of random images."""
    self.name, self.config, self.blocks = name, config, blocks
    self.program = plan.make_program(config)
    rng = np.random.default_rng(0)
    features = self.program.features
    batch = {
      name: jax.device_put(_random(rng, x, features.get(name)), x.sharding)
      for name, x in self.program.abstract_batch().items()
    }
    state = self.program.initialise()
    # What would come from the data, as the codes of BEiT, is NaN.
    extra = jax.tree.map(functools.partial(_known, rng), state.extra)
    state = dataclasses.replace(state, extra=extra)
    self._ours = ours_lib.Training(self.program, state, batch)
    self._params = jax.tree.map(np.array, state.params)
    self._extra = jax.tree.map(np.array, extra)

  def train(self) -> Entry:
    """Returns the part `train` of the report.

    Raises:
      UserError: The peer has another number of parameters, or another loss.
    """
    peer, missing = self._peer()
    loss = self._ours.train(1)
    steps: dict[str, Any] = {'ours': self._ours.train}
    if peer is not None:
      self._check(loss, peer)
      steps['theirs'] = peer.train
    entry, seconds = self._timed(steps, missing)
    flops = self.program.flops.step
    return entry | {
      'milliseconds_per_step': 1e3 * seconds,
      'gflop_per_step': flops / 1e9,
      'gflops': flops / seconds / 1e9,
      'loss': loss,
      'parameters': self._parameters,
    }

  def infer(self) -> Entry:
    """Returns the part `infer` of the report: sliding windows.

    The overlap is that of the config, without weights of places.

    Raises:
      UserError: The peer's parameters are ours, and its logits are not.
    """
    options = self.config.objective.options
    *window, channels = self.program.objective.image_shape
    stride = windows.strides(window, options.overlap)
    size = [*window[:-1], int(window[-1] * _LONGER)]
    shape = (self.config.train.batch_size, *size, channels)
    images = np.random.default_rng(0).random(shape, np.float32)
    outputs = jax.jit(self.program.objective.outputs)
    # Those of the peer: steps that were timed before have changed the state's.
    params = jax.device_put(
      self._params,
      jax.tree.map(lambda x: x.sharding, self._ours.state.params),
    )

    def apply(x: np.ndarray) -> np.ndarray:
      return np.asarray(outputs(params, {'image': x})['logits'])

    def ours(count: int) -> np.ndarray:
      for _ in range(count):
        found = windows.slide(apply, images, window, stride, batch_size=1)
      return found

    peer, missing = self._peer()
    steps: dict[str, Any] = {'ours': ours}
    if peer is not None:
      steps['theirs'] = functools.partial(peer.infer, images, window, stride)
      self._check_logits(ours(1), steps['theirs'](1), peer.is_ours)
    entry, seconds = self._timed(steps, missing)
    count = len(windows.starts(size, window, stride))
    return entry | {
      'milliseconds_per_batch': 1e3 * seconds,
      'windows_per_image': count,
      'image_size': size,
      'parameters': self._parameters,
    }

  def _timed(self, steps: dict[str, Any], missing: str) -> tuple[Entry, float]:
    """Returns rates of functions of a count of batches, and seconds of ours.

    Args:
      steps: 'ours' and, where there is a peer, 'theirs'.
      missing: Why there is none.
    """
    count = timing.steps_per_block([*steps.values()])
    times = timing.in_turns(
      {k: functools.partial(step, count) for k, step in steps.items()},
      self.blocks,
    )
    images, ours = count * self.config.train.batch_size, times['ours']
    if 'theirs' in steps:
      entry = timing.compare(ours, times['theirs'], images)
      entry['against'] = methods.named(self.name).packages.split()[-1]
    else:
      entry = timing.summarize(ours, images) | {'against': missing}
    entry['steps_per_block'] = count
    return entry, statistics.median(ours) / count

  @property
  def _parameters(self) -> int:
    """Number of our parameters that train."""
    trained = self.program.rules.trained(self._params)
    return sum(x.size for x in jax.tree.leaves(trained))

  def _peer(self) -> tuple[Any, str]:
    """Returns PyTorch's step, or None and what is missing."""
    method = methods.named(self.name)
    if not method.peer:
      return None, f'no package has a training step of {self.name}'
    module, _, cls = method.peer.partition(':')
    try:
      found = importlib.import_module(f'benchmarks.peers.{module}')
    except ImportError as e:
      logging.warning('warning: no peer of %s: %s', self.name, e)
      return None, f'nothing: pip install {method.packages}'
    return getattr(found, cls)(self._task(found.torch_step)), ''

  def _task(self, torch_step: Any) -> Any:
    """Returns the task for PyTorch, with layers unrolled."""
    program, params = self.program, self._params
    params = {
      k: layouts.unstack_layers(x) if 'blocks' in x else x
      for k, x in params.items()
    }
    rows = jnp.arange(self.config.train.batch_size, dtype=jnp.int32)
    rng = rng_lib.Rng(jax.random.key(0, impl='threefry2x32'), rows)
    prepare = views.train_transform(
      self.config, program.features, program.objective.views
    )
    others = jax.tree.map(np.array, jax.jit(prepare)(self._ours.batch, rng))
    images = {name: others.pop(name) for name in program.objective.views}
    return torch_step.Task(
      program.objective, self.config, params, self._extra, images, others
    )

  def _check_logits(
    self, ours: np.ndarray, theirs: np.ndarray, is_ours: bool
  ) -> None:
    """Compares logits [B, ..., K]; values only of the same parameters."""
    error = 0.0
    if ours.shape == theirs.shape and is_ours:
      error = float(abs(ours - theirs).max() / abs(ours).max())
    if ours.shape != theirs.shape or error > _TOLERANCE:
      raise config_lib.UserError(
        f'logits are {theirs.shape} in PyTorch, and ours {ours.shape}, and'
        f' differ by {error:.3g}: what is not the same is not timed'
      )

  def _check(self, loss: float, peer: Any) -> None:
    """Compares the numbers of parameters, and the losses of the first step."""
    if peer.parameters != self._parameters:
      raise config_lib.UserError(
        f'PyTorch trains {peer.parameters:,} parameters, and ours'
        f' {self._parameters:,}: what is not the same is not timed'
      )
    theirs = peer.train(1)
    if not math.isclose(loss, theirs, rel_tol=_TOLERANCE):
      raise config_lib.UserError(
        f'the first loss is {theirs:.4g} in PyTorch, and ours {loss:.4g}: what'
        ' is not the same is not timed'
      )


def _random(
  rng: np.random.Generator, x: Any, feature: features_lib.Feature | None
) -> np.ndarray:
  """Returns an array of a batch: random values; all examples are valid."""
  if isinstance(feature, target_kinds.SegmentationMap):
    return rng.integers(0, len(feature.classes), x.shape).astype(x.dtype)
  if isinstance(feature, text_kind.Text):
    tokens = rng.integers(1, feature.vocabulary - 1, x.shape)
    tokens[:, -1] = feature.vocabulary - 1  # the end, with the largest number
    return tokens.astype(x.dtype)
  if x.dtype == np.bool_:
    return np.ones(x.shape, bool)
  if x.dtype == np.int32:
    return np.arange(math.prod(x.shape), dtype=np.int32).reshape(x.shape)
  if x.dtype == np.float32:
    return rng.random(x.shape, np.float32)
  return rng.integers(0, 256, x.shape).astype(x.dtype)


def _known(rng: np.random.Generator, x: Any) -> Any:
  """Returns an array with random numbers in place of NaN."""
  values = np.asarray(x)
  if values.dtype.kind != 'f' or not np.isnan(values).any():
    return x
  drawn = rng.standard_normal(x.shape, np.float32)
  return jax.device_put(drawn.astype(values.dtype), x.sharding)
