"""Prediction of the next pixel (Chen et al., 2020: iGPT).

The model reads the colours of an image's pixels row by row, and predicts each
from those before it. The clusters of colours are found by k-means in pixels of
the training split before the first step (section 3.2 of Generative Pretraining
from Pixels), and are kept in the config, as `objective.options.palette`.
"""

from collections.abc import Mapping
import math
import re
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax

from vit_jax import config as config_lib
from vit_jax import data
from vit_jax import models
from vit_jax.data import base as data_base
from vit_jax.data.device.rng import Rng
from vit_jax.data.host import threads
from vit_jax.models import igpt as model_lib
from vit_jax.objectives import base

_IMAGES, _PIXELS = 1024, 2**17  # most that the clusters are found in
_MOST = 2**16 - 1  # a colour's number for 1.0
_ITERATIONS = 100


def gen_loss(out: Mapping[str, jax.Array]) -> jax.Array:
  """Returns the mean cross-entropy of an image's pixels in nats, float32 [B].

  `out` is from `models.igpt.IGPT.trunk`.
  """
  return optax.softmax_cross_entropy_with_integer_labels(
    out['colour_logits'], out['ids']
  ).mean(axis=-1)


class IGPT(base.Objective):
  """Predicts each pixel's colour from the colours of the pixels before it."""

  metrics: ClassVar = {'loss': 'min', 'examples': 'max'}
  options: ClassVar = {
    # The colours, one word for each: 2 or 4 hexadecimal digits for each
    # channel, as 'ff0000' or 'ffff00000000'. '': as in the checkpoint at
    # init_from.path, or colours that the run finds in the training split.
    'palette': ''
  }

  def __init__(self, config: base.Config, features: base.Features):
    super().__init__(config, features)
    self.model = _checked(self.model)

  @staticmethod
  def check(config: base.Config) -> None:
    """Checks the model and the palette."""
    if config.model.name == config_lib.INIT_FROM:  # it is not known yet
      return
    with config_lib.explained('config.model', ValueError):
      model = _checked(models.from_config(config.model, 0))
    if palette := config.objective.options.palette:
      read_palette(palette, model.colours, config.data.channels)

  @classmethod
  def fill(cls, config: base.Config, source: data_base.Source) -> None:
    """Finds the palette, unless there is one or a checkpoint has clusters."""
    if config.objective.options.palette or config.init_from.path:
      return
    count = _checked(models.from_config(config.model, 0)).colours
    colours = find_clusters(_pixels(config, source), count, config.seed)
    numbers = np.round(colours.clip(0, 1) * _MOST).astype(int)
    config.objective.options.palette = ' '.join(
      ''.join(f'{x:04x}' for x in colour) for colour in numbers
    )

  def describe(self, source: data_base.Source) -> list[str]:
    """Returns a line about what is predicted, for the log."""
    del source
    height, width, _ = self.image_shape
    colours = self.model.colours
    return [
      f'predicting {height * width} pixels of {colours} colours, row by row; a'
      f' uniform guess has the loss {math.log(colours):.3f}'
    ]

  def init(self, key: jax.Array) -> base.Params:
    """Returns fresh parameters, with the palette as their clusters."""
    params = super().init(key)
    palette = self.config.objective.options.palette
    if not palette:  # the clusters come from a checkpoint
      return params
    colours = read_palette(palette, self.model.colours, self.image_shape[-1])
    mean, std = (
      np.asarray(x, np.float32) for x in config_lib.normalization(self.config)
    )
    return params | {'clusters': jnp.asarray((colours - mean) / std)}

  def loss(
    self, params: base.Params, extra: base.Extra, batch: base.Batch, rng: Rng
  ) -> tuple[jax.Array, base.Scalars, base.Extra]:
    """Returns the cross-entropy of the next pixel in nats, mean over pixels."""
    out = self.apply_train(params, batch['image'], rng, method='trunk')
    return gen_loss(out).mean(), {}, extra

  def outputs(self, params: base.Params, batch: base.Batch) -> base.Outputs:
    """Returns `loss`, float32 [B], and `features` [B, D]."""
    out = self.apply(params, batch['image'], method='trunk')
    return {'loss': gen_loss(out), 'features': out['features']}


def _checked(model: models.Model) -> model_lib.IGPT:
  if not isinstance(model, model_lib.IGPT):
    raise config_lib.UserError(
      f'config.objective.name=igpt predicts colours, which a'
      f' {type(model).__name__} does not: set config.model.name to iGPT-S'
    )
  if not model.has_clusters:
    raise config_lib.UserError(
      'has_clusters of config.model.name is False, but'
      ' config.objective.name=igpt learns from images: leave it out, or start'
      ' from a checkpoint that has clusters in its preprocessor_config.json'
    )
  return model


def read_palette(palette: str, count: int, channels: int) -> np.ndarray:
  """Returns the `count` colours of a palette, from 0 to 1, float32 [K, C]."""
  key, words = 'config.objective.options.palette', palette.split()
  digits = len(words[0]) // channels if words else 0
  pattern = rf'[0-9a-fA-F]{{{digits * channels}}}'
  if digits not in (2, 4) or not all(re.fullmatch(pattern, x) for x in words):
    raise config_lib.UserError(
      f'{key}: write each colour as 2 or 4 hexadecimal digits for each of the'
      f" {channels} channels, as '{'ff' * channels}', with spaces between"
    )
  if len(words) != count:
    raise config_lib.UserError(
      f'{key} has {len(words)} colours, but the model has {count}: set'
      f' colours={len(words)} in the brackets of config.model.name'
    )
  values = [
    [int(word[i : i + digits], 16) for i in range(0, len(word), digits)]
    for word in words
  ]
  return (np.asarray(values) / (16**digits - 1)).astype(np.float32)


def find_clusters(pixels: np.ndarray, count: int, seed: int) -> np.ndarray:
  """Returns the centres of clusters by k-means, sorted, float64 [K, C].

  Pixels are [N, C]. The seed is that of the first centres.
  """
  # Imported here, since they take a second.
  from sklearn import cluster
  import threadpoolctl

  colours, weights = np.unique(pixels, axis=0, return_counts=True)
  if len(colours) < count:
    raise config_lib.UserError(
      f'the iGPT of config.model.name has {count} colours, but the training'
      f' images have only {len(colours)}: set colours={len(colours)} in its'
      ' brackets at most'
    )
  # With several threads, the order of sums would differ from run to run.
  with threadpoolctl.threadpool_limits(1):
    clusters = cluster.KMeans(
      count, n_init=1, max_iter=_ITERATIONS, random_state=seed
    ).fit(colours.astype(np.float64), sample_weight=weights)
  return np.unique(clusters.cluster_centers_, axis=0)


def _pixels(config: base.Config, source: data_base.Source) -> np.ndarray:
  """Returns pixels of random training images, from 0 to 1, float32 [N, C]."""
  rng = np.random.default_rng(config.seed)
  preprocess = data.Preprocess.from_config(config, source.features, {})
  count = min(len(source), _IMAGES)
  positions = rng.choice(len(source), count, replace=False).tolist()
  per_image = math.ceil(_PIXELS / count)

  def read(position: int) -> np.ndarray:
    image = preprocess.pixels([source.read(position).image])
    return preprocess.levels.scale(image).reshape(-1, image.shape[-1])

  def sample(pixels: np.ndarray) -> np.ndarray:
    if len(pixels) <= per_image:
      return pixels
    return pixels[rng.choice(len(pixels), per_image, replace=False)]

  images = threads.in_threads(read, positions)
  return np.concatenate([sample(x) for x in images])
