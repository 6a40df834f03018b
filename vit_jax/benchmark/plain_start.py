r"""Takes the first training step as in a tutorial, for `processes.startup`.

It initialises and trains the plain model on random images in memory, with one
jitted function each. The argument is a JSON object with the fields of
`plain.BaselineViT`, `image_shape`, `batch_size` and `optim`:

  python -m vit_jax.benchmark.plain_start '{"model": {"num_classes": 10,
    "patch_size": 4, "hidden_size": 256, "mlp_dim": 512, "num_heads": 8,
    "depth": 6, "dropout_rate": 0.2}, "image_shape": [32, 32, 3],
    "batch_size": 128, "optim": {"learning_rate": 3e-4, "weight_decay": 0.01,
    "clip_norm": 1.0}}'

Prints the time at the end of the step, in seconds since 1970, and the loss.
"""

import json
import sys
import time
from typing import Any

from flax.training import train_state
import jax
import numpy as np
import optax

from vit_jax.benchmark import plain


def first_step(
  model: dict[str, Any],
  image_shape: tuple[int, int, int],
  batch_size: int,
  optim: dict[str, float],
) -> float:
  """Initialises the model, takes a training step, and returns the loss."""
  vit = plain.BaselineViT(**model)
  rng = np.random.default_rng(0)
  images = rng.normal(size=(batch_size, *image_shape)).astype(np.float32)
  labels = rng.integers(model['num_classes'], size=batch_size)
  init_key, dropout_key = jax.random.split(jax.random.key(0))
  params = jax.jit(vit.init)(init_key, images[:1])['params']
  optimizer = optax.chain(
    optax.clip_by_global_norm(optim['clip_norm']),
    optax.adamw(optim['learning_rate'], weight_decay=optim['weight_decay']),
  )
  state = train_state.TrainState.create(
    apply_fn=vit.apply, params=params, tx=optimizer
  )

  @jax.jit
  def train_step(
    state: train_state.TrainState, images: jax.Array, labels: jax.Array
  ) -> tuple[train_state.TrainState, jax.Array]:
    def loss_fn(params: Any) -> jax.Array:
      logits = state.apply_fn(
        {'params': params}, images, train=True, rngs={'dropout': dropout_key}
      )
      loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
      return loss.mean()

    loss, grads = jax.value_and_grad(loss_fn)(state.params)
    return state.apply_gradients(grads=grads), loss

  state, loss = train_step(state, images, labels)
  jax.block_until_ready(state)
  return float(loss)


if __name__ == '__main__':
  loss = first_step(**json.loads(sys.argv[1]))
  print(json.dumps({'time': time.time(), 'loss': loss}))
