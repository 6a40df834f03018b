"""Frozen tokenizers, which give each patch of an image one of K tokens.

In comments: B images, N patches, F values of a patch.
"""

import abc
import functools
import os
import pathlib
from typing import Any
from typing import NamedTuple

from absl import logging
import jax
import jax.numpy as jnp
from ml_collections import ConfigDict
import numpy as np

from vit_jax import config as config_lib
from vit_jax import models
from vit_jax import weights
from vit_jax.data import base as data_base
from vit_jax.data import kinds as kinds_lib
from vit_jax.models import dvae
from vit_jax.models import embedding
from vit_jax.objectives import codebook
from vit_jax.objectives import tokenizer
from vit_jax.runs import restoring
from vit_jax.weights import download
from vit_jax.weights.formats import dvae as dvae_format

_KEY = 'config.objective.options.tokenizer'
_NAME = 'tokenizer'


class VisualTokens(abc.ABC):
  """A frozen tokenizer.

  Attributes:
    arrays: Its arrays, a tree of NumPy arrays.
  """

  arrays: Any

  @abc.abstractmethod
  def tokens(self, arrays: Any, images: jax.Array) -> jax.Array:
    """Returns the token of each patch, int32 [B, N].

    Images are float32 [B, H, W, C], as the trunk sees them.
    """

  def decode(self, arrays: Any, tokens: jax.Array) -> jax.Array | None:
    """Returns images of tokens, float32 [B, H, W, C], as the trunk sees them.

    Tokens are int32 [B, N]. None: the tokenizer has no decoder.
    """
    del arrays, tokens
    return None

  def read_from(self, source: data_base.Source) -> None:
    """Gives it the training split, before `arrays` is read."""
    del source


def make(config: ConfigDict, grid: tuple[int, int]) -> VisualTokens:
  """Returns the tokenizer of `config.objective.options`.

  `grid` are the patches (h, w) of the trunk, which the tokenizer's must equal.
  """
  path = config.objective.options.tokenizer
  if not path:
    return Patches(config, grid)
  path = os.path.expanduser(path)
  if config_lib.is_in_store(path):
    path = str(weights.local_path(path))
  if weights.is_workdir(pathlib.Path(path)):
    return Trained(config, path, grid)
  return Published(config, path, grid)


class Patches(VisualTokens):
  """The nearest code of a codebook, which is made of the training patches."""

  def __init__(self, config: ConfigDict, grid: tuple[int, int]):
    """Makes a tokenizer whose codes, float32 [K, F], are NaN yet.

    So a program can be planned; a step with them is refused.
    """
    size = models.patch_of_images(models.from_config(config.model, 0))
    self._config, self._size, self._grid = config, size, grid
    values = size[0] * size[1] * config.data.channels
    shape = config.objective.options.tokens, values
    self.arrays = {'codes': np.full(shape, np.nan, np.float32)}

  def read_from(self, source: data_base.Source) -> None:
    """Makes the codes of the training split."""
    count = self._config.objective.options.tokens
    logging.info('making a codebook of %d tokens of the patches', count)
    codes = codebook.find_codes(self._config, source, self._size, count)
    self.arrays = {'codes': codes}

  def tokens(self, arrays: Any, images: jax.Array) -> jax.Array:
    """Returns the nearest code of each patch, int32 [B, N]."""
    patches = embedding.patches(images, self._size)
    return codebook.nearest(arrays['codes'], patches)

  def decode(self, arrays: Any, tokens: jax.Array) -> jax.Array:
    """Returns images whose patches are the codes themselves."""
    codes = jnp.asarray(arrays['codes'])
    return embedding.unpatchify(codes[tokens], self._grid, self._size)


class _Input(NamedTuple):
  """How a model takes images: (height, width), and means with deviations."""

  size: tuple[int, int]
  normalization: Any

  def converted(self, images: jax.Array, target: '_Input') -> jax.Array:
    """Returns images [B, H, W, C] as another model takes them."""
    mean, std = (np.asarray(x, np.float32) for x in self.normalization)
    pixels = images * std + mean
    if self.size != target.size:
      shape = (len(images), *target.size, images.shape[-1])
      pixels = jnp.clip(jax.image.resize(pixels, shape, 'lanczos3'), 0, 1)
    mean, std = (np.asarray(x, np.float32) for x in target.normalization)
    return (pixels - mean) / std


