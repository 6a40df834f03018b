"""Hooks: what happens in a run beside its steps.

Evaluations, checkpoints, logging, patience and signals are hooks, and so is a
class of the user's that `config.train.hooks` names.
"""

from typing import NamedTuple
from typing import TYPE_CHECKING

from absl import logging
import jax
import ml_collections

from vit_jax import config as config_lib
from vit_jax.parallel import processes

if TYPE_CHECKING:
  from vit_jax.train.loop import Run


class Call(NamedTuple):
  """A call of the compiled step.

  Attributes:
    num_steps: Number of updates in it.
    metrics: Scalars of the update; of several updates, arrays [num_steps].
    batch: Global arrays [B, ...]; of several updates, [num_steps, B, ...].
  """

  num_steps: int
  metrics: dict[str, jax.Array]
  batch: dict[str, jax.Array]


class Hook:
  """Something that happens in a run at certain steps.

  All processes call the same hooks at the same steps. A hook reads the run and
  reports what it finds; the state after each step stays that of the config.
  """

  def before_call(self, run: 'Run') -> None:
    """Called after `run.step` updates, before the next call, and at the end.

    A hook may set `run.reason`: the run then ends at this step.
    """

  def after_call(self, run: 'Run', call: Call) -> None:
    """Called when a call was given to the devices, which may still compute it.

    `run.step` counts the updates of this call, too. The call's batch is not to
    be kept.
    """

  def end(self, run: 'Run') -> None:
    """Called once the run is complete, before DONE is written."""

  def close(self) -> None:
    """Called however the run ends."""


def from_config(config: ml_collections.ConfigDict) -> list[Hook]:
  """Returns the hooks that `config.train.hooks` names, in their order."""
  return config_lib.build_sum(config.train.hooks, 'train.hooks', Hook)


class Stall(Hook):
  """Tells the watch of `train.stall_timeout` that the run makes progress."""

  def before_call(self, run: 'Run') -> None:
    """Says so."""
    run.watch.alive(run.step)


class FirstPicture(Hook):
  """Shows the first images of a run in the trackers, as the model gets them.

  They are drawn after the first call, while the devices compute it.
  """

  def after_call(self, run: 'Run', call: Call) -> None:
    """Draws them, in one process, after the first call of the run."""
    is_first = run.step == call.num_steps and processes.first()
    if not (is_first and run.experiment.config.reporting):
      return
    with run.clock.paused():
      draw = config_lib.wing('vit_jax.train.pictures:first_batch')
      for name, png in draw(run.experiment).items():
        run.reporter.show(0, name, png)


class Save(Hook):
  """Saves checkpoints when they are due, and the best one."""

  def before_call(self, run: 'Run') -> None:
    """Saves, after the evaluations of this step."""
    if run.is_due:
      with run.clock.saving():
        run.checkpoints.save_best(run.step, run.state, run.results)
      if run.experiment.checkpoint_due(run.step):
        run.save()


class Patience(Hook):
  """Ends a run whose best metric does not improve: `train.patience`.

  The decision depends only on stored values: the step of the best checkpoint
  and the results of this step. So a run that was killed and resumed ends at the
  same step.
  """

  def before_call(self, run: 'Run') -> None:
    """Ends the run if its metric has not improved for too long."""
    e, metric = run.experiment, run.experiment.config.checkpoint.best
    best = run.checkpoints.best_step
    if e.patience is None or metric not in (run.results or {}):
      return
    if run.step - best < e.patience or run.step == e.total_steps:
      return
    since = f'since step {best}' if best else 'at all'
    run.reason = (
      f'{metric} has not improved {since}, by step {run.step}:'
      f' config.train.patience is {e.config.train.patience!r}'
    )


class Signals(Hook):
  """Saves and stops after a signal, unless the run is complete."""

  def before_call(self, run: 'Run') -> None:
    """Stops the run if there is a signal."""
    if not run.stop.signal or run.is_complete:
      return
    run.monitor.settle(run)
    run.save()
    run.checkpoints.wait()
    total_steps = run.experiment.total_steps
    logging.info('stopped at step %d of %d; saved', run.step, total_steps)
    run.is_stopped = True
