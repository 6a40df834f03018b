"""What a config comes to: checked, with its data, model and compiled steps."""

import collections
from collections.abc import Callable
from collections.abc import Generator
import concurrent.futures
import contextlib
import dataclasses
import fractions
import functools
import signal
from typing import Any

from absl import logging
from clu import metrics
from clu import parameter_overview
import jax
import ml_collections
import numpy as np

from vit_jax import config as config_lib
from vit_jax import cost
from vit_jax import data
from vit_jax import models
from vit_jax import objectives
from vit_jax import optim
from vit_jax import sharding
from vit_jax import train_step as train_step_lib
from vit_jax.data import device
from vit_jax.optim import rules as rules_lib
from vit_jax.weights import initial

TrainState = train_step_lib.TrainState
# For what runs once: LLVM takes half the time, and the result as long to run.
_QUICK = {'xla_backend_optimization_level': 1}
GlobalBatches = Generator[dict[str, jax.Array], None, None]


def check(config: ml_collections.ConfigDict) -> None:
  """Lets each layer check its part of a config, before anything slow.

  Raises:
    UserError: Something cannot work; one line says what to change.
  """
  config_lib.check(config)
  data.check(config)
  optim.check(config)
  objectives.check(config)
  initial.check(config)
  sharding.check(config)
  if config.model.name != config_lib.INIT_FROM:  # else known when that is read
    _check_model(config)


def _check_model(config: ml_collections.ConfigDict) -> None:
  image_size = config_lib.pair(config.data.image_size, 'data.image_size')
  try:
    models.check(config.model, image_size, config.data.channels)
  except ValueError as e:
    raise config_lib.UserError(f'config.model: {e}') from None


@dataclasses.dataclass(frozen=True)
class Experiment:
  """What the loop runs.

  Attributes:
    config: With what the data decide filled in.
    source: Training examples.
    eval_sources: By the evaluation's name.
    mesh: Of devices.
    start: The checkpoint that parameters come from, where there is one.
    initialise: (params, or None: random ones) -> state, on the mesh.
    train_step: (state, batch, step) -> (state, metrics); the state is donated.
    no_metrics: Returns the metrics of no batch at all, on the mesh.
    eval_step: (params, batch, metrics) -> metrics, with those of the batch.
    total_steps: Of the whole run.
    log_every: In steps, as the other cadences.
    checkpoint_every: In steps, or None.
    checkpoint_keep_every: In steps, or None.
    eval_every: By the evaluation's name; None is at the end alone.
    rules: What trains, and how.
  """

  config: ml_collections.ConfigDict
  source: data.Source
  eval_sources: dict[str, data.Source]
  mesh: jax.sharding.Mesh
  start: initial.Start
  initialise: Callable[[Any], TrainState]
  train_step: Any
  no_metrics: Callable[[], metrics.Collection]
  eval_step: Any
  total_steps: int
  log_every: fractions.Fraction
  checkpoint_every: fractions.Fraction | None
  checkpoint_keep_every: fractions.Fraction | None
  eval_every: dict[str, fractions.Fraction | None]
  rules: rules_lib.Rules

  @functools.cached_property
  def flops(self) -> cost.StepFlops:
    """Of the matrix products in one step, on all devices together."""
    return cost.step_flops(self.config, self.abstract_state().params)

  def init(self) -> TrainState:
    """Returns the state before the first step."""
    return self.initialise(self.start.take())

  def epoch(self, step: int) -> float:
    """Returns how often each example was seen after `step` updates."""
    return step * self.config.train.batch_size / len(self.source)

  def evals_due(self, step: int) -> list[str]:
    """Returns the names of the evaluations at a step; all are at the end."""
    return [
      name
      for name, every in self.eval_every.items()
      if step == self.total_steps or config_lib.is_due(step, every)
    ]

  def log_due(self, step: int) -> bool:
    """Whether to report a step; always the first and the last."""
    due = config_lib.is_due(step, self.log_every)
    return due or step in (1, self.total_steps)

  def is_due(self, step: int) -> bool:
    """Whether an evaluation or a checkpoint is due at a step."""
    return bool(self.evals_due(step)) or self.checkpoint_due(step)

  def checkpoint_due(self, step: int) -> bool:
    """Whether to save at a step; always at the end."""
    due = config_lib.is_due(step, self.checkpoint_every)
    return due or step == self.total_steps

  def abstract_state(self) -> TrainState:
    """Returns the state's shapes, types and shardings."""
    sharded = sharding.state_sharding(self.mesh)
    return jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharded),
      jax.eval_shape(self.initialise, None),
    )

  def train_batches(self, start: int) -> GlobalBatches:
    """Yields the global batches of steps `start` to the end, on the devices."""
    batches = data.train_batches(
      self.source,
      self.config,
      start_step=start,
      num_steps=self.total_steps,
      host_index=jax.process_index(),
      host_count=jax.process_count(),
    )
    return _prefetch(batches, self.mesh)

  def eval_batches(self, name: str) -> GlobalBatches:
    """Yields one evaluation's global batches, on the devices."""
    train = self.config.train
    batches = data.eval_batches(
      self.eval_sources[name],
      self.config,
      batch_size=train.batch_size // train.accumulation,
      host_index=jax.process_index(),
      host_count=jax.process_count(),
    )
    return _prefetch(batches, self.mesh)


