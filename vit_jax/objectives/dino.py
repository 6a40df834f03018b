"""DINO: self-distillation with no labels (Caron et al., arXiv:2104.14294).

In comments: B images, n crops of one size, T global crops, S crops in all,
[h, w] patches, D the size of a feature, K prototypes.
"""

from collections.abc import Mapping
import dataclasses
import functools
import math
from typing import Any
from typing import ClassVar

import jax
import jax.numpy as jnp
import optax

from vit_jax import config as config_lib
from vit_jax import models
from vit_jax import optim
from vit_jax.data.device.rng import Rng
from vit_jax.data.host import geometry
from vit_jax.models import inputs
from vit_jax.models import prototypes as heads
from vit_jax.models import vit
from vit_jax.objectives import base
from vit_jax.objectives import flexible
from vit_jax.objectives import prototypes
from vit_jax.objectives import trunk_checks
from vit_jax.weights import resize
from vit_jax.weights.formats import dino_head
from vit_jax.weights.formats import objective_tables
from vit_jax.weights.formats import tables

_GLOBAL = 2  # number of global crops


class Dino(base.Objective):
  """A student that agrees with its moving average about crops of an image.

  Two global crops, which `config.data` describes, and several local ones. The
  student sees all; the teacher, whose parameters are a moving average of the
  student's, only the global ones. A head gives logits over prototypes. The
  student learns the teacher's probabilities for another crop.

  The teacher is what is evaluated and loaded, as in the paper.

  Attributes:
    foreign_heads: Names of the heads in the authors' files.
  """

  options: ClassVar = {
    # Number of small crops of an image, beside the two large ones.
    'local_crops': 8,
    # Side of a small crop in pixels.
    'local_size': 96,
    # The smallest and the largest fraction of the image's area in a small crop.
    'local_scale': (0.05, 0.4),
    # How learned positions are resized for small crops, as init_from.resize.
    'resize': 'bicubic',
    # Number of prototypes, which are the outputs of the head.
    'prototypes': 65_536,
    # Number of dense layers of the head before the prototypes.
    'head_layers': 3,
    # Hidden size of the head.
    'head_hidden': 2_048,
    # Size of the vectors that are compared with the prototypes.
    'bottleneck': 256,
    # Whether the head has batch normalization.
    'batch_norm': False,
    # Whether the norms of the prototypes are trained. False: they are 1.
    'trains_scale': False,
    # Temperature of the student's softmax.
    'student_temperature': 0.1,
    # Temperature of the teacher's softmax after its warm-up.
    'teacher_temperature': 0.04,
    # Temperature of the teacher's softmax at the start of its warm-up.
    'teacher_temperature_start': 0.04,
    # Length of the warm-up of the teacher's temperature.
    'teacher_temperature_warmup': '0 epochs',
    # What keeps the teacher from collapsing: 'centre' or 'sinkhorn'.
    'assignment': 'centre',
    # For 'centre': weight of the old centre in its moving average.
    'centre_momentum': 0.9,
    # For 'sinkhorn': number of iterations.
    'sinkhorn_iterations': 3,
    # Weight of the old teacher in its moving average, at the start of the run.
    # It rises to 1 by half a cosine.
    'momentum': 0.996,
    # The time for which the last layer of the head does not train.
    'freeze_last_layer': '1 epochs',
  }
  limits: ClassVar = {
    'local_crops': '[0, inf)',
    'local_size head_layers head_hidden bottleneck': '[1, inf)',
    'sinkhorn_iterations': '[1, inf)',
    'resize': resize.METHODS,
    'prototypes': '[2, inf)',
    'student_temperature teacher_temperature': '(0, inf)',
    'teacher_temperature_start': '(0, inf)',
    'teacher_temperature_warmup freeze_last_layer': 'duration',
    'assignment': ('centre', 'sinkhorn'),
    'centre_momentum momentum': '[0, 1]',
  }

  foreign_heads: ClassVar = {'head': 'head'}

  def __init__(self, config: base.Config, features: base.Features):
    super().__init__(config, features)
    self._options = config.objective.options
    self.model = models.from_config(config.model, 0, config.train.dtype)
    self.views = _views(config)
    self._patch = self._checked_patch()
    self.heads = self.make_heads()

  def _checked_patch(self) -> tuple[int, int]:
    """Returns the size of patches, if the trunk can see all crops."""
    if isinstance(self.model, vit.ViT) and self.model.has_two_heads:
      raise config_lib.UserError(
        'config.model.distillation_token is True, but config.objective.name='
        f'{self.config.objective.name} needs a ViT without one: set it to False'
      )
    reason = 'needs a ViT without a distillation token'
    trunk = trunk_checks.checked_vit(self.model, self.config, reason)
    patch = models.patch_of_images(trunk)
    keys = {
      'global': 'data.image_size',
      'local': 'objective.options.local_size',
    }
    for name, view in self.views.items():
      size = view.crop.size
      if any(x % p for x, p in zip(size, patch, strict=True)):
        raise config_lib.UserError(
          f'config.{keys[name]} gives crops of {inputs.times(size)} pixels,'
          f' which patches of {inputs.times(patch)} do not fill: choose a'
          ' multiple of these'
        )
    return patch

  def make_heads(self) -> dict[str, heads.PrototypeHead]:
    """Returns the heads by their names in the parameters."""
    return {'head': self.make_head(self._options.prototypes)}

  def make_head(self, count: int) -> heads.PrototypeHead:
    """Returns a head with `count` prototypes."""
    o = self._options
    return heads.PrototypeHead(
      prototypes=count,
      hidden=o.head_hidden,
      bottleneck=o.bottleneck,
      layers=o.head_layers,
      batch_norm=o.batch_norm,
      trains_scale=o.trains_scale,
      dtype=jnp.dtype(self.config.train.dtype),
    )

  @staticmethod
  def check(config: base.Config) -> None:
    """Checks the shares of crops, and that batches are as the loss needs."""
    options, train = config.objective.options, config.train
    check_scale(config, 'local_scale', 'area')
    if train.ema_decay:
      raise config_lib.UserError(
        f'config.train.ema_decay is {train.ema_decay}, but the teacher'
        f' of config.objective.name={config.objective.name} is the moving'
        ' average that is evaluated: set it to 0'
      )
    coupling = ''
    if options.batch_norm:
      coupling = 'config.objective.options.batch_norm'
    elif options.assignment == 'sinkhorn':
      coupling = 'config.objective.options.assignment=sinkhorn'
    if coupling and config_lib.num_microbatches(config) > 1:
      raise config_lib.UserError(
        f'config.train.accumulation is {train.accumulation}, but {coupling}'
        ' needs the whole batch at once: set it to 1'
      )
    if coupling and train.batch_size < 2:
      raise config_lib.UserError(
        f'config.train.batch_size is {train.batch_size}, but {coupling}'
        ' compares the images of a batch: set it to 2 at least'
      )

  def init(self, key: jax.Array) -> base.Params:
    """Returns fresh parameters: of the trunk, and of each head."""
    keys = jax.random.split(key, 1 + len(self.heads))
    params = {'trunk': super().init(keys[0])}
    images = jax.ShapeDtypeStruct((1, *self.image_shape), jnp.float32)
    apply = functools.partial(self.apply, method='trunk')
    shapes = jax.eval_shape(apply, params['trunk'], images)
    example = jnp.zeros(shapes['features'].shape)
    for (name, head), subkey in zip(self.heads.items(), keys[1:], strict=True):
      params[name] = head.init(subkey, example)['params']
    return params

  @property
  def held(self) -> tuple[str, int]:
    """The last layer of a head (DINO, appendix C)."""
    return '(^|/)last_layer/', self.num_steps(self._options.freeze_last_layer)

  def init_extra(self, params: base.Params) -> base.Extra:
    """Returns the teacher, the centre, and the number of updates."""
    extra = {
      base.AVERAGE: jax.tree.map(jnp.copy, params),
      'centre': jnp.zeros(self._options.prototypes),
      'updates': jnp.zeros((), jnp.int32),
    }
    if self._options.batch_norm:
      extra['statistics'] = {
        name: head.fresh_statistics() for name, head in self.heads.items()
      }
    return extra

  def foreign(self, format_name: str) -> objective_tables.ObjectiveTable | None:
    """Returns the names of the heads in the authors' files."""
    if format_name != 'timm':
      return None
    rules: list[tables.Rule] = []
    for name, head in self.heads.items():
      prefixes = f'{name}/', f'{self.foreign_heads[name]}.'
      rules += dino_head.rules(*prefixes, head.layers, head.batch_norm)
    return objective_tables.ObjectiveTable(rules, dino_head.stored)

  def loss(
    self, params: base.Params, extra: base.Extra, batch: base.Batch, rng: Rng
  ) -> tuple[jax.Array, base.Scalars, base.Extra]:
    """Returns the cross-entropy of the student's crops with the teacher's."""
    outputs = [
      self.see(params, batch[x], rng, features_only=True, is_local=x == 'local')
      for x in self.views
    ]
    student = jnp.concatenate([x['features'] for x in outputs], axis=1)
    taught = self.teach(extra, batch['global'], features_only=True)
    return self.class_loss(params, extra, student, taught['features'])

  def see(
    self, params: base.Params, images: jax.Array, rng: Rng, **kwargs: Any
  ) -> base.Outputs:
    """Applies the student's trunk, for training, to crops [B, n, H, W, C]."""
    arguments = self.train_arguments(rng) | kwargs
    return self.apply_crops(params['trunk'], images, **arguments)

  def teach(
    self, extra: base.Extra, images: jax.Array, **kwargs: Any
  ) -> base.Outputs:
    """Applies the teacher's trunk to crops [B, n, H, W, C]."""
    return self.apply_crops(extra[base.AVERAGE]['trunk'], images, **kwargs)

  def apply_crops(
    self,
    params: base.Params,
    images: jax.Array,
    rows: jax.Array | None = None,
    *,
    is_local: bool = False,
    **kwargs: Any,
  ) -> base.Outputs:
    """Applies the trunk to crops [B, n, H, W, C]; its outputs are [B, n, ...].

    Args:
      params: Parameters of the trunk.
      images: float32 [B, n, H, W, C].
      rows: int32 [B], positions of the images in the global batch, for dropout;
        None: there is none.
      is_local: Whether the crops are local ones.
      **kwargs: Further arguments of the trunk; arrays are [B, n, ...].
    """
    b, n, *shape = images.shape
    # The crops of an image stay together: no device needs another image's.
    flat: dict[str, Any] = {
      k: x.reshape(b * n, *x.shape[2:]) if isinstance(x, jax.Array) else x
      for k, x in kwargs.items()
    }
    if rows is not None:  # then each crop of the global batch has a number
      crops = (_GLOBAL if is_local else 0) + jnp.arange(n, dtype=jnp.int32)
      count = _GLOBAL + self._options.local_crops
      flat['rows'] = (rows[:, None] * count + crops).reshape(-1)
    table, size = params.get('position_embedding'), tuple(shape[:2])
    if table is not None and size != self.image_shape[:2]:
      p, q = self._patch
      old, new = ((h // p, w // q) for h, w in (self.image_shape[:2], size))
      resized = flexible.positions(table, old, new, self._options.resize)
      params = params | {'position_embedding': resized}
    flat_images = images.reshape(b * n, *shape)
    outputs = self.apply(params, flat_images, method='trunk', **flat)
    return {k: x.reshape(b, n, *x.shape[1:]) for k, x in outputs.items()}

  def class_loss(
    self,
    params: base.Params,
    extra: base.Extra,
    student: jax.Array,
    teacher: jax.Array,
  ) -> tuple[jax.Array, base.Scalars, base.Extra]:
    """Returns the loss of whole crops, scalars, and the new extra.

    `student` are the features of all crops, [B, S, D], the global ones first;
    `teacher` has the features of the global crops, [B, T, D].
    """
    o = self._options
    logits, statistics = self.project('head', params, extra, student)
    taught, _ = self.project('head', extra[base.AVERAGE], extra, teacher)
    taught = jax.lax.stop_gradient(taught)
    probabilities = self.assign(taught, extra, extra['centre'])
    pairs = prototypes.between_crops(
      logits, probabilities, o.student_temperature
    )
    of_global, of_local = prototypes.cross_crop_loss(pairs)
    loss = of_global + of_local
    entropy = prototypes.entropy(probabilities)
    centre = prototypes.update_centre(
      extra['centre'], taught, o.centre_momentum
    )
    scalars = {
      'teacher_entropy': entropy,
      'teacher_kl': loss - entropy,
      'centre_norm': jnp.linalg.norm(centre),
    }
    return loss, scalars, extra | {'centre': centre} | statistics

  def project(
    self, name: str, params: base.Params, extra: base.Extra, x: jax.Array
  ) -> tuple[jax.Array, base.Extra]:
    """Applies the head `name` of the student or the teacher to x [..., D].

    Returns logits, float32 [..., K]; and the head's new running statistics, to
    be merged into `extra`.
    """
    variables = {'params': params[name]}
    flat = x.reshape(-1, x.shape[-1])  # BatchNorm is over all crops
    logits: Any
    if not self._options.batch_norm:
      logits, new = self.heads[name].apply(variables, flat), {}
    else:
      variables['statistics'] = extra['statistics'][name]
      logits, changed = self.heads[name].apply(
        variables, flat, train=True, mutable=['statistics']
      )
      statistics = extra['statistics'] | {name: changed['statistics']}
      new = {'statistics': statistics}
    return logits.reshape(*x.shape[:-1], -1), new

  def assign(
    self,
    logits: jax.Array,
    extra: base.Extra,
    centre: jax.Array,
    weights: jax.Array | None = None,
  ) -> jax.Array:
    """Returns the teacher's probabilities of its logits [..., K].

    `centre` is [K], and `weights` [...] are 0 for logits that do not count;
    None: all count.
    """
    o = self._options
    temperature = prototypes.warmed_up(
      o.teacher_temperature_start,
      o.teacher_temperature,
      self.num_steps(o.teacher_temperature_warmup),
      extra['updates'],
    )
    if o.assignment == 'centre':
      return prototypes.centred(logits, centre, temperature)
    return prototypes.sinkhorn_knopp(
      logits, temperature, o.sinkhorn_iterations, weights
    )

  def after_update(
    self, extra: base.Extra, params: base.Params, step: jax.Array
  ) -> base.Extra:
    """Moves the teacher towards the student."""
    momentum = optim.half_cosine(
      self._options.momentum, 1.0, self.lengths.total
    )(step)
    teacher = optax.incremental_update(
      params, extra[base.AVERAGE], 1 - momentum
    )
    return extra | {base.AVERAGE: teacher, 'updates': step + 1}

  def outputs(self, params: base.Params, batch: base.Batch) -> base.Outputs:
    """Returns the features [B, D]."""
    return {'features': self.apply(params['trunk'], batch['image'])}

  def warnings(self, scalars: Mapping[str, float], step: int) -> list[str]:
    """Returns a line if the teacher has collapsed."""
    count, entropy = self._options.prototypes, scalars['teacher_entropy']
    collapse = prototypes.collapse(entropy, count)
    if step <= self.lengths.warmup or not collapse:
      return []
    return [
      f'the teacher has collapsed: it gives {collapse} to each crop, and the'
      f' student learns nothing from that: teacher_entropy is {entropy:.3g} of'
      f' at most {math.log(count):.3g} at step {step}. In a new work directory,'
      ' change config.objective.options.teacher_temperature (a lower one makes'
      ' probabilities less equal), or lower config.optim.learning_rate'
    ]


def _views(config: base.Config) -> dict[str, geometry.View]:
  """Returns two 'global' crops, as `config.data` says, and 'local' ones.

  Local crops are as in multi-crop training (SwAV, arXiv:2006.09882, section
  3.2): small, of a small part of the image.
  """
  options, crop = config.objective.options, geometry.train_crop(config)
  views = {'global': geometry.View(crop, _GLOBAL)}
  if options.local_crops:
    local = dataclasses.replace(
      crop,
      kind='random_resized',
      size=(options.local_size, options.local_size),
      scale=tuple(options.local_scale),
      pad=0,
    )
    views['local'] = geometry.View(local, options.local_crops)
  return views


def check_scale(config: base.Config, name: str, quantity: str) -> None:
  """Checks that an option is a range of shares of an image."""
  scale = config.objective.options[name]
  good = len(scale) == 2 and all(isinstance(x, int | float) for x in scale)
  if not good or not 0 < scale[0] <= scale[1] <= 1:
    raise config_lib.UserError(
      f'config.objective.options.{name} is {tuple(scale)}: it must be the least'
      f" and the largest share of an image's {quantity}, above 0 and at most 1"
    )
