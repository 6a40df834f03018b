"""Files of DALL-E's encoder: its authors' (encoder.pkl), and FLAVA's copy.

The authors' file is a pickled program, of which torch can save the state dict.
transformers publishes the same encoder as the image codebook of FLAVA, alone
(facebook/flava-image-codebook) or as a part of the model.
"""

import pathlib
import re
from typing import Any

import jax
import jax.numpy as jnp

from vit_jax.config import UserError
from vit_jax.models import dvae
from vit_jax.weights.formats import base
from vit_jax.weights.formats import foreign
from vit_jax.weights.formats import tables

_INPUT, _OUTPUT = 'blocks.input.w', 'blocks.output.conv.w'
# What FLAVA adds to the authors' names.
_FLAVAS = (
  (r'^image_codebook\.', ''),
  (r'\.group\.', '.'),
  (r'\.path\.', '.'),
  (r'\.weight$', '.w'),
  (r'\.bias$', '.b'),
)
_CHANNELS = 3
_BLOCK = 'blocks.group_#.block_#'
# Our numbers begin with 0.
ARRAYS = tables.arrays(f"""
input/kernel               blocks.input.w            conv
input/bias                 blocks.input.b
output/kernel              blocks.output.conv.w      conv
output/bias                blocks.output.conv.b
group_#_#/shortcut/kernel  {_BLOCK}.id_path.w        conv  +1
group_#_#/shortcut/bias    {_BLOCK}.id_path.b              +1
group_#_#/conv_#/kernel    {_BLOCK}.res_path.conv_#.w  conv  +1
group_#_#/conv_#/bias      {_BLOCK}.res_path.conv_#.b        +1
""")


def read(path: pathlib.Path) -> tuple[dvae.DalleEncoder, dict[str, Any]]:
  """Reads an encoder, with the sizes of its arrays, and its parameters.

  `path` is an .npz, .safetensors or .pth file, or a directory of transformers.
  """

  def authors_name(name: str) -> str:
    for pattern, replacement in _FLAVAS:
      name = re.sub(pattern, replacement, name)
    return name

  with foreign.opened(path) as opened:
    arrays = base.Renamed(opened, authors_name)
    first, last = (arrays.shapes.get(name, ()) for name in (_INPUT, _OUTPUT))
    if len(first) != 4 or len(last) != 4:
      raise UserError(
        f"it is no encoder of DALL-E's or FLAVA's, which has {_INPUT} and"
        f' {_OUTPUT}'
      )
    pattern = re.compile(r'blocks\.group_1\.block_\d+\.res_path\.conv_1\.w')
    blocks = sum(1 for name in arrays.shapes if pattern.fullmatch(name))
    module = dvae.DalleEncoder(last[0], first[0], max(blocks, 1))
    image = jnp.zeros((1, dvae.STRIDE, dvae.STRIDE, _CHANNELS))
    abstract = jax.eval_shape(module.init, jax.random.key(0), image)['params']
    params = tables.read(arrays, ARRAYS, abstract, r'(?!blocks\.).*')
  return module, params
