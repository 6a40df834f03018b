"""The train loop.

In this file `step` counts completed updates: what happens at step k happens
when k updates are done. The evaluations of a step come before its checkpoint,
which holds their results: one without results still has to be evaluated.
"""

import dataclasses
import json
import pathlib
import signal
import sys
import time

from absl import logging
import jax
import ml_collections
import numpy as np

from vit_jax import checkpoint
from vit_jax import config as config_lib
from vit_jax import experiment as experiment_lib
from vit_jax import hardware
from vit_jax import reporting
from vit_jax import workdir as workdir_lib

Scalars = dict[str, float]


def main(
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
    UserError: The config, the data or the directory cannot be used, or a step
      was not finite.
  """
  path = pathlib.Path(workdir).absolute()
  if not dry_run:
    print(f'work directory: {path}', file=sys.stderr)
  experiment_lib.check(config)
  experiment = experiment_lib.build(config)
  if dry_run:
    experiment_lib.describe(experiment)
    print(json.dumps(experiment_lib.dry_run(experiment)))
    return 0
  with workdir_lib.lock(path), reporting.log_to(path / 'train.log'):
    if (path / 'DONE').exists():
      logging.info('%s is done already', path)
      return 0
    workdir_lib.prepare(path, experiment.config, experiment.source)
    experiment_lib.describe(experiment)
    start = time.perf_counter()
    with Stop() as stop:
      results = train(experiment, path, stop)
    if results is None:
      return 128 + stop.signal
    shown = ', '.join(f'{k} {v:.4g}' for k, v in results.items())
    seconds = time.perf_counter() - start
    logging.info('done in %.0f s: %s; all of it is in %s', seconds, shown, path)
    workdir_lib.write_json(path / 'DONE', results)
    return 0


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


@dataclasses.dataclass
class Update:
  """A step that was started, and whose metrics are still on the device."""

  step: int
  metrics: dict[str, jax.Array]
  examples: np.ndarray  # their ids; this process's rows


def train(
  experiment: experiment_lib.Experiment, workdir: pathlib.Path, stop: Stop
) -> Scalars | None:
  """Runs the loop to its end; returns the last results, or None if stopped."""
  e, log = experiment, config_lib.is_due
  with checkpoint.Checkpointer(
    workdir, e.config.checkpoint, e.checkpoint_keep_every
  ) as checkpoints:
    restored = checkpoints.restore(e.abstract_state())
    state, step, results = restored or (e.init(), 0, {})
    if restored:
      logging.info('resuming at step %d of %d', step, e.total_steps)
    with reporting.Reporter(workdir, e.total_steps, step) as reporter:
      evaluated = bool(results) or step == 0
      batches = e.train_batches(step)
      rate = reporting.Throughput(e.config.train.batch_size)
      while True:
        if not evaluated and e.evals_due(step):
          ...
