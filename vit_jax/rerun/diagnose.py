"""Finds non-finite and large values in each layer of a training step.

The model is always unrolled here: the function is the same as with scan, and
each layer has a name. In comments: B images, E events.
"""

from collections.abc import Callable
import dataclasses
import functools
from typing import Any
from typing import NamedTuple

import flax
from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from vit_jax import config as config_lib
from vit_jax import objectives
from vit_jax.data import features as features_lib
from vit_jax.data.device.rng import Rng
from vit_jax.models import layouts
from vit_jax.models import stack
from vit_jax.parallel import mesh as mesh_lib
from vit_jax.train import experiment as experiment_lib
from vit_jax.train import program as program_lib
from vit_jax.train import state as state_lib
from vit_jax.train import step as train_step_lib

_MOST_IMAGES = 64  # to draw


class Event(NamedTuple):
  """The input or the output of a module."""

  path: str  # path of the module, as `blocks_0/mlp`; '': the whole model
  phase: str  # 'input' or 'output'
  by_example: bool  # whether each value belongs to one example of the batch


class Values(NamedTuple):
  """Statistics of an array."""

  bad: Any  # number of values that are not finite
  largest: Any  # the largest finite absolute value


@dataclasses.dataclass(frozen=True)
class Findings:
  """Statistics of the values that one step computes."""

  # Events of the forward pass, in the order of computation.
  events: tuple[Event, ...]
  # int32 [E, B], number of values of an example that are not finite. If
  # values belong to no single example, all examples have the same number.
  bad: np.ndarray
  largest: np.ndarray  # float32 [E], largest finite absolute value
  # Statistics by stage, then by path in the unrolled model. Stages are the
  # `parameters` before the step and, for trainable parameters, the
  # `gradient`, the state of the `optimizer` after the step, and the
  # `parameters_after`.
  arrays: dict[str, dict[str, Values]]
  index: np.ndarray  # int32 [B], ids of the examples
  # Targets [B, ...] by feature name; for mixed images a label is weights of
  # the classes, float32 [B, classes].
  targets: dict[str, np.ndarray]
  # Rows of the batch in `images`. If not all fit, examples of the first bad
  # event come first.
  drawn: list[int]
  images: np.ndarray  # float32 [len(drawn), H, W, C], input of the model


@flax.struct.dataclass
class _Summary:
  """Values of arrays, by their names or by events, under jit."""

  names: tuple[Any, ...] = flax.struct.field(pytree_node=False)
  bad: jax.Array
  largest: jax.Array

  def to_dict(self) -> dict[str, Values]:
    bad, largest = (np.asarray(x).tolist() for x in (self.bad, self.largest))
    summaries = map(Values, bad, largest)
    return dict(zip(self.names, summaries, strict=True))


def examine(
  e: experiment_lib.Experiment,
  state: state_lib.TrainState,
  batch: objectives.Batch,
  step: int,
) -> Findings:
  """Examines the step after some completed updates; keeps the state."""
  mesh = e.program.mesh
  everywhere = mesh_lib.replicated(mesh)
  trace, fed, targets = jax.jit(
    _forward(e, step),
    out_shardings=(everywhere, mesh_lib.batch_sharding(mesh), everywhere),
  )(state.params, state.extra, batch, np.int32(step))
  setup = e.program.variant(step).setup

  def backward(
    state: state_lib.TrainState, batch: objectives.Batch, step: jax.Array
  ) -> dict[str, _Summary]:
    _, _, update = train_step_lib.train_step(setup, state, batch, step)
    trees = {
      'parameters': state.params,
      'gradient': update.grads,
      'optimizer': update.opt_state,
      'parameters_after': update.params,
    }
    return {name: _by_path(tree) for name, tree in trees.items()}

  arrays = jax.jit(backward, out_shardings=everywhere)(
    state, batch, np.int32(step)
  )
  bad = np.asarray(trace.bad)
  first = next((count for count in bad if count.any()), bad[0])
  drawn = list(range(len(first)))
  if len(drawn) > _MOST_IMAGES:
    drawn = sorted(drawn, key=lambda i: not first[i])[:_MOST_IMAGES]
  images, index, targets = jax.jit(
    lambda fed, rows, *batch_rest: (fed[rows], *batch_rest),
    out_shardings=everywhere,
  )(fed, np.array(drawn), batch['index'], targets)
  return Findings(
    events=trace.names,
    bad=bad,
    largest=np.asarray(trace.largest),
    arrays={stage: values.to_dict() for stage, values in arrays.items()},
    index=np.asarray(index),
    targets=jax.tree.map(np.asarray, targets),
    drawn=drawn,
    images=np.asarray(images),
  )


