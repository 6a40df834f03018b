"""The plain formulation: the ViT of a tutorial in Linen, and its train step.

The model follows P. Lippe's UvA Deep Learning Tutorial 15, as a reader would
write it: Dense on flattened patches, `nn.MultiHeadDotProductAttention`,
`nn.Dropout`, LayerNorm and Dense on the class token. It imports nothing else of
vit_jax, since `plain_start` times its start-up.
"""

from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

from flax import linen as nn
from flax.training import train_state
import jax
import jax.numpy as jnp
import optax


class Block(nn.Module):
  """A pre-LN layer: [B, T, D] -> [B, T, D]."""

  mlp_dim: int
  num_heads: int
  dropout_rate: float
  dtype: jax.typing.DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array, train: bool) -> jax.Array:
    """Applies the layer."""
    dropout = nn.Dropout(self.dropout_rate, deterministic=not train)
    y = nn.LayerNorm(dtype=self.dtype)(x)
    y = nn.MultiHeadDotProductAttention(self.num_heads, dtype=self.dtype)(y)
    x = x + dropout(y)
    y = nn.LayerNorm(dtype=self.dtype)(x)
    y = nn.Dense(self.mlp_dim, dtype=self.dtype)(y)
    y = dropout(nn.gelu(y))
    y = nn.Dense(x.shape[-1], dtype=self.dtype)(y)
    return x + dropout(y)


class BaselineViT(nn.Module):
  """Images [B, H, W, C] -> logits [B, classes]."""

  num_classes: int
  patch_size: int
  hidden_size: int
  mlp_dim: int
  num_heads: int
  depth: int
  dropout_rate: float
  dtype: jax.typing.DTypeLike = jnp.float32

  @nn.compact
  def __call__(self, images: jax.Array, train: bool = False) -> jax.Array:
    """Classifies images."""
    b, height, width, c = images.shape
    p, d = self.patch_size, self.hidden_size
    x = images.reshape(b, height // p, p, width // p, p, c)
    x = x.transpose(0, 1, 3, 2, 4, 5).reshape(b, -1, p * p * c)
    x = nn.Dense(d, dtype=self.dtype)(x)
    init = nn.initializers.normal(1.0)
    token = self.param('cls_token', init, (1, 1, d)).astype(self.dtype)
    x = jnp.concatenate([jnp.repeat(token, b, axis=0), x], axis=1)
    position = self.param('pos_embedding', init, (1, x.shape[1], d))
    x = x + position.astype(self.dtype)
    x = nn.Dropout(self.dropout_rate, deterministic=not train)(x)
    for _ in range(self.depth):
      x = Block(self.mlp_dim, self.num_heads, self.dropout_rate, self.dtype)(
        x, train
      )
    x = nn.LayerNorm(dtype=self.dtype)(x[:, 0]).astype(jnp.float32)
    return nn.Dense(self.num_classes)(x)


def make_train_step(
  model: BaselineViT, params: Mapping[str, Any], optim: Any
) -> tuple[train_state.TrainState, Callable[..., Any]]:
  """Returns a state and `(state, images, labels, key) -> (state, loss)`.

  Args:
    model: The model.
    params: Its initial parameters.
    optim: The settings of AdamW and clipping.
  """
  adamw = optax.adamw(
    optim['learning_rate'],
    optim['b1'],
    optim['b2'],
    optim['eps'],
    weight_decay=optim['weight_decay'],
  )
  clip = optax.clip_by_global_norm(optim['clip_norm'] or float('inf'))
  state = train_state.TrainState.create(
    apply_fn=model.apply, params=params, tx=optax.chain(clip, adamw)
  )

  def train_step(
    state: train_state.TrainState,
    images: jax.Array,
    labels: jax.Array,
    key: jax.Array,
  ) -> tuple[train_state.TrainState, jax.Array]:
    def loss_fn(params: Any) -> jax.Array:
      logits = model.apply(
        {'params': params}, images, train=True, rngs={'dropout': key}
      )
      loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
      return loss.mean()

    loss, grads = jax.value_and_grad(loss_fn)(state.params)
    return state.apply_gradients(grads=grads), loss

  return state, jax.jit(train_step, donate_argnums=0)
