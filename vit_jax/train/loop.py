"""The train loop.

`run` is the command, and `Run.train` the loop. In this file `step` counts
completed updates: an action at step k comes after k updates. The evaluations of
a step come before its checkpoint, which stores their results. If a checkpoint
has no results, its evaluations are still due. What happens between two steps is
in `hooks`, what happens before the first one in `start`.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import concurrent.futures
import contextlib
import dataclasses
import itertools
import os
import pathlib
import sys
import time

from absl import logging
import jax
import ml_collections
import numpy as np

from vit_jax import config as config_lib
from vit_jax import objectives
from vit_jax.evaluation.base import EvaluationError
from vit_jax.parallel import memory
from vit_jax.parallel import processes
from vit_jax.runs import checkpoint
from vit_jax.runs import logs
from vit_jax.runs import reporting
from vit_jax.runs import safe_io
from vit_jax.runs import workdir as workdir_lib
from vit_jax.train import clock as clock_lib
from vit_jax.train import evaluations
from vit_jax.train import experiment as experiment_lib
from vit_jax.train import feed as feed_lib
from vit_jax.train import hooks as hooks_lib
from vit_jax.train import monitor as monitor_lib
from vit_jax.train import Results
from vit_jax.train import start as start_lib
from vit_jax.train.state import TrainState

Scalars = dict[str, float]

_MOST = 4  # metrics in the last line of the log


def run(
  config: ml_collections.ConfigDict,
  workdir: str | os.PathLike[str],
  dry_run: bool = False,
  verbose: bool = False,
) -> Results:
  """Trains, or resumes, in a work directory.

  Progress goes to stderr. It has the form that the command line sets up, or
  plain lines if the caller has not set up absl's logging. A stop by a signal is
  not an error.

  Args:
    config: Locked, from a file in `configs/`.
    workdir: The work directory, or its address in an object store, as
      gs://bucket/run; created if it does not exist.
    dry_run: Compile, print sizes as JSON, write nothing.
    verbose: Show tables of all parameters before the first step.
  """
  workdir = os.fspath(workdir)
  if ':' in workdir:  # it may be an address
    address = config_lib.store_address(workdir, 'workdir')
    if address is None:
      config_lib.check_local(workdir, 'workdir')
    elif not dry_run:
      experiment_lib.check(config)  # before anything is downloaded
      local_copy = config_lib.wing('vit_jax.runs.object_store:local_copy')
      with monitor_lib.Stop() as stop, local_copy(address) as folder:
        if stop.signal:
          return Results({}, signal=stop.signal)
        return run(config, folder, verbose=verbose)
  path = pathlib.Path(workdir).absolute()
  with logs.on_stderr(), monitor_lib.Stop() as stop:
    with _explained():
      first_config = processes.call_on_first(lambda: config_lib.to_dict(config))
      processes.call_on_all(lambda: start_lib.check(config, first_config))
      if dry_run:
        compile_only = config_lib.wing('vit_jax.train.dry_run:run')
        return Results(compile_only(config, verbose))
    if processes.first() and not logs.can_draw():  # else a panel has it
      print(f'work directory: {path}', file=sys.stderr)
    with start_lib.owning(path), _explained():
      return _run_in(path, config, stop, verbose)


@contextlib.contextmanager
def _explained() -> Iterator[None]:
  """Turns errors of too little memory or a lost process into a UserError."""
  with memory.explained(memory.TRAINING), processes.lost_peers_explained():
    yield


def _run_in(
  path: pathlib.Path,
  config: ml_collections.ConfigDict,
  stop: monitor_lib.Stop,
  verbose: bool,
) -> Results:
  """Trains in a work directory that this run has locked."""
  stored, ended = processes.call_on_first(lambda: start_lib.look(path, config))
  if ended is not None:
    results = Results.from_dict(ended)
    logging.info('finished already: %s', _text(results))
    return results
  if stored is not None:
    config = config_lib.from_dict(stored)
    resuming = config_lib.wing('vit_jax.train.resuming')
    processes.call_on_first(lambda: resuming.check_devices(path, config))
  experiment = processes.call_on_all(
    lambda: experiment_lib.create(config, None if stored is None else path)
  )
  if stored is not None:
    processes.call_on_first(lambda: resuming.check_longer(path, experiment))
  start_lib.check_state_memory(experiment)
  if config.train.accumulation == config_lib.AUTO:
    choose = config_lib.wing('vit_jax.train.accumulation:choose')
    experiment = choose(experiment)
  compiling = start_lib.compile_ahead(experiment)
  start_lib.check_data(experiment)
  start_lib.prepare(path, experiment)
  start_lib.log_facts(experiment, path, verbose)
  cached: Callable[[], experiment_lib.Experiment] = experiment.cached
  experiment = processes.call_on_all(cached)
  start = time.perf_counter()
  trained = None if stop.signal else train(experiment, path, stop, compiling)
  if trained is None:
    return Results({}, signal=stop.signal)
  seconds = time.perf_counter() - start
  logging.info('done in %.0f s: %s; see %s', seconds, _text(trained), path)
  done = trained.to_dict()
  processes.call_on_first(lambda: safe_io.write_json(path / 'DONE', done))
  return trained


def _text(results: Results) -> str:
  text = reporting.results_text(results.metrics, _MOST)
  early = f'; it ended early: {results.reason}' if results.reason else ''
  return f'{text}{early}'


def train(
  experiment: experiment_lib.Experiment,
  workdir: pathlib.Path,
  stop: monitor_lib.Stop,
  compiling: concurrent.futures.Future[jax.stages.Compiled] | None = None,
) -> Results | None:
  """Runs the loop; returns how it ended, or None if a signal stopped it.

  `compiling` is the step that is being compiled; None: it has not begun.
  """
  with contextlib.ExitStack() as stack:
    run = _begin(experiment, workdir, stop, stack)
    start_lib.show_config(experiment, run.reporter)
    if run.step < experiment.total_steps:
      start_lib.await_step(experiment, run.step, compiling)
    run.clock.resume(run.reporter.before('train/useful_seconds') or 0.0)
    try:
      return run.train()
    except (
      monitor_lib.NonFiniteError,  # by `Monitor.settle`, one call late
      monitor_lib.BrokenBatchError,
      EvaluationError,
    ) as error:
      problem = str(error)
      try:
        run.rescue()
      except config_lib.UserError as another:
        problem += f' And then: {another}'
      raise config_lib.UserError(problem) from None


def _begin(
  experiment: experiment_lib.Experiment,
  workdir: pathlib.Path,
  stop: monitor_lib.Stop,
  stack: contextlib.ExitStack,
) -> 'Run':
  """Returns the run, with its state restored from the last checkpoint."""
  e = experiment
  clock = clock_lib.Timekeeper(clock_lib.age(workdir))
  log = workdir / workdir_lib.LOG if processes.first() else None
  watch = stack.enter_context(
    processes.Watch(e.config.train.stall_timeout, log)
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
  batches = stack.enter_context(e.train_batches(step, lengths))
  monitor = monitor_lib.Monitor(monitor_lib.Skipped(**checkpoints.counts))
  hooks: list[hooks_lib.Hook] = [
    hooks_lib.Stall(),
    monitor,
    evaluations.Evaluate(),
    hooks_lib.Save(),
    hooks_lib.Patience(),
    *e.hooks(),
    hooks_lib.FirstPicture(),
    evaluations.EvaluateRest(),
    hooks_lib.Signals(),
  ]
  for hook in hooks:
    stack.callback(hook.close)
  return Run(
    e,
    stop,
    clock,
    watch,
    checkpoints,
    reporter,
    calls,
    batches,
    monitor,
    hooks,
    state,
    step,
    results,
  )


@dataclasses.dataclass
class Run:
  """A run between two calls of the compiled step, as its hooks see it.

  Attributes:
    experiment: What runs: the config, the program, the data.
    stop: Signals that ask the run to save and end.
    clock: Measures how the time is spent.
    watch: Ends a run that hangs.
    checkpoints: The checkpoints of the work directory.
    reporter: Writes metrics and pictures.
    calls: The number of updates in each remaining call.
    batches: The batch of each remaining call.
    monitor: Reads the metrics of calls.
    hooks: What happens beside the steps, in this order.
    state: The train state.
    step: Number of completed updates.
    results: Results of the evaluations at `step`; None: still to be done.
    is_due: Whether an evaluation or a checkpoint is still to be done at `step`.
    reason: Why the run ends before its duration; '': it goes on.
    is_stopped: Whether a signal has stopped it, and it is saved.
  """

  experiment: experiment_lib.Experiment
  stop: monitor_lib.Stop
  clock: clock_lib.Timekeeper
  watch: processes.Watch
  checkpoints: checkpoint.Checkpointer
  reporter: reporting.Reporter
  calls: Iterator[int]
  batches: feed_lib.Feed
  monitor: monitor_lib.Monitor
  hooks: Sequence[hooks_lib.Hook]
  state: TrainState
  step: int
  results: Scalars | None
  is_due: bool = False
  reason: str = ''
  is_stopped: bool = False

  @property
  def is_complete(self) -> bool:
    """Whether the run has ended and was evaluated."""
    is_last = bool(self.reason) or self.step == self.experiment.total_steps
    return is_last and self.results is not None

  def train(self) -> Results | None:
    """Returns how the run ended, or None if a signal stopped it."""
    while True:
      self.is_due = self.results is None and self.experiment.is_due(self.step)
      for hook in self.hooks:
        hook.before_call(self)
      if self.is_stopped:
        return None
      if self.is_complete:
        break
      self._call()
    for hook in self.hooks:
      hook.end(self)
    has_best = self.experiment.patience is not None
    best_step = self.checkpoints.best_step if has_best else None
    return Results(dict(self.results or {}), best_step, self.reason)

  def _call(self) -> None:
    """Gives one call to the devices, which compute it while hooks run.

    No batch is kept after it, so that its memory is free for the next one.
    """
    program = self.experiment.program.variant(self.step)
    if not self.batches.is_ready():
      self.monitor.join()  # the wait counts only once the device is idle
    with self.clock.waiting():
      batch = next(self.batches)
    signals = monitor_lib.tell(self.stop, self.batches, program.mesh)
    count = next(self.calls)
    run_steps = program.train_step if count == 1 else program.train_steps
    self.state, metrics = run_steps(
      self.state, batch, np.int32(self.step), signals
    )
    self.step, self.results = self.step + count, None
    call = hooks_lib.Call(count, metrics, batch)
    for hook in self.hooks:
      hook.after_call(self, call)

  def report(self, metrics: Scalars) -> None:
    """Writes scalars of this step to metrics.jsonl and the trackers."""
    self.reporter.write(self.step, self.experiment.epoch(self.step), metrics)

  def save(self) -> None:
    """Saves the state, and reports where the time went."""
    with self.clock.saving():
      is_new = self.checkpoints.save(
        self.step, self.state, self.results, self._counts()
      )
    if is_new:
      self.report(monitor_lib.train_metrics(self.clock.saved()))

  def rescue(self) -> None:
    """Saves the last good state, which a step that is not finite keeps."""
    step = int(self.state.step)
    self.checkpoints.save(step, self.state, counts=self._counts())
    self.checkpoints.wait()

  def _counts(self) -> dict[str, int]:
    """Returns the counters that a resumed run continues."""
    return dataclasses.asdict(self.monitor.skipped)