def _forward(
  e: experiment_lib.Experiment, number: int
) -> Callable[..., tuple[_Summary, jax.Array, Any]]:
  """Returns a function that computes a step's loss and examines each module.

  After `number` updates, (parameters, extra, batch, step) gives the trace, the
  input images of the model, float32 [B, H, W, C], and their targets.
  """
  config = e.config.copy_and_resolve_references()
  config.model.scan, config.model.remat = False, 'none'
  parts = config_lib.num_microbatches(config)
  features = e.source.features
  program = program_lib.create(config, features, e.program.lengths)
  setup = program.variant(number).setup
  objective = setup.objective

  def run(
    params: Any, extra: Any, batch: objectives.Batch, step: jax.Array
  ) -> tuple[_Summary, jax.Array, Any]:
    like = jax.eval_shape(objective.init, jax.random.key(0))
    params = layouts.relayout(params, like)
    extra = layouts.relayout(extra, jax.eval_shape(objective.init_extra, like))
    key = state_lib.step_key(config.seed, step)

    def one_part(_: None, part: Any) -> tuple[None, Any]:
      batch, rows = part
      rng, recorder = Rng(key, rows), _Recorder(len(rows))
      with nn.intercept_methods(recorder.intercept):
        setup.loss(params, extra, batch, rng)
      fed = setup.views(batch, rng)
      targets = {name: fed[name] for name in features_lib.targets(features)}
      return None, (recorder.trace(), recorder.images, targets)

    rows = jnp.arange(len(batch['index']), dtype=jnp.int32)
    split = mesh_lib.split_rows((batch, rows), parts)
    _, (trace, *fed) = jax.lax.scan(one_part, None, split)
    bad = mesh_lib.join_rows(trace.bad.swapaxes(1, 2)).T  # of [parts, E, ...]
    largest = trace.largest.max(axis=0)
    images, targets = jax.tree.map(mesh_lib.join_rows, fed)
    return _Summary(trace.names, bad, largest), images, targets

  return run


class _Recorder:
  """Examines the input and the output of each Linen module.

  Only the first model that is applied is examined, not a teacher.

  Attributes:
    images: The input of the whole model.
  """

  def __init__(self, batch_size: int):
    self._batch_size = batch_size
    self._events: list[Event] = []
    self._values: list[Values] = []
    self._root: Any = None
    self._open: set[str] = set()  # paths of the modules that are being called
    self.images: jax.Array | None = None

  def intercept(
    self,
    call: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    context: nn.module.InterceptorContext,
  ) -> Any:
    scope = context.module.scope
    assert scope is not None  # bound, since it is called
    root = scope.root
    self._root = self._root or root
    if context.method_name != '__call__' or root is not self._root:
      return call(*args, **kwargs)
    path = '/'.join(context.module.path)
    if path in self._open:  # a part that shares the scope of its model
      return call(*args, **kwargs)
    if not path:
      self.images = args[0]
    self._note(path, 'input', args)
    self._open.add(path)
    result = call(*args, **kwargs)
    self._open.remove(path)
    self._note(path, 'output', result)
    return result

  def trace(self) -> _Summary:
    shape = (self._batch_size,)
    bad = [jnp.broadcast_to(values.bad, shape) for values in self._values]
    largest = [values.largest.max() for values in self._values]
    return _Summary(tuple(self._events), jnp.stack(bad), jnp.stack(largest))

  def _note(self, path: str, phase: str, tree: Any) -> None:
    arrays = [
      x
      for x in jax.tree.leaves(tree)
      if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jnp.floating)
    ]
    if not arrays:
      return
    by_example = all(x.ndim and len(x) == self._batch_size for x in arrays)
    self._events.append(Event(path, phase, by_example))
    bad, largest = zip(
      *(_look(x, range(by_example, x.ndim)) for x in arrays), strict=True
    )
    total = functools.reduce(jnp.maximum, largest)
    self._values.append(Values(sum(bad), total))


def _by_path(tree: Any) -> _Summary:
  names: list[str] = []
  summaries = []
  for path, x in jax.tree_util.tree_leaves_with_path(tree):
    layers, is_stacked = stack.layer_names(path, x)
    names += layers
    summaries.append(_look(x, range(is_stacked, x.ndim)))
  bad, largest = (
    jnp.concatenate([jnp.atleast_1d(x) for x in xs])
    for xs in zip(*summaries, strict=True)
  )
  return _Summary(tuple(names), bad, largest)


def _look(x: jax.Array, axes: range) -> Values:
  finite = jnp.isfinite(x)
  sizes = jnp.where(finite, jnp.abs(x), 0).astype(jnp.float32)
  return Values(
    (~finite).sum(tuple(axes), dtype=jnp.int32),
    sizes.max(tuple(axes), initial=0),
  )
