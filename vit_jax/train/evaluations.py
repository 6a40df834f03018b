"""The evaluations within a run: which of `config.evals` are due.

With several processes, each provides its part of every batch, gets the results
of the whole batch, and runs the evaluators; the scalars of process 0 are
reported. All processes hear of a signal at the next batch or step. A single
process also checks for one between the parts of a measurement.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import functools
from typing import Any
from typing import TYPE_CHECKING

import jax
import numpy as np

from vit_jax import config as config_lib
from vit_jax.evaluation import base
from vit_jax.parallel import processes
from vit_jax.train import experiment as experiment_lib
from vit_jax.train import feed
from vit_jax.train import hooks
from vit_jax.train import monitor as monitor_lib
from vit_jax.train import program as program_lib

if TYPE_CHECKING:
  from vit_jax.train.loop import Run

Scalars = dict[str, float]


class _StoppedError(Exception):
  """A signal came during an evaluation."""


class Evaluate(hooks.Hook):
  """Runs the evaluations that are due."""

  def before_call(self, run: 'Run') -> None:
    """Evaluates this step."""
    if run.is_due:
      names = run.experiment.evals_due(run.step)
      run.results = _evaluate(run, names)


class EvaluateRest(hooks.Hook):
  """Runs all other evaluations where a run ends early, and saves."""

  def before_call(self, run: 'Run') -> None:
    """Evaluates the last step."""
    if not run.reason:
      return
    results = run.results or {}
    done = {name.partition('/')[0] for name in results}
    remaining = _evaluate(
      run, [x for x in run.experiment.eval_every if x not in done]
    )
    run.results = None if remaining is None else results | remaining
    run.save()


def _evaluate(run: 'Run', names: Sequence[str]) -> Scalars | None:
  """Runs some evaluations; reports and returns their results.

  Returns None if a signal stopped them.
  """
  with run.clock.paused():
    try:
      return _results(run, names)
    except _StoppedError:
      return None


def _results(run: 'Run', names: Sequence[str]) -> Scalars:
  results: Scalars = {}
  pictures: dict[str, bytes] = {}
  for task, part in run.experiment.parts.items():
    start = f'{task}_' if task else ''
    keys = {
      name: key
      for name in names
      if (key := name.removeprefix(start)) in part.evaluators
      and name.startswith(start)
    }
    if not keys:
      continue
    params = run.experiment.program.part(run.state, task).eval_params
    contexts: dict[program_lib.Program, TrainContext] = {}
    confusions: dict[str, np.ndarray] = {}
    for name, key in keys.items():
      evaluator = part.evaluators[key]
      program = part.program.for_evaluation(evaluator.spec)
      if program not in contexts:
        contexts[program] = TrainContext(
          part, program, params, run.stop, run.watch
        )
      try:
        metrics = evaluator.run(contexts[program])
      except base.EvaluationError as error:
        place = f'config.tasks.{task}' if task else 'config'
        raise base.EvaluationError(f'{place}.evals.{key}: {error}') from None
      if 'confusion' in metrics:
        confusions[name] = metrics.pop('confusion')
      scalars = {f'{name}/{metric}': float(x) for metric, x in metrics.items()}
      results |= processes.call_on_first(functools.partial(dict, scalars))
    if part.config.reporting:  # else nothing shows pictures
      draw = config_lib.wing('vit_jax.train.pictures:evaluation')
      pictures |= draw(run, part, params, keys, confusions)
  if results:
    epoch = run.experiment.epoch(run.step)
    run.reporter.evaluated(run.step, epoch, results)
    for name, png in pictures.items():
      run.reporter.show(run.step, name, png)
  return results


class TrainContext(base.Context):
  """The parameters of a state, on the mesh of the run; see `base.Context`.

  Evaluators that share a split share its embeddings.
  """

  def __init__(
    self,
    experiment: experiment_lib.Experiment,
    program: program_lib.Program,
    params: Any,
    stop: monitor_lib.Stop,
    watch: processes.Watch,
  ):
    self._program = program
    target = self._program.objective.target
    features = experiment.source.features
    super().__init__(features, target[0] if target else None)
    self._params = params
    self._stop = stop
    self._watch = watch
    self._batches: dict[str, Callable[[], feed.Feed]] = {}
    for name, evaluator in experiment.evaluators.items():
      self._batches |= {
        evaluator.spec.split: functools.partial(experiment.eval_batches, name),
        evaluator.train_split: functools.partial(
          experiment.eval_batches, f'{name}.train'
        ),
      }

  def apply(self, function: base.Function, split: str) -> Iterator[Any]:
    """Applies a function to each batch, unless a signal comes.

    A result is fetched while the next one is computed.
    """
    step = self._program.eval_step(function)
    mesh, last = self._program.mesh, None
    signal: Any = np.int32(0)
    with self._batches[split]() as batches:
      for batch in batches:
        monitor_lib.hear(self._stop, batches, signal)  # of the previous batch
        self._check_signal()
        signals = monitor_lib.tell(self._stop, batches, mesh)
        result, signal = step(self._params, batch, signals)
        if last is not None:
          yield jax.device_get(last)
        last = result
        self._watch.alive()
      monitor_lib.hear(self._stop, batches, signal)
    yield jax.device_get(last)

  def compute(self, function: base.Compute, inputs: Any) -> Any:
    """Applies a function to arrays that are no batch."""
    self.alive()
    outputs = self._program.compute(function)(self._params, inputs)
    return jax.device_get(outputs)

  def alive(self) -> None:
    """Called between parts of long work; their number may vary by process."""
    self._watch.alive()
    self._check_signal()

  def _check_signal(self) -> None:
    if self._stop.signal:
      raise _StoppedError
