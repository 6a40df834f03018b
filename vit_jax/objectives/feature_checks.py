"""Whether the examples of a source have what an objective needs."""

import ml_collections

from vit_jax import config as config_lib
from vit_jax.data import features as features_lib


def check(
  target: tuple[str, type[features_lib.Feature]] | None,
  config: ml_collections.ConfigDict,
  features: features_lib.Features,
) -> None:
  """Checks that examples have what an objective sees and learns.

  Args:
    target: Name and kind of the feature that it learns; None: only images.
    config: The full config.
    features: Features of the examples, by name.

  Raises:
    UserError: They do not.
  """
  image, size = features['image'], config_lib.sides(config.data.image_size)
  if not isinstance(image, features_lib.Image):
    config_lib.wing('vit_jax.objectives.media_checks:check')(config, image)
  elif len(size) == 3:
    raise config_lib.UserError(
      f'config.data.image_size is {size}, but the examples of'
      f' {config.data.name} are images: write (height, width)'
    )
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
