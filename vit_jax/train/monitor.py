"""Watches metrics, signals and errors while the devices work.

With several processes all must do the same at the same step. A signal or a
damaged image comes to one of them at a time of its own: it tells the others by
the step that they compute together, and acts on it when all have heard.
"""

from collections.abc import Callable
import dataclasses
import signal
import threading
import time

from absl import logging
import jax
from jax.experimental import multihost_utils
import numpy as np

from vit_jax.parallel import hardware
from vit_jax.parallel import mesh as mesh_lib
from vit_jax.runs import reporting
from vit_jax.train import clock as clock_lib
from vit_jax.train import experiment as experiment_lib
from vit_jax.train import feed
from vit_jax.train import step as train_step_lib

Scalars = dict[str, float]

_TWICE_S = 0.2  # within which a signal that comes again is the same one


class BrokenBatchError(Exception):
  """A process could not make its part of a batch."""


class Stop:
  """Notes SIGTERM and SIGINT, so that the loop can save before it ends.

  They come to each process at a time of its own, but all must stop at the same
  step: so they tell each other (`Monitor`, `evaluate`), and stop once all have
  heard of it.

  Attributes:
    own: Number of the signal that came to this process, or 0.
    heard: The largest number that any process told.
  """

  def __init__(self) -> None:
    self.own = 0
    self.heard = 0

  @property
  def signal(self) -> int:
    """The signal at which to stop, the same in all processes, or 0."""
    return self.heard if jax.process_count() > 1 else self.own

  def __enter__(self) -> 'Stop':
    here = threading.current_thread() is threading.main_thread()
    self._previous = {
      number: signal.signal(number, self._note)
      for number in (signal.SIGTERM, signal.SIGINT)
      if here  # Python permits it nowhere else
    }
    return self

  def __exit__(self, *_: object) -> None:
    for number, handler in self._previous.items():
      signal.signal(number, handler)

  def _note(self, number: int, _: object) -> None:
    if self.own == number:  # it came twice at once
      return
    self.own = number
    # `timeout` and some schedulers send a signal to a process and again to its
    # group. From then on another one ends the process at once.
    time.sleep(_TWICE_S)
    signal.signal(number, signal.SIG_DFL)


def tell(stop: Stop, batches: feed.Feed, mesh: jax.sharding.Mesh) -> jax.Array:
  """Returns the signal that this process tells the others, int32 [devices]."""
  number = stop.own if batches.error is None else train_step_lib.BROKEN
  return mesh_lib.on_each_device(number, mesh)


def hear(stop: Stop, batches: feed.Feed, heard: jax.Array) -> None:
  """Notes the largest signal that any process told.

  Raises:
    BrokenBatchError: A process could not make its part of a batch.
  """
  number = int(np.max(heard))
  if number >= train_step_lib.BROKEN:
    raise BrokenBatchError(
      batches.error
      or 'another process could not make its part of a batch: it says why'
    )
  stop.heard = max(stop.heard, number)


class NonFiniteError(Exception):
  """The loss or the gradient of a step was not finite."""


@dataclasses.dataclass
class Skipped:
  """Steps that were not finite and were skipped, up to a step.

  Attributes:
    total: Number in the whole run.
    in_a_row: Number since the last step that was finite.
  """

  total: int = 0
  in_a_row: int = 0

  def add(self, ok: bool) -> None:
    """Counts one more step."""
    self.total += not ok
    self.in_a_row = 0 if ok else self.in_a_row + 1


