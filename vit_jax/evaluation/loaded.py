"""The evaluation context of commands, for a loaded model."""

import collections
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import dataclasses
import math
from typing import Any

import jax
import ml_collections
import numpy as np

from vit_jax import config as config_lib
from vit_jax import data
from vit_jax import models
from vit_jax.data import features as features_lib
from vit_jax.data.device import views
from vit_jax.evaluation import base
from vit_jax.parallel import memory
from vit_jax.parallel import mesh as mesh_lib

# Any value, which stays on the host, and arrays [B, ...] by name.
Pair = tuple[Any, Mapping[str, np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Trunk:
  """Stands in for the objective of a model whose objective is not needed."""

  model: models.Model

  def trunk(self, params: Any) -> tuple[models.Model, Any]:
    """Returns the model and its parameters."""
    return self.model, params


class Applied:
  """A model on the devices, to apply functions to batches.

  It uses as many devices as divide the batch.
  """

  def __init__(
    self, objective: Any, params: Any, config: ml_collections.ConfigDict
  ):
    """Copies the parameters to the devices; compiles nothing yet.

    The objective may be a `Trunk`. The config says how images are prepared, and
    the size of the batches, `train.batch_size`.
    """
    mesh_config = config_lib.default().mesh
    mesh_config.data = math.gcd(config.train.batch_size, jax.device_count())
    self._mesh = mesh_lib.make_mesh(mesh_config)
    self._params = jax.device_put(params, mesh_lib.replicated(self._mesh))
    self._objective, self._config = objective, config
    self._compiled: dict[Any, Callable[..., Any]] = {}

  def __call__(
    self,
    function: base.Function,
    features: features_lib.Features,
    batches: Iterable[Pair],
  ) -> Iterator[tuple[Any, Any]]:
    """Applies a function to batches in order; the next one is prefetched.

    Of pairs of a key and a batch, it yields the key and what the function
    returns, as NumPy arrays. Images that all have one size, by their feature,
    are resized on the device, with their maps; others have the model's size.
    """
    compiled = self._compile(function, features)
    waiting: collections.deque[tuple[Any, Any]] = collections.deque()
    for key, batch in batches:
      with memory.explained(memory.BATCHES):
        on_device = mesh_lib.global_batch(batch, self._mesh)
        waiting.append((key, compiled(self._params, on_device)))
      if len(waiting) > 1:
        yield _fetch(*waiting.popleft())
    while waiting:
      yield _fetch(*waiting.popleft())

  def compute(self, function: base.Compute, inputs: Any) -> Any:
    """Applies a function to arrays that are no batch; see `base.Context`."""
    compiled = self._compile(function)
    with memory.explained(memory.BATCHES):
      return jax.device_get(compiled(self._params, inputs))

  def _compile(
    self,
    function: Callable[..., Any],
    features: features_lib.Features | None = None,
  ) -> Callable[..., Any]:
    """Returns (parameters, inputs) -> tree.

    `features` are features of a batch, whose images it prepares; None: the
    inputs are no batch.
    """
    key = function, frozenset((features or {}).items())
    if key not in self._compiled:
      prepare = views.eval_batch(self._config, features) if features else None

      def apply(params: Any, inputs: Any) -> Any:
        inputs = prepare(inputs) if prepare else inputs
        return function(self._objective, params, inputs)

      self._compiled[key] = jax.jit(mesh_lib.in_context(apply, self._mesh))
    return self._compiled[key]


def _fetch(key: Any, outputs: Any) -> tuple[Any, Any]:
  with memory.explained(memory.BATCHES):
    return key, jax.device_get(outputs)


class LoadedContext(base.Context):
  """A loaded model, and splits of any data; see `base.Context`."""

  def __init__(
    self,
    objective: Any,
    params: Any,
    config: ml_collections.ConfigDict,
    sources: Mapping[str, data.Source],
    progress: Callable[[int], object] = lambda _: None,
    label_of: np.ndarray | None = None,
  ):
    """Stores the model, as `Applied`, and the splits.

    Splits, by their names, all have the same features. `progress` is called
    with the number of examples that are done. `label_of` are the positions of
    the data's classes in the model's, int32; None: labels stay as they are.
    """
    target = getattr(objective, 'target', None)  # a `Trunk` has none
    features = next(iter(sources.values())).features
    super().__init__(features, target[0] if target else None)
    self._apply, self._config = Applied(objective, params, config), config
    self._sources, self._progress = sources, progress
    self._label_of = label_of

  def apply(self, function: base.Function, split: str) -> Iterator[Any]:
    """Applies a function to each batch of a split; see `base.Context`."""
    source, size = self._sources[split], self._config.train.batch_size
    with contextlib.closing(
      data.eval_batches(source, self._config, batch_size=size)
    ) as batches:
      pairs = map(self._pair, batches)
      for count, result in self._apply(function, source.features, pairs):
        yield result
        self._progress(count)

  def compute(self, function: base.Compute, inputs: Any) -> Any:
    """Applies a function to arrays that are no batch; see `base.Context`."""
    return self._apply.compute(function, inputs)

  def _pair(self, batch: data.Batch) -> Pair:
    """Returns the number of examples, and the batch with the model's labels."""
    if self._label_of is not None:
      batch = batch | {'label': self._label_of[batch['label']]}
    return int(batch['valid'].sum()), batch
