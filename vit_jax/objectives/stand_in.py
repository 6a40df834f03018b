"""Features of examples without any data, as for a plan."""

from typing import Any

from ml_collections import ConfigDict

from vit_jax import config as config_lib
from vit_jax import objectives
from vit_jax.data import features as features_lib
from vit_jax.data import kinds as kinds_lib


def features(
  config: ConfigDict, size: tuple[int, int] | None = None
) -> dict[str, features_lib.Feature]:
  """Returns the features of examples that the objective of a config learns.

  An objective that learns several features has a class method of its own,
  `stand_in`, with these arguments. `size` is that of all stored images, or of
  volumes; None: they differ.
  """
  cls = objectives.objective_class(config)
  make_features: Any = getattr(cls, 'stand_in', None)
  if make_features is not None:
    features: dict[str, features_lib.Feature] = make_features(config, size)
    return features
  crop = config_lib.sides(config.data.image_size)
  image: features_lib.Feature = features_lib.Image(size)
  if len(crop) == 3:
    volume = {'kind': 'Volume', 'size': size or crop, 'fixed': size is not None}
    volume['channels'] = config.data.channels
    image = kinds_lib.from_dict(volume)
  features = {'image': image}
  if cls.target:
    name, kind = cls.target
    classes = tuple(map(str, range(config.model.num_classes)))
    features[name] = kind(classes)  # type: ignore[call-arg]
  return features
