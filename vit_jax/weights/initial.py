"""Starts a run from a checkpoint, adapted to the model of the config."""

from collections.abc import Sequence
import pathlib
from typing import Any
from typing import cast

from absl import logging
from flax import traverse_util
import jax
import ml_collections

from vit_jax import config as config_lib
from vit_jax import models
from vit_jax import weights
from vit_jax.data.host import levels
from vit_jax.models import layouts
from vit_jax.models import subtrees
from vit_jax.weights import adapt
from vit_jax.weights import adapters
from vit_jax.weights import fit
from vit_jax.weights import resize
from vit_jax.weights.formats import foreign
from vit_jax.weights.formats import objective_tables

# Keys of `config.model` that each run chooses, whatever the checkpoint has.
_CHOSEN = (
  'num_classes',
  'mask_token',  # runs that mask patches say so
  'dropout_rate',
  'attention_dropout_rate',
  'stochastic_depth',
  'patch_dropout',
  'initializers',
  *models.EXECUTION,
)


def check(config: ml_collections.ConfigDict) -> None:
  """Checks `config.init_from.resize`."""
  config_lib.check_choice(config, 'init_from.resize', resize.METHODS)


def load(config: ml_collections.ConfigDict) -> weights.Loaded:
  """Loads the checkpoint; `config.model` sets what its arrays do not show."""
  unseen = dict(config.model)
  size = cast(tuple[int, int], config_lib.sides(config.data.image_size))
  try:
    return weights.load(
      config.init_from.path, position_size=size, unseen=unseen
    )
  except ValueError as e:
    message = config_lib.one_line(e)
    raise config_lib.UserError(f'config.init_from.path: {message}') from None


def fill(config: ml_collections.ConfigDict, loaded: weights.Loaded) -> None:
  """Sets open keys of a config to the values of the checkpoint.

  These are the model's fields if its name is 'init_from', mean and std if they
  are (), and the interpolation and the method that resizes positions if they
  are ''. The method is kept, since this run's checkpoints are resized so, too.
  """
  if config.model.name == config_lib.INIT_FROM:
    _fill_model(config, loaded.model)
  path, preprocess = config.init_from.path, loaded.preprocess
  config_window, window = (
    levels.from_config(config).window,
    preprocess.intensity,
  )
  if config_window != window:
    logging.warning(
      'warning: config.data.intensity is %s, but %s was trained with %s: to see'
      ' images as it did, set --config.data.intensity=%s',
      *(config_window or 'type', path, window or 'type'),
      'type' if window is None else f"'({window[0]:g}, {window[1]:g})'",
    )
  config.init_from.resize = config.init_from.resize or loaded.resize
  mean, std = preprocess.mean, preprocess.std
  for key, value in (('mean', mean), ('std', std)):
    if config.data[key] and not _are_equal(config.data[key], value):
      logging.warning(
        'warning: config.data.%s is %s, but %s was trained with %s',
        *(key, config.data[key], path, value),
      )
  if len(mean) > 1 and len(mean) != config.data.channels:
    mean, std = ((sum(x) / len(x),) for x in (mean, std))
  config.data.mean = config.data.mean or mean
  config.data.std = config.data.std or std
  if config.data.antialias or preprocess.interpolation != 'bicubic':
    interpolation = config.data.interpolation or preprocess.interpolation
    config.data.interpolation = interpolation


def _fill_model(config: ml_collections.ConfigDict, model: models.Model) -> None:
  if config.model.num_classes != model.num_classes:
    model = models.without_head(model)
  read = config_lib.wing('vit_jax.models.describing:config_values')
  values = read(model)
  config.model.name = values.pop('name')
  if config.model.block is not None and values['block'] is not None:
    config.model.block = adapters.on_base(config.model.block, values['block'])
  for key, value in values.items():
    if config.model[key] is None and key not in _CHOSEN:
      config_lib.set_value(config, f'model.{key}', value)


