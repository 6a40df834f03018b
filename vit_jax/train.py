"""The train loop.

In this file `step` counts completed updates: what happens at step k happens
when k updates are done. The evaluations of a step come before its checkpoint,
which holds their results: one without results still has to be evaluated.
"""

from collections.abc import Mapping
import contextlib
import json
import math
import pathlib
import signal
import sys
import time
from typing import Any

from absl import logging
import jax
import ml_collections
import numpy as np

from vit_jax import checkpoint
from vit_jax import config as config_lib
from vit_jax import data
from vit_jax import experiment as experiment_lib
from vit_jax import hardware
from vit_jax import reporting
from vit_jax import workdir as workdir_lib

Scalars = dict[str, float]


class Stop:
  """Notes SIGTERM and SIGINT, so that the loop can save before it ends.

  Attributes:
    signal: The signal's number, or 0.
  """

  def __init__(self) -> None:
    self.signal = 0

  def __enter__(self) -> 'Stop':
    self._previous = {
      number: signal.signal(number, self._note)
      for number in (signal.SIGTERM, signal.SIGINT)
    }
    return self

  def __exit__(self, *_: object) -> None:
    for number, handler in self._previous.items():
      signal.signal(number, handler)

  def _note(self, number: int, _: object) -> None:
    self.signal = number
    signal.signal(number, signal.SIG_DFL)  # a second one ends it at once


def run(
  config: ml_collections.ConfigDict, workdir: str, dry_run: bool = False
) -> int:
  """Trains, or resumes, in a work directory.

  Args:
    config: Locked, from a file in `configs/`.
    workdir: Made where it does not exist.
    dry_run: Compile, print sizes as JSON, write nothing.

  Returns:
    The exit status: 0, or 128 plus the number of the signal that stopped it.

  Raises:
    UserError: The config, the data or the directory cannot be used, a step was
      not finite, or memory or disk are too small.
  """
  if dry_run:
    experiment_lib.check(config)
    experiment = experiment_lib.build(config)
    experiment_lib.describe(experiment)
    print(json.dumps(experiment_lib.dry_run(experiment)))
    return 0
  path = pathlib.Path(workdir).absolute()
  print(f'work directory: {path}', file=sys.stderr)
  experiment_lib.check(config)
  with (
    Stop() as stop,
    workdir_lib.lock(path),
    reporting.log_to(path / 'train.log'),
  ):
    try:
      return _run_in(path, config, stop)
    except jax.errors.JaxRuntimeError as e:
      if 'RESOURCE_EXHAUSTED' not in str(e):
        raise
      raise config_lib.UserError(
        f'the device has too little memory: {config_lib.one_line(e)[:200]};'
        ' raise config.train.accumulation, set config.model.remat=full, or'
        ' lower config.train.batch_size'
      ) from e


def _run_in(
  path: pathlib.Path, config: ml_collections.ConfigDict, stop: Stop
) -> int:
  """Trains in a directory that is ours; returns the exit status."""
  resumed = workdir_lib.check_config(path, config)
  done = workdir_lib.read_json(path / 'DONE')
  if done is not None:
    logging.info('finished already: %s', _show(done))
    return 0
  experiment = experiment_lib.build(resumed or config, resumes=bool(resumed))
  config, source = experiment.config, experiment.source
  preprocess = data.Preprocess.from_config(config, source.classes)
  workdir_lib.prepare(path, config, preprocess.to_dict(), source.fingerprint())
  experiment_lib.describe(experiment)
  start = time.perf_counter()
  results = None if stop.signal else train(experiment, path, stop)
  if results is None:
    return 128 + stop.signal
  seconds = time.perf_counter() - start
  logging.info('done in %.0f s: %s; see %s', seconds, _show(results), path)
  # JSON has no NaN.
  done = {k: v if math.isfinite(v) else None for k, v in results.items()}
  workdir_lib.write_json(path / 'DONE', done)
  return 0


def _show(results: Mapping[str, float | None]) -> str:
  shown = [
    f'{name} {"nan" if x is None else reporting.text(x)}'
    for name, x in results.items()
  ]
  return ', '.join(shown) or 'nothing was evaluated'


