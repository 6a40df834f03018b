"""A run that goes on with layers scanned that were unrolled, or unrolled."""

import functools

import jax

from vit_jax.models import layouts
from vit_jax.train import program as program_lib
from vit_jax.train.state import TrainState


def twin(program: program_lib.Program) -> program_lib.Program:
  """Returns the program of the same layers, unrolled or scanned."""
  config = program.config.copy_and_resolve_references()
  config.model.scan = not config.model.scan
  return program_lib.create(config, program.features, program.lengths)


def relayout(state: TrainState, target: TrainState) -> TrainState:
  """Returns a state with its layers as in `target`, which has its shapes."""
  shardings = jax.tree.map(lambda x: x.sharding, target)
  stack = functools.partial(layouts.relayout, target=target)
  adopted: TrainState = jax.jit(stack, out_shardings=shardings)(state)
  return adopted
