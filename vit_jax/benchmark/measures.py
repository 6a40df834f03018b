"""What is measured; each function returns one entry of the report."""

from collections.abc import Callable
import dataclasses
import json
import os
import pathlib
import statistics
import tempfile
import time
from typing import Any

import cv2
import jax
import ml_collections
import numpy as np

from vit_jax import checkpoint
from vit_jax import data
from vit_jax import experiment as experiment_lib
from vit_jax import models
from vit_jax import monitor as monitor_lib
from vit_jax import program as program_lib
from vit_jax import train as train_lib
from vit_jax.benchmark import baseline
from vit_jax.benchmark import timing
from vit_jax.models import vit

Entry = dict[str, Any]

# Enough for the write in the background to end.
_STEPS_PER_SAVE = 3

# Of logits: what the order of sums in float32 explains, and no more.
_TOLERANCE = 1e-4


class Bench:
  """The tutorial's ViT and its plain twin, with the same parameters and data.

  Attributes:
    experiment: From the config.
    blocks: How often each is timed.
    matmul_flops: Measured rate of matrix products, in FLOP/s.
  """

  def __init__(
    self,
    config: ml_collections.ConfigDict,
    blocks: int,
    matmul_flops: float,
  ):
    """Makes both models, and one batch.

    Args:
      config: Of the tutorial's model.
      blocks: How often each is timed.
      matmul_flops: Rate of matrix products here, in FLOP/s.
    """
    experiment_lib.check(config)
    self.experiment = experiment_lib.build(config)
    self.blocks = blocks
    self.matmul_flops = matmul_flops
    with self.experiment.train_batches(0) as batches:
      self._batch = next(batches)
    config = self.experiment.config
    self._model = models.from_config(
      config.model, config.model.num_classes, config.train.dtype
    )
    self._state = self.experiment.init()
    # Copies, since each step donates its state.
    self._params = jax.tree.map(np.array, self._state.params)
    self._plain_params = baseline.convert_params(self._params)
    assert isinstance(self._model, vit.ViT)  # the tutorial's
    self._plain_model = baseline.make_model(self._model)
    shape = (config.train.batch_size, *self._batch['image'].shape[1:])
    self._images = jax.random.normal(jax.random.key(0), shape)

  def check(self) -> None:
    """Compares the logits of both models.

    Raises:
      AssertionError: They are not the same function, so that no time counts.
    """
    ours: Any = self._model.apply({'params': self._params}, self._images)
    plain: Any = self._plain_model.apply(
      {'params': self._plain_params}, self._images
    )
    scale = np.abs(plain).max()
    if not np.abs(np.subtract(ours, plain)).max() <= _TOLERANCE * scale:
      raise AssertionError('the models differ')

  def train(self) -> Entry:
    """Times whole training steps on a batch that is on the device."""
    e = self.experiment
    state = self._state
    plain_state, plain_step = baseline.make_train_step(
      self._plain_model, self._plain_params, e.config.optim
    )
    labels, key, step = self._batch['label'], jax.random.key(0), int(state.step)

    def ours() -> None:
      nonlocal state, step
      state, metrics = e.program.train_step(state, self._batch, np.int32(step))
      step += 1
      jax.block_until_ready(metrics)

    def plain() -> None:
      nonlocal plain_state
      plain_state, loss = plain_step(plain_state, self._images, labels, key)
      jax.block_until_ready(loss)

    compiled = e.program.train_step.lower(
      state, self._batch, np.int32(0)
    ).compile()
    entry = self._compare(ours, plain, e.program.flops.step)
    self._state = state
    return entry | {'peak_memory_mb': _planned_memory(compiled)}

  def augment(self) -> Entry:
    """Times steps with RandAugment(2,10) and mixup, in turns with none."""
    config = self.experiment.config.copy_and_resolve_references()
    config.augment.policy, config.augment.mixup = 'randaugment(2,10)', 0.2
    augmented = experiment_lib.build(config).program

    def stepping(program: program_lib.Program) -> Callable[[], None]:
      state, step = program.initialise(None), 0

      def one_step() -> None:
        nonlocal state, step
        state, metrics = program.train_step(state, self._batch, np.int32(step))
        step += 1
        jax.block_until_ready(metrics)

      return one_step

    plain = stepping(self.experiment.program)
    steps = {'augmented': stepping(augmented), 'plain': plain}
    times = timing.in_turns(steps, self.blocks, warmup=2)
    ratios = [
      with_it / without
      for with_it, without in zip(*times.values(), strict=True)
    ]
    return {
      'extra': statistics.median(ratios) - 1,
      'range': [min(ratios) - 1, max(ratios) - 1],
      'milliseconds_per_step': 1e3 * statistics.median(times['augmented']),
      'baseline': 1e3 * statistics.median(times['plain']),
    }

  def infer(self) -> Entry:
    """Times the forward pass on images that are on the device."""
    ours_fn = jax.jit(lambda p, x: self._model.apply({'params': p}, x))
    plain_fn = jax.jit(lambda p, x: self._plain_model.apply({'params': p}, x))
    params = jax.device_put(self._params)
    plain_params = jax.device_put(self._plain_params)

    def ours() -> None:
      jax.block_until_ready(ours_fn(params, self._images))

    def plain() -> None:
      jax.block_until_ready(plain_fn(plain_params, self._images))

    compiled = ours_fn.lower(params, self._images).compile()
    entry = self._compare(ours, plain, self.experiment.program.flops.forward)
    return entry | {'peak_memory_mb': _planned_memory(compiled)}

  def _compare(
    self, ours: Callable[[], None], plain: Callable[[], None], flops: float
  ) -> Entry:
    batch_size = self.experiment.config.train.batch_size
    times = timing.in_turns(
      {'ours': ours, 'plain': plain}, self.blocks, warmup=2
    )
    rates = timing.summarize(times['ours'], batch_size)
    plain_rates = timing.summarize(times['plain'], batch_size)
    rate = rates['median'] / batch_size * flops
    return {
      'images_per_second': rates['median'],
      'baseline': plain_rates['median'],
      'ratio': rates['median'] / plain_rates['median'],
      'range': [rates['min'], rates['max']],
      'baseline_range': [plain_rates['min'], plain_rates['max']],
      'milliseconds_per_step': 1e3 * statistics.median(times['ours']),
      'gflops': rate / 1e9,
      'share_of_matmul_rate': rate / self.matmul_flops,
    }

  def input(self) -> Entry:
    """Times reading and decoding, against a loop over `cv2.imread`."""
    e, num_batches = self.experiment, 10
    batch_size = e.config.train.batch_size
    paths = [e.source.read(i).where for i in range(num_batches * batch_size)]

    def ours() -> None:
      batches = data.train_batches(
        e.source, e.config, start_step=0, num_steps=num_batches
      )
      for _ in batches:
        pass

    def plain() -> None:
      for i in range(0, len(paths), batch_size):
        batch = [np.asarray(cv2.imread(p)) for p in paths[i : i + batch_size]]
        np.stack([image[:, :, ::-1] for image in batch])

    times = timing.in_turns({'ours': ours, 'plain': plain}, self.blocks)
    rates = {k: timing.summarize(v, len(paths)) for k, v in times.items()}
    return {
      'images_per_second': rates['ours']['median'],
      'baseline': rates['plain']['median'],
      'ratio': rates['ours']['median'] / rates['plain']['median'],
      'range': [rates['ours']['min'], rates['ours']['max']],
    }

  def checkpoint(self) -> Entry:
    """Times steps with a save before them, in turns with steps alone.

    The background write is over before the steps are: what it takes away from
    them is a part of what a save costs.
    """
    state, step = self._state, int(self._state.step)
    blocked: list[float] = []

    def steps() -> None:
      nonlocal state, step
      for _ in range(_STEPS_PER_SAVE):
        state, metrics = self.experiment.program.train_step(
          state, self._batch, np.int32(step)
        )
        step += 1
      jax.block_until_ready(metrics)

    def save_and_steps() -> None:
      start = time.perf_counter()
      checkpoints.save(step, state)
      blocked.append(time.perf_counter() - start)
      steps()
      checkpoints.wait()

    with (
      tempfile.TemporaryDirectory() as workdir,
      checkpoint.Checkpointer(
        workdir, self.experiment.config.checkpoint
      ) as checkpoints,
    ):
      times = timing.in_turns(
        {'alone': steps, 'saving': save_and_steps}, self.blocks
      )
    self._state = state
    alone, saving = map(statistics.median, times.values())
    seconds_per_step = alone / _STEPS_PER_SAVE
    blocked = blocked[-self.blocks :]
    return {
      'steps_per_save': (saving - alone) / seconds_per_step,
      'steps_blocked': statistics.median(blocked) / seconds_per_step,
      'seconds_blocked': statistics.median(blocked),
      'range': [min(blocked), max(blocked)],
      'milliseconds_per_step': 1e3 * seconds_per_step,
    }

  def end_to_end(self) -> Entry:
    """Times the whole loop, in turns with the bare step."""
    e, state = self.experiment, self._state
    step = int(state.step)
    seconds: list[float] = []

    def bare() -> None:
      nonlocal state, step
      for _ in range(self.blocks):
        state, metrics = e.program.train_step(
          state, self._batch, np.int32(step)
        )
        step += 1
      jax.block_until_ready(metrics)

    def loop() -> None:
      with tempfile.TemporaryDirectory() as workdir, monitor_lib.Stop() as stop:
        short = dataclasses.replace(
          e, total_steps=self.blocks + 3, eval_every={}
        )
        train_lib.train(short, pathlib.Path(workdir), stop)
        seconds.append(_seconds_per_step(workdir, self.blocks))

    times = timing.in_turns({'bare': bare, 'loop': loop}, blocks=3, warmup=0)
    batch_size = e.config.train.batch_size
    bare_rate = timing.summarize(times['bare'], self.blocks * batch_size)
    rate = timing.summarize(seconds, batch_size)
    self._state = state
    return {
      'images_per_second': rate['median'],
      'baseline': bare_rate['median'],
      'ratio': rate['median'] / bare_rate['median'],
      'range': [rate['min'], rate['max']],
    }


