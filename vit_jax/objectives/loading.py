"""Loads models with all that they give: `vit_jax.load`."""

import dataclasses
import functools
from typing import Any
from typing import Self

import jax
import numpy as np

from vit_jax import objectives
from vit_jax import weights
from vit_jax.objectives import trained
from vit_jax.parallel import allocator
from vit_jax.weights import batched

_BATCH = 32  # images at a time


class Model(weights.Loaded):
  """A loaded model, which also gives the outputs of its run's objective."""

  @classmethod
  def from_loaded(cls, loaded: weights.Loaded) -> Self:
    """Returns a model with the fields of another."""
    names = [field.name for field in dataclasses.fields(loaded)]
    return cls(**{name: getattr(loaded, name) for name in names})

  def outputs(self, images: Any) -> dict[str, np.ndarray]:
    """Returns the model's outputs for images.

    Args:
      images: One image or a sequence, as `preprocess` takes them.

    Returns:
      Arrays:
        features: Input of the head, float32 [B, D]. Of a model of images and
          texts, embeddings of unit length in the space that both share.
        logits: float32 [B, outputs], if there is a head; of a model of
          segmentation [B, H, W, classes].
        numbers: float32 [B, K] in the units of the data, if the model predicts
          numbers.
        segments: int32 [B, H, W], the classes of pixels, if it predicts these.
    """
    stored = self.trained_with
    if (
      not self.objective_params
      or stored is None
      or self.changes
      or objectives.objective_class(stored).target is None
    ):
      return super().outputs(images)
    # Parameters beside the trunk give outputs of their own.
    pixels = self.preprocess(images)
    outputs = batched.in_batches(self._measured, [pixels], _BATCH)
    return super().outputs(images) | outputs

  @functools.cached_property
  def _measured(self) -> Any:
    """Maps images [B, H, W, C] to the outputs of the objective."""
    objective, params = trained.restored(self)
    apply = jax.jit(objective.outputs)
    return lambda images: apply(params, {'image': images})


@functools.wraps(weights.load)
def load(*args: Any, **kwargs: Any) -> Model:
  """Loads a model; see `weights.load`."""
  allocator.hint()
  return Model.from_loaded(weights.load(*args, **kwargs))
