"""BEiT: predicts the visual tokens of masked patches (arXiv:2106.08254).

Blocks of patches are replaced by a mask token. From the other patches a linear
layer on the trunk's output predicts the token that a frozen tokenizer gives to
each masked patch.

In comments: B images, N patches, D hidden size, K tokens, M the most patches
that are masked in an image.
"""

import math
from typing import Any
from typing import ClassVar

import jax
import jax.numpy as jnp
import optax

from vit_jax import config as config_lib
from vit_jax import models
from vit_jax.data import base as data_base
from vit_jax.data.device.rng import Rng
from vit_jax.models import heads
from vit_jax.models import initializers
from vit_jax.objectives import base
from vit_jax.objectives import block_masks
from vit_jax.objectives import trunk_checks
from vit_jax.objectives import visual_tokens
from vit_jax.weights.formats import huggingface_beit
from vit_jax.weights.formats import objective_tables
from vit_jax.weights.formats import timm_beit


class BEiT(base.Objective):
  """Learns to predict the tokens of masked patches.

  The parameters are the trunk's, and the linear layer's, `head`. The
  tokenizer is a part of the train state and does not change.
  """

  options: ClassVar = {
    # The tokenizer: the work directory of a run of the objective 'tokenizer',
    # or the weights of DALL-E's encoder. '': k-means of the training patches.
    'tokenizer': '',
    # K, the number of different tokens.
    'tokens': 8192,
    # The number of patches that are masked.
    'masked': 75,
    # The smallest area of a masked block, in patches.
    'block_least': 16,
    # The largest number of patches that one block adds to the mask. 0: no
    # limit.
    'block_most': 0,
    # The smallest ratio of the sides of a block.
    'block_aspect': 0.3,
  }
  limits: ClassVar = {'tokens': '[2, inf)', 'block_aspect': '(0, 1]'}

  def __init__(self, config: base.Config, features: base.Features):
    super().__init__(config, features)
    trunk = trunk_checks.checked_vit(self.model, config)
    self.masks = _make_masks(config)
    self._tokenizer = visual_tokens.make(config, self.masks.grid)
    starts = initializers.INITIALIZERS[trunk.initializers]
    self._head = heads.linear(
      config.objective.options.tokens, starts.kernel, 0.0
    )

  @staticmethod
  def check(config: base.Config) -> None:
    """Checks the masks and the model, unless a checkpoint has it."""
    trunk_checks.check_patches(config)
    if config.model.name == config_lib.INIT_FROM:
      return
    options, key = config.objective.options, 'config.objective.options'
    model = models.from_config(config.model, 0)
    trunk = trunk_checks.checked_vit(model, config)
    if not config.model.mask_token:
      raise config_lib.UserError(
        f'config.model.mask_token is {config.model.mask_token}, but masked'
        ' patches are replaced by that token: set it to True'
      )
    if getattr(trunk.pool, 'norm_after', False):
      raise config_lib.UserError(
        f'config.model.pool is {config.model.pool!r}, but tokens are predicted'
        " from normalised patches: set it to 'mean'"
      )
    masks = _make_masks(config)
    patches = math.prod(masks.grid)
    limits = {
      'masked': (1, patches - 1, f'of the {patches} patches of an image'),
      'block_least': (1, options.masked, 'as masked'),
      'block_most': (0, patches, 'patches of an image'),
    }
    for name, (least, most, meaning) in limits.items():
      if not least <= options[name] <= most:
        raise config_lib.UserError(
          f'{key}.{name} is {options[name]}: it must be from {least} to {most},'
          f' {meaning}'
        )
    if min(masks.grid) < 2:
      raise config_lib.UserError(
        f'images of {masks.grid[0]} x {masks.grid[1]} patches have no place for'
        ' a block, which is smaller than the image: set a larger'
        ' config.data.image_size'
      )

  def check_source(self, source: data_base.Source) -> None:
    """Keeps the training data, of which a codebook is made at the start."""
    self._tokenizer.read_from(source)

  def init(self, key: jax.Array) -> base.Params:
    """Returns fresh parameters of the trunk and of `head`."""
    trunk_key, head_key = jax.random.split(key)
    features = jnp.zeros((1, self.model.hidden_size))
    return {
      'trunk': _rescaled(super().init(trunk_key)),
      'head': self._head.init(head_key, features)['params'],
    }

  def init_extra(self, params: base.Params) -> base.Extra:
    """Returns the tokenizer's arrays, which stay constant."""
    del params
    return {'tokenizer': self._tokenizer.arrays}

  def loss(
    self, params: base.Params, extra: base.Extra, batch: base.Batch, rng: Rng
  ) -> tuple[jax.Array, base.Scalars, base.Extra]:
    """Returns the cross-entropy and the accuracy on masked patches.

    Both are means over the masked patches of the whole batch, also where this
    is a microbatch of it.
    """
    images, masked = batch['image'], self._mask(rng)
    tokens = self._tokenizer.tokens(extra['tokenizer'], images)
    arguments = self.train_arguments(rng)
    patches = self.encode(params, images, masked, **arguments)
    total, parts = masked.sum(), config_lib.num_microbatches(self.config)
    if parts > 1:  # images have different numbers of masked patches
      rows = jnp.arange(self.config.train.batch_size, dtype=jnp.int32)
      total = self._mask(Rng(rng.key, rows)).sum() / parts
    total = jnp.maximum(total, 1 / parts)  # where no block was found
    picked = pick(masked, self.config.objective.options.masked)
    loss, right = self.scores(params, patches, tokens, picked)
    scalars = {'accuracy': right / total, 'masked': masked.sum(axis=1).mean()}
    return loss / total, scalars, extra

  def encode(
    self,
    params: base.Params,
    images: jax.Array,
    masked: jax.Array,
    **arguments: Any,
  ) -> jax.Array:
    """Returns the normalised patch tokens, [B, N, D].

    The mask token replaces the patches that are `masked`, bool [B, N].
    """
    outputs = self.apply(
      params['trunk'], images, method='trunk', masked=masked, **arguments
    )
    return outputs['tokens'][:, self.model.prefix_length :]

  def predict(self, params: base.Params, patches: jax.Array) -> jax.Array:
    """Returns logits of the tokens, float32 [..., K], from [..., D]."""
    logits: Any = self._head.apply({'params': params['head']}, patches)
    return logits.astype(jnp.float32)

  def scores(
    self,
    params: base.Params,
    patches: jax.Array,
    tokens: jax.Array,
    picked: tuple[jax.Array, jax.Array],
  ) -> tuple[jax.Array, jax.Array]:
    """Returns sums over masked patches: cross-entropy, and right predictions.

    `encode` gives `patches`, and the tokenizer `tokens`, int32 [B, N]. Only the
    patches of `pick` get logits.
    """
    places, is_masked = picked
    patches = jnp.take_along_axis(patches, places[..., None], axis=1)
    tokens = jnp.take_along_axis(tokens, places, axis=1)
    logits = self.predict(params, patches)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens)
    right = logits.argmax(axis=-1) == tokens
    return (losses * is_masked).sum(), (right & is_masked).sum()

  @property
  def pictures_caption(self) -> str:
    """Sentences that explain `pictures`."""
    return (
      'Blocks of patches are covered (arXiv:2106.08254, section 2.3), and the'
      f' model predicts which of {self.config.objective.options.tokens} tokens'
      ' each of these has. The images of tokens, which only a tokenizer with a'
      ' decoder draws, show the most probable ones in covered patches,'
      ' with the given ones elsewhere, and of what the tokenizer makes of the'
      ' image, which is what the model shall predict.'
    )

  def pictures(
    self, params: base.Params, extra: base.Extra, images: jax.Array, rng: Rng
  ) -> list[base.Column]:
    """Returns masked images, predicted and true tokens, and the originals."""
    arrays = extra['tokenizer']
    masked = self._mask(rng)
    tokens = self._tokenizer.tokens(arrays, images)
    logits = self.predict(params, self.encode(params, images, masked))
    filled = jnp.where(masked, logits.argmax(axis=-1), tokens)
    columns = [base.Column('masked', images, masked)]
    for name, ids in (('predicted', filled), ('tokens', tokens)):
      drawn = self._tokenizer.decode(arrays, ids)
      if drawn is not None:
        columns.append(base.Column(name, drawn))
    return [*columns, base.Column('original', images)]

  def hidden(self, rng: Rng, step: int) -> dict[str, jax.Array]:
    """Returns the patches that the mask token replaces."""
    del step
    return {'image': self._mask(rng).reshape(-1, *self.masks.grid)}

  def outputs(self, params: base.Params, batch: base.Batch) -> base.Outputs:
    """Returns the trunk's features, [B, D]."""
    return {'features': self.apply(params['trunk'], batch['image'])}

  def foreign(self, format_name: str) -> objective_tables.ObjectiveTable | None:
    """Returns how a format stores the layer that predicts tokens."""
    if format_name == huggingface_beit.FORMAT:
      return huggingface_beit.with_head(self.config.objective.options.tokens)
    if format_name == 'timm':
      return objective_tables.ObjectiveTable(timm_beit.HEAD)
    return None

  def _mask(self, rng: Rng) -> jax.Array:
    keys = rng.fold(base.Purpose.OBJECTIVE).per_row()
    return self.masks.draw(keys).mask.reshape(len(keys), -1)


