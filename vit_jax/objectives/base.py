"""The interface of objectives: the loss of a training method and its metrics.

A method is one file: a subclass of `Objective`, in this package or in a module
of the user's, named as 'my_module:MyObjective'. The train loop, evaluation and
checkpoints use only this interface. How an objective is found and checked is in
`objectives/__init__.py`.
"""

import abc
from collections.abc import Mapping
import enum
from typing import Any
from typing import ClassVar
from typing import TypeAlias

from clu import metrics as clu_metrics
import flax
from flax import traverse_util
import jax
import jax.numpy as jnp
import ml_collections

from vit_jax import config as config_lib
from vit_jax import models
from vit_jax import optim
from vit_jax.data import base as data_base
from vit_jax.data import features as features_lib
from vit_jax.data.device.rng import Rng
from vit_jax.data.host import geometry
from vit_jax.evaluation import metrics
from vit_jax.parallel import sharding
from vit_jax.runs import checkpoint

Config: TypeAlias = ml_collections.ConfigDict
Features = features_lib.Features
Params = Any
Extra = Any
Batch = dict[str, jax.Array]
Scalars = dict[str, jax.Array]
Outputs = dict[str, jax.Array]

# Key of an extra: a tree of parameters that do not train, but are measured, as
# running statistics. After each step the parameters take these values.
STATISTICS = 'statistics'
# Key of an extra: a moving average of all parameters that the objective keeps
# itself, as for a teacher. It is evaluated and loaded in place of them, as the
# average of `config.train.ema_decay` is.
AVERAGE = checkpoint.AVERAGE


class Purpose(enum.IntEnum):
  """Numbers that `Rng.fold` folds into a step's random key.

  Objectives use OBJECTIVE and larger numbers for their own draws.
  """

  AUGMENTATION = 0
  DROPOUT = 1
  OBJECTIVE = 2


@flax.struct.dataclass
class Column:
  """What a method makes of the images of a batch, as a column of a picture.

  Attributes:
    name: What is shown, in a word or two.
    images: float32 [B, H, W, C], as the model takes them.
    hidden: bool [B, N], patches that are covered, row by row; None: none is.
  """

  name: str = flax.struct.field(pytree_node=False)
  images: jax.Array
  hidden: jax.Array | None = None


