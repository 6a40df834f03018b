"""Images and captions: CLIP, SigLIP and LiT.

Two towers give embeddings of unit length. An image and its caption shall be
closer to each other than all other pairs of the global batch. CLIP compares
by a softmax (arXiv:2103.00020, section 2.3), SigLIP by a sigmoid for each pair
(arXiv:2303.15343, section 3.2). LiT keeps a trained image tower as it is
(arXiv:2111.07991).

With `train.accumulation`, the towers embed one microbatch at a time, and the
loss compares the embeddings of the whole batch. The backward pass computes each
microbatch once more, which is the gradient caching of arXiv:2101.06983.

In comments: B pairs of the global batch, T tokens, E the size of an embedding.
"""

import math
from typing import Any
from typing import ClassVar

import jax
import jax.numpy as jnp

from vit_jax import config as config_lib
from vit_jax import models
from vit_jax.data import features as features_lib
from vit_jax.data import text_kind
from vit_jax.data import tokenizers
from vit_jax.data import vocabularies
from vit_jax.data.device.rng import Rng
from vit_jax.models import describing
from vit_jax.models import layouts
from vit_jax.models import registry
from vit_jax.models import text
from vit_jax.models import two_towers
from vit_jax.models import vit
from vit_jax.objectives import base
from vit_jax.objectives import contrastive_losses
from vit_jax.objectives import towers as towers_lib
from vit_jax.objectives import trunk_checks
from vit_jax.parallel import mesh as mesh_lib
from vit_jax.weights.formats import huggingface_clip
from vit_jax.weights.formats import objective_tables

_FEATURE = 'text'
# Options of the image tower that the text tower shares.
_SHARED = (
  'dropout_rate',
  'gelu',
  'layer_norm_epsilon',
  'initializers',
  'scan',
  'remat',
  'dtype',
)


