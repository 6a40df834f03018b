"""A method of a user's own: a student that agrees with a mean teacher.

Two views of each image; the teacher is a moving average of the student
(Tarvainen and Valpola, arXiv:1703.01780), whose logits are centred by a running
mean (DINO's, arXiv:2104.14294, section 3.1).
"""

from typing import ClassVar

import jax
import jax.numpy as jnp
import optax

from vit_jax.data import features
from vit_jax.data.host import geometry
from vit_jax.evaluation import metrics
from vit_jax.objectives import base
from vit_jax.objectives import losses


class MeanTeacher(base.Objective):
  target: ClassVar = ('label', features.Label)
  metrics: ClassVar = {'accuracy': 'max', 'loss': 'min', 'examples': 'max'}
  options: ClassVar = {'decay': 0.9, 'centre_decay': 0.9, 'weight': 1.0}

  def __init__(self, config, features):
    super().__init__(config, features)
    self.views = {'pair': geometry.View(geometry.train_crop(config), 2)}
    self._options = config.objective.options

  def init_extra(self, params):
    return {
      'teacher': jax.tree.map(jnp.copy, params),
      'centre': jnp.zeros(self.model.num_classes, jnp.float32),
      'updates': jnp.zeros((), jnp.int32),
    }

  def loss(self, params, extra, batch, rng):
    student = self.apply_train(params, batch['pair'][:, 0], rng)
    teacher = self.apply(extra['teacher'], batch['pair'][:, 1])
    target = jax.nn.softmax(jax.lax.stop_gradient(teacher - extra['centre']))
    named = losses.cross_entropy(student, batch['label']).mean()
    agreed = optax.softmax_cross_entropy(student, target).mean()
    d = self._options.centre_decay
    centre = d * extra['centre'] + (1 - d) * teacher.mean(axis=0)
    loss = named + self._options.weight * agreed
    return loss, {'agreement_loss': agreed}, extra | {'centre': centre}

  def after_update(self, extra, params, step):
    teacher = optax.incremental_update(
      params, extra['teacher'], 1 - self._options.decay
    )
    return extra | {'teacher': teacher, 'updates': extra['updates'] + 1}

  def measure(self, outputs, batch):
    logits, labels = outputs['logits'], batch['label']
    loss = losses.cross_entropy(logits, labels)
    return metrics.classification(logits, labels, loss, batch['valid'])