def build(
  config: ml_collections.ConfigDict, resumes: bool = False
) -> Experiment:
  """Opens the data and makes the model and the steps; compiles nothing yet.

  Args:
    config: Checked; is not changed.
    resumes: Whether the run has begun already: then the checkpoint that it
      started from is not read again, unless there is no other.

  Raises:
    UserError: The data are not there or do not fit.
  """
  config = config.copy_and_resolve_references()
  source = _open(config, 'data.split')
  eval_sources = {
    name: _open(config, f'evals.{name}.split')
    for name, spec in config.evals.items()
    if spec.split
  }
  _fill_num_classes(config, source)
  total, warmup = _num_steps(config, len(source))
  loaded = None
  if config.init_from.path and not resumes:
    loaded = initial.load(config)
  initial.fill(config, loaded)
  _check_model(config)
  start = initial.Start(config, source.classes, loaded)
  train, batch_size = config.train, config.train.batch_size

  def steps(text: str) -> fractions.Fraction | None:
    return config_lib.period(text, len(source), batch_size) if text else None

  mesh = sharding.make_mesh(config)
  replicated = sharding.state_sharding(mesh)
  objective = objectives.create(
    config,
    device.train_transform(config, source.image_shape),
    device.eval_transform(config, source.image_shape),
  )
  optimizer = optim.make_optimizer(config.optim)
  schedule = optim.make_schedule(config.optim, total, warmup)
  rules = _make_rules(config, objective)
  _warn_of_zero_head(config, rules, start)
  train_step = train_step_lib.make_train_step(
    config, objective, optimizer, schedule, rules
  )
  return Experiment(
    config=config,
    source=source,
    eval_sources=eval_sources,
    mesh=mesh,
    start=start,
    initialise=jax.jit(
      lambda params: train_step_lib.init_state(
        config, objective, optimizer, rules, params
      ),
      out_shardings=replicated,
      compiler_options=_QUICK if jax.default_backend() == 'cpu' else None,
    ),
    train_step=jax.jit(train_step, donate_argnums=0, out_shardings=replicated),
    no_metrics=lambda: jax.device_put(objective.no_metrics(), replicated),
    eval_step=jax.jit(
      lambda params, batch, total: total.merge(
        objective.metrics(params, batch)
      ),
      out_shardings=replicated,
    ),
    total_steps=total,
    log_every=config_lib.period(train.log_every, len(source), batch_size),
    checkpoint_every=steps(config.checkpoint.every),
    checkpoint_keep_every=steps(config.checkpoint.keep_every),
    eval_every={name: steps(config.evals[name].every) for name in eval_sources},
    rules=rules,
  )


def describe(experiment: Experiment) -> None:
  """Logs the model as a table, the data and the devices."""
  e = experiment
  params = e.abstract_state().params
  logging.info(
    '%s', parameter_overview.get_parameter_overview(params, include_stats=False)
  )
  logging.info('%s', rules_lib.table(e.rules))
  logging.info('%s', cost.show(e.flops, e.config.train.batch_size))
  logging.info(
    'training on %s: %d examples, %d classes (%s)',
    e.config.data.split,
    len(e.source),
    len(e.source.classes),
    config_lib.some(e.source.classes, 10),
  )
  for name, source in e.eval_sources.items():
    split = e.config.evals[name].split
    logging.info('evaluating %s on %s: %d examples', name, split, len(source))
  devices = list(e.mesh.devices.flat)
  logging.info(
    'devices: %d x %s in %d process(es)',
    len(devices),
    devices[0].device_kind,
    jax.process_count(),
  )
  logging.info(
    '%d steps of %d images: %.1f epochs',
    e.total_steps,
    e.config.train.batch_size,
    e.epoch(e.total_steps),
  )