class Contrastive(towers_lib.Towers, base.Objective):
  """Learns which caption belongs to which image."""

  target: ClassVar = (_FEATURE, text_kind.Text)
  couples_examples: ClassVar = True
  caches_gradients: ClassVar = True
  options: ClassVar = {
    # 'softmax' (CLIP) or 'sigmoid' (SigLIP).
    'loss': 'softmax',
    # E, the size of the embeddings, which a dense layer without a bias after
    # each tower computes. 0: the image tower has no such layer, and that of the
    # text tower has the width of the image tower (SigLIP, LiT).
    'dim': 512,
    # Hidden size of the text tower.
    'text_width': 512,
    # Hidden size of the MLPs of the text tower. 0: four times the width.
    'text_mlp_dim': 0,
    # Number of layers of the text tower.
    'text_depth': 12,
    # Number of attention heads of the text tower.
    'text_heads': 8,
    # Whether a token of the text attends only to itself and earlier tokens.
    'text_causal': True,
    # The token whose features stand for the text: 'last', 'first', 'end', or
    # 'largest' (the token with the largest number, as in CLIP).
    'text_pool': 'largest',
    # The tower that does not train: 'image' (LiT) or 'text'. '': both train.
    'locked': '',
    # The largest inverse temperature, 100 in CLIP. 0: no limit.
    'largest_scale': 100.0,
    # The number of parts in which rows of the [B, B] similarities are computed,
    # one after the other, to save memory.
    'parts': 1,
  }
  limits: ClassVar = {
    'loss': ('softmax', 'sigmoid'),
    'dim text_mlp_dim largest_scale': '[0, inf)',
    'text_width text_depth text_heads parts': '[1, inf)',
    'text_pool': text.POOLS,
    'locked': ('', 'image', 'text'),
  }

  def __init__(self, config: base.Config, features: base.Features):
    super().__init__(config, features)
    self._options = options = config.objective.options
    feature: Any = features[_FEATURE]
    self.text: text_kind.Text = feature
    self.model = model = _checked(self.model.clone(num_classes=0), config)
    images = jax.ShapeDtypeStruct((1, *self.image_shape), jnp.float32)
    shapes = jax.eval_shape(
      model.clone(scan=True).init_with_output, jax.random.key(0), images
    )
    self._width = shapes[0].shape[-1]
    image_tower = describing.option_values(model)
    text_tower = registry.build_model(
      text.TextTower,
      hidden_size=options.text_width,
      mlp_dim=options.text_mlp_dim or 4 * options.text_width,
      depth=options.text_depth,
      num_heads=options.text_heads,
      causal=options.text_causal,
      vocabulary=feature.vocabulary,
      length=feature.length,
      out_dim=options.dim or self._width,
      has_head_bias=not options.dim,
      pool=options.text_pool,
      end_token=_end_token(feature) if options.text_pool == 'end' else 0,
      **{name: image_tower.get(name) for name in _SHARED},
    )
    is_sigmoid = options.loss == 'sigmoid'
    self.towers = two_towers.TwoTowers(
      model, text_tower, projection=options.dim, has_bias=is_sigmoid
    )

  @property
  def frozen(self) -> str:
    """The parameters of the locked tower."""
    locked = self._options.locked
    return f'^{locked}/' if locked else ''

  @staticmethod
  def check(config: base.Config) -> None:
    """Checks what fits together: heads, parts, towers and the tokenizer."""
    options, size = config.objective.options, config.train.batch_size
    key, name = 'config.objective.options', config.data.tokenizer
    if options.text_width % options.text_heads:
      raise config_lib.UserError(
        f'{key}.text_heads is {options.text_heads}, which does not divide'
        f' text_width, {options.text_width}: change one of them'
      )
    if size % options.parts:
      raise config_lib.UserError(
        f'{key}.parts is {options.parts}, which does not divide'
        f' config.train.batch_size, {size}: choose a divisor'
      )
    if options.locked and not config.init_from.path:
      raise config_lib.UserError(
        f'{key}.locked is {options.locked!r}, but this tower starts at random:'
        ' name a trained one in config.init_from.path, or lock none'
      )
    if not name:
      raise config_lib.UserError(
        f'config.objective.name={config.objective.name} learns captions, but'
        f" config.data.tokenizer is '': set it to {tokenizers.WORDS!r}, or to a"
        ' vocabulary'
      )
    # The kinds of tokens of which none has what the text tower reads.
    unlike = {
      'largest': (('sentencepiece', 'wordpiece'), 'whose largest one is any'),
      'end': (('wordpiece',), 'of which none ends a text'),
    }
    kinds, reason = unlike.get(options.text_pool, ((), ''))
    if vocabularies.kind(name) in kinds:
      raise config_lib.UserError(
        f'{key}.text_pool is {options.text_pool!r}, but'
        f' config.data.tokenizer={name} has tokens {reason}: read the'
        " 'last' one, or of 'wordpiece' the 'first'"
      )
    if model := trunk_checks.described_model(config):
      _checked(model, config)

  @classmethod
  def num_outputs(cls, features: base.Features) -> int:
    """Returns 0: the image tower has no logits."""
    del features
    return 0

  @classmethod
  def stand_in(
    cls, config: base.Config, size: tuple[int, int] | None = None
  ) -> dict[str, features_lib.Feature]:
    """Returns the features of examples without opening data, as for a plan."""
    name = config.data.tokenizer
    length, vocabulary = tokenizers.sizes(name, config.data.text_length)
    return {
      'image': features_lib.Image(size),
      _FEATURE: text_kind.Text(length, vocabulary, name),
    }

  @classmethod
  def fill(cls, config: base.Config, source: Any) -> None:
    """Keeps the words of the captions, so that tokens do not change."""
    config.data.words = config.data.words or source.features[_FEATURE].words

  def output_facts(self) -> dict[str, Any]:
    """There are no logits of classes."""
    return {}

  def init(self, key: jax.Array) -> base.Params:
    """Returns fresh parameters of both towers, and of what is beside them."""
    keys, towers = jax.random.split(key, 3), self.towers
    tokens = jnp.zeros((1, self.text.length), jnp.int32)
    init = jax.jit(models.for_init(towers.text).init)
    text_params = init(keys[1], tokens)['params']
    if not self.model.scan:
      text_params = layouts.unstack_layers(text_params)
    embedding = jnp.zeros((1, self._width), jnp.float32)
    projections = towers.init(keys[2], embedding, method='project')['params']
    image_params = super().init(keys[0])
    return {'image': image_params, 'text': text_params, **projections}

  def trunk(self, params: base.Params) -> tuple[models.Model, base.Params]:
    """Returns the image tower."""
    return self.model, params['image']

  def foreign(self, format_name: str) -> objective_tables.ObjectiveTable | None:
    """Returns how transformers' CLIP and SigLIP store the text's tower."""
    if format_name != huggingface_clip.FORMAT:
      return None
    return huggingface_clip.objective_table(self.towers, self.image_shape)

  def loss(
    self, params: base.Params, extra: base.Extra, batch: base.Batch, rng: Rng
  ) -> tuple[jax.Array, base.Scalars, base.Extra]:
    """Returns the mean loss of the pairs, and the inverse temperature."""
    images, texts = self._embed(params, batch, rng)
    limit = self._options.largest_scale
    scale = jnp.exp(limited(params['log_scale'], limit))
    parts, scalars = self._options.parts, {'scale': scale}
    if self._options.loss == 'softmax':
      loss = contrastive_losses.softmax_loss(images, texts, scale, parts)
    else:
      bias = params['logit_bias']
      loss = contrastive_losses.sigmoid_loss(images, texts, scale, bias, parts)
      scalars['bias'] = bias
    return loss, scalars, extra

  def _embed(
    self, params: base.Params, batch: base.Batch, rng: Rng
  ) -> tuple[jax.Array, jax.Array]:
    """Returns the embeddings of images and texts, float32 [B, E] each."""
    inputs = batch['image'], batch[_FEATURE], rng.rows

    def embed_part(part: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
      images, tokens, rows = part
      dropout = self.train_arguments(Rng(rng.key, rows))
      embeddings = []
      for name, x in (('image', images), ('text', tokens)):
        # Dropout would only add noise to a tower that does not learn.
        arguments = {} if self._options.locked == name else dropout
        embeddings.append(self.embed(params, name, x, **arguments))
      return embeddings[0], embeddings[1]

    parts = config_lib.num_microbatches(self.config)
    if parts == 1:
      return embed_part(inputs)
    stacked = mesh_lib.split_rows(inputs, parts)
    # The scan itself keeps XLA from reusing the forward pass.
    again = jax.checkpoint(embed_part, prevent_cse=False)
    images, texts = jax.lax.map(again, stacked)
    return mesh_lib.join_rows(images), mesh_lib.join_rows(texts)


@jax.custom_vjp
def _limited(x: jax.Array, most: float) -> jax.Array:
  return jnp.minimum(x, most)


def _forward(x: jax.Array, most: float) -> tuple[jax.Array, jax.Array]:
  return jnp.minimum(x, most), x >= most


def _backward(
  is_over: jax.Array, gradient: jax.Array
) -> tuple[jax.Array, None]:
  return jnp.where(is_over, jnp.maximum(gradient, 0), gradient), None


_limited.defvjp(_forward, _backward)


def limited(log_scale: jax.Array, largest: float) -> jax.Array:
  """Returns log_scale, at most log(largest).

  CLIP's code clips the parameter after each step. Here the parameter itself
  stays just above the limit: at the limit, the gradient moves it down only.
  `largest` limits the exponential of the scalar; 0: nothing does.
  """
  return _limited(log_scale, math.log(largest)) if largest else log_scale


def _end_token(feature: text_kind.Text) -> int:
  if not feature.digest:  # a plan, which opens no vocabulary
    return 0
  tokenizer = tokenizers.make(feature.tokenizer, feature.length, feature.words)
  return tokenizer.end or 0


def _checked(model: models.Model, config: base.Config) -> vit.ViT:
  reason = 'has an image tower that is a ViT'
  return trunk_checks.checked_vit(model, config, reason)
