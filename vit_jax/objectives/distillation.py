"""Classification with distillation from a teacher (DeiT, arXiv:2012.12877)."""

import functools
import os
from typing import Any
from typing import ClassVar

from absl import logging
import jax
import jax.numpy as jnp
import numpy as np
import optax

from vit_jax import config as config_lib
from vit_jax import weights
from vit_jax.data import base as data_base
from vit_jax.data.device.rng import Rng
from vit_jax.data.host import levels
from vit_jax.models import describing
from vit_jax.objectives import base
from vit_jax.objectives import classification
from vit_jax.objectives import losses

_TEACHER = 'config.objective.options.teacher'


class Distillation(classification.Classification):
  """Learns the labels, and a teacher's predictions for the same images.

  The teacher gets the augmented and mixed images of the student. In a student
  with a distillation token, that token's head learns from the teacher; in
  other students, the only head learns from both.
  """

  moves_statistics: ClassVar = False
  options: ClassVar = {
    # The teacher: any path that `vit_jax.load` reads.
    'teacher': '',
    # What the student learns from the teacher. 'hard': the class that the
    # teacher predicts. 'soft': the teacher's logits.
    'distillation': 'hard',
    # Weight of the teacher in the loss, from 0 to 1.
    'teacher_weight': 0.5,
    # For 'soft': the logits of both models are divided by it.
    'temperature': 3.0,
  }
  limits: ClassVar = {
    'distillation': ('hard', 'soft'),
    'teacher_weight': '[0, 1]',
    'temperature': '(0, inf)',
  }

  def __init__(self, config: base.Config, features: base.Features):
    """Makes the model, and loads the teacher, which must fit the data."""
    super().__init__(config, features)
    self._options = config.objective.options
    path = self._options.teacher
    self._teacher = teacher = _load(path, self.image_shape[:2])
    self._teacher_model = describing.with_keys(
      teacher.model, dtype=jnp.dtype(config.train.dtype)
    )
    classes, channels = config.model.num_classes, config.data.channels
    for kind, needed, has in (
      ('classes', classes, teacher.model.num_classes),
      ('channels', channels, teacher.preprocess.channels),
    ):
      if needed != has:
        raise config_lib.UserError(
          f'{_TEACHER}={path} knows {has} {kind}, but the data has {needed}'
        )
    data_window = levels.from_config(config).window
    window = teacher.preprocess.intensity
    if data_window != window:
      raise config_lib.UserError(
        f'{_TEACHER}={path} was trained with the intensities'
        f' {window or "type"}, and config.data.intensity is'
        f' {data_window or "type"}: make them the same'
      )

  @staticmethod
  def check(config: base.Config) -> None:
    """Checks that there is a teacher, and the options of a classifier."""
    if not config.objective.options.teacher:
      raise config_lib.UserError(
        f'{_TEACHER} is empty, but config.objective.name is'
        " 'distillation': say which model teaches"
      )
    classification.Classification.check(config)

  def init_extra(self, params: base.Params) -> base.Extra:
    """Returns the teacher's parameters, which stay constant."""
    del params
    return {'teacher': jax.tree.map(np.asarray, self._teacher.params)}

  def check_source(self, source: data_base.Source) -> None:
    """Checks that the teacher has the same classes in the same order.

    That cannot be checked if the teacher has no class names, or none of the
    data's.
    """
    super().check_source(source)
    classes = source.classes
    path, teacher_classes = self._options.teacher, self._teacher.classes
    pairs = zip(classes, teacher_classes, strict=False)
    for i, (data_class, teacher_class) in enumerate(pairs):
      if data_class != teacher_class and teacher_class in classes:
        raise config_lib.UserError(
          f'{_TEACHER}={path} has its classes in another order'
          f' than the data: class {i} is {teacher_class!r} there, and'
          f' {data_class!r} here'
        )
    if teacher_classes and not set(teacher_classes) & set(classes):
      logging.warning(
        'warning: %s names its classes otherwise than the data (%s, ...; %s,'
        ' ...): they are taken to be in the same order',
        *(path, teacher_classes[0], classes[0]),
      )

  def loss(
    self, params: base.Params, extra: base.Extra, batch: base.Batch, rng: Rng
  ) -> tuple[jax.Array, base.Scalars, base.Extra]:
    """Returns the loss (nats), its distillation part, and the accuracy.

    The loss is (1 - w) * cross-entropy + w * distillation, where w is
    `teacher_weight` (DeiT, equations 2 and 3).
    """
    images, labels = batch['image'], batch['label']
    if getattr(self.model, 'has_two_heads', False):
      heads = self.apply_train(params, images, rng, merge_heads=False)
    else:  # the only head learns from both
      logits = self.apply_train(params, images, rng)
      heads = jnp.stack([logits, logits], axis=1)  # [B, 2, classes]
    loss = self.cross_entropy(heads[:, 0], labels).mean()
    teacher: Any = self._teacher_model.apply(
      {'params': extra['teacher']}, self._as_teacher_sees(images)
    )
    from_teacher = self._from_teacher(heads[:, 1], teacher).mean()
    w = self._options.teacher_weight
    accuracy = losses.accuracy(heads.mean(axis=1), labels)
    scalars = {'accuracy': accuracy, 'distillation_loss': from_teacher}
    return (1 - w) * loss + w * from_teacher, scalars, extra

  def _from_teacher(self, logits: jax.Array, teacher: jax.Array) -> jax.Array:
    """Returns the distillation loss of each image, float32 [B].

    Soft distillation multiplies the divergence by t^2, so that the size of its
    gradients does not depend on the temperature (arXiv:1503.02531, section 2).
    """
    if self._options.distillation == 'hard':
      return losses.cross_entropy(logits, teacher.argmax(axis=-1), self._loss)
    t = self._options.temperature
    divergence = optax.losses.kl_divergence_with_log_targets(
      jax.nn.log_softmax(logits / t), jax.nn.log_softmax(teacher / t)
    )
    return t**2 * divergence

  def _as_teacher_sees(self, images: jax.Array) -> jax.Array:
    normalization = config_lib.normalization(self.config)
    mean, std = (np.asarray(x, np.float32) for x in normalization)
    pixels = images * std + mean
    preprocess = self._teacher.preprocess
    moments = preprocess.mean, preprocess.std
    mean, std = (np.asarray(x, np.float32) for x in moments)
    return (pixels - mean) / std


@functools.lru_cache(maxsize=1)  # a run makes the objective several times
def _load(path: str, image_size: tuple[int, int]) -> weights.Loaded:
  with config_lib.explained(_TEACHER, ValueError):
    teacher = weights.load(os.path.expanduser(path), image_size=image_size)
  logging.info('the teacher is %s', teacher.origin)
  return teacher
