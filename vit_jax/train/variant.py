"""Steps that differ by their number: `config.train.variant`."""

from collections.abc import Sequence
import pathlib
from typing import TYPE_CHECKING

import ml_collections

from vit_jax import config as config_lib

if TYPE_CHECKING:
  from vit_jax.train.experiment import Experiment
  from vit_jax.train.program import Program

VARIANTS = {
  'patches': 'vit_jax.train.patches:Patches',
  'tasks': 'vit_jax.train.tasks:Tasks',
}


class Variant:
  """What the steps of a run are, where they differ by their number.

  All steps have one train state, and each kind of step is a program of its own.
  A class of the user's overrides `programs` and `choose`.
  """

  def check(self, config: ml_collections.ConfigDict) -> None:
    """Raises a UserError if it does not go with other keys of a config."""
    if config.tasks:
      raise config_lib.UserError(
        f'config.tasks are {", ".join(config.tasks)}, but config.train.variant'
        f" is {config.train.variant!r}: set it to 'tasks', which trains them"
      )

  def programs(self, program: 'Program') -> Sequence['Program']:
    """Returns the program of each kind of step, the one of most memory first.

    `program` is that of the config. Its `with_objective` returns the program of
    another objective, which has the same train state.
    """
    return (program,)

  def choose(self, config: ml_collections.ConfigDict, step: int) -> int:
    """Returns which of `programs` the step after `step` updates is of.

    It depends on these alone, so that a resumed run goes on to the bit.
    """
    del config, step
    return 0

  def experiment(
    self, config: ml_collections.ConfigDict, resumes: pathlib.Path | None
  ) -> 'Experiment | None':
    """Returns the experiment of several configs; None: of this one alone.

    `vit_jax.train.experiment.create` has the same arguments.
    """
    del config, resumes
    return None


def from_config(config: ml_collections.ConfigDict) -> Variant:
  """Returns what `config.train.variant` names."""
  text = config.train.variant
  if not text:
    return Variant()
  find = config_lib.class_finder(Variant, VARIANTS)
  variant: Variant = config_lib.build(text, 'train.variant', find)
  return variant


def check(config: ml_collections.ConfigDict) -> None:
  """Checks `config.train.variant`."""
  variant, text = from_config(config), config.train.variant
  if text and config.train.steps_per_call > 1:
    raise config_lib.UserError(
      f'config.train.variant={text} has a program for each kind of step, so'
      ' that a call has one step, and config.train.steps_per_call is'
      f' {config.train.steps_per_call}: set it to 1'
    )
  variant.check(config)
