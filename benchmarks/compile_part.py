"""The compiled train step of ours and of the plain formulation.

Both are compiled in one process, by the compiler of a TPU or GPU that is not
here; see `ahead.step`.
"""

from collections.abc import Mapping
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections

from benchmarks import plain as plain_lib
from benchmarks.peers import baseline
from vit_jax import config as config_lib
from vit_jax import models
from vit_jax.ahead import compiled as compiled_lib
from vit_jax.ahead import plan as plan_lib
from vit_jax.ahead import step as ahead
from vit_jax.models import vit
from vit_jax.parallel import mesh as mesh_lib
from vit_jax.parallel import topologies

Entry = dict[str, Any]


def measure(
  config: ml_collections.ConfigDict, topology: topologies.Topology
) -> Entry:
  """Returns the part's entry: `ours`, `plain`, and the ratios of the two.

  Each has `temporary_gib`, `accessed_gb`, `tflop` and `copies`, of one device;
  the ratio to 0 is None.

  Args:
    config: The config of the model; its batch size is that of one device.
    topology: The devices, which split the batch.

  Raises:
    UserError: The compiler is missing or does not know the topology, or a step
      does not fit.
  """
  config = config.copy_and_resolve_references()
  config.train.batch_size *= topology.size
  config.mesh.data = topology.size
  return ahead.ask('benchmarks.compile_part', config, topology)


def compare(
  config: ml_collections.ConfigDict,
  topology: topologies.Topology,
  folder: str,
) -> Entry:
  """Returns what `measure` returns, compiled in this process.

  Args:
    config: The config, for all devices.
    topology: The devices.
    folder: Where XLA writes the programs; see `compiled.dump_flags`.
  """
  program = plan_lib.make_program(config, topologies.devices(topology))
  steps = {
    'ours': plan_lib.lower(program),
    'plain': _lower_plain(config, program.mesh),
  }
  entry: Entry = {'hardware': str(topology), 'devices': topology.size}
  for name, lowered in steps.items():
    entry[name] = _cost(name, lowered, topology, folder)
  entry['ratios'] = {
    key: ours / entry['plain'][key] if entry['plain'][key] else None
    for key, ours in entry['ours'].items()
  }
  return entry


def _lower_plain(
  config: ml_collections.ConfigDict, mesh: jax.sharding.Mesh
) -> Any:
  """Lowers the step of the plain formulation for a global batch."""
  model = models.from_config(
    config.model, config.model.num_classes, config.train.dtype
  )
  assert isinstance(model, vit.ViT)
  plain = baseline.make_model(model)
  optim = baseline.adamw_values(config.optim)
  size = config_lib.pair(config.data.image_size, 'data.image_size')
  shape = (config.train.batch_size, *size, config.data.channels)

  def init(images: jax.Array) -> Any:
    params = plain.init(jax.random.key(0), images)['params']
    return plain_lib.make_train_step(plain, params, optim)[0]

  one = jax.ShapeDtypeStruct((1, *shape[1:]), jnp.float32)
  state = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(
      x.shape, x.dtype, sharding=mesh_lib.replicated(mesh)
    ),
    jax.eval_shape(init, one),
  )
  split = mesh_lib.batch_sharding(mesh)
  nothing: Mapping[str, Any] = {}  # only the state has parameters
  step: Any = plain_lib.make_train_step(plain, nothing, optim)[1]
  return step.lower(
    state,
    jax.ShapeDtypeStruct(shape, jnp.float32, sharding=split),
    jax.ShapeDtypeStruct(shape[:1], jnp.int32, sharding=split),
    jax.eval_shape(lambda: jax.random.key(0)),
  )


def _cost(
  name: str, lowered: Any, topology: topologies.Topology, folder: str
) -> Entry:
  try:
    compiled = lowered.compile()
  except jax.errors.JaxRuntimeError as e:
    if 'RESOURCE_EXHAUSTED' not in str(e):
      raise
    said = config_lib.one_line(e)[:200]
    raise config_lib.UserError(
      f'the step of {name} does not fit {topology}: {said}'
    ) from None
  module = compiled_lib.parse(compiled, folder)
  found = compiled_lib.cost(compiled, module, topology.hardware)
  cost = dataclasses.asdict(found)
  kept = 'temporary_gib accessed_gb traffic_gb tflop copies seconds'
  return {key: cost[key] for key in kept.split()}


if __name__ == '__main__':
  ahead.answer(compare)
