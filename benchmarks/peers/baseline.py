"""The plain formulation: the ViT of a tutorial in Linen, with one jit."""

from collections.abc import Mapping
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from benchmarks import plain
from benchmarks.peers import base
from benchmarks.peers import ours
from vit_jax.models import describing
from vit_jax.models import vit
from vit_jax.optim import optimizers


def fields(model: vit.ViT) -> dict[str, Any]:
  """Returns the fields of the plain twin of a ViT, as `make_model` has them."""
  names = {field.name for field in dataclasses.fields(plain.BaselineViT)}
  same = names - {'parent', 'name', 'patch_size'}
  keys = describing.key_values(model) | {'dtype': model.dtype}
  sizes = {name: keys[name] for name in same}
  return sizes | {'patch_size': keys['patch_size'][0]}


def adamw_values(optim: ml_collections.ConfigDict) -> dict[str, float]:
  """Returns the settings of AdamW and clipping of `config.optim`."""
  method: Any = optimizers.method(optim)
  keys = ('learning_rate', 'weight_decay', 'clip_norm')
  return {key: optim[key] for key in keys} | {
    name: getattr(method, name) for name in ('b1', 'b2', 'eps')
  }


def make_model(model: vit.ViT) -> plain.BaselineViT:
  """Returns the plain twin of a ViT with a class token and square patches."""
  return plain.BaselineViT(**fields(model))


def convert_params(params: Mapping[str, Any]) -> dict[str, Any]:
  """Renames the parameters of an unrolled ViT to the baseline's names."""
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


class Baseline(base.Peer):
  """The plain twin of a ViT."""

  name = 'baseline'

  def __init__(self, task: base.Task):
    """Copies parameters and batch to the device."""
    self._task = task
    self._model = make_model(task.model)
    self._params = jax.device_put(convert_params(task.params))
    self._images = jax.device_put(task.images)
    self._labels = jax.device_put(task.labels)
    self._key = jax.random.key(0)
    self._apply = jax.jit(
      lambda params, x: self._model.apply({'params': params}, x)
    )
    self._steps: Any = None

  def logits(self) -> np.ndarray:
    """Returns the logits of the batch; see `base`."""
    return np.asarray(self._apply(self._params, self._images), np.float32)

  def forward(self, count: int) -> None:
    """Classifies the batch some times; see `base`."""
    ours.waiting(lambda: self._apply(self._params, self._images), count)

  def train(self, count: int) -> float:
    """Takes training steps; see `base`."""
    if self._steps is None:
      # A copy, since steps donate their state.
      params = jax.tree.map(jnp.copy, self._params)
      self._steps = plain.make_train_step(
        self._model, params, adamw_values(self._task.optim)
      )
    state, step = self._steps

    def one_step() -> jax.Array:
      nonlocal state
      state, loss = step(state, self._images, self._labels, self._key)
      return loss

    loss = float(ours.waiting(one_step, count))
    self._steps = state, step
    return loss
