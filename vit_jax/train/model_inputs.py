"""The images that the model gets at a training step, for pictures."""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from vit_jax import config as config_lib
from vit_jax import data
from vit_jax import objectives
from vit_jax.data import features as features_lib
from vit_jax.data.device import views
from vit_jax.data.device.rng import Rng
from vit_jax.data.host import batches
from vit_jax.data.host import geometry
from vit_jax.objectives import base
from vit_jax.plots import paper
from vit_jax.plots import sheet as sheet_lib
from vit_jax.train import experiment
from vit_jax.train import state as state_lib
from vit_jax.train import variant

_COLUMNS = 8  # of a sheet; an example with more tiles has a row of its own
_SLICES = 4  # of a video or a volume
_LEAST = 0.005  # the share of a class that a caption of a mixed image names


class ModelInputs(NamedTuple):
  """The first examples of a global batch, as the model gets them.

  Attributes:
    images: Crops by their names, float32 [b, H, W, C] each, 0 to 1; of volumes
      and videos [b, D, H, W, C].
    hidden: Patches that the model does not see, by the name of the crop, bool
      [b, h, w].
    maps: Classes of pixels by the name of the feature, int [b, H, W]; of
      volumes [b, D, H, W].
    captions: Their other targets as text.
    features: Features of the examples.
  """

  images: Mapping[str, np.ndarray]
  hidden: Mapping[str, np.ndarray]
  maps: Mapping[str, np.ndarray]
  captions: list[str]
  features: features_lib.Features


def load(
  config: ml_collections.ConfigDict, step: int, count: int
) -> ModelInputs:
  """Returns the input of the model at a step of a config, which stays as it is.

  Args:
    config: Config of an experiment.
    step: Completed updates.
    count: Examples to return, at most.
  """
  config_lib.check(config)
  variant.check(config)
  data.check(config)
  source = data.open_split(config)
  config = config.copy_and_resolve_references()
  experiment.fill(config, source)
  lengths = experiment.find_lengths(config, len(source))
  objective = objectives.create(config, source.features, lengths)
  return draw(config, source, objective, step, count)


def draw(
  config: ml_collections.ConfigDict,
  source: data.Source,
  objective: objectives.Objective,
  step: int,
  count: int,
) -> ModelInputs:
  """Returns what `load` does, from a source and a config without unset keys."""
  # The rest of the batch is not needed, except for the partners of mixed pairs.
  count = min(count, config.train.batch_size)
  rows = range(min(count + count % 2, config.train.batch_size))
  crops = objective.views
  batch = batches.train_rows(source, config, step, rows, crops)
  transform = views.train_transform(config, source.features, crops)

  @jax.jit
  def compute(batch: base.Batch) -> tuple[base.Batch, dict[str, jax.Array]]:
    key = state_lib.step_key(config.seed, step)
    rng = Rng(key, jnp.asarray(rows, jnp.int32))
    examples = transform(batch, rng.fold(base.Purpose.AUGMENTATION))
    return examples, objective.hidden(rng, step)

  examples, masks = compute(batch)
  examples = {name: np.asarray(x)[:count] for name, x in examples.items()}
  mean, std = (
    np.asarray(x, np.float32) for x in config_lib.normalization(config)
  )
  images = {
    name: crop * std + mean
    for name, crop in _by_crop({view: examples[view] for view in crops}, crops)
  }
  maps = features_lib.maps(source.features)
  return ModelInputs(
    images=images,
    hidden={
      name: np.asarray(mask)[:count] for name, mask in _by_crop(masks, crops)
    },
    maps={name: examples[name] for name in maps if name in examples},
    captions=captions(examples, source.features, count),
    features=source.features,
  )


def _by_crop(
  arrays: Mapping[str, Any], views: Mapping[str, geometry.View]
) -> Iterator[tuple[str, Any]]:
  """Yields names of crops, as 'local 2', and their parts of the arrays."""
  for view, array in arrays.items():
    count = views[view].count
    if count is None:
      yield view, array
    else:
      yield from ((f'{view} {i + 1}', array[:, i]) for i in range(count))


