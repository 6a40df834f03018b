"""Watches metrics, signals and errors while the devices work.

All processes must act at the same step, but a signal or a damaged image reaches
only one of them, at any time. That process passes its signal into the compiled
step, which all processes compute together. All processes act once they have
read the step's result.
"""

import concurrent.futures
from concurrent.futures import Future
import dataclasses
import signal
import threading
import time
from typing import TYPE_CHECKING

from absl import logging
import jax
from jax.experimental import multihost_utils
import numpy as np

from vit_jax.parallel import mesh as mesh_lib
from vit_jax.parallel import processes
from vit_jax.train import clock as clock_lib
from vit_jax.train import feed as feed_lib
from vit_jax.train import hooks
from vit_jax.train import step as train_step_lib

if TYPE_CHECKING:
  from vit_jax.train.loop import Run

Scalars = dict[str, float]

_TWICE_S = 0.2  # seconds within which a repeated signal counts as one


class BrokenBatchError(Exception):
  """A process could not make its part of a batch."""


class Stop:
  """Notes SIGTERM and SIGINT, so that the loop can save before it ends.

  Processes get a signal at different times, but must stop at the same step. So
  they tell each other (`Monitor`, `evaluate`), and stop once all have heard.

  Attributes:
    received: Number of the signal that this process received, or 0.
    heard: The largest signal number that any process has sent.
  """

  def __init__(self) -> None:
    self.received = 0
    self.heard = 0

  @property
  def signal(self) -> int:
    """The signal at which to stop, the same in all processes, or 0."""
    return self.heard if jax.process_count() > 1 else self.received

  def __enter__(self) -> 'Stop':
    is_main = threading.current_thread() is threading.main_thread()
    self._previous = {
      number: signal.signal(number, self._note)
      for number in (signal.SIGTERM, signal.SIGINT)
      if is_main  # Python allows handlers only in the main thread
    }
    return self

  def __exit__(self, *_: object) -> None:
    for number, handler in self._previous.items():
      signal.signal(number, handler)

  def _note(self, number: int, _: object) -> None:
    if self.received == number:  # the same signal came twice
      return
    self.received = number
    # `timeout` and some schedulers send a signal both to the process and to its
    # group. After this delay, another signal ends the process at once.
    time.sleep(_TWICE_S)
    signal.signal(number, signal.SIG_DFL)


def tell(
  stop: Stop, batches: feed_lib.Feed, mesh: jax.sharding.Mesh
) -> jax.Array:
  """Returns the signal that this process sends, as int32 [devices]."""
  number = stop.received if batches.error is None else train_step_lib.BROKEN
  return mesh_lib.on_each_device(number, mesh)


def hear(stop: Stop, batches: feed_lib.Feed, heard: jax.Array) -> None:
  """Notes the largest signal that any process has sent.

  Raises a BrokenBatchError if a process could not make its part of a batch.
  """
  # By NumPy: a maximum by JAX would wait for the call that runs already.
  number = int(np.asarray(heard).max())
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
  """Counts skipped steps, whose loss or gradient was not finite.

  Attributes:
    total: Number in the whole run.
    in_a_row: Number since the last finite step.
  """

  total: int = 0
  in_a_row: int = 0

  def add(self, ok: bool) -> None:
    """Counts one more step."""
    self.total += not ok
    self.in_a_row = 0 if ok else self.in_a_row + 1