def train(
  experiment: experiment_lib.Experiment, workdir: pathlib.Path, stop: Stop
) -> Scalars | None:
  """Runs the loop; returns the last evaluations, or None where it was stopped.

  Args:
    experiment: What to run.
    workdir: Where checkpoints and metrics go to, and come from.
    stop: Asks to save and end.

  Raises:
    UserError: A step was not finite, an image is damaged, or something could
      not be written.
  """
  e = experiment
  with contextlib.ExitStack() as stack:
    checkpoints = stack.enter_context(
      checkpoint.Checkpointer(
        workdir, e.config.checkpoint, e.checkpoint_keep_every
      )
    )
    # Results of the evaluations at `step`; None: they are still to be done.
    results: Scalars | None
    restored = checkpoints.restore(e.abstract_state())
    state, step, results = restored or (e.init(), 0, {})
    if restored:
      logging.info('resuming at step %d of %d', step, e.total_steps)
    reporter = stack.enter_context(
      reporting.Reporter(
        workdir, e.total_steps, step, writes=jax.process_index() == 0
      )
    )
    monitor = Monitor(e, reporter)
    batches = stack.enter_context(contextlib.closing(e.train_batches(step)))
    try:
      while True:
        # What is due at this step.
        if results is None and e.is_due(step):
          monitor.settle()
          with monitor.clock.paused():
            results = evaluate(e, state.eval_params, step, reporter, stop)
            checkpoints.save_best(step, state, results)
            if e.checkpoint_due(step):
              checkpoints.save(step, state, results)
        if stop.signal:
          monitor.settle()
          checkpoints.save(step, state, results)
          checkpoints.wait()
          logging.info('stopped at step %d of %d; saved', step, e.total_steps)
          return None
        if step == e.total_steps:
          return results

        # One step; and, while it runs, a look at the one before.
        try:
          with monitor.clock.waiting():
            batch = next(batches)
        except config_lib.UserError:  # a damaged image: no step is lost
          monitor.settle()
          checkpoints.save(step, state, results)
          raise
        state, metrics = e.train_step(state, batch, np.int32(step))
        step, results = step + 1, None
        monitor.follow(step, metrics, batch['index'])
    except NonFiniteError as error:
      checkpoints.save(int(state.step), state)  # the last good one
      raise config_lib.UserError(str(error)) from None


def evaluate(
  experiment: experiment_lib.Experiment,
  params: Any,
  step: int,
  reporter: reporting.Reporter,
  stop: Stop,
) -> Scalars | None:
  """Runs the evaluations that are due; reports and returns their results.

  Returns:
    Scalars such as `val/accuracy`; None where it was stopped midway.
  """
  results = {}
  for name in experiment.evals_due(step):
    total = experiment.no_metrics()
    with contextlib.closing(experiment.eval_batches(name)) as batches:
      for batch in batches:
        if stop.signal:
          return None
        total = experiment.eval_step(params, batch, total)
    for metric, value in jax.device_get(total).compute().items():
      results[f'{name}/{metric}'] = float(value)
  if results:
    reporter.write(step, experiment.epoch(step), results)
    logging.info('evaluated at step %d: %s', step, _show(results))
  return results


class NonFiniteError(Exception):
  """The loss or the gradient of a step was not finite."""


class Monitor:
  """Reads each step's metrics once the next step is under way.

  So the device never waits for the host. Until then the metrics stay on the
  device.

  Attributes:
    clock: Measures the rate of training.
  """

  def __init__(
    self, experiment: experiment_lib.Experiment, reporter: reporting.Reporter
  ):
    self._experiment = experiment
    self._reporter = reporter
    self._last: tuple[int, dict[str, jax.Array], jax.Array] | None = None
    self.clock = reporting.Throughput(experiment.config.train.batch_size)
    devices = list(experiment.mesh.devices.flat)
    peak = hardware.peak_flops(devices[0])
    self._peak_flops = peak and peak * len(devices)

  def follow(
    self, step: int, metrics: dict[str, jax.Array], index: jax.Array
  ) -> None:
    """Looks at the step before, and keeps this one for later.

    Args:
      step: Completed updates, with the one that was just started.
      metrics: Of that update.
      index: int32 [B], ids of its examples.

    Raises:
      NonFiniteError: The step before was not finite.
    """
    self.settle()
    self._last = (step, metrics, index)

  def settle(self) -> None:
    """Waits for the last step, and reports it where that is due.

    Raises:
      NonFiniteError: It was not finite, and such steps are not skipped.
    """
    if self._last is None:
      return
    (step, metrics, index), self._last = self._last, None
    ok, due = bool(metrics['ok']), self._experiment.log_due(step)
    self.clock.step()
    if ok and not due:
      return
    scalars = {name: float(x) for name, x in metrics.items() if name != 'ok'}
    if not ok:
      self._not_finite(step, scalars, index)
    if due:
      self._report(step, scalars)

  def _not_finite(self, step: int, scalars: Scalars, index: jax.Array) -> None:
    shards = [np.asarray(x.data) for x in index.addressable_shards]
    message = (
      f'step {step} was not finite: loss {scalars["loss"]}, norm of the'
      f' gradient {scalars["grad_norm"]}, of the parameters after it'
      f' {scalars["param_norm"]},'
      f' examples {np.concatenate(shards).tolist()}'
    )
    if self._experiment.config.train.skip_nonfinite:
      logging.warning('%s; it is skipped', message)
      return
    raise NonFiniteError(
      f'{message}. The state before it is saved. Lower'
      ' config.optim.learning_rate or set config.optim.clip_norm in a new'
      ' work directory, or go on here without such steps:'
      ' --config.train.skip_nonfinite'
    )

  def _report(self, step: int, scalars: Scalars) -> None:
    e, rates = self._experiment, self.clock.read()
    if rates and self._peak_flops:
      steps_per_second = rates['images_per_second'] / e.config.train.batch_size
      rates['mfu'] = steps_per_second * e.flops.step / self._peak_flops
    metrics = {f'train/{name}': x for name, x in (scalars | rates).items()}
    self._reporter.write(step, e.epoch(step), metrics)
    shown = {'loss': scalars['loss']}
    if rates:
      shown['images/s'] = rates['images_per_second']
    self._reporter.progress(step, shown)
