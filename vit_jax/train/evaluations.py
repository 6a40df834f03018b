"""The evaluations within a run: those of `config.evals` that are due.

The kind 'accuracy' adds up the objective's metrics over a split. All others are
probes (`evaluation.probes`), which are measured on what the model's head reads.

With several processes all do the same: each brings its part of every batch and
gets all embeddings, and each measures the probes. What counts is the result of
process 0. A signal is heard by all at the next batch or step, where there is
one process also between the parts of a measurement.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import functools
from typing import Any

from absl import logging
import jax
import jax.numpy as jnp
import numpy as np

from vit_jax import config as config_lib
from vit_jax.evaluation import embedded
from vit_jax.evaluation import metrics as metrics_lib
from vit_jax.evaluation import probes
from vit_jax.parallel import processes
from vit_jax.parallel import watch as watch_lib
from vit_jax.plots import confusion_sheet
from vit_jax.runs import reporting
from vit_jax.train import experiment as experiment_lib
from vit_jax.train import feed
from vit_jax.train import monitor as monitor_lib

Scalars = dict[str, float]

# (a batch, what this process tells the others) -> the largest signal told.
_Step = Callable[[feed.Batch, jax.Array], jax.Array]


class EvaluationError(Exception):
  """An evaluation cannot be made of these data."""


class _StoppedError(Exception):
  """A signal came midway."""


def evaluate(
  experiment: experiment_lib.Experiment,
  state: experiment_lib.TrainState,
  step: int,
  names: Sequence[str],
  reporter: reporting.Reporter,
  stop: monitor_lib.Stop,
  watch: watch_lib.Watch,
) -> Scalars | None:
  """Runs some evaluations; reports and returns their results.

  Args:
    experiment: What runs.
    state: Whose parameters to evaluate.
    step: Number of completed updates.
    names: Of the evaluations, as `experiment.evals_due` returns them.
    reporter: Of the results.
    stop: Asks to end midway.
    watch: Is told of each batch.

  Returns:
    Scalars such as `val/accuracy`; None where it was stopped midway.

  Raises:
    BrokenBatchError: A process could not make its part of a batch.
    EvaluationError: A probe has too few examples, or others than it may have.
  """
  evaluator = _Evaluator(experiment, state.eval_params, stop, watch)
  results: Scalars = {}
  for name in names:
    try:
      found = evaluator.evaluate(name)
    except _StoppedError:
      return None
    results |= {f'{name}/{metric}': value for metric, value in found.items()}
  if results:
    reporter.write(step, experiment.epoch(step), results)
    for name, counts in evaluator.confusion.items():
      title = f'{name}, step {step}'
      names = experiment.source.classes
      if len(names) != len(counts):  # the objective has classes of its own
        names = tuple(map(str, range(len(counts))))
      png = confusion_sheet.encode(counts, names, title)
      reporter.show(step, f'{name}/confusion', png)
    logging.info('evaluated at step %d: %s', step, show(results))
  return results


def show(results: Mapping[str, float | None]) -> str:
  """Returns results for people."""
  shown = [
    f'{name} {"nan" if x is None else reporting.text(x)}'
    for name, x in results.items()
  ]
  return ', '.join(shown) or 'nothing was evaluated'


class _Evaluator:
  """Evaluates one state, and embeds each split once.

  Attributes:
    confusion: Of evaluations whose objective counts it, int32 [K, K] by label
      and answer.
  """

  def __init__(
    self,
    experiment: experiment_lib.Experiment,
    params: Any,
    stop: monitor_lib.Stop,
    watch: watch_lib.Watch,
  ):
    self._experiment = experiment
    self._params = params
    self._stop = stop
    self._watch = watch
    self._embedded: dict[str, embedded.Embedded] = {}
    self.confusion: dict[str, np.ndarray] = {}

  def evaluate(self, name: str) -> Scalars:
    """Returns the metrics of one evaluation."""
    if self._experiment.config.evals[name].kind == 'accuracy':
      return self._metrics(name)
    return self._probe(name)

  def _metrics(self, name: str) -> Scalars:
    """Returns the objective's metrics of a split."""
    collect = _Collect(self._experiment.program.eval_step, self._params)
    self._each(self._experiment.eval_batches(name), collect)
    first, *rest = collect.results()
    total = functools.reduce(lambda total, x: total.merge(x), rest, first)
    metrics = total.compute()
    if 'confusion' in metrics:
      self.confusion[name] = np.asarray(metrics.pop('confusion'))
    return metrics_lib.scalars(metrics, self._experiment.source.features)

  def _probe(self, name: str) -> Scalars:
    """Returns the metrics of a probe."""
    e = self._experiment
    spec, classes = e.config.evals[name], e.source.classes
    train = self._embed(spec.train_split, lambda: e.probe_batches(name))
    test = self._embed(spec.split, lambda: e.eval_batches(name))
    try:
      probes.check_examples(
        spec, train.labels, train.index, test.labels, test.index, classes
      )
      found = probes.measure(spec, train, test, self._go_on)
    except config_lib.UserError as error:
      raise EvaluationError(f'config.evals.{name}: {error}') from None
    return processes.call_on_first(lambda: found)

  def _embed(
    self, split: str, batches: Callable[[], feed.Feed]
  ) -> embedded.Embedded:
    """Returns a split's examples; those of several probes are made once."""
    if split not in self._embedded:
      collect = _Collect(self._experiment.program.embed_step, self._params)
      self._each(batches(), collect)
      self._embedded[split] = embedded.join(
        [
          embedded.Embedded.of_batch(batch['features'], batch)
          for batch in collect.results()
        ]
      )
    return self._embedded[split]

  def _each(self, batches: feed.Feed, step: _Step) -> None:
    """Makes a step with each batch, unless a signal comes."""
    mesh, signal = self._experiment.program.mesh, jnp.int32(0)
    with batches:
      for batch in batches:
        monitor_lib.hear(self._stop, batches, signal)  # at the batch before
        self._check_signal()
        told = monitor_lib.tell(self._stop, batches, mesh)
        signal = step(batch, told)
        self._watch.alive()
      monitor_lib.hear(self._stop, batches, signal)

  def _go_on(self) -> None:
    """Between parts of long work, of which a process may have more or less."""
    self._watch.alive()
    self._check_signal()

  def _check_signal(self) -> None:
    if self._stop.signal:
      raise _StoppedError


class _Collect:
  """Applies a step to batches; fetches each while the next one is computed."""

  def __init__(self, step: Any, params: Any):
    self._step, self._params = step, params
    self._last: Any = None
    self._found: list[Any] = []

  def __call__(self, batch: feed.Batch, told: jax.Array) -> jax.Array:
    result, signal = self._step(self._params, batch, told)
    self._fetch()
    self._last = result
    return signal

  def results(self) -> list[Any]:
    """Returns what the step gave for each batch, with arrays of NumPy."""
    self._fetch()
    return self._found

  def _fetch(self) -> None:
    if self._last is not None:
      self._found.append(jax.device_get(self._last))
      self._last = None
