"""DINOv2 (Oquab et al., arXiv:2304.07193): DINO, iBOT's masks, and KoLeo.

iBOT (Zhou et al., arXiv:2111.07832) is the same without KoLeo, with one head
and with a centre instead of Sinkhorn-Knopp.

In comments: B images, N patches of a global crop, M of them that may be masked,
D the size of a feature, K prototypes.
"""

import math
from typing import ClassVar
from typing import NamedTuple
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax import config as config_lib
from vit_jax.data.device.rng import Rng
from vit_jax.models import prototypes as heads
from vit_jax.objectives import base
from vit_jax.objectives import block_masks
from vit_jax.objectives import dino
from vit_jax.objectives import prototypes
from vit_jax.objectives import trunk_checks

# Of masks, as the code of DINOv2 draws them.
_LEAST_BLOCK = 4  # patches
_MOST_OF_GRID = 0.5  # share of the patches that one block may mask


class Patches(NamedTuple):
  """The masked patches of images; an image has M places for them.

  Attributes:
    places: int32 [..., M], patches, the masked ones first.
    weights: float32 [..., M], weights in the mean over an image's masked
      patches; 0 for patches that are not masked.
  """

  places: jax.Array
  weights: jax.Array

  @classmethod
  def from_masks(cls, masks: jax.Array, most: int) -> Self:
    """Returns the masked patches of masks, bool [..., N], of `most` at most."""
    places = jnp.argsort(~masks, axis=-1, stable=True)[..., :most]
    weights = prototypes.patch_weights(masks)
    return cls(
      places.astype(jnp.int32), jnp.take_along_axis(weights, places, axis=-1)
    )

  def take(self, x: jax.Array) -> jax.Array:
    """Returns these patches of x [..., N, D], as [..., M, D]."""
    return jnp.take_along_axis(x, self.places[..., None], axis=-2)


class MaskShares(NamedTuple):
  """Which crops of a batch are masked, and how much of each.

  The code of DINOv2 masks an exact share of the crops. The k-th of them draws
  its ratio from the k-th part of the range, so that all ratios occur.

  Attributes:
    crops: Number of crops in the batch.
    probability: Share of the crops that are masked.
    ratio: Least and largest share of masked patches.
  """

  crops: int
  probability: float
  ratio: tuple[float, float]

  @property
  def masked(self) -> int:
    """Number of masked crops."""
    return int(self.crops * self.probability)

  @property
  def bounds(self) -> np.ndarray:
    """Bounds of the parts of the range, float32 [masked + 1]."""
    return np.linspace(*self.ratio, self.masked + 1, dtype=np.float32)

  def counts(
    self, key: jax.Array, numbers: jax.Array, draws: jax.Array, patches: int
  ) -> jax.Array:
    """Returns the number of patches to mask in crops, int32 [...].

    `key` shuffles the crops of the step. `numbers` are the crops' places in the
    batch, int32 [...], and `draws` one random number in [0, 1) for each. A crop
    has so many `patches`.
    """
    rank = jax.random.permutation(key, self.crops)[numbers]
    bounds = jnp.asarray(np.append(self.bounds, self.bounds[-1]))
    low, high = (bounds[jnp.minimum(rank + i, self.masked)] for i in (0, 1))
    count = jnp.floor(patches * (low + draws * (high - low)))
    return jnp.where(rank < self.masked, count, 0).astype(jnp.int32)


