"""The plain formulation: a tutorial's ViT in everyday Linen, one jit.

After P. Lippe's UvA Deep Learning Tutorial 15, as a reader would write it:
Dense on flattened patches, `nn.MultiHeadDotProductAttention`, `nn.Dropout`,
LayerNorm and Dense on the class token.
"""

from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

from flax import linen as nn
from flax.training import train_state
import jax
import jax.numpy as jnp
import ml_collections
import optax

from vit_jax.models import vit


class Block(nn.Module):
  """A pre-LN layer: [B, T, D] -> [B, T, D]."""

  mlp_dim: int
  num_heads: int
  dropout_rate: float

  @nn.compact
  def __call__(self, x: jax.Array, train: bool) -> jax.Array:
    """Applies the layer."""
    dropout = nn.Dropout(self.dropout_rate, deterministic=not train)
    y = nn.LayerNorm()(x)
    y = nn.MultiHeadDotProductAttention(self.num_heads)(y)
    x = x + dropout(y)
    y = nn.LayerNorm()(x)
    y = nn.Dense(self.mlp_dim)(y)
    y = dropout(nn.gelu(y))
    y = nn.Dense(x.shape[-1])(y)
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

  @nn.compact
  def __call__(self, images: jax.Array, train: bool = False) -> jax.Array:
    """Classifies images."""
    b, height, width, c = images.shape
    p, d = self.patch_size, self.hidden_size
    x = images.reshape(b, height // p, p, width // p, p, c)
    x = x.transpose(0, 1, 3, 2, 4, 5).reshape(b, -1, p * p * c)
    x = nn.Dense(d)(x)
    token = self.param('cls_token', nn.initializers.normal(1.0), (1, 1, d))
    x = jnp.concatenate([jnp.repeat(token, b, axis=0), x], axis=1)
    x = x + self.param(
      'pos_embedding', nn.initializers.normal(1.0), (1, x.shape[1], d)
    )
    x = nn.Dropout(self.dropout_rate, deterministic=not train)(x)
    for _ in range(self.depth):
      x = Block(self.mlp_dim, self.num_heads, self.dropout_rate)(x, train)
    x = nn.LayerNorm()(x[:, 0])
    return nn.Dense(self.num_classes)(x)


def make_model(model: vit.ViT) -> BaselineViT:
  """Returns the plain twin of a ViT with a class token and square patches."""
  return BaselineViT(
    num_classes=model.num_classes,
    patch_size=model.patch_size[0],
    hidden_size=model.hidden_size,
    mlp_dim=model.mlp_dim,
    num_heads=model.num_heads,
    depth=model.depth,
    dropout_rate=model.dropout_rate,
  )


def convert_params(params: Mapping[str, Any]) -> dict[str, Any]:
  """Returns an unrolled ViT's parameters under the baseline's names."""
  kernel = params['patch_embedding']['kernel']
  converted = {
    'cls_token': params['class_token'],
    'pos_embedding': params['position_embedding'],
    'Dense_0': {
      'kernel': kernel.reshape(-1, kernel.shape[-1]),
      'bias': params['patch_embedding']['bias'],
    },
    'LayerNorm_0': params['norm'],
    'Dense_1': params['head'],
  }
  depth = sum(name.startswith('blocks_') for name in params)
  for i in range(depth):
    block = params[f'blocks_{i}']
    qkv = block['attention']['qkv']
    attention = {'out': block['attention']['out']}
    for j, name in enumerate(('query', 'key', 'value')):
      attention[name] = {'kernel': qkv['kernel'][:, j], 'bias': qkv['bias'][j]}
    converted[f'Block_{i}'] = {
      'LayerNorm_0': block['norm1'],
      'MultiHeadDotProductAttention_0': attention,
      'LayerNorm_1': block['norm2'],
      'Dense_0': block['mlp']['up'],
      'Dense_1': block['mlp']['down'],
    }
  return converted


def make_train_step(
  model: BaselineViT,
  params: Mapping[str, Any],
  optim: ml_collections.ConfigDict,
) -> tuple[train_state.TrainState, Callable[..., Any]]:
  """Returns a state and `(state, images, labels, key) -> (state, loss)`.

  Args:
    model: From `make_model`.
    params: From `convert_params`.
    optim: `config.optim`, of which the AdamW settings and the clipping count.
  """
  optimizer = optax.chain(
    optax.clip_by_global_norm(optim.clip_norm),
    optax.adamw(optim.learning_rate, weight_decay=optim.weight_decay),
  )
  state = train_state.TrainState.create(
    apply_fn=model.apply, params=params, tx=optimizer
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
