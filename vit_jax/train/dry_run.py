"""Compiles the step of a config without running it, and returns its sizes."""

import json

import jax
import ml_collections

from vit_jax import config as config_lib
from vit_jax.parallel import processes
from vit_jax.parallel import sharding
from vit_jax.train import accumulation
from vit_jax.train import experiment as experiment_lib
from vit_jax.train import program as program_lib
from vit_jax.train import start


def run(config: ml_collections.ConfigDict, verbose: bool) -> dict[str, float]:
  """Compiles a step of a config; prints its sizes as JSON, and returns them."""
  experiment = experiment_lib.create(config)
  for part in experiment.parts.values():
    part.cache.check()
  if config.train.accumulation == config_lib.AUTO:
    experiment = accumulation.choose(experiment)
  start.log_facts(experiment, verbose=verbose)
  compiled = experiment.program.compile()
  sizes = _sizes(experiment.program, compiled)
  if processes.first():
    print(json.dumps(sizes))
  start.check_memory(experiment, compiled, has_state=False)
  return sizes


def _sizes(
  program: program_lib.Program, compiled: jax.stages.Compiled
) -> dict[str, float]:
  """Returns the sizes of a step.

  They are parameters (a count), GFLOP a step, and GiB a device: the state, the
  temporary values of the step, and their sum.
  """
  state = program.abstract_state()
  temporary = program_lib.temporary_bytes(compiled)
  state_bytes = sharding.bytes_per_device(state)
  return {
    'parameters': sum(x.size for x in jax.tree.leaves(state.params)),
    'gflop_per_step': program.flops.step / 1e9,
    'state_gib': state_bytes / 2**30,
    'temporary_gib': temporary / 2**30,
    'total_gib': (state_bytes + temporary) / 2**30,
  }


def plan_memory(program: program_lib.Program) -> dict[str, float]:
  """Compiles a step without running it; returns its memory, as `memory`."""
  temporary = program_lib.temporary_bytes(program.compile())
  return memory(program, temporary)


def memory(
  program: program_lib.Program, temporary_bytes: int
) -> dict[str, float]:
  """Returns the memory of a step, in GiB per device; evaluates only shapes.

  `temporary_bytes` are per device, as the compiler plans it.

  Returns:
    parameters, gradients (of trainable parameters), optimizer, average (of the
    parameters), extra (of the objective, if it has any), activations (and other
    temporary values), and their sum, total.
  """
  state = program.abstract_state()
  gib = {
    name: sharding.bytes_per_device(tree) / 2**30
    for name, tree in {
      'parameters': state.params,
      'gradients': program.rules.trained(state.params),
      'optimizer': state.opt_state,
      'average': state.ema_params,
    }.items()
  }
  temporary = temporary_bytes / 2**30
  if jax.tree.leaves(state.extra):
    gib['extra'] = sharding.bytes_per_device(state.extra) / 2**30
  plan = gib | {
    # The compiler may avoid storing all gradients.
    'gradients': min(gib['gradients'], temporary),
    'activations': max(temporary - gib['gradients'], 0.0),
  }
  return plan | {'total': sum(plan.values())}