def _are_equal(a: Sequence[float], b: Sequence[float]) -> bool:
  """Whether values are equal; a single number stands for all channels."""
  count = max(len(a), len(b))
  return tuple(a) * (count // len(a)) == tuple(b) * (count // len(b))


class Start:
  """The parameters that a run starts from, held until `take`.

  Attributes:
    has_fresh_head: Whether the head is new; False until that is known.
  """

  def __init__(
    self,
    config: ml_collections.ConfigDict,
    classes: Sequence[str],
    loaded: weights.Loaded | None,
    objective: Any,
  ):
    """Adapts the checkpoint to the model; without one, `take` loads it.

    `config` has no open keys; `classes` are the names of the data's, in order;
    `objective` is an `objectives.Objective`.
    """
    self._config = config
    self._classes = classes
    self._objective = objective
    self.has_fresh_head = False
    self._params = None if loaded is None else self._fit(loaded)

  def take(self) -> Any:
    """Returns the parameters, once, in their places in the objective's tree.

    The tree has further ones if the checkpoint has the trunk alone.
    """
    params, self._params = self._params, None
    return self._fit(load(self._config)) if params is None else params

  def _fit(self, loaded: weights.Loaded) -> Any:
    path, objective = self._config.init_from.path, self._objective
    abstract = jax.eval_shape(objective.init, jax.random.key(0))
    place = objective.trunk_path
    with config_lib.explained(f'config.init_from.path={path}'):
      trunk = self._fit_trunk(loaded, objective.trunk(abstract)[0])
      objective_params = self._fit_beside(
        loaded, subtrees.remainder(abstract, place)
      )
    return subtrees.joined(trunk, place, objective_params)

  def _fit_trunk(self, loaded: weights.Loaded, target: models.Model) -> Any:
    config = self._config
    size = config_lib.sides(config.data.image_size)
    params, changes = adapt.adapt(
      loaded.params,
      loaded.model,
      target,
      weights.grid(loaded.model, loaded.position_size),
      weights.grid(target, size),
      channels=config.data.channels,
      resize=config.init_from.resize or loaded.resize,
      classes=(loaded.classes, self._classes),
    )
    self.has_fresh_head = any(
      change.path == 'head/kernel' and change.is_fresh for change in changes
    )
    logging.info('starting from %s', loaded.origin)
    table = adapt.changes_table(changes)
    logging.info('%s', table if changes else 'nothing had to be adapted')
    return params

  def _fit_beside(self, loaded: weights.Loaded, abstract: Any) -> Any:
    """Returns the parameters beside the trunk that the checkpoint has.

    `abstract` are the shapes of all that the objective has there.
    """
    if not abstract or self._config.init_from.trunk_only:
      return {}
    unrolled = jax.eval_shape(layouts.unstack_all, abstract)
    try:
      objective_params = self._read_beside(loaded, unrolled)
    except config_lib.UserError as e:
      raise config_lib.UserError(
        f"beside its trunk {e}. Set the objective's options as they were, or"
        ' config.init_from.trunk_only=True'
      ) from None
    names = ', '.join(abstract)
    if objective_params is None:
      logging.info('it has no parameters of %s: they start at random', names)
      return {}
    logging.info('%s: also from there', names)
    return layouts.relayout(objective_params, abstract)

  def _read_beside(self, loaded: weights.Loaded, abstract: Any) -> Any:
    """Returns the parameters beside the trunk, unrolled, or None."""
    trained_with = loaded.trained_with
    if trained_with is None:
      table = objective_tables.table(self._objective, loaded.format)
      path = pathlib.Path(loaded.origin.path)
      return table and foreign.read_beside(path, table, abstract)
    if trained_with.objective.name != self._config.objective.name:
      return None
    params = layouts.unstack_all(loaded.objective_params)
    stored, needed = (
      traverse_util.flatten_dict(x, sep='/') for x in (params, abstract)
    )
    needed = {path: x.shape for path, x in needed.items()}
    places = 'the checkpoint', 'the model'
    if problems := fit.different_arrays(stored, needed, places):
      raise config_lib.UserError(f'it does not fit: {"; ".join(problems)}')
    return params