class _Resized(VisualTokens):
  """A tokenizer that sees the trunk's images in its own size and range.

  BEiT's sees its view of 112 pixels.
  """

  def __init__(self, config: ConfigDict, tokenizer_input: _Input):
    size = config_lib.pair(config.data.image_size, 'data.image_size')
    self._trunk = _Input(size, config_lib.normalization(config))
    self._tokenizer_input = tokenizer_input

  def _inputs(self, images: jax.Array) -> jax.Array:
    return self._trunk.converted(images, self._tokenizer_input)


class Trained(_Resized):
  """The tokens of a run of the objective 'tokenizer'."""

  def __init__(self, config: ConfigDict, path: str, grid: tuple[int, int]):
    self._objective, self.arrays, stored = _load(path)
    normalization = stored.mean, stored.std
    super().__init__(config, _Input(stored.image_size, normalization))
    objective = self._objective
    _check_same(config, 'patches', objective.grid, grid, 'data.image_size')
    _check_fits(config, objective.image_shape[-1], objective.count)

  def tokens(self, arrays: Any, images: jax.Array) -> jax.Array:
    """Returns the most likely token of each patch, int32 [B, N]."""
    return self._objective.tokens(arrays, self._inputs(images))

  def decode(self, arrays: Any, tokens: jax.Array) -> jax.Array:
    """Returns what its decoder draws."""
    drawn = self._objective.decode(arrays, tokens)
    return self._tokenizer_input.converted(drawn, self._trunk)


class Published(_Resized):
  """The tokens of DALL-E's encoder, as BEiT's authors used them."""

  def __init__(self, config: ConfigDict, path: str, grid: tuple[int, int]):
    """Loads the encoder.

    `path` is a file of its weights, a directory of transformers, or an address.
    """
    self._module, self.arrays = _read(path)
    # It sees pixels in [0, 1], in the size that gives this grid.
    size = (grid[0] * dvae.STRIDE, grid[1] * dvae.STRIDE)
    super().__init__(config, _Input(size, ((0.0,), (1.0,))))
    _check_fits(config, 3, self._module.tokens)

  def tokens(self, arrays: Any, images: jax.Array) -> jax.Array:
    """Returns the most likely token of each patch, int32 [B, N]."""
    logits: Any = self._module.apply({'params': arrays}, self._inputs(images))
    tokens = logits.argmax(axis=-1).astype(jnp.int32)
    return tokens.reshape(len(images), -1)


@functools.lru_cache(maxsize=1)  # a run makes the objective several times
def _load(path: str) -> tuple[tokenizer.Tokenizer, Any, Any]:
  with config_lib.explained(f'{_KEY}={path}', ValueError):
    loaded = weights.load(path)
    config = loaded.trained_with
    assert config is not None
    if config.objective.name != _NAME:
      raise config_lib.UserError(
        f'its objective is {config.objective.name!r}, and not {_NAME!r}'
      )
    params, step, _ = restoring.restore_params(path)
  stored = loaded.preprocess.features
  features = {name: kinds_lib.from_dict(x) for name, x in stored.items()}
  logging.info('the tokenizer is %s, after %d steps', path, step)
  objective = tokenizer.Tokenizer(config, features)
  return objective, jax.tree.map(np.asarray, params), loaded.preprocess


@functools.lru_cache(maxsize=1)  # as `_load`
def _read(path: str) -> tuple[dvae.DalleEncoder, Any]:
  with config_lib.explained(
    f'{_KEY}={path} is no work directory of config.objective.name={_NAME}, nor'
    " a file of DALL-E's encoder"
  ):
    module, params = dvae_format.read(download.fetch(path))
  logging.info('the tokenizer is %s, with %d tokens', path, module.tokens)
  return module, jax.tree.map(np.asarray, params)


def _check_fits(config: ConfigDict, channels: int, count: int) -> None:
  tokens, key = config.objective.options.tokens, 'objective.options.tokens'
  run_channels = config.data.channels
  _check_same(config, 'channels', channels, run_channels, 'data.channels')
  _check_same(config, 'tokens', count, tokens, key)


def _check_same(
  config: ConfigDict, quantity: str, has: Any, want: Any, key: str
) -> None:
  """Raises a UserError if the tokenizer differs from `config.<key>`."""
  if has != want:
    raise config_lib.UserError(
      f'{_KEY}={config.objective.options.tokenizer} has {quantity} {has}, and'
      f' the run {want}: make them the same, by config.{key}'
    )
