"""The encoder of DALL-E's discrete autoencoder, a tokenizer of images.

Source: Ramesh et al., arXiv:2102.12092, appendix A.1, and the authors' code
(openai/DALL-E, dall_e/encoder.py).
"""

from flax import linen as nn
import jax
import jax.numpy as jnp

# Pixels of a token's side: the images are halved after three of four groups.
STRIDE = 8
_GROUPS = 4
# Pixels in [0, 1] are moved away from both ends (section 2.1 of appendix A).
_MARGIN = 0.1


class Block(nn.Module):
  """A residual block of four convolutions, each after a ReLU."""

  features: int
  gain: float

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Applies the block: [B, H, W, C] -> [B, H, W, features]."""
    y, inner = x, self.features // 4
    for i, (width, size) in enumerate(
      ((inner, 3), (inner, 3), (inner, 3), (self.features, 1))
    ):
      y = nn.Conv(width, (size, size), name=f'conv_{i}')(nn.relu(y))
    if x.shape[-1] != self.features:
      x = nn.Conv(self.features, (1, 1), name='shortcut')(x)
    return x + self.gain * y


class DalleEncoder(nn.Module):
  """Gives each 8 x 8 pixels of an image the logits of tokens."""

  tokens: int = 8192
  hidden: int = 256
  blocks: int = 2

  @nn.compact
  def __call__(self, images: jax.Array) -> jax.Array:
    """Maps pixels in [0, 1], [B, H, W, C], to [B, H / 8, W / 8, tokens]."""
    x = (1 - 2 * _MARGIN) * images + _MARGIN
    x = nn.Conv(self.hidden, (7, 7), name='input')(x)
    gain = 1 / (_GROUPS * self.blocks) ** 2
    for group in range(_GROUPS):
      for i in range(self.blocks):
        block = Block(self.hidden * 2**group, gain, name=f'group_{group}_{i}')
        x = block(x)
      if group < _GROUPS - 1:
        x = nn.max_pool(x, (2, 2), (2, 2))
    x = nn.Conv(self.tokens, (1, 1), name='output')(nn.relu(x))
    return x.astype(jnp.float32)
