"""A small file of DALL-E's encoder, with random weights."""

import pathlib

import jax
import numpy as np
from safetensors.numpy import save_file


def write(path: pathlib.Path, drop: str = '') -> None:
  """Writes an encoder of 16 tokens, with one block in each group."""
  key = jax.random.key(0)
  shapes = {'input': (4, 3, 7, 7), 'output.conv': (16, 32, 1, 1)}
  width = 4
  for group in range(4):
    name, out = f'group_{group + 1}.block_1', 4 * 2**group
    sizes = (out // 4, width, 3), *[(out // 4, out // 4, 3)] * 2
    for i, (o, n, s) in enumerate((*sizes, (out, out // 4, 1))):
      shapes[f'{name}.res_path.conv_{i + 1}'] = (o, n, s, s)
    if out != width:
      shapes[f'{name}.id_path'] = (out, width, 1, 1)
    width = out
  arrays = {}
  for name, shape in shapes.items():
    key, layer_key = jax.random.split(key)
    arrays[f'blocks.{name}.w'] = np.asarray(jax.random.normal(layer_key, shape))
    arrays[f'blocks.{name}.b'] = np.zeros(shape[0], np.float32)
  save_file({k: x for k, x in arrays.items() if k != drop}, path)
