"""Trained models with their objectives: `vit_jax.load`, and measuring them."""

from collections.abc import Mapping
import dataclasses
import functools
from typing import Any
from typing import Self

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict
import numpy as np

from vit_jax import config as config_lib
from vit_jax import objectives
from vit_jax import weights
from vit_jax.data import features as features_lib
from vit_jax.data import kinds as kinds_lib
from vit_jax.models import describing
from vit_jax.models import subtrees
from vit_jax.parallel import allocator
from vit_jax.weights import batched

_BATCH = 32  # images at a time


def measuring(
  loaded: weights.Loaded, config: ConfigDict, features: features_lib.Features
) -> tuple[objectives.Objective, objectives.Params]:
  """Returns the objective that measures a loaded model, and its parameters.

  A classifier is measured by `config.objective`, with softmax cross-entropy
  whatever loss it was trained with; another model by the objective of its run,
  and so is a classifier whose objective computes outputs of its own. `features`
  describe the examples on which the model is measured.
  """
  stored, trained = loaded.trained_with, loaded.preprocess
  config = config.copy_and_resolve_references()
  if _is_classifier(loaded):
    config.model.num_classes = loaded.model.num_classes
    objective = objectives.create(config, features)
    objective.model = loaded.model
    return objective, loaded.params
  if stored is None or (
    trained.trunk and objectives.objective_class(stored).target is None
  ):
    raise config_lib.UserError(
      f'no metric is stored for the outputs of {loaded.origin.path}: measure'
      ' its features instead, as with --probe=knn'
    )
  logits = loaded.preprocess.outputs.get('logits', {})
  has_label_logits = logits.get('feature') == 'label'
  if has_label_logits:  # the data may have some of the classes
    features = _trained_features(loaded)
  if loaded.objective_params:
    objective, params = restored(loaded, features)
  else:
    config.objective = stored.objective.copy_and_resolve_references()
    config.model = stored.model.copy_and_resolve_references()
    objective = objectives.create(config, features)
    objective.model, params = loaded.model, loaded.params
  if objective.target is None or has_label_logits:
    return objective, params  # positions of labels are matched by their names
  name, _ = objective.target
  predicted = kinds_lib.from_dict(trained.features[name])
  if features[name].names != predicted.names:
    raise config_lib.UserError(
      f'the model predicts {config_lib.join_first(predicted.names)}, but'
      f' {config.data.name} has {config_lib.join_first(features[name].names)}:'
      ' name all of the model, in its order, where the data lists them'
    )
  return objective, params


def restored(
  loaded: weights.Loaded,
  features: features_lib.Features | None = None,
  *,
  any_size: bool = True,
) -> tuple[objectives.Objective, objectives.Params]:
  """Returns the objective of the run that trained a model, and all parameters.

  `features` describe the examples; None: as in training. Without `any_size`
  images must have the size of training.
  """
  config = loaded.trained_with
  if config is None:
    raise config_lib.UserError(
      'the model is of a file, which does not say how it was trained: give the'
      ' work directory of a run with --from'
    )
  # A model of fixed positions has no parameter that another size changes.
  has_trained_size = loaded.position_size == config_lib.sides(
    config.data.image_size
  )
  if loaded.changes or not (any_size or has_trained_size):
    raise config_lib.UserError(
      'the method of the run needs the model as it was trained: leave'
      ' --image_size and --model out'
    )
  if features is None:
    features = _trained_features(loaded)
  for feature in _trained_features(loaded).values():
    feature.check_vocabulary()
  trunk = loaded.preprocess.trunk
  params = subtrees.joined(loaded.params, trunk, loaded.objective_params)
  config = _with_overrides(config, loaded.overrides)
  return objectives.create(config, features), params


def _with_overrides(
  config: ConfigDict, overrides: Mapping[str, Any]
) -> ConfigDict:
  """Returns a config with the values that the caller of `load` has chosen.

  Those that change parameters are refused before.
  """
  config = config.copy_and_resolve_references()
  for key, value in overrides.items():
    if key == 'dtype':
      config.train.dtype = jnp.dtype(value).name
    elif key in config.model:
      with config.model.ignore_type():  # a patch is a number or several
        config.model[key] = value
    else:  # an option of the family
      config.model.name = describing.renamed(config.model.name, **{key: value})
  return config


def _trained_features(loaded: weights.Loaded) -> dict[str, Any]:
  stored = loaded.preprocess.features
  return {name: kinds_lib.from_dict(x) for name, x in stored.items()}


def _is_classifier(loaded: weights.Loaded) -> bool:
  """Whether a model's own logits belong to mutually exclusive classes."""
  stored = loaded.trained_with
  if stored is None:
    return loaded.preprocess.has_label
  cls = objectives.objective_class(stored)
  if loaded.objective_params or cls.outputs is not objectives.Objective.outputs:
    return False
  if 'logits' in loaded.preprocess.outputs:
    return loaded.preprocess.has_label
  return cls.target is not None and cls.target[0] == 'label'


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
    objective, params = restored(self)
    apply = jax.jit(objective.outputs)
    return lambda images: apply(params, {'image': images})


@functools.wraps(weights.load)
def load(*args: Any, **kwargs: Any) -> Model:
  """Loads a model; see `weights.load`."""
  allocator.hint()
  return Model.from_loaded(weights.load(*args, **kwargs))
