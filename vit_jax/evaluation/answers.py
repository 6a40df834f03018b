"""What a loaded model answers: on images, and on a whole split."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import optax

from vit_jax import config as config_lib
from vit_jax import data
from vit_jax import weights
from vit_jax.data import features as features_lib
from vit_jax.data.device import views
from vit_jax.evaluation import applied

Arrays = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Answers:
  """What a model says of the N examples of a split, in its order.

  Attributes:
    index: int32 [N], positions in the unsliced split.
    label: int32 [N], positions in the model's classes.
    loss: float32 [N], cross-entropy in nats.
    top: int32 [N, k], the k most probable classes, the first one first.
    probability: float32 [N, k], of these.
  """

  index: np.ndarray
  label: np.ndarray
  loss: np.ndarray
  top: np.ndarray
  probability: np.ndarray


class Classifier:
  """A loaded model on as many devices as divide the batch.

  Attributes:
    names: Of all that it tells apart; its number where a class has no name.
    top: Number of classes in an answer.
    predicts_numbers: Whether answers are all numbers, in the units of the data
      and in the place of probabilities.
  """

  def __init__(
    self,
    loaded: weights.Loaded,
    config: ml_collections.ConfigDict,
    image_shape: tuple[int, int] | None,
    batch_size: int,
    top: int,
  ):
    """Prepares; compiles nothing yet.

    Args:
      loaded: The model.
      config: Says how images are normalised; from `loaded.preprocess`.
      image_shape: (height, width) of images that are to be resized on the
        device, None where they come in the model's size.
      batch_size: Of all batches.
      top: Most classes to name.

    Raises:
      UserError: The model has no head.
    """
    model, num_classes = loaded.model, loaded.model.num_classes
    if not num_classes:
      raise config_lib.UserError(
        'this model has no head, so it names no classes: choose one that was'
        ' trained to, or fine-tune it'
      )
    target = loaded.preprocess.target
    known = target.names
    self.predicts_numbers = isinstance(target, features_lib.Number)
    facts = loaded.preprocess.outputs.get('logits', {})
    self.names = (*known, *map(str, range(len(known), num_classes)))
    self.top = num_classes if self.predicts_numbers else min(top, num_classes)
    prepare = views.eval_transform(config, image_shape)

    def answer(params: Any, batch: Mapping[str, jax.Array]) -> Any:
      logits = model.apply({'params': params}, prepare(batch['image']))
      logits = jnp.asarray(logits, jnp.float32)
      if isinstance(target, features_lib.Number):
        numbers = logits * np.float32(facts['std']) + np.float32(facts['mean'])
        order = jnp.broadcast_to(jnp.arange(num_classes), logits.shape)
        return {'top': order, 'probability': numbers}
      is_multi = isinstance(target, features_lib.MultiLabel)
      activation = jax.nn.sigmoid if is_multi else jax.nn.softmax
      probability, classes = jax.lax.top_k(activation(logits), self.top)
      result = {'top': classes, 'probability': probability}
      if 'label' in batch:
        result['loss'] = optax.softmax_cross_entropy_with_integer_labels(
          logits, batch['label']
        )
      return result

    self._applied = applied.Applied(answer, loaded.params, batch_size)

  def answer(
    self, batches: Iterator[tuple[Any, Mapping[str, np.ndarray]]]
  ) -> Iterator[tuple[Any, Arrays]]:
    """Answers batches in order; the device has the next one meanwhile.

    Args:
      batches: Pairs of anything and a batch: image (uint8 [B, h, w, C]) and,
        for the loss, label (int32 [B]).

    Yields:
      The same thing with top, probability [B, k] and loss [B], as `Answers`.
    """
    return self._applied(batches)


def answer_split(
  classifier: Classifier,
  source: data.Source,
  config: ml_collections.ConfigDict,
  label_of: np.ndarray,
  progress: Callable[[int], object],
) -> Answers:
  """Asks a classifier about each example of a split once.

  Args:
    classifier: Made for the batches of `config` and the source.
    source: The split.
    config: Says how it is read; `train.batch_size` at a time.
    label_of: int32 [classes of the source], their positions in the model's.
    progress: Is called with the number of examples that were answered.

  Raises:
    UserError: An image cannot be read.
  """
  parts: list[Arrays] = []
  with contextlib.closing(
    data.eval_batches(source, config, batch_size=config.train.batch_size)
  ) as batches:
    pairs = (
      (batch, {'image': batch['image'], 'label': label_of[batch['label']]})
      for batch in batches
    )
    for batch, result in classifier.answer(pairs):
      result |= {'label': label_of[batch['label']], 'index': batch['index']}
      real = batch['valid']
      parts.append({key: x[real] for key, x in result.items()})
      progress(int(real.sum()))
  return Answers(
    **{key: np.concatenate([x[key] for x in parts]) for key in parts[0]}
  )


def match_classes(
  model_names: Sequence[str], num_classes: int, data_names: Sequence[str]
) -> np.ndarray:
  """Finds the classes of the data among those of a model, by name.

  Args:
    model_names: None at all means that those of the data are in its order.
    num_classes: That it tells apart.
    data_names: Of the data.

  Returns:
    int32 [classes of the data], positions in the model's.

  Raises:
    UserError: They are not the same classes.
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
  position = {name: i for i, name in enumerate(model_names)}
  if sorted(model_names) == sorted(data_names):
    if len(position) < len(model_names):
      raise config_lib.UserError(
        'the classes of the data are in another order than those of the model,'
        ' and cannot be told by their names, as some occur twice'
      )
    return np.array([position[name] for name in data_names], np.int32)
  missing = [name for name in data_names if name not in position]
  unknown = sorted(set(model_names) - set(data_names))
  raise config_lib.UserError(
    f'the data have not the {len(model_names)} classes of the model, but'
    f' {len(data_names)}: of the data alone are'
    f' {config_lib.some(missing) or "none"}; of the model alone'
    f' {config_lib.some(unknown) or "none"}. Where only the names differ, add'
    ' --same_order'
  )