def dry_run(experiment: Experiment) -> dict[str, float]:
  """Compiles a step without running it, and returns its sizes.

  Returns:
    parameters (a count), GFLOP a step, and GiB a device: the state, the
    temporary values of the step and their sum.
  """
  e = experiment
  state = e.abstract_state()
  with contextlib.closing(e.train_batches(0)) as batches:
    lowered = e.train_step.lower(state, next(batches), np.int32(0))
  temporary = lowered.compile().memory_analysis().temp_size_in_bytes
  state_bytes = _bytes(state)
  return {
    'parameters': sum(x.size for x in jax.tree.leaves(state.params)),
    'gflop_per_step': e.flops.step / 1e9,
    'state_gib': state_bytes / 2**30,
    'temporary_gib': temporary / 2**30,
    'total_gib': (state_bytes + temporary) / 2**30,
  }


def plan_memory(experiment: Experiment) -> dict[str, float]:
  """Compiles a step without running it, and returns what it needs.

  Returns:
    GiB a device, as this backend's compiler plans it: parameters, gradients
    (of what trains), optimizer, average (of the parameters), activations (and
    all else that is temporary), and their sum, total.
  """
  state = experiment.abstract_state()
  temporary = dry_run(experiment)['temporary_gib']
  gradients = _bytes(experiment.rules.trained(state.params)) / 2**30
  plan = {
    'parameters': _bytes(state.params) / 2**30,
    'gradients': min(gradients, temporary),  # a compiler may fuse them away
    'optimizer': _bytes(state.opt_state) / 2**30,
    'average': _bytes(state.ema_params) / 2**30,
    'activations': max(temporary - gradients, 0.0),
  }
  return plan | {'total': sum(plan.values())}


def _bytes(tree: Any) -> int:
  return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def _open(config: ml_collections.ConfigDict, key: str) -> data.Source:
  """Opens the split that a key names; errors about it name the key."""
  try:
    return data.open_source(config, dict(config_lib.flatten(config))[key])
  except data.SplitError as e:
    raise config_lib.UserError(f'config.{key}: {e}') from None


def _fill_num_classes(
  config: ml_collections.ConfigDict, source: data.Source
) -> None:
  found, wanted = len(source.classes), config.model.num_classes
  if wanted is None:
    config.model.num_classes = found
  elif wanted < found:
    raise config_lib.UserError(
      f'config.model.num_classes is {wanted}, but {config.data.name} has'
      f' {found} classes: leave it out, or make it at least {found}'
    )


def _num_steps(
  config: ml_collections.ConfigDict, examples: int
) -> tuple[int, int]:
  """Returns the steps of the whole run, and of its warm-up."""
  duration, batch_size = config.train.duration, config.train.batch_size
  total = config_lib.num_steps(duration, examples, batch_size)
  warmup = config_lib.num_steps(config.optim.warmup, examples, batch_size)
  if warmup >= total:
    raise config_lib.UserError(
      f'config.optim.warmup={config.optim.warmup!r} is {warmup} steps, but'
      f' config.train.duration={duration!r} is only {total}: shorten the'
      " warm-up, as in --config.optim.warmup='0 steps'"
    )
  return total, warmup


def _warn_of_zero_head(
  config: ml_collections.ConfigDict,
  rules: rules_lib.Rules,
  start: initial.Start,
) -> None:
  """Warns of a frozen head of zeros: it lets no gradient pass."""
  head = rules.parameters.get('head/kernel')
  is_zero = start.has_fresh_head
  if not config.init_from.path:
    is_zero = config.model.initializers != 'lecun'
  if head and not head.trains and is_zero:
    logging.warning(
      'warning: the head is new and all zeros, and does not train, so that'
      ' nothing else learns: let it train, as in'
      " --config.optim.trainable='%s|^head/'",
      config.optim.trainable or 'norm',
    )


def _make_rules(
  config: ml_collections.ConfigDict, objective: objectives.Objective
) -> rules_lib.Rules:
  params = jax.eval_shape(objective.init, jax.random.key(0))
  return rules_lib.make(config.optim, params)


def _block_signals() -> None:
  """Keeps this thread, and the processes it starts, from being interrupted.

  A terminal sends Ctrl-C to all processes; whether to stop is the main thread's
  decision, and until then it needs its batches.
  """
  signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))


def _prefetch(batches: data.Batches, mesh: jax.sharding.Mesh) -> GlobalBatches:
  """Keeps two batches on their way to the devices, in a thread of its own."""

  def fetch() -> dict[str, jax.Array] | None:
    batch = next(batches, None)
    return None if batch is None else sharding.global_batch(batch, mesh)

  with (
    contextlib.closing(batches),
    concurrent.futures.ThreadPoolExecutor(
      1, initializer=_block_signals
    ) as thread,
  ):
    queue = collections.deque(thread.submit(fetch) for _ in range(2))
    while (batch := queue.popleft().result()) is not None:
      queue.append(thread.submit(fetch))
      yield batch
