"""Steps whose patches have several sizes (FlexiViT)."""

from collections.abc import Sequence
import dataclasses
import functools
import math

import ml_collections
import numpy as np

from vit_jax import config as config_lib
from vit_jax.models import inputs
from vit_jax.objectives import flexible
from vit_jax.train import program as program_lib
from vit_jax.train import variant

# Use of the host's random numbers; it follows the seed in their key. The uses
# of `data.host.batches` are lower.
_PATCH = 16


@dataclasses.dataclass(frozen=True)
class Patches(variant.Variant):
  """Draws the size of the patches of each step from the seed and its number.

  Attributes:
    sizes: Patch sizes, each an int or (height, width). The kernel of the
      model's own patch size is resized to them: see `objectives.flexible`.
  """

  sizes: tuple[int | tuple[int, int], ...]

  def __post_init__(self) -> None:
    if len(set(self._pairs)) < max(len(self.sizes), 1):
      raise config_lib.UserError(
        f'sizes is {self.sizes}: write one or more sizes, and each size once'
      )

  @functools.cached_property
  def _pairs(self) -> list[flexible.Patch]:
    return [config_lib.pair(x, 'train.variant: a size') for x in self.sizes]

  @functools.cached_property
  def _growing(self) -> list[flexible.Patch]:
    """The sizes in the order of `programs`: the smallest patch is first."""
    return sorted(self._pairs, key=math.prod)

  def check(self, config: ml_collections.ConfigDict) -> None:
    """Checks that the patches divide the image."""
    super().check(config)
    for patch in self._pairs:
      flexible.check(config, patch, 'train.variant')

  def programs(
    self, program: program_lib.Program
  ) -> Sequence[program_lib.Program]:
    """Returns the program of each size, the one with the most patches first."""
    return [at_patch(program, patch) for patch in self._growing]

  def choose(self, config: ml_collections.ConfigDict, step: int) -> int:
    """Returns which of `programs` a step is of."""
    rng = np.random.default_rng((config.seed, _PATCH, step))
    patch = self._pairs[rng.integers(len(self.sizes))]
    return self._growing.index(patch)


def at_patch(
  program: program_lib.Program, patch: flexible.Patch
) -> program_lib.Program:
  """Returns the program of a patch size, with the train state of all sizes."""
  config = program.config.copy_and_resolve_references()
  with config.model.ignore_type():  # a patch is a number or several
    config.model.patch_size = patch
  objective = flexible.at_patch(program.objective, patch)
  resized = program.with_objective(objective, config)
  resized.label = f'patches of {inputs.times(patch)}'
  return resized


def for_evaluation(
  program: program_lib.Program, spec: ml_collections.ConfigDict
) -> program_lib.Program:
  """Returns the program of an evaluation with `patch_size`."""
  patch = config_lib.pair(spec.patch_size, 'evals.NAME.patch_size')
  return at_patch(program, patch)


def check_evaluations(config: ml_collections.ConfigDict) -> None:
  """Checks `config.evals.NAME.patch_size`."""
  for name, spec in config.evals.items():
    if spec.split and spec.patch_size is not None:
      key = f'evals.{name}.patch_size'
      flexible.check(config, config_lib.pair(spec.patch_size, key), key)
