"""The train loop.

In this file `step` counts completed updates: an action at step k comes after k
updates. The evaluations of a step come before its checkpoint, which stores
their results. If a checkpoint has no results, its evaluations are still due.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import concurrent.futures
import contextlib
import dataclasses
import functools
import itertools
import json
import pathlib
import sys
import time
from typing import Any

from absl import logging
import jax
import ml_collections
import numpy as np

from vit_jax import config as config_lib
from vit_jax import objectives
from vit_jax.evaluation.base import EvaluationError
from vit_jax.parallel import allocator
from vit_jax.parallel import memory
from vit_jax.parallel import processes
from vit_jax.parallel import watch as watch_lib
from vit_jax.runs import checkpoint
from vit_jax.runs import reporting
from vit_jax.runs import safe_io
from vit_jax.runs import terminal
from vit_jax.runs import workdir as workdir_lib
from vit_jax.train import accumulation
from vit_jax.train import clock as clock_lib
from vit_jax.train import describe
from vit_jax.train import evaluations
from vit_jax.train import experiment as experiment_lib
from vit_jax.train import feed as feed_lib
from vit_jax.train import monitor as monitor_lib
from vit_jax.train import start as start_lib
from vit_jax.train.results import Results

Scalars = dict[str, float]


def run(
  config: ml_collections.ConfigDict,
  workdir: str,
  dry_run: bool = False,
  verbose: bool = False,
) -> Results:
  """Trains, or resumes, in a work directory.

  Progress goes to stderr. It has the form that the command line sets up, or
  plain lines if the caller has not set up absl's logging.

  Args:
    config: Locked, from a file in `configs/`.
    workdir: The work directory; created if it does not exist.
    dry_run: Compile, print sizes as JSON, write nothing.
    verbose: Show tables of all parameters before the first step.

  Returns:
    How the run ended. A stop by a signal is not an error.

  Raises:
    UserError: The config, the data or the directory cannot be used, a step was
      not finite, or memory or disk are too small.
  """
  config_lib.check_local(workdir, 'workdir')
  path = pathlib.Path(workdir).absolute()
  with reporting.shown(), monitor_lib.Stop() as stop:
    with _explained():
      same = processes.call_on_first(lambda: config_lib.to_dict(config))
      processes.call_on_all(lambda: _check(config, same))
      if dry_run:
        return _dry_run(config, verbose)
    if processes.first() and not terminal.can_draw():  # else a panel has it
      print(f'work directory: {path}', file=sys.stderr)
    with _owning(path), _explained():
      allocator.hint()
      return _run_in(path, config, stop, verbose)


@contextlib.contextmanager
def _explained() -> Iterator[None]:
  """Turns errors of too little memory or a lost process into a UserError."""
  with memory.explained(memory.TRAINING), processes.together():
    yield


def _dry_run(config: ml_collections.ConfigDict, verbose: bool) -> Results:
  experiment = experiment_lib.create(config)
  for part in experiment.parts.values():
    part.cache.check()
  if config.train.accumulation == config_lib.AUTO:
    experiment = accumulation.choose(experiment)
  describe.log(experiment, verbose=verbose)
  sizes = describe.dry_run(experiment)
  if processes.first():
    print(json.dumps(sizes))
  accumulation.check(experiment, experiment.program.compile(), has_state=False)
  return Results(sizes)


def _check(config: ml_collections.ConfigDict, same: Mapping[str, Any]) -> None:
  """Raises a UserError if a config is wrong, or differs between processes."""
  if config_lib.to_dict(config) != same:
    raise config_lib.UserError(
      'this process has another config than process 0: give all the same flags'
    )
  experiment_lib.check(config)


@contextlib.contextmanager
def _owning(path: pathlib.Path) -> Iterator[None]:
  """Locks the work directory and logs there, only in the first process."""
  with contextlib.ExitStack() as stack:

    def own() -> None:
      stack.enter_context(workdir_lib.lock(path))
      stack.enter_context(reporting.log_to(path / workdir_lib.LOG))

    processes.call_on_first(own)
    yield


def _run_in(
  path: pathlib.Path,
  config: ml_collections.ConfigDict,
  stop: monitor_lib.Stop,
  verbose: bool,
) -> Results:
  """Trains in a work directory that this run has locked."""
  stored, done = processes.call_on_first(lambda: start_lib.look(path, config))
  if done is not None:
    before = Results.from_dict(done)
    logging.info('finished already: %s', before)
    return before
  if stored is not None:
    config = config_lib.from_dict(stored)
    processes.call_on_first(lambda: start_lib.check_devices(path, config))
  experiment = processes.call_on_all(
    lambda: experiment_lib.create(config, None if stored is None else path)
  )
  processes.call_on_first(lambda: start_lib.check_longer(path, experiment))
  accumulation.check_state(experiment)
  if config.train.accumulation == config_lib.AUTO:
    experiment = accumulation.choose(experiment)
  compiling = start_lib.compile_ahead(experiment)
  start_lib.check_data(experiment)
  _prepare(path, experiment)
  describe.log(experiment, path, verbose)
  cached: Callable[[], experiment_lib.Experiment] = experiment.cached
  experiment = processes.call_on_all(cached)
  start = time.perf_counter()
  results = None if stop.signal else train(experiment, path, stop, compiling)
  if results is None:
    return Results({}, signal=stop.signal)
  seconds = time.perf_counter() - start
  logging.info('done in %.0f s: %s; see %s', seconds, results, path)
  done = results.to_dict()
  processes.call_on_first(lambda: safe_io.write_json(path / 'DONE', done))
  return results


def _prepare(path: pathlib.Path, experiment: experiment_lib.Experiment) -> None:
  """Writes the files that describe the run, or compares them if they exist."""
  config, preprocess = experiment.config, experiment.preprocess()
  fingerprint, files = experiment.fingerprint(), experiment.files()
  processes.call_on_first(
    lambda: workdir_lib.prepare(
      path,
      config,
      preprocess,
      fingerprint,
      objectives.directions(config),
      files,
    )
  )


def train(
  experiment: experiment_lib.Experiment,
  workdir: pathlib.Path,
  stop: monitor_lib.Stop,
  compiling: concurrent.futures.Future[jax.stages.Compiled] | None = None,
) -> Results | None:
  """Runs the loop; returns how it ended, or None if a signal stopped it.

  Args:
    experiment: The experiment to run.
    workdir: Directory of checkpoints and metrics.
    stop: Signals that ask the loop to save and end.
    compiling: The step that is being compiled; None: compilation has not begun.

  Raises:
    UserError: There is too little memory, a step was not finite, an image is
      damaged, or something could not be written.
  """
  with contextlib.ExitStack() as stack:
    loop = _begin(experiment, workdir, stop, stack)
    start_lib.show(experiment, loop.step, loop.reporter)
    if loop.step < experiment.total_steps:
      start_lib.check_memory(experiment, loop.step, compiling)
    loop.clock.resume(loop.reporter.before('train/useful_seconds') or 0.0)
    try:
      return loop.run()
    except (
      monitor_lib.NonFiniteError,
      monitor_lib.BrokenBatchError,
      EvaluationError,
    ) as error:
      problem = str(error)
      try:
        loop.rescue()
      except config_lib.UserError as another:
        problem += f' And then: {another}'
      raise config_lib.UserError(problem) from None


def _begin(
  experiment: experiment_lib.Experiment,
  workdir: pathlib.Path,
  stop: monitor_lib.Stop,
  stack: contextlib.ExitStack,
) -> '_Loop':
  """Makes the loop, with its state restored from the last checkpoint."""
  e = experiment
  clock = clock_lib.Timekeeper(clock_lib.age(workdir))
  log = workdir / workdir_lib.LOG if processes.first() else None
  watch = stack.enter_context(
    watch_lib.Watch(e.config.train.stall_timeout, log)
  )
  checkpoints = stack.enter_context(
    checkpoint.Checkpointer(
      workdir,
      e.config.checkpoint,
      e.checkpoint_keep_every,
      lower_is_better=objectives.lower_is_better(e.config),
    )
  )
  restored = checkpoints.restore(e.program.state_to_read)
  state, step, results = restored or (e.init(), 0, {})
  if restored:
    state = e.program.adopt(state)
    logging.info('resuming at step %d of %d', step, e.total_steps)
  reporter = stack.enter_context(
    reporting.Reporter(
      workdir,
      e.total_steps,
      step,
      reports_to=e.config.reporting,
      directions=objectives.directions(e.config),
      writes=processes.first(),
    )
  )
  calls, lengths = itertools.tee(e.calls(step))
  batches = e.train_batches(step, lengths)
  stack.enter_context(batches)
  hear = functools.partial(monitor_lib.hear, stop, batches)
  skipped = monitor_lib.Skipped(**checkpoints.counts)
  monitor = stack.enter_context(
    monitor_lib.Monitor(e, reporter, clock, hear, skipped)
  )
  return _Loop(
    e,
    stop,
    clock,
    watch,
    checkpoints,
    reporter,
    calls,
    batches,
    monitor,
    state,
    step,
    results,
  )


@dataclasses.dataclass
class _Loop:
  """The state of a run between two calls of the compiled step.

  Attributes:
    calls: The number of updates in each remaining call.
    results: Results of the evaluations at `step`; None: still to be done.
  """

  experiment: experiment_lib.Experiment
  stop: monitor_lib.Stop
  clock: clock_lib.Timekeeper
  watch: watch_lib.Watch
  checkpoints: checkpoint.Checkpointer
  reporter: reporting.Reporter
  calls: Iterator[int]
  batches: feed_lib.Feed
  monitor: monitor_lib.Monitor
  state: experiment_lib.TrainState
  step: int
  results: Scalars | None

  def run(self) -> Results | None:
    """Returns how the run ended, or None if a signal stopped it."""
    total_steps = self.experiment.total_steps
    while True:
      self.watch.alive(self.step)
      self.monitor.check_skipped()
      if self.results is None and self.experiment.is_due(self.step):
        self._evaluate_and_save()
      reason = self._reason_to_end()
      if reason:
        self._evaluate_rest()
      ends = bool(reason) or self.step == total_steps
      if ends and self.results is not None:
        return self._ended(reason)  # the run is complete: a signal is ignored
      if self.stop.signal:
        self.monitor.settle()
        self._save()
        self.checkpoints.wait()
        logging.info('stopped at step %d of %d; saved', self.step, total_steps)
        return None
      self._update()

  def _evaluate_and_save(self) -> None:
    """Runs the evaluations and the checkpoint that are due at this step."""
    self.monitor.settle()
    self.results = self._evaluate(self.experiment.evals_due(self.step))
    with self.clock.saving():
      self.checkpoints.save_best(self.step, self.state, self.results)
    if self.experiment.checkpoint_due(self.step):
      self._save()

  def _evaluate(self, names: Sequence[str]) -> Scalars | None:
    with self.clock.paused():
      return evaluations.evaluate(
        self.experiment,
        self.state,
        self.step,
        names,
        self.reporter,
        self.stop,
        self.watch,
      )

  def _reason_to_end(self) -> str:
    """Returns why the run ends before its duration; '': it goes on.

    The answer depends only on stored values: the step of the best checkpoint
    and the results of this step. So a run that was killed and resumed ends at
    the same step.
    """
    e = self.experiment
    metric, best = e.config.checkpoint.best, self.checkpoints.best_step
    if e.patience is None or metric not in (self.results or {}):
      return ''
    if self.step - best < e.patience or self.step == e.total_steps:
      return ''
    since = f'since step {best}' if best else 'at all'
    return (
      f'{metric} has not improved {since}, by step {self.step}:'
      f' config.train.patience is {e.config.train.patience!r}'
    )

  def _evaluate_rest(self) -> None:
    """Runs all evaluations that are due at the end of a run that ends early."""
    found = self.results or {}
    done = {name.partition('/')[0] for name in found}
    rest = self._evaluate(
      [x for x in self.experiment.eval_every if x not in done]
    )
    self.results = None if rest is None else found | rest
    self._save()

  def _ended(self, reason: str) -> Results:
    """Returns how the run ended."""
    metrics, skipped = dict(self.results or {}), self.monitor.skipped.total
    if table := self.experiment.table(metrics, self.step):
      logging.info('%s', table)
    if self.experiment.config.train.skip_nonfinite:
      metrics['train/skipped_steps'] = skipped
    if skipped:
      logging.warning(
        'warning: %d of %d steps were not finite and were skipped: with a lower'
        ' config.optim.learning_rate, or config.optim.clip_norm, they count',
        *(skipped, self.step),
      )
    watches = self.experiment.patience is not None
    best_step = self.checkpoints.best_step if watches else None
    return Results(metrics, best_step, reason)

  def _update(self) -> None:
    """Starts one call and, while it runs, reads the metrics of the last one."""
    mesh = self.experiment.program.mesh
    if not self.batches.is_ready():
      self.monitor.join()  # the wait counts only once the device is idle
    with self.clock.waiting():
      batch = next(self.batches)
    told = monitor_lib.tell(self.stop, self.batches, mesh)
    count = next(self.calls)
    program = self.experiment.program.variant(self.step)
    run_steps = program.train_step if count == 1 else program.train_steps
    self.state, metrics = run_steps(
      self.state, batch, np.int32(self.step), told
    )
    self.step, self.results = self.step + count, None
    self.monitor.follow(self.step, count, metrics, batch['index'])

  def _save(self) -> None:
    """Saves the state, and reports where the time went."""
    with self.clock.saving():
      is_new = self.checkpoints.save(
        self.step, self.state, self.results, self._counts()
      )
    if is_new:
      self.reporter.write(
        self.step,
        self.experiment.epoch(self.step),
        monitor_lib.loop_metrics(self.clock.saved()),
      )

  def rescue(self) -> None:
    """Saves the last good state, which a step that is not finite keeps."""
    step = int(self.state.step)
    self.checkpoints.save(step, self.state, counts=self._counts())
    self.checkpoints.wait()

  def _counts(self) -> dict[str, int]:
    """Returns the counters that a resumed run continues."""
    return dataclasses.asdict(self.monitor.skipped)