class Objective(abc.ABC):
  """A training method.

  The defaults fit most methods: one model from `config.model`, whose outputs
  are `logits`; no state beside the parameters; one crop of each image. A
  subclass defines `target`, `loss` and `measure`, and overrides what differs.

  Attributes:
    target: Name and kind of the feature that it learns; None: only images are
      used.
    metrics: Metrics of `measure`, each with 'max' or 'min' for the better
      direction; `config.checkpoint.best` may name one. A name that ends with
      '/' stands for one metric per class or quantity.
    options: Keys of `config.objective.options` with their defaults. `loss`
      reads one as `self.config.objective.options.NAME`, and a command sets it
      by --config.objective.options.NAME=VALUE.
    limits: What some options may be: an interval, as '(0, 1]'; the choices, as
      ('hard', 'soft'); or 'duration', a length of time. A key names one option
      or several, with spaces between.
    couples_examples: Whether its loss needs the whole batch at once. Gradient
      accumulation is then refused, unless it `caches_gradients`.
    caches_gradients: Whether `loss` always gets the whole batch, and itself
      computes the microbatches of an accumulation one by one.
    reads_layers: Whether it reads the tokens of several layers, so that it can
      choose them, and not of the last alone.
    moves_statistics: Whether its loss measures the running statistics of the
      model's `head_norm`, and puts them into `extra[STATISTICS]`.
    config: The full config, with all values set.
    features: Features of the examples, by name.
    views: Crops of the image that `loss` sees, by name.
    model: The Linen module: [B, H, W, C] -> logits [B, outputs].
    image_shape: (H, W, C) that the model sees; of volumes (D, H, W, C).
    lengths: Steps of the run and of the parts of its schedule.
  """

  target: ClassVar[tuple[str, type[features_lib.Feature]] | None] = None
  metrics: ClassVar[Mapping[str, str]] = {'examples': 'max'}
  options: ClassVar[Mapping[str, Any]] = {}
  limits: ClassVar[Mapping[str, str | tuple[str, ...]]] = {}
  couples_examples: ClassVar[bool] = False
  caches_gradients: ClassVar[bool] = False
  reads_layers: ClassVar[bool] = False
  moves_statistics: ClassVar[bool] = False
  lengths: optim.Lengths = optim.Lengths(total=1_000)  # until a run sets it

  def __init__(self, config: Config, features: Features):
    """Makes the model, if the examples have what the objective needs."""
    self.check_features(config, features)
    size = config_lib.sides(config.data.image_size)
    self.config, self.features = config, features
    self.image_shape = (*size, config.data.channels)
    self.model = models.from_config(
      config.model, config.model.num_classes, config.train.dtype
    )
    self.views = geometry.train_views(config)

  # Before training.

  @staticmethod
  def check(config: Config) -> None:
    """Raises a UserError if a key of the config cannot work for the method.

    It is called before anything slow, after `limits` are checked.
    """

  @classmethod
  def check_features(cls, config: Config, features: Features) -> None:
    """Raises a UserError unless examples have images that fit, and `target`."""
    image = features['image']
    assert isinstance(image, features_lib.Image)
    image.check_input(config)
    if cls.target is None:
      return
    name, kind = cls.target
    if not isinstance(features.get(name), kind):
      kinds = (f'{key} ({type(x).__name__})' for key, x in features.items())
      raise config_lib.UserError(
        f'config.objective.name={config.objective.name} learns {name!r}'
        f' ({kind.__name__}), but the examples of {config.data.name} have'
        f' {", ".join(kinds)}: choose another objective, or data that have it'
      )

  @classmethod
  def num_outputs(cls, features: Features) -> int:
    """Returns the number of the model's logits: one per class or quantity."""
    return len(features[cls.target[0]].names) if cls.target else 0

  @classmethod
  def fill(cls, config: Config, source: data_base.Source) -> None:
    """Sets unset keys of the full config from the training split."""

  def check_source(self, source: data_base.Source) -> None:
    """Raises a UserError if the training data are not what it needs."""

  def describe(self, source: data_base.Source) -> list[str]:
    """Returns lines about the objective and its data, for the log."""
    del source
    return []

  @property
  def frozen(self) -> str:
    """Regular expression for parameters that the method never trains."""
    return ''

  @property
  def held(self) -> tuple[str, int]:
    """Pattern of parameters that do not change in so many first steps."""
    return '', 0

  def init(self, key: jax.Array) -> Params:
    """Returns fresh parameters."""
    return models.init_params(self.model, key, self.image_shape)

  def init_extra(self, params: Params) -> Extra:
    """Returns the state beside the parameters, a dict of trees of arrays.

    It is a part of the train state and of checkpoints, and must be finite. A
    leaf with the path and shape of a parameter is sharded like it. `params` are
    the initial ones of training.
    """
    del params
    return {}

  # In each step.

  @abc.abstractmethod
  def loss(
    self, params: Params, extra: Extra, batch: Batch, rng: Rng
  ) -> tuple[jax.Array, Scalars, Extra]:
    """Returns the mean loss, other means to report, and the new extra.

    The names of the means are not those that the loop reports itself, as 'loss'
    and 'learning_rate': see `contract`.

    With accumulation, all microbatches of a step get the same `extra`, and the
    new extra is the mean of what they return. So a running mean over batches
    does not depend on the number of microbatches.

    Args:
      params: From `init`, or updated.
      extra: From `init_extra`, or updated.
      batch: Global arrays [B, ...]: augmented float32 images by the names of
        `views`, and the other features of the source. If images are mixed, so
        are targets: labels are then shares of the classes, [B, classes].
      rng: Random key of this step and these rows.
    """
    del params, extra, batch, rng
    raise NotImplementedError

  def after_update(
    self, extra: Extra, params: Params, step: jax.Array
  ) -> Extra:
    """Returns the extra after the optimizer's update, as for an EMA teacher.

    `extra` is that of `loss`, `params` are those after the update, and `step`
    is the number of completed updates before this one.
    """
    del params, step
    return extra

  def after_step(
    self, extra: Extra, ok: jax.Array, has_batch: jax.Array
  ) -> Extra:
    """Returns the extra after a step, with `train.skip_nonfinite` alone.

    `extra` is that before the step where it was skipped. `ok` is whether it was
    not, and `has_batch` whether all processes had a batch.
    """
    del ok, has_batch
    return extra

  def warnings(self, scalars: Mapping[str, float], step: int) -> list[str]:
    """Returns what is wrong with the run, as one sees it in a logged step.

    The log gets these lines the first time that there are some. `scalars` are
    the metrics of `loss`, and 'loss'; `step` counts the updates with this one.
    """
    del scalars, step
    return []

  # In evaluations, and after training.

  def outputs(self, params: Params, batch: Batch) -> Outputs:
    """Returns the model's outputs for a batch; image: float32 [B, H, W, C]."""
    return {'logits': self.apply(params, batch['image'])}

  def measure(self, outputs: Outputs, batch: Batch) -> clu_metrics.Collection:
    """Returns the metrics of a batch over the examples that are `valid`.

    By default the mean of `loss` [B], if that is an output, and the count. The
    metrics of several batches are merged on the host. A matrix, as
    `confusion`, is shown as a picture and not logged.

    Args:
      outputs: From `outputs`.
      batch: The features of the source [B, ...], and valid, bool [B].
    """
    if 'loss' in outputs:
      if outputs['loss'].shape != batch['valid'].shape:
        raise config_lib.UserError(
          f'config.objective.name={self.config.objective.name}: outputs returns'
          f" 'loss' of the shape {outputs['loss'].shape}: it must be [B], one"
          ' number for each example'
        )
      return metrics.mean_loss(outputs['loss'], batch['valid'])
    return metrics.Examples.single_from_model_output(mask=batch['valid'])

  def output_facts(self) -> dict[str, Any]:
    """Returns what prediction needs to interpret the outputs, as JSON values.

    The keys are names of outputs. Each value has the name of the predicted
    'feature' and, for numbers, the 'mean' and 'std' that scale the logits.
    """
    return {'logits': {'feature': self.target[0]}} if self.target else {}

  @property
  def pictures_caption(self) -> str:
    """Sentences that explain `pictures`; '' if there are none."""
    return ''

  def pictures(
    self, params: Params, extra: Extra, images: jax.Array, rng: Rng
  ) -> list[Column]:
    """Returns what the method makes of images, for `explore`.

    `images` are float32 [B, H, W, C], prepared as for evaluation. `rng` is the
    random key of a step and of these rows, for masks as `loss` draws them.
    """
    del params, extra, images, rng
    return []

  def hidden(self, rng: Rng, step: int) -> dict[str, jax.Array]:
    """Returns the patches that `loss` hides from the model, by view.

    They are bool [rows, h, w] for a grid of h x w patches, or [rows, count, h,
    w] for a view with several crops. `step` is the number of completed updates.
    """
    del rng, step
    return {}

  def trunk(self, params: Params) -> tuple[models.Model, Params]:
    """Returns the model for use after training, and its parameters.

    These are all, or those under 'trunk' where an objective has others, too.
    """
    has_others = isinstance(params, Mapping) and 'trunk' in params
    return self.model, params['trunk'] if has_others else params

  @property
  def trunk_path(self) -> str:
    """Keys of the trunk's parameters in all, as 'student/backbone'; '': all."""
    paths: list[str] = []

    def search(key: jax.Array) -> None:
      params = self.init(key)
      _, trunk = self.trunk(params)
      subtrees = jax.tree.leaves_with_path(params, lambda x: x is trunk)
      paths.extend(sharding.path_name(p) for p, x in subtrees if x is trunk)

    jax.eval_shape(search, jax.random.key(0))  # `trunk` may compute with arrays
    if paths:
      return paths[0]
    raise config_lib.UserError(
      f'{type(self).__name__}.trunk returns other parameters than it is given:'
      ' it must return the model, and one of the subtrees of params as it is,'
      " as params['trunk']"
    )

  # For the methods above.

  def num_steps(self, duration: str) -> int:
    """Converts a length of time, such as '30 epochs', to steps of this run."""
    return config_lib.num_steps(
      duration, self.lengths.examples, self.config.train.batch_size
    )

  def apply(self, params: Params, images: jax.Array, **kwargs: Any) -> Any:
    """Applies the model: images [B, H, W, C] -> logits [B, outputs].

    With `method='trunk'` the result is that of `trunk`, a dict of arrays; with
    `mutable` it is a pair, as Linen returns it.
    """
    with models.explained_parts(self.model):
      return self.model.apply({'params': params}, images, **kwargs)

  def apply_train(
    self, params: Params, images: jax.Array, rng: Rng, **kwargs: Any
  ) -> Any:
    """Applies the model for training, with dropout drawn from the step's key.

    Several views of the rows may be put together, as by `jnp.concatenate` of
    views [B, H, W, C]: the images of a row then drop independently. Views that
    lie side by side, as [B, n, H, W, C] reshaped, need `rng.repeat(n)`. Two
    calls with the same `rng` drop the same: `rng.fold` makes them differ.

    Args:
      params: Parameters of the model.
      images: float32 [n B, H, W, C], one view of all rows after the other.
      rng: Random key of this step and these rows, [B] or [n B].
      **kwargs: Passed on to the module.
    """
    count, num_rows = len(images), len(rng.rows)
    if count != num_rows:
      views = jnp.arange(count, dtype=jnp.int32) // num_rows
      rows = (
        jnp.resize(rng.rows, (count,)) + views * self.config.train.batch_size
      )
      rng = Rng(rng.key, rows)
    return self._apply_in_training(
      params, images, self.train_arguments(rng) | kwargs
    )

  def _apply_in_training(
    self, params: Params, images: jax.Array, arguments: Mapping[str, Any]
  ) -> Any:
    """Applies the model for training; `extensions.balancing` overrides it."""
    return self.apply(params, images, **arguments)

  def train_arguments(self, rng: Rng) -> dict[str, Any]:
    """Returns the arguments with which a model is applied for training."""
    key = rng.fold(Purpose.DROPOUT).key
    if self.config.train.rng == 'rbg':
      words = jax.random.bits(key, (4,), jnp.uint32)
      key = jax.random.wrap_key_data(words, impl='rbg')
    return {'train': True, 'rows': rng.rows, 'rngs': {'dropout': key}}


def updated(params: Params, statistics: Params) -> Params:
  """Returns nested dicts of arrays, replaced where `statistics` has them."""
  flat = traverse_util.flatten_dict(params)
  return traverse_util.unflatten_dict(
    flat | traverse_util.flatten_dict(statistics)
  )