def sheet(inputs: ModelInputs, title: str = '') -> np.ndarray:
  """Returns the images as a picture, uint8 [H, W, 3].

  Beside each crop are the patches that the model sees of it, and the map of its
  classes. Of a video or a volume a few slices are drawn.
  """
  columns = list(_columns(inputs))
  groups = [
    [sheet_lib.Tile(tile) for tile in tiles]
    for tiles in zip(*(tiles for _, tiles in columns), strict=True)
  ]
  for group, caption in zip(groups, inputs.captions, strict=True):
    group[0] = group[0]._replace(caption=caption)
  heads = [name for name, _ in columns] if len(columns) > 1 else []
  return sheet_lib.draw(
    sheet_lib.grouped(groups, _COLUMNS),
    title=title,
    heads=heads,
    group=len(columns) if len(columns) > 1 else 0,
    legend=_legend(inputs),
  )


def _columns(inputs: ModelInputs) -> Iterator[tuple[str, list[np.ndarray]]]:
  """Yields names of columns and their tiles, one for each example."""
  for name, images in inputs.images.items():
    for head, part in _slices(inputs, name, images):
      tiles = [sheet_lib.readable(image) for image in part]
      yield head, tiles
      if name in inputs.hidden:
        cover = config_lib.wing('vit_jax.plots.tiles:cover')
        covered = map(cover, tiles, inputs.hidden[name])
        is_single = len(inputs.images) == 1
        yield 'masked' if is_single else f'{head}, masked', list(covered)
  shape = tiles[0].shape[:2]
  for name, maps in inputs.maps.items():
    coloured = config_lib.wing('vit_jax.plots.class_maps:coloured')
    pixels = coloured(inputs.features[name].names, maps)
    for head, part in _slices(inputs, name, pixels):
      yield head, [sheet_lib.fit(x, shape, mixes=False) for x in part]


def _slices(
  inputs: ModelInputs, name: str, arrays: np.ndarray
) -> Iterator[tuple[str, np.ndarray]]:
  """Yields heads and images [b, H, W, C] of images or of slices."""
  if arrays.ndim == 4:
    yield name, arrays
    return
  image = inputs.features['image']
  assert isinstance(image, features_lib.Image)
  spread = config_lib.wing('vit_jax.plots.tiles:spread')
  for i in spread(arrays.shape[1], _SLICES):
    yield f'{name}, {image.part} {i}', arrays[:, i]


def _legend(inputs: ModelInputs) -> list[tuple[str, np.ndarray]]:
  """Returns the classes that occur in the maps, with their colours."""
  entries = []
  for name, maps in inputs.maps.items():
    feature = inputs.features[name]
    assert isinstance(feature, features_lib.Map)
    legend = config_lib.wing('vit_jax.plots.class_maps:legend')
    entries += legend(feature.names, [maps], feature.ignore)
  return entries


def captions(
  targets: Mapping[str, np.ndarray], features: features_lib.Features, count: int
) -> list[str]:
  """Describes `count` examples by their targets [B, ...], mixed or not."""
  lines: list[list[str]] = [[] for _ in range(count)]
  for name, feature in features_lib.targets(features).items():
    for line, value in zip(lines, targets[name], strict=True):
      if isinstance(feature, features_lib.Label):
        line.append(caption(value, feature.names))
      else:
        line += feature.show(value)
  return ['\n'.join(line) for line in lines]


def caption(label: np.ndarray, classes: Sequence[str]) -> str:
  """Returns the caption of a label: 'cat', or '79% cat,' and '21% dog' below.

  A name that consists of digits is preceded by the word 'class' beside a share,
  and a name with letters that pictures lack by the number of the class. A mixed
  label has shares of the classes, float [classes].
  """
  if not label.ndim:
    return _class_name(classes, int(label))
  largest = np.argsort(-label, kind='stable')[:2].tolist()
  names = [(_class_name(classes, i), label[i]) for i in largest]
  shares = [
    f'{share:.0%} {f"class {name}" if name.isdecimal() else name}'
    for name, share in names
    if share >= _LEAST
  ]
  return names[0][0] if len(shares) == 1 else ',\n'.join(shares)


def _class_name(classes: Sequence[str], number: int) -> str:
  name = classes[number]
  return name if paper.has_letters(name) else f'{number}: {name}'
