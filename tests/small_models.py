"""Small ViTs whose parameters are all random, and images for them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax import models

SIZES = {'hidden_size': 16, 'mlp_dim': 32, 'num_heads': 2, 'depth': 2}
IMAGES = jax.random.normal(jax.random.key(0), (2, 8, 12, 3))


def make(
  images: jax.Array = IMAGES, name: str = 'ViT-Ti/4', **fields: Any
) -> tuple[models.Model, Any]:
  """Returns a model of 3 classes, and parameters none of which is zero."""
  model = models.create_model(name, **{'num_classes': 3} | SIZES | fields)
  shapes = models.abstract_params(model, images.shape[1:])
  rng = np.random.default_rng(0)
  params = jax.tree.map(
    lambda x: jnp.asarray(0.3 * rng.standard_normal(x.shape, np.float32)),
    shapes,
  )
  return model, params