class Monitor:
  """Reads the metrics of each call once the next is under way.

  So the device never waits for the host. Until then the metrics stay on the
  device.

  Attributes:
    skipped: Up to the last call that was looked at.
  """

  def __init__(
    self,
    experiment: experiment_lib.Experiment,
    reporter: reporting.Reporter,
    clock: clock_lib.Timekeeper,
    hear: Callable[[jax.Array], None],
    skipped: Skipped | None = None,
  ):
    """Begins with the next step.

    Args:
      experiment: The experiment that runs.
      reporter: Takes its metrics.
      clock: Is told when a step ends.
      hear: Called with the signal of each step.
      skipped: Steps skipped before that one; None: no step was.
    """
    self.skipped = skipped or Skipped()
    self._experiment = experiment
    self._reporter = reporter
    self._clock = clock
    self._hear = hear
    self._last: tuple[int, int, dict[str, jax.Array], jax.Array] | None = None
    devices = list(experiment.program.mesh.devices.flat)
    peak = hardware.peak_flops(devices[0])
    self._peak_flops = peak and peak * len(devices)

  def follow(
    self,
    step: int,
    count: int,
    metrics: dict[str, jax.Array],
    index: jax.Array,
  ) -> None:
    """Looks at the call before, and keeps this one for later.

    Args:
      step: Completed updates, with those of the call that was just started.
      count: Updates in it.
      metrics: Scalars of the update; where there are several, arrays [count].
      index: int32 [B] or [count, B], ids of their examples.

    Raises:
      NonFiniteError: A step of the call before was not finite.
      BrokenBatchError: It had no batch.
    """
    self.settle()
    self._last = (step, count, metrics, index)

  def check_skipped(self) -> None:
    """Ends a run that skips too many steps one after another.

    Raises:
      NonFiniteError: More than `train.max_skipped_in_a_row` were, as far as was
        looked at; then all that was started has been.
    """
    most = self._experiment.config.train.max_skipped_in_a_row
    if self.skipped.in_a_row <= most:
      return
    self.settle()
    raise NonFiniteError(
      f'{self.skipped.in_a_row} steps in a row were not finite and were'
      f' skipped, which is more than config.train.max_skipped_in_a_row={most}'
      f' ({self.skipped.total} were in the whole run): nothing is learned any'
      ' more. Lower config.optim.learning_rate or set config.optim.clip_norm in'
      ' a new work directory'
    )

  def join(self) -> None:
    """Waits for the end of the last call, but does not look at it.

    All processes have to look at the same call at the same time.
    """
    if self._last is not None:
      jax.block_until_ready(self._last[2])

  def settle(self) -> None:
    """Waits for the last call, and reports those of its steps that are due.

    Raises:
      NonFiniteError: One was not finite, and such steps are not skipped.
      BrokenBatchError: They had no batch.
    """
    if self._last is None:
      return
    (last, count, metrics, index), self._last = self._last, None
    self._hear(metrics.pop('signal'))
    oks = np.atleast_1d(metrics.pop('ok'))
    for i, _ in enumerate(self._clock.steps(count)):
      step, ok = last - count + 1 + i, bool(oks[i])
      if self._experiment.config.train.skip_nonfinite:
        self.skipped.add(ok)
      due = self._experiment.log_due(step)
      if ok and not due:
        continue
      scalars = {
        name: float(np.atleast_1d(x)[i]) for name, x in metrics.items()
      }
      if not ok:
        self._not_finite(step, scalars, index if index.ndim == 1 else index[i])
      if due:
        self._report(step, scalars)

  def _not_finite(self, step: int, scalars: Scalars, index: jax.Array) -> None:
    examples = multihost_utils.process_allgather(index, tiled=True)
    message = (
      f'step {step} was not finite: loss {scalars["loss"]}, norm of the'
      f' gradient {scalars["grad_norm"]}, of the parameters after it'
      f' {scalars["param_norm"]},'
      f' examples {examples.tolist()}'
    )
    if self._experiment.config.train.skip_nonfinite:
      logging.warning('%s; it is skipped', message)
      return
    raise NonFiniteError(
      f'{message}. The state before it is in checkpoints/{step - 1}, and'
      f' --replay={step} says which layer it was. Lower'
      ' config.optim.learning_rate or set config.optim.clip_norm in a new'
      ' work directory, or go on here without such steps:'
      ' --config.train.skip_nonfinite'
    )

  def _report(self, step: int, scalars: Scalars) -> None:
    e, rates = self._experiment, self._clock.read()
    if rates and self._peak_flops:
      steps_per_second = rates['images_per_second'] / e.config.train.batch_size
      rates['mfu'] = steps_per_second * e.program.flops.step / self._peak_flops
    if e.config.train.skip_nonfinite:
      rates['skipped_steps'] = self.skipped.total
    metrics = of_training(scalars | rates)
    self._reporter.write(step, e.epoch(step), metrics)
    shown = {'loss': scalars['loss']}
    if rates:
      shown['images/s'] = rates['images_per_second']
    self._reporter.progress(step, shown)


def of_training(scalars: Scalars) -> Scalars:
  """Returns scalars by the names that training reports them under."""
  return {f'train/{name}': x for name, x in scalars.items()}
