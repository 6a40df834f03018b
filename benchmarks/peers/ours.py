"""Our formulation of the model, with the interface of the others."""

from collections.abc import Callable
import functools
from typing import Any

import jax
import numpy as np

from benchmarks.peers import base
from vit_jax import data
from vit_jax import models
from vit_jax.data.device import views
from vit_jax.models import layouts
from vit_jax.models import vit
from vit_jax.train import experiment as experiment_lib
from vit_jax.train import program as program_lib


def waiting(call: Callable[[], Any], count: int) -> Any:
  """Calls a JAX function `count` times; returns its last result when ready.

  On accelerators, calls are dispatched ahead, as in a train loop. On the CPU,
  concurrent calls would compete for the cores.
  """
  each = jax.default_backend() == 'cpu'
  for i in range(count):
    result = call()
    if each or i == count - 1:
      jax.block_until_ready(result)
  return result


class Training:
  """The train step of a program, on one batch again and again.

  Attributes:
    batch: The batch on the device, as it comes from the host.
    state: The current train state.
    step: Number of steps that were taken.
    compiler_options: Options for the step; set them before it is compiled.
  """

  def __init__(self, program: program_lib.Program, state: Any, batch: Any):
    """Starts from a state; compiles nothing yet."""
    self._program, self.batch = program, batch
    self.state, self.step = state, 0
    self.compiler_options: dict[str, Any] = {}

  @functools.cached_property
  def compiled_step(self) -> Any:
    """The compiled train step."""
    step = self._program.train_step
    lowered = step.lower(self.state, self.batch, np.int32(0))
    return lowered.compile(self.compiler_options)

  def train(self, count: int) -> float:
    """Takes training steps; see `base`."""
    compiled = self.compiled_step

    def one_step() -> Any:
      self.state, metrics = compiled(
        self.state, self.batch, np.int32(self.step)
      )
      self.step += 1
      return metrics

    return float(waiting(one_step, count)['loss'])


class Ours(Training, base.Peer):
  """The model and the step of an experiment, as the train loop runs them.

  Attributes:
    experiment: The experiment.
    images: Images for `forward`, float32 [B, H, W, C].
    model: The module.
  """

  name = 'vit_jax'

  def __init__(self, experiment: experiment_lib.Experiment, batch: Any):
    """Initialises the parameters; does not compile the model yet."""
    super().__init__(experiment.program, experiment.init(), batch)
    config, source = experiment.config, experiment.source
    self.experiment = experiment
    prepare = views.eval_transform(config, source.image_shape)
    self.images = jax.jit(prepare)(batch['image'])
    self.model = models.from_config(
      config.model, config.model.num_classes, config.train.dtype
    )

  def task(self) -> base.Task:
    """Returns the task for another formulation, with the same parameters."""
    config, model = self.experiment.config, self.model
    assert isinstance(model, vit.ViT)
    # A copy, since each step donates its state.
    params = jax.tree.map(np.array, self.state.params)
    if 'blocks' in params:
      params = layouts.unstack_layers(params)
    return base.Task(
      model=model.clone(scan=False, remat='none'),
      params=params,
      images=np.array(self.images),
      labels=np.array(self.batch['label']),
      optim=config.optim,
      preprocess=data.Preprocess.from_config(
        config, self.experiment.source.features
      ),
    )

  @functools.cached_property
  def compiled_forward(self) -> Any:
    """The compiled forward pass: (params, images) -> logits."""
    apply = jax.jit(lambda params, x: self.model.apply({'params': params}, x))
    return apply.lower(self.state.params, self.images).compile()

  def logits(self) -> np.ndarray:
    """Returns the logits of the batch; see `base`."""
    logits = self.compiled_forward(self.state.params, self.images)
    return np.asarray(logits, np.float32)

  def forward(self, count: int) -> None:
    """Classifies the batch some times; see `base`."""
    forward, params = self.compiled_forward, self.state.params
    waiting(lambda: forward(params, self.images), count)