class Monitor(hooks.Hook):
  """Reads the metrics of each call after the next call has started.

  Until then the metrics stay on the device, so the device never waits for the
  host. A thread notes when a call ends, at which the host may do something
  else.

  Attributes:
    skipped: Skipped steps, up to the last call whose metrics were read.
  """

  def __init__(self, skipped: Skipped):
    self.skipped = skipped
    self._has_warned = False
    # The last call without its batch, its last step, when it was given to the
    # devices, and when they had computed it.
    self._last: (
      tuple[hooks.Call, jax.Array, int, clock_lib.Mark, Future[float]] | None
    ) = None
    self._thread = concurrent.futures.ThreadPoolExecutor(
      1, initializer=processes.block_signals
    )

  def before_call(self, run: 'Run') -> None:
    """Ends a run that learns nothing; reads what comes before an evaluation."""
    skipped, most = (
      self.skipped,
      run.experiment.config.train.max_skipped_in_a_row,
    )
    if skipped.in_a_row > most:
      self.settle(run)
      raise NonFiniteError(
        f'{skipped.in_a_row} steps in a row were not finite and were skipped,'
        f' which is more than config.train.max_skipped_in_a_row={most}'
        f' ({skipped.total} were in the whole run): nothing is learned any'
        ' more. Lower config.optim.learning_rate or set config.optim.clip_norm'
        ' in a new work directory'
      )
    if run.is_due:
      self.settle(run)

  def after_call(self, run: 'Run', call: hooks.Call) -> None:
    """Reads the metrics of the previous call, and keeps this one for later."""
    mark = run.clock.mark()
    ended = self._thread.submit(_await, call.metrics, run.clock)
    self.settle(run)
    index = call.batch['index']
    self._last = call._replace(batch={}), index, run.step, mark, ended

  def end(self, run: 'Run') -> None:
    """Adds the number of skipped steps to the results."""
    skipped = self.skipped.total
    if run.experiment.config.train.skip_nonfinite:
      run.results = {**(run.results or {}), 'train/skipped_steps': skipped}
    if skipped:
      logging.warning(
        'warning: %d of %d steps were not finite and were skipped: with a lower'
        ' config.optim.learning_rate, or config.optim.clip_norm, they count',
        *(skipped, run.step),
      )

  def close(self) -> None:
    """Ends the thread."""
    self._thread.shutdown()

  def join(self) -> None:
    """Waits for the end of the last call, but does not read its metrics.

    The signals in the metrics must be read at the same step in all processes.
    """
    if self._last is not None:
      jax.block_until_ready(self._last[0].metrics)

  def settle(self, run: 'Run') -> None:
    """Waits for the last call, and reports its steps that are due.

    Raises a NonFiniteError if a step was not finite, and such steps are not
    skipped; and a BrokenBatchError if the call had no batch.
    """
    if self._last is None:
      return
    (call, index, last_step, mark, ended), self._last = self._last, None
    metrics = dict(call.metrics)
    hear(run.stop, run.batches, metrics.pop('signal'))
    # Where the host is busy, the thread may note it later than this one.
    end = min(run.clock.now(), ended.result())
    oks = np.atleast_1d(metrics.pop('ok'))
    steps = run.clock.steps(call.num_steps, index.size, mark, end)
    for i, _ in enumerate(steps):
      step, ok = last_step - call.num_steps + 1 + i, bool(oks[i])
      if run.experiment.config.train.skip_nonfinite:
        self.skipped.add(ok)
      due = run.experiment.log_due(step)
      if ok and not due:
        continue
      scalars = {
        name: float(np.atleast_1d(x)[i]) for name, x in metrics.items()
      }
      if not ok:
        examples = index if index.ndim == 1 else index[i]
        _not_finite(run, step, scalars, examples)
      if due:
        self._report(run, step, scalars)
    run.reporter.advance(last_step)

  def _report(self, run: 'Run', step: int, scalars: Scalars) -> None:
    e, rates = run.experiment, run.clock.read()
    lines = e.program.objective.warnings(scalars, step)
    if not self._has_warned:  # once in a run
      self._has_warned = bool(lines)
      for line in lines:
        logging.warning('warning: %s', line)
    peak_flops = mesh_lib.peak_flops(e.program.mesh)
    if rates and peak_flops:
      flops_per_second = run.clock.steps_per_second * e.program.flops.step
      rates['mfu'] = flops_per_second / peak_flops
    if e.config.train.skip_nonfinite:
      rates['skipped_steps'] = self.skipped.total
    run.reporter.write(step, e.epoch(step), train_metrics(scalars | rates))
    fields = {
      'loss': scalars['loss'],
      'learning rate': scalars['learning_rate'],
    }
    if rates:
      fields['images/s'] = rates['images_per_second']
    run.reporter.progress(step, fields, e.next_evaluation(step))


def _await(metrics: dict[str, jax.Array], clock: clock_lib.Timekeeper) -> float:
  """Returns the time when a call has been computed."""
  jax.block_until_ready(metrics)
  return clock.now()


def _not_finite(
  run: 'Run', step: int, scalars: Scalars, index: jax.Array
) -> None:
  examples = multihost_utils.process_allgather(index, tiled=True)
  label = run.experiment.program.variant(step - 1).label
  named = f'step {step}, of {label},' if label else f'step {step}'
  message = (
    f'{named} was not finite: loss {scalars["loss"]}, norm of the'
    f' gradient {scalars["grad_norm"]}, of the parameters after it'
    f' {scalars["param_norm"]},'
    f' examples {examples.tolist()}'
  )
  if run.experiment.config.train.skip_nonfinite:
    logging.warning('%s; it is skipped', message)
    return
  replay = f', and --replay={step} says which layer it was'
  if run.experiment.config.tasks:
    replay = ''  # which repeats steps of a single task
  raise NonFiniteError(
    f'{message}. The state before it is in checkpoints/{step - 1}{replay}.'
    ' Lower config.optim.learning_rate or set config.optim.clip_norm in a new'
    ' work directory, or go on here without such steps:'
    ' --config.train.skip_nonfinite'
  )


def train_metrics(scalars: Scalars) -> Scalars:
  """Returns scalars by the names that they have in metrics.jsonl.

  No mean of an objective has the name of a measure of the loop
  (`contract.LOOP_METRICS`).
  """
  return {f'train/{name}': x for name, x in scalars.items()}
