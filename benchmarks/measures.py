"""Measures the model; each function returns one entry of the report."""

import dataclasses
import functools
import json
import math
import pathlib
import statistics
import tempfile
import time
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from benchmarks import peers
from benchmarks import timing
from benchmarks.peers import base
from benchmarks.peers import ours as ours_lib
from vit_jax import config as config_lib
from vit_jax.models import describing
from vit_jax.models import vit
from vit_jax.parallel import hardware
from vit_jax.runs import checkpoint
from vit_jax.train import experiment as experiment_lib
from vit_jax.train import loop as train_lib
from vit_jax.train import monitor as monitor_lib

Entry = dict[str, Any]

# Enough steps for the background write to end.
_STEPS_PER_SAVE = 3
# Length of the loop, and first steps to skip: they use prefetched batches.
_LOOP_SECONDS, _WARM_STEPS = 3.0, 3

# Relative tolerances for the logits and for the loss after an update, for
# rounding in another order of sums. GPUs and TPUs round float32 products.
_EXACT, _AFTER_UPDATE, _ROUNDED, _BFLOAT16 = 1e-4, 1e-3, 1e-2, 5e-2


class Bench:
  """Our model and its rival, with the same parameters and data.

  Attributes:
    experiment: The experiment of the config.
    blocks: Number of timed blocks.
    matmul_flops: Measured rate of matrix products, in FLOP/s.
    ours: Our model and its train step.
  """

  def __init__(
    self,
    config: ml_collections.ConfigDict,
    blocks: int,
    matmul_flops: float,
    compare: str = 'baseline',
    torch_compile: bool = False,
  ):
    """Makes our model, and one batch.

    Args:
      config: The config of the model.
      blocks: Number of timed blocks.
      matmul_flops: Measured rate of matrix products, in FLOP/s.
      compare: The rival, one of `peers.NAMES`.
      torch_compile: Whether PyTorch compiles the rival.
    """
    experiment_lib.check(config)
    self.experiment = experiment_lib.build(config)
    self.blocks = blocks
    self.matmul_flops = matmul_flops
    with self.experiment.train_batches(0) as batches:
      self._batch = next(batches)
    self.ours = ours_lib.Ours(self.experiment, self._batch)
    self._task = self.ours.task()
    self._compare = compare
    self._create = functools.partial(
      peers.create, compare, compiles=torch_compile
    )
    self._memory: dict[str, Entry] = {}

  @functools.cached_property
  def rival(self) -> base.Peer:
    """The formulation that ours is compared with."""
    return self._create(self._task)

  def check(self) -> None:
    """Compares logits and losses, once, before anything is timed.

    The logits are compared with those of the plain formulation in float32 and
    of the rival; the losses of two steps with those of the rival.

    Raises:
      UserError: The logits or the losses differ, so that times would not be
        comparable.
    """
    assert not self.ours.step, 'both must be in their initial states'
    before = _peak()  # ours runs first, since memory is measured as a peak
    logits = self.ours.logits()
    self._note_memory('infer', before, self.ours.compiled_forward)
    before = _peak()
    losses = _two_losses(self.ours)
    self._note_memory('train', before, self.ours.compiled_step)
    is_reference = self._compare == 'baseline' and self._is_float32
    if not is_reference:
      exact = describing.with_keys(self._task.model, dtype=jnp.float32)
      assert isinstance(exact, vit.ViT)
      task = dataclasses.replace(self._task, model=exact)
      self._check_logits(logits, peers.create('baseline', task))
    self._check_logits(logits, self.rival)
    self._check_losses(losses)

  def _check_logits(self, logits: np.ndarray, other: base.Peer) -> None:
    theirs = other.logits()
    assert logits.shape == theirs.shape, (logits.shape, theirs.shape)
    scale = np.abs(theirs).max()
    difference = np.abs(logits - theirs).max() / scale
    _require(difference, self._tolerance, f'the logits of {other.name}')

  @property
  def _is_float32(self) -> bool:
    return self.experiment.config.train.dtype == 'float32'

  @property
  def _tolerance(self) -> float:
    if not self._is_float32:
      return _BFLOAT16
    return _EXACT if jax.default_backend() == 'cpu' else _ROUNDED

  def infer(self) -> Entry:
    """Times the forward pass on images that are on the device."""
    flops = self.experiment.program.flops.forward
    entry = self._in_turns(self.ours.forward, self.rival.forward, flops)
    compiled = _compiled_gflop(self.ours.compiled_forward)
    return entry | compiled | self._memory.get('infer', {})

  def train(self) -> Entry:
    """Times whole training steps on a batch that is on the device."""
    flops = self.experiment.program.flops.step
    entry = self._in_turns(self.ours.train, self.rival.train, flops)
    compiled = _compiled_gflop(self.ours.compiled_step)
    return entry | compiled | self._memory.get('train', {})

  def _check_losses(self, losses: list[float]) -> None:
    """Compares the losses of the first two steps.

    Args:
      losses: Our losses; if steps are random, both formulations are replaced
        by deterministic ones.
    """
    rival, config = self.rival, _deterministic(self.experiment)
    if config is not None:
      ours = ours_lib.Ours(experiment_lib.build(config), self._batch)
      ours.compiler_options = self.ours.compiler_options
      rival = self._create(ours.task())
      losses = _two_losses(ours)
    # The second loss depends on the gradient and the update.
    allowed = (self._tolerance, max(self._tolerance, _AFTER_UPDATE))
    pairs = zip(losses, _two_losses(rival), allowed, strict=True)
    for step, (loss, theirs, tolerance) in enumerate(pairs):
      difference = abs(loss - theirs) / abs(theirs)
      _require(
        difference, tolerance, f'the loss of {rival.name} at step {step}'
      )

  def _note_memory(self, part: str, before: int, compiled: Any) -> None:
    """Records the peak memory, or the compiler's plan if the peak is older."""
    after = _peak()
    memory, source = _planned(compiled), 'compiler'
    if after > before:
      memory, source = after, 'device'
    self._memory[part] = {
      'peak_memory_mb': memory / 2**20,
      'peak_memory_from': source,
    }

  def _in_turns(self, ours: Any, theirs: Any, flops: float) -> Entry:
    """Times steps of both; `flops` is the number for one step."""
    steps = timing.steps_per_block([ours, theirs])
    times = timing.in_turns(
      {'ours': lambda: ours(steps), 'theirs': lambda: theirs(steps)},
      self.blocks,
    )
    images = self.experiment.config.train.batch_size
    entry = timing.compare(times['ours'], times['theirs'], steps * images)
    rate = entry['images_per_second'] / images * flops
    entry |= {
      'against': self._compare,
      'milliseconds_per_step': 1e3 * statistics.median(times['ours']) / steps,
      'steps_per_block': steps,
      'gflop_per_step': flops / 1e9,
      'gflops': rate / 1e9,
      'share_of_matmul_rate': rate / self.matmul_flops,
    }
    if peak := hardware.peak_flops(jax.devices()[0]):
      entry['mfu'] = rate / (peak * self.experiment.program.mesh.size)
    return entry

  def augment(self) -> Entry:
    """Times steps with RandAugment(2,10) and mixup, in turns with neither."""
    config = self.experiment.config.copy_and_resolve_references()
    config.augment.policy, config.augment.mixup = 'randaugment(2,10)', 0.2
    augmented = ours_lib.Ours(experiment_lib.build(config), self._batch)
    steps = timing.steps_per_block([augmented.train, self.ours.train])
    times = timing.in_turns(
      {
        'augmented': lambda: augmented.train(steps),
        'plain': lambda: self.ours.train(steps),
      },
      self.blocks,
    )
    extra = [x / y - 1 for x, y in zip(*times.values(), strict=True)]
    milliseconds = {
      name: 1e3 * statistics.median(x) / steps for name, x in times.items()
    }
    return timing.spread(extra, 'extra') | {
      'milliseconds_per_step': milliseconds['augmented'],
      'baseline': milliseconds['plain'],
    }

  def checkpoint(self) -> Entry:
    """Times steps with a save before them, in turns with steps alone.

    A block ends after the background write, so that the time includes its
    effect on the steps.
    """
    ours, blocked = self.ours, list[float]()

    def save_and_steps() -> None:
      start = time.perf_counter()
      checkpoints.save(ours.step, ours.state)
      blocked.append(time.perf_counter() - start)
      ours.train(_STEPS_PER_SAVE)
      checkpoints.wait()

    functions = {
      'alone': lambda: ours.train(_STEPS_PER_SAVE),
      'saving': save_and_steps,
    }
    config = self.experiment.config.checkpoint
    with (
      tempfile.TemporaryDirectory() as workdir,
      checkpoint.Checkpointer(workdir, config) as checkpoints,
    ):
      times = timing.in_turns(functions, self.blocks)
    alone, saving = map(statistics.median, times.values())
    seconds_per_step = alone / _STEPS_PER_SAVE
    blocked = blocked[-self.blocks :]  # without the warm-up
    return {
      'steps_per_save': (saving - alone) / seconds_per_step,
      'steps_blocked': statistics.median(blocked) / seconds_per_step,
      **timing.spread(blocked, 'seconds_blocked'),
      'milliseconds_per_step': 1e3 * seconds_per_step,
    }

  def end_to_end(self) -> Entry:
    """Times the whole loop, in turns with the bare step."""
    e, seconds = self.experiment.cached(), list[float]()
    config = e.config.copy_and_resolve_references()
    for spec in config.evals.values():
      spec.split = ''  # turns it off
    steps = timing.steps_per_block([self.ours.train], _LOOP_SECONDS)
    steps = max(steps, 3, math.ceil(3 * e.log_every))

    def loop() -> None:
      with tempfile.TemporaryDirectory() as workdir, monitor_lib.Stop() as stop:
        short = dataclasses.replace(
          e, config=config, total_steps=steps + _WARM_STEPS
        )
        train_lib.train(short, pathlib.Path(workdir), stop)
        seconds.append(steps * _seconds_per_step(workdir))

    times = timing.in_turns(
      {'bare': lambda: self.ours.train(steps), 'loop': loop},
      self.blocks,
    )
    images = steps * e.config.train.batch_size
    # Without the first loop, which compiled all functions.
    entry = timing.compare(seconds[1:], times['bare'], images)
    return entry | {'against': 'bare step', 'steps_per_block': steps}