def write_images(folder: pathlib.Path, count: int, size: int = 32) -> None:
  """Writes a folder of JPEG files, with smooth random images of 10 classes."""
  rng = np.random.default_rng(0)
  for i in range(count):
    path = folder / 'train' / f'class{i % 10}' / f'{i}.jpg'
    path.parent.mkdir(parents=True, exist_ok=True)
    coarse = rng.integers(0, 256, (size // 4, size // 4, 3), np.uint8)
    image = cv2.resize(coarse, (size, size), interpolation=cv2.INTER_CUBIC)
    if not cv2.imwrite(os.fspath(path), image):
      raise OSError(f'cannot write {path}')


def _planned_memory(compiled: Any) -> float:
  """Returns the compiler's plan of a program's memory, in MiB."""
  plan = compiled.memory_analysis()
  size = plan.argument_size_in_bytes + plan.temp_size_in_bytes
  size += plan.output_size_in_bytes - plan.alias_size_in_bytes
  return size / 2**20


def _seconds_per_step(workdir: str, steps: int) -> float:
  """Returns the mean time of the last steps of a run that logged each."""
  text = pathlib.Path(workdir, 'metrics.jsonl').read_text()
  times = [
    line['time']
    for line in map(json.loads, text.splitlines())
    if 'train/loss' in line
  ]
  return (times[-1] - times[-1 - steps]) / steps
