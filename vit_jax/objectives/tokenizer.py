"""A tokenizer of patches: a discrete autoencoder (DALL-E, arXiv:2102.12092).

It is what BEiT (arXiv:2106.08254, section 2.1) learns to predict. The encoder
is a trunk and a linear layer that gives each patch a distribution over the
tokens. In training, a token is drawn from it by the Gumbel-softmax relaxation
(arXiv:1611.01144), so that gradients flow through the choice, and a decoder
with attention draws the image from the tokens' vectors.

Everything that it learns is a parameter, so that it needs no state of its own
but a count of updates, is averaged, sharded and loaded as any model, and does
not depend on how a batch is split; a codebook of moving averages would have to
be carried beside the parameters, and rare codes be revived.

In comments: B images, N patches, D hidden size, K tokens, F values of a patch.
"""

import math
from typing import Any
from typing import ClassVar

from flax import linen as nn
import jax
import jax.numpy as jnp

from vit_jax import config as config_lib
from vit_jax import models
from vit_jax import optim
from vit_jax.data.device.rng import Rng
from vit_jax.models import context as context_lib
from vit_jax.models import embedding
from vit_jax.models import encoder
from vit_jax.models import initializers
from vit_jax.models import layouts
from vit_jax.models.parts import as_class
from vit_jax.objectives import base
from vit_jax.objectives import trunk_checks


class Decoder(encoder.Encoder):
  """Draws patches from tokens: [B, N, K] -> [B, N, F].

  Attributes, beside the ones in `encoder.Encoder`:
    grid: Patches (h, w).
    values: F.
  """

  grid: tuple[int, int]
  values: int

  @nn.compact
  def __call__(self, weights: jax.Array) -> jax.Array:
    """Returns the values of the patches' pixels, float32.

    The weights of the tokens of a patch sum to 1.
    """
    d, kernel_init = self.hidden_size, self.starts.kernel
    x = nn.Dense(d, use_bias=False, dtype=self.dtype, name='codebook')(weights)
    x += embedding.sincos2d(self.grid, d).astype(x.dtype)
    x, _ = self.layers(x, context_lib.Context())
    x = self.norm(x)
    return nn.Dense(self.values, kernel_init=kernel_init, name='pixels')(x)