def _two_losses(peer: base.Peer) -> list[float]:
  return [peer.train(1), peer.train(1)]


def _deterministic(
  experiment: experiment_lib.Experiment,
) -> ml_collections.ConfigDict | None:
  """Returns a config without randomness and with a plain optimizer.

  Returns:
    None if the config of the experiment is one.
  """
  config = experiment.config.copy_and_resolve_references()
  config.model.dropout_rate = 0.0
  config.optim.schedule = 'constant'
  config.optim.warmup = '0 steps'
  config.optim.decay_pattern = ''
  if experiment.source.image_shape is not None:  # cropped in the step
    config.data.crop, config.data.flip = 'center', False
    config_lib.set_value(config, 'data.resize', config.data.eval_resize)
  before = config_lib.to_dict(experiment.config)
  return None if config_lib.to_dict(config) == before else config


def _require(difference: float, allowed: float, what: str) -> None:
  if not difference <= allowed:  # also true for nan
    raise config_lib.UserError(
      f'{what}: ours differs by {difference:.2g} of its size, and'
      f' {allowed:.2g} is allowed; what is not the same is not timed'
    )


def _peak() -> int:
  """Returns the most memory that the device has held, in bytes; 0: unknown."""
  statistics_ = jax.local_devices()[0].memory_stats() or {}
  return statistics_.get('peak_bytes_in_use', 0)


def _planned(compiled: Any) -> float:
  """Returns the compiler's plan of a program's memory, in bytes."""
  plan = compiled.memory_analysis()
  size = plan.argument_size_in_bytes + plan.temp_size_in_bytes
  return size + plan.output_size_in_bytes - plan.alias_size_in_bytes


def _compiled_gflop(compiled: Any) -> Entry:
  """Returns all FLOPs by the compiler, which counts loop bodies once."""
  flops = (compiled.cost_analysis() or {}).get('flops')
  return {'compiled_gflop_per_step': flops / 1e9} if flops else {}


def _seconds_per_step(workdir: str) -> float:
  """Returns the time of a step in a run, without the warm-up."""
  text = pathlib.Path(workdir, 'metrics.jsonl').read_text()
  lines = [
    line
    for line in map(json.loads, text.splitlines())
    if 'train/loss' in line and line['step'] >= _WARM_STEPS
  ]
  first, last = lines[0], lines[-1]
  return (last['time'] - first['time']) / (last['step'] - first['step'])