def _make_masks(config: base.Config) -> block_masks.BlockMasks:
  options = config.objective.options
  size = config_lib.pair(config.data.image_size, 'data.image_size')
  patch = models.patch_of_images(models.from_config(config.model, 0))
  grid = size[0] // patch[0], size[1] // patch[1]
  return block_masks.BlockMasks(
    grid,
    options.masked,
    options.block_least,
    options.block_most or None,
    (options.block_aspect, 1 / options.block_aspect),
  )


def pick(masked: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
  """Returns the masked patches, as arrays of one shape for all masks.

  They are int32 [B, M], the masked patches in order, then others; and bool
  [B, M], which of them are masked. `masked` is bool [B, N], with at most M =
  `count` True in a row.
  """
  places = jnp.argsort(~masked, axis=1, stable=True)[:, :count]
  return places, jnp.take_along_axis(masked, places, axis=1)


def _rescaled(trunk: Any) -> Any:
  """Divides the last layer of each branch of layer l by the root of 2 l.

  Layers are counted from 1 (section 2.5 of the paper).
  """

  def rescale(path: Any, x: jax.Array) -> jax.Array:
    keys = [str(part.key) for part in path]
    is_last = '/'.join(keys[-3:]) in ('attention/out/kernel', 'mlp/down/kernel')
    if not is_last or not keys[0].startswith('blocks'):
      return x
    if keys[0] == 'blocks':  # stacked
      layers = jnp.arange(1, len(x) + 1, dtype=x.dtype)
      return x / jnp.sqrt(2 * layers).reshape(-1, *[1] * (x.ndim - 1))
    return x / math.sqrt(2 * (int(keys[0].removeprefix('blocks_')) + 1))

  return jax.tree_util.tree_map_with_path(rescale, trunk)
