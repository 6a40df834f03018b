"""Steps whose patches have several sizes (FlexiViT): `train.patch_sizes`."""

from collections.abc import Sequence
import functools
import math
from typing import cast

import jax
import ml_collections

from vit_jax import config as config_lib
from vit_jax import models
from vit_jax.objectives import flexible
from vit_jax.train import cost
from vit_jax.train import program as program_lib


class PatchProgram(program_lib.Program):
  """A program whose steps, and evaluations, choose the size of their patches.

  The train state is the same for all sizes: see `objectives.flexible`.
  """

  @functools.cached_property
  def _by_patch(self) -> dict[flexible.Patch | None, program_lib.Program]:
    plain = self.with_objective(self.objective)
    patch = models.pixels_per_token(self.objective.model)
    return {None: plain, cast(flexible.Patch, patch): plain}

  @staticmethod
  def check(config: ml_collections.ConfigDict) -> None:
    """Checks the sizes of the patches of steps and of evaluations."""
    flexible.check(config)

  def variant(self, step: int) -> program_lib.Program:
    """Returns the program of a step, with the patches that it draws."""
    return self._at_patch(flexible.draw(self.config, step))

  @property
  def variants(self) -> Sequence[program_lib.Program]:
    """The programs of all steps, the one with the most patches first."""
    sizes = sorted(flexible.sizes(self.config), key=math.prod)
    return [self._at_patch(x) for x in sizes or (None,)]

  def compile(self, count: int = 1) -> jax.stages.Compiled:
    """Compiles the step with the most patches."""
    return self.variants[0].compile(count)

  def for_evaluation(
    self, spec: ml_collections.ConfigDict
  ) -> program_lib.Program:
    """Returns the program of an evaluation, with its patches."""
    return self._at_patch(flexible.evaluation_patch_size(spec))

  def _at_patch(self, patch: flexible.Patch | None) -> program_lib.Program:
    """Returns the program of a size (height, width); None: of the model's.

    Raises:
      UserError: The objective or its model has no such patches.
    """
    if patch is not None and patch not in self._by_patch:
      objective = flexible.at_patch(self.objective, patch)
      self._by_patch[patch] = self.with_objective(objective)
    return self._by_patch[patch]

  @functools.cached_property
  def flops(self) -> cost.StepFlops:
    """Operations of the matrix products in one step, on average."""
    params, counts = self.abstract_state().params, []
    for patch in flexible.sizes(self.config) or (None,):
      config = self.config.copy_and_resolve_references()
      if patch is not None:
        config_lib.set_value(config, 'model.patch_size', patch)
      counts.append(cost.step_flops(config, self.features, params))
    return cost.mean(counts)
