"""Predictions: a model's outputs, interpreted as the feature they predict."""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from typing import Any
from typing import Self
import unicodedata

from absl import logging
import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import optax

from vit_jax import config as config_lib
from vit_jax import weights
from vit_jax.data import features as features_lib
from vit_jax.data import target_kinds
from vit_jax.evaluation import loaded as loaded_lib

Arrays = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Predictions:
  """Predicted classes of the N examples of a split, in its order."""

  index: np.ndarray  # int32 [N], positions in the whole split, before slicing
  label: np.ndarray  # int32 [N], positions in the model's classes
  loss: np.ndarray  # float32 [N], cross-entropy in nats
  # int32 [N, k], the k most probable classes, the most probable first.
  top: np.ndarray
  probability: np.ndarray  # float32 [N, k], their probabilities


@dataclasses.dataclass(frozen=True)
class Head:
  """Interprets a model's logits, by the kind of feature that they predict."""

  feature: str
  target: features_lib.Target  # the feature
  # Names of the outputs; a class without a name has its number.
  names: tuple[str, ...]
  top: int  # number of classes in a prediction
  # For regression: mean of the quantities in training, float32 [K].
  mean: np.ndarray
  std: np.ndarray  # for regression: their standard deviation, float32 [K]

  @classmethod
  def from_loaded(cls, loaded: weights.Loaded, top: int) -> Self:
    """Returns the head of a model.

    `top` is the largest number of classes in a prediction.
    """
    count = loaded.model.num_classes
    if not count:
      raise config_lib.UserError(
        'this model has no head, so it names no classes: choose one that was'
        ' trained to, or fine-tune it'
      )
    facts = loaded.preprocess.outputs.get('logits', {})
    target = loaded.target
    classes = loaded.classes or target.names
    return cls(
      feature=facts.get('feature', 'label'),
      target=target,
      names=(*classes, *map(str, range(len(classes), count))),
      top=min(top, count),
      mean=np.asarray(facts.get('mean', 0), np.float32),
      std=np.asarray(facts.get('std', 1), np.float32),
    )

  @property
  def is_classifier(self) -> bool:
    """Whether the outputs are mutually exclusive classes."""
    return isinstance(self.target, features_lib.Label)

  @property
  def predicts_numbers(self) -> bool:
    """Whether predictions are numbers in the units of the data."""
    return isinstance(self.target, target_kinds.Number)

  def values(self, logits: jax.Array) -> jax.Array:
    """Returns probabilities, or numbers in the units of the data, [B, K]."""
    logits = jnp.asarray(logits, jnp.float32)
    if self.predicts_numbers:
      return logits * self.std + self.mean
    is_multi = isinstance(self.target, target_kinds.MultiLabel)
    return (jax.nn.sigmoid if is_multi else jax.nn.softmax)(logits)

  def rank(
    self, logits: jax.Array, labels: jax.Array | None = None
  ) -> dict[str, jax.Array]:
    """Returns the most probable classes, or all numbers of a regression.

    Of logits [B, K] it returns top and probability [B, k], and loss [B] if
    there are labels [B], as in `Predictions`. For a regression, probability has
    the numbers.
    """
    values = self.values(logits)
    if self.predicts_numbers:
      order = jnp.broadcast_to(jnp.arange(values.shape[-1]), values.shape)
      return {'top': order, 'probability': values}
    probability, classes = jax.lax.top_k(values, self.top)
    rows = {'top': classes, 'probability': probability}
    if labels is not None:
      rows['loss'] = optax.softmax_cross_entropy_with_integer_labels(
        jnp.asarray(logits, jnp.float32), labels
      )
    return rows

  def read(
    self, outputs: Mapping[str, jax.Array], batch: Mapping[str, jax.Array]
  ) -> dict[str, jax.Array]:
    """Returns the true and the predicted values of each example.

    Of `Objective.outputs` of a batch it returns label, top, probability and
    loss, as in `Predictions`; for multi-label models and regressions, truth and
    predicted, [B, K].
    """
    truth, logits = batch[self.feature], outputs['logits']
    if self.is_classifier:
      return {'label': truth} | self.rank(logits, truth)
    return {'truth': truth, 'predicted': self.values(logits)}


def predict(
  loaded: weights.Loaded,
  head: Head,
  config: ml_collections.ConfigDict,
  batches: Iterable[loaded_lib.Pair],
  image_shape: tuple[int, int] | None = None,
) -> Iterator[tuple[Any, Arrays]]:
  """Yields the results of `Head.rank` for batches, as `loaded.Applied` does.

  A batch has image (uint8 [B, h, w, C]) and, for the loss, label (int32 [B]).
  Images have the model's size, unless all of them have `image_shape`.
  """

  def rank(objective: Any, params: Any, batch: dict[str, jax.Array]) -> Any:
    logits = objective.model.apply({'params': params}, batch['image'])
    return head.rank(logits, batch.get('label'))

  trunk = loaded_lib.Trunk(loaded.model)
  applied = loaded_lib.Applied(trunk, loaded.params, config)
  return applied(rank, {'image': features_lib.Image(image_shape)}, batches)


def match_classes(
  model_names: Sequence[str], num_classes: int, data_names: Sequence[str]
) -> np.ndarray:
  """Matches the classes of the data with the classes of a model, by name.

  The data may have only some of the model's. Names that differ only in how
  Unicode composes their letters are the same, as of folders of macOS.

  The model has `num_classes`; without names, both have the same order. It is an
  error if the model lacks a class of the data, or has its name twice.

  Returns:
    int32 [classes of the data], positions in the model's.
  """
  in_order = np.arange(len(data_names), dtype=np.int32)
  if not model_names:
    if num_classes != len(data_names):
      raise config_lib.UserError(
        f'the model tells {num_classes} classes apart, and the data have'
        f' {len(data_names)}: with no names to go by, they must be as many'
      )
    return in_order
  if tuple(model_names) == tuple(data_names):
    return in_order
  model_keys = [unicodedata.normalize('NFC', x) for x in model_names]
  keys = [unicodedata.normalize('NFC', x) for x in data_names]
  position = {key: i for i, key in enumerate(model_keys)}
  missing = [
    name
    for key, name in zip(keys, data_names, strict=True)
    if key not in position
  ]
  if missing:
    raise config_lib.UserError(
      f'the model has not all {config_lib.counted(len(data_names), "class")} of'
      f' the data: of the data alone are {config_lib.join_first(missing)}; of'
      f' the model are {config_lib.join_first(model_names)}. Leave examples of'
      ' other classes out, or, where only the names differ, add --same_order'
    )
  twice = [x for x in keys if model_keys.count(x) > 1 or keys.count(x) > 1]
  if twice:
    raise config_lib.UserError(
      'the classes of the data are in another order than those of the model,'
      f' and cannot be told by their names, as {twice[0]!r} occurs twice'
    )
  if len(keys) < len(model_keys):
    logging.info(
      'the data have %d of the %d classes of the model',
      *(len(keys), len(model_keys)),
    )
  return np.array([position[key] for key in keys], np.int32)