class DinoV2(dino.Dino):
  """DINO, and patches that the student must name although they are masked.

  Some global crops of the student have masked blocks of patches. With a head
  for patches, it learns the teacher's probabilities of these patches. KoLeo
  spreads the features of a batch.
  """

  couples_examples: ClassVar = True
  options: ClassVar = dict(dino.Dino.options) | {
    'assignment': 'sinkhorn',
    'trains_scale': True,
    'mask_probability': 0.5,  # share of the crops with masked patches
    'mask_ratio': (0.1, 0.5),  # share of the patches of such a crop
    'mask_start': '0 epochs',  # no patches are masked before this
    'patch_weight': 1.0,  # of the loss of masked patches
    'patch_prototypes': 0,  # 0: as many as `prototypes`
    'patch_head': True,  # a head for patches; False: they share one
    # The mean of 'masked' patches is their centre, or of 'all'.
    'patch_centre': 'masked',
    'koleo_weight': 0.1,
  }
  limits: ClassVar = dict(dino.Dino.limits) | {
    'mask_probability': '[0, 1]',
    'mask_start': 'duration',
    'patch_weight patch_prototypes koleo_weight': '[0, inf)',
    'patch_centre': ('masked', 'all'),
  }
  foreign_heads: ClassVar = {'head': 'dino_head', 'patch_head': 'ibot_head'}

  def __init__(self, config: base.Config, features: base.Features):
    super().__init__(config, features)
    o, (height, width, _) = self._options, self.image_shape
    if not getattr(self.model, 'mask_token', False):
      raise config_lib.UserError(
        'config.model.mask_token is False, but'
        f' config.objective.name={config.objective.name} masks patches: set it'
        ' to True'
      )
    self._grid = height // self._patch[0], width // self._patch[1]
    self._most = int(math.prod(self._grid) * o.mask_ratio[1])
    self._shares = MaskShares(
      2 * config.train.batch_size, o.mask_probability, tuple(o.mask_ratio)
    )
    if min(self._grid) < 2 or self._most < 1:
      raise config_lib.UserError(
        f'config.data.image_size gives {self._grid[0]} x {self._grid[1]}'
        f' patches, too few to mask {o.mask_ratio[1]:g} of them: take smaller'
        ' patches or larger images'
      )

  def make_heads(self) -> dict[str, heads.PrototypeHead]:
    """Returns the head, and that of patches."""
    prototype_heads = super().make_heads()
    if self._options.patch_head:
      count = self._options.patch_prototypes or self._options.prototypes
      prototype_heads['patch_head'] = self.make_head(count)
    return prototype_heads

  @staticmethod
  def check(config: base.Config) -> None:
    """Checks what is masked, and that batches are as the losses need."""
    trunk_checks.check_patches(config)
    dino.Dino.check(config)
    dino.check_scale(config, 'mask_ratio', 'patches')
    o, key = config.objective.options, 'config.objective.options'
    if o.patch_prototypes and not o.patch_head:
      raise config_lib.UserError(
        f'{key}.patch_prototypes is {o.patch_prototypes}, but patches share the'
        f' head: set {key}.patch_head=True'
      )
    if o.koleo_weight and config.train.batch_size < 2:
      raise config_lib.UserError(
        f'config.train.batch_size is {config.train.batch_size}, but KoLeo'
        ' compares each image with another: set it to 2 at least, or'
        f' {key}.koleo_weight to 0'
      )

  def init_extra(self, params: base.Params) -> base.Extra:
    """Returns the state of DINO, and the centre of patches."""
    count = self.heads[self._patch_head].prototypes
    return super().init_extra(params) | {'patch_centre': jnp.zeros(count)}

  @property
  def _patch_head(self) -> str:
    return 'patch_head' if self._options.patch_head else 'head'

  def loss(
    self, params: base.Params, extra: base.Extra, batch: base.Batch, rng: Rng
  ) -> tuple[jax.Array, base.Scalars, base.Extra]:
    """Returns the sum of the losses of crops, of patches and of KoLeo."""
    o = self._options
    masks = self.draw_masks(rng)
    masks &= extra['updates'] >= self.num_steps(o.mask_start)
    outputs = self.see(params, batch['global'], rng, masked=masks)
    features = [outputs['features']]
    if 'local' in self.views:
      local = self.see(
        params, batch['local'], rng, features_only=True, is_local=True
      )
      features.append(local['features'])
    taught = self.teach(extra, batch['global'])
    loss, scalars, new = self.class_loss(
      params, extra, jnp.concatenate(features, axis=1), taught['features']
    )
    of_patches, changed = self._patch_loss(
      params, new, outputs['tokens'], taught['tokens'], masks
    )
    new |= changed
    scalars |= {'class_loss': loss, 'patch_loss': of_patches}
    loss += o.patch_weight * of_patches
    if o.koleo_weight:
      crop_losses = jax.vmap(prototypes.koleo, in_axes=1)(features[0])
      scalars['koleo_loss'] = crop_losses.sum()
      loss += o.koleo_weight * scalars['koleo_loss']
    return loss, scalars, new

  @property
  def pictures_caption(self) -> str:
    """Sentences that explain `pictures`."""
    o, (low, high) = self._options, self._options.mask_ratio
    return (
      "Masks as they are drawn for the student's two global crops, here over"
      f' the whole image: {o.mask_probability:.0%} of the crops have covered'
      f' blocks, with {low:.0%} to {high:.0%} of the patches. The student'
      " predicts the teacher's prototypes of these (arXiv:2111.07832, section"
      ' 3.1; arXiv:2304.07193, section 4).'
    )

  def pictures(
    self, params: base.Params, extra: base.Extra, images: jax.Array, rng: Rng
  ) -> list[base.Column]:
    """Returns images with the masks of both global crops, and the originals."""
    masks = self.draw_masks(rng)
    return [
      base.Column('first crop', images, masks[:, 0]),
      base.Column('second crop', images, masks[:, 1]),
      base.Column('original', images),
    ]

  def hidden(self, rng: Rng, step: int) -> dict[str, jax.Array]:
    """Returns the patches of global crops that the student does not see."""
    is_begun = step >= self.num_steps(self._options.mask_start)
    masks = self.draw_masks(rng) & is_begun
    return {'global': masks.reshape(*masks.shape[:2], *self._grid)}

  def draw_masks(self, rng: Rng) -> jax.Array:
    """Draws the masks of the global crops, bool [B, 2, N]."""
    crops = jnp.arange(2, dtype=jnp.int32)
    numbers = 2 * rng.rows[:, None] + crops
    image_keys = rng.fold(base.Purpose.OBJECTIVE + 1).per_row()
    keys = jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)), (0, None))(
      image_keys, crops
    )
    draws = jax.vmap(jax.vmap(jax.random.uniform))(keys)
    step_key = rng.fold(base.Purpose.OBJECTIVE).key
    patches = math.prod(self._grid)
    counts = self._shares.counts(step_key, numbers, draws, patches)
    most = max(int(_MOST_OF_GRID * patches), 1)
    blocks = block_masks.BlockMasks(self._grid, self._most, _LEAST_BLOCK, most)
    masks = blocks.draw(keys.reshape(-1), counts.reshape(-1))
    return masks.mask.reshape(*numbers.shape, -1)

  def _patch_loss(
    self,
    params: base.Params,
    extra: base.Extra,
    student: jax.Array,
    teacher: jax.Array,
    masks: jax.Array,
  ) -> tuple[jax.Array, base.Extra]:
    """Returns the loss of masked patches, and what changes in the extra.

    `student` and `teacher` are the tokens of their trunks, `masks` bool
    [B, 2, N].
    """
    o, name = self._options, self._patch_head
    chosen = Patches.from_masks(masks, self._most)
    student, teacher = (
      x[..., self.model.prefix_length :, :] for x in (student, teacher)
    )
    logits, changed = self.project(name, params, extra, chosen.take(student))
    is_masked = (chosen.weights > 0).astype(jnp.float32)
    weights = None
    if o.patch_centre == 'masked':
      teacher, weights = chosen.take(teacher), is_masked
    targets, _ = self.project(name, extra[base.AVERAGE], extra, teacher)
    targets = jax.lax.stop_gradient(targets)
    centre = prototypes.update_centre(
      extra['patch_centre'], targets, o.centre_momentum, weights
    )
    if o.patch_centre == 'all':
      targets = chosen.take(targets)
    probabilities = self.assign(
      targets, extra, extra['patch_centre'], is_masked
    )
    loss = prototypes.patch_loss(
      logits, probabilities, chosen.weights, o.student_temperature
    )
    return loss, changed | {'patch_centre': centre}
