"""Whether the examples of a source have what an objective needs."""

import ml_collections

from vit_jax import config as config_lib
from vit_jax import models
from vit_jax.data import features as features_lib


def check(
  target: tuple[str, type[features_lib.Feature]] | None,
  config: ml_collections.ConfigDict,
  features: features_lib.Features,
) -> None:
  """Checks that examples have what a model sees and an objective learns.

  Args:
    target: Name and kind of the feature that it learns; None: only images.
    config: The full config.
    features: Features of the examples, by name.

  Raises:
    UserError: They do not.
  """
  image = features['image']
  assert isinstance(image, features_lib.Image)
  image.check_input(config)
  if target is None:
    return
  name, kind = target
  if not isinstance(features.get(name), kind):
    has = ', '.join(f'{k} ({type(x).__name__})' for k, x in features.items())
    raise config_lib.UserError(
      f'config.objective.name={config.objective.name} learns {name!r}'
      f' ({kind.__name__}), but the examples of {config.data.name} have {has}:'
      ' choose another objective, or data that have it'
    )


def described_model(config: ml_collections.ConfigDict) -> models.Model | None:
  """Returns the trunk of a config; None where only a checkpoint knows it."""
  if config.model.name == config_lib.INIT_FROM:
    return None
  try:
    return models.from_config(config.model, 0)
  except ValueError:
    return None  # `models.check` tells what is wrong