class Tokenizer(base.Objective):
  """Learns the tokens of patches by drawing the image from them."""

  metrics: ClassVar = {'loss': 'min', 'examples': 'max'}
  options: ClassVar = {
    # K, the number of different tokens.
    'tokens': 8192,
    # Number of layers of the decoder. Its other sizes are the backbone's.
    'decoder_depth': 2,
    # Temperature of the relaxation at the start of the run (DALL-E, appendix
    # A.2).
    'temperature': 1.0,
    # Temperature of the relaxation after `anneal`.
    'final_temperature': 1 / 16,
    # The time in which the temperature falls to `final_temperature`, by half a
    # cosine.
    'anneal': '150_000 steps',
    # Weight of the divergence of the tokens from uniform tokens, in nats per
    # patch. DALL-E has 6.6, where the loss is a mean over the 192 values of a
    # patch.
    'divergence': 6.6 / 192,
    # The time in which that weight rises from 0.
    'divergence_warmup': '5_000 steps',
  }
  limits: ClassVar = {
    'tokens': '[2, inf)',
    'decoder_depth': '[1, inf)',
    'temperature final_temperature': '(0, inf)',
    'anneal divergence_warmup': 'duration',
    'divergence': '[0, inf)',
  }

  def __init__(self, config: base.Config, features: base.Features):
    super().__init__(config, features)
    options = config.objective.options
    self._options, self.count = options, options.tokens
    trunk = trunk_checks.checked_vit(self.model, config)
    self._patch = patch = models.patch_of_images(trunk)
    h, w, channels = self.image_shape
    self.grid = (h // patch[0], w // patch[1])
    starts = initializers.INITIALIZERS[trunk.initializers]
    self._head = nn.Dense(
      options.tokens, kernel_init=starts.kernel, dtype=trunk.dtype
    )
    self._decoder: Decoder = as_class(
      trunk,
      Decoder,
      depth=options.decoder_depth,
      grid=self.grid,
      values=patch[0] * patch[1] * channels,
    )

  @staticmethod
  def check(config: base.Config) -> None:
    """Checks the model, unless a checkpoint has it."""
    trunk_checks.check_patches(config)
    if config.model.name != config_lib.INIT_FROM:
      trunk_checks.checked_vit(models.from_config(config.model, 0), config)

  def init(self, key: jax.Array) -> base.Params:
    """Returns fresh parameters of the trunk, the head and the decoder."""
    keys = jax.random.split(key, 3)
    d, n = self.model.hidden_size, math.prod(self.grid)
    weights = jnp.zeros((1, n, self._options.tokens))
    # Always scanned, so that it starts with the same values either way.
    decoder = models.for_init(self._decoder).init(keys[2], weights)['params']
    if not self.model.scan:
      decoder = layouts.unstack_layers(decoder)
    return {
      'trunk': super().init(keys[0]),
      'head': self._head.init(keys[1], jnp.zeros((1, d)))['params'],
      'decoder': decoder,
    }

  def init_extra(self, params: base.Params) -> base.Extra:
    """Returns the number of updates, on which the temperature depends."""
    del params
    return {'updates': jnp.zeros((), jnp.int32)}

  def loss(
    self, params: base.Params, extra: base.Extra, batch: base.Batch, rng: Rng
  ) -> tuple[jax.Array, base.Scalars, base.Extra]:
    """Returns the loss: squared error of the pixels, and the divergence."""
    options, updates = self._options, extra['updates']
    logits = self.logits(params, batch['image'], rng)
    keys = rng.fold(base.Purpose.OBJECTIVE).per_row()
    noise = jax.vmap(lambda key: jax.random.gumbel(key, logits.shape[1:]))(keys)
    temperature = optim.half_cosine(
      options.temperature,
      options.final_temperature,
      self.num_steps(options.anneal),
    )(updates)
    weights = jax.nn.softmax((logits + noise) / temperature)
    error = self._error(params, batch['image'], weights).mean()
    shares = jax.nn.log_softmax(logits)
    entropy = -(jnp.exp(shares) * shares).sum(axis=-1).mean()
    divergence = math.log(logits.shape[-1]) - entropy
    warmup = max(self.num_steps(options.divergence_warmup), 1)
    weight = options.divergence * jnp.minimum(updates / warmup, 1.0)
    scalars = {'squared_error': error, 'divergence': divergence}
    return error + weight * divergence, scalars, extra

  def after_update(
    self, extra: base.Extra, params: base.Params, step: jax.Array
  ) -> base.Extra:
    """Counts the updates."""
    del params, step
    return {'updates': extra['updates'] + 1}

  def outputs(self, params: base.Params, batch: base.Batch) -> base.Outputs:
    """Returns tokens, int32 [B, N], and the loss of each image, [B]."""
    tokens = self.tokens(params, batch['image'])
    weights = jax.nn.one_hot(tokens, self.count)
    error = self._error(params, batch['image'], weights)
    return {'tokens': tokens, 'loss': error.mean(axis=(1, 2))}

  @property
  def pictures_caption(self) -> str:
    """Sentences that explain `pictures`."""
    return (
      f'What the decoder draws from the most likely of {self.count} tokens of'
      ' each patch.'
    )

  def pictures(
    self, params: base.Params, extra: base.Extra, images: jax.Array, rng: Rng
  ) -> list[base.Column]:
    """Returns what is drawn from the tokens of images, and the originals."""
    drawn = self.decode(params, self.tokens(params, images))
    return [base.Column('from tokens', drawn), base.Column('original', images)]

  def tokens(self, params: base.Params, images: jax.Array) -> jax.Array:
    """Returns the most likely token of each patch, int32 [B, N]."""
    return self.logits(params, images).argmax(axis=-1).astype(jnp.int32)

  def decode(self, params: base.Params, tokens: jax.Array) -> jax.Array:
    """Returns the images of tokens int32 [B, N], float32 [B, H, W, C]."""
    weights = jax.nn.one_hot(tokens, self.count)
    patches = self._draw(params, weights)
    return embedding.unpatchify(patches, self.grid, self._patch)

  def logits(
    self, params: base.Params, images: jax.Array, rng: Rng | None = None
  ) -> jax.Array:
    """Returns the logits of the tokens, float32 [B, N, K].

    `rng` is that of dropout, in training; None: there is none.
    """
    arguments = {} if rng is None else self.train_arguments(rng)
    outputs = self.apply(params['trunk'], images, method='trunk', **arguments)
    patches = outputs['tokens'][:, -math.prod(self.grid) :]
    logits: Any = self._head.apply({'params': params['head']}, patches)
    return logits.astype(jnp.float32)

  def _error(
    self, params: base.Params, images: jax.Array, weights: jax.Array
  ) -> jax.Array:
    """Returns squared errors [B, N, F] of the image drawn from tokens."""
    targets = embedding.patches(images, self._patch)
    return (self._draw(params, weights) - targets) ** 2

  def _draw(self, params: base.Params, weights: jax.Array) -> jax.Array:
    """Returns patches, float32 [B, N, F], of tokens' weights [B, N, K]."""
    drawn: Any = self._decoder.apply({'params': params['decoder']}, weights)
    return drawn.astype(jnp.float32)
