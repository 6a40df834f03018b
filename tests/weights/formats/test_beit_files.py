"""BEiT under its own names, which timm keeps, and what its files cannot hold.

tests/weights/formats/test_transformers.py compares with transformers, and
tests/golden.py with the authors' code.
"""

import json

from foreign import assert_same
from foreign import random_model
from foreign import read
import jax
import numpy as np
import pytest
from safetensors import numpy as safetensors

import vit_jax
from vit_jax.config import UserError
from vit_jax.weights.formats import export

BEIT = {
  'class_token': True,
  'attention': 'attention(key_bias=False)',
  'mlp': "mlp(gelu='exact')",
}
KINDS = {
  'pre-trained': BEIT
  | {
    'positions': 'relative_bias',
    'block': 'block(layer_scale=0.1)',
    'mask_token': True,
    'num_classes': 0,
  },
  'fine-tuned': BEIT
  | {
    'positions': 'relative_bias(shared=False)',
    'block': 'block(layer_scale=1e-5)',
    'pool': 'mean(norm_after=True)',
  },
  'absolute': BEIT,
}
NAMES = {
  'pre-trained': {
    'mask_token': (1, 1, 24),
    'rel_pos_bias.relative_position_bias_table': (52, 3),
    'blocks.1.gamma_2': (24,),
    'norm.weight': (24,),
  },
  'fine-tuned': {
    'blocks.1.attn.relative_position_bias_table': (52, 3),
    'blocks.0.attn.v_bias': (24,),
    'blocks.0.gamma_1': (24,),
    'fc_norm.bias': (24,),
    'head.weight': (5, 24),
  },
  'absolute': {
    'pos_embed': (1, 17, 24),
    'blocks.0.attn.q_bias': (24,),
    'blocks.0.attn.qkv.weight': (72, 24),
  },
}


@pytest.mark.parametrize('kind', KINDS)
def test_names_of_its_authors(tmp_path, kind):
  loaded = random_model(**KINDS[kind])
  export.write(loaded, tmp_path / 'x', 'timm', 'here')
  actual = read(tmp_path / 'x' / 'model.safetensors')
  for name, shape in NAMES[kind].items():
    assert actual[name].shape == shape, name
  assert not any('attn.qkv.bias' in name for name in actual)
  again = vit_jax.load(tmp_path / 'x')
  assert_same(again, loaded)
  content = json.loads((tmp_path / 'x' / 'config.json').read_text())
  # timm's class Eva has the same names, without relative positions.
  family = 'eva02_base_patch14' if kind == 'absolute' else 'beit_base_patch16'
  assert content['architecture'] == f'{family}_224'


def test_a_file_alone(tmp_path):
  """Heads and grid come from the table; index tables are no parameters."""
  loaded = random_model(**KINDS['fine-tuned'])
  export.write(loaded, tmp_path / 'x', 'timm', 'here')
  arrays = read(tmp_path / 'x' / 'model.safetensors')
  for i in range(2):
    name = f'blocks.{i}.attn.relative_position_index'
    arrays[name] = np.zeros((17, 17), np.int64)
  safetensors.save_file(arrays, tmp_path / 'alone.safetensors')
  actual = vit_jax.load(tmp_path / 'alone.safetensors')
  assert actual.position_size == (32, 32)
  assert actual.model.block.attention.num_heads == 3
  assert actual.resize == 'geometric'
  jax.tree.map(np.testing.assert_array_equal, actual.params, loaded.params)


def test_a_grid_that_is_not_square_must_be_said(tmp_path):
  loaded = random_model((24, 40), **KINDS['pre-trained'])
  export.write(loaded, tmp_path / 'x', 'timm', 'here')
  (tmp_path / 'x' / 'config.json').unlink()
  with pytest.raises(UserError, match=r'48 relative positions .* image_size='):
    vit_jax.load(tmp_path / 'x')
  loaded = vit_jax.load(tmp_path / 'x', image_size=(24, 40))
  assert loaded.position_size == (24, 40)
