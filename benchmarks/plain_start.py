r"""Takes the first training step as in a tutorial, for `processes.startup`.

It initialises and trains the plain model on random images in memory, with one
jitted function each. The argument is a JSON object with the fields of
`plain.BaselineViT`, `image_shape`, `batch_size` and `optim`:

  python -m benchmarks.plain_start '{"model": {"num_classes": 10,
    "patch_size": 4, "hidden_size": 256, "mlp_dim": 512, "num_heads": 8,
    "depth": 6, "dropout_rate": 0.2}, "image_shape": [32, 32, 3],
    "batch_size": 128, "optim": {"learning_rate": 3e-4, "b1": 0.9, "b2": 0.999,
    "eps": 1e-8, "weight_decay": 0.01, "clip_norm": 1.0}}'

Prints the time at the end of the step, in seconds since 1970, and the loss.
"""

import json
import sys
import time
from typing import Any

import jax
import numpy as np

from benchmarks import plain


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
  state, train_step = plain.make_train_step(vit, params, optim)
  state, loss = train_step(state, images, labels, dropout_key)
  jax.block_until_ready(state)
  return float(loss)


if __name__ == '__main__':
  loss = first_step(**json.loads(sys.argv[1]))
  print(json.dumps({'time': time.time(), 'loss': loss}))
