"""Encoders of self-supervision: their authors', timm's and Hugging Face's."""

import re

from foreign import assert_same
from foreign import flat
from foreign import logits
from foreign import random_images
from foreign import random_model
from foreign import read
import jax
import numpy as np
import pytest

import vit_jax
from vit_jax.config import UserError
from vit_jax.weights.files import containers
from vit_jax.weights.formats import export

EVA02 = {
  'positions': "learned + rope(kind='eva02', base=10000.0, grid=(3, 3))",
  'attention': 'attention(key_bias=False)',
  'mlp': 'swiglu',
  'pool': 'mean(norm_after=True)',
  'class_token': True,
}
DINO = {'mlp': "mlp(gelu='exact')", 'num_classes': 0}


def their_file(tmp_path, actual, *names, **changes):
  """Writes a model under its authors' names; returns the file.

  Args:
    tmp_path: A directory.
    actual: The model, which timm's names fit.
    *names: (pattern, replacement) of timm's names.
    **changes: Further arrays.
  """
  export.write(actual, tmp_path / 'timm.safetensors', 'timm', 'here')
  arrays = read(tmp_path / 'timm.safetensors')
  for pattern, replacement in names:
    arrays = {re.sub(pattern, replacement, k): x for k, x in arrays.items()}
  path = tmp_path / 'x.safetensors'
  (tmp_path / 'config.json').unlink()
  containers.write_safetensors(path, arrays | changes, {})
  return path


def test_dinos_file_is_resized_as_its_code_does(tmp_path):
  actual = random_model(**DINO)
  loaded = vit_jax.load(their_file(tmp_path, actual), num_heads=3)
  assert loaded.resize == 'dino'
  assert_same(loaded, actual)
  same = loaded.adapted(image_size=32)
  np.testing.assert_array_equal(
    same.params['position_embedding'], actual.params['position_embedding']
  )
  oblong = loaded.adapted(image_size=(16, 64))  # as many patches
  other = loaded.adapted(image_size=(16, 64), resize='bicubic')
  difference = oblong.params['position_embedding']
  difference = difference - other.params['position_embedding']
  assert 1e-3 < abs(difference).max() < 0.5
  loaded = vit_jax.load(
    tmp_path / 'x.safetensors', num_heads=3, resize='corner'
  )
  assert loaded.resize == 'dino'  # the file's, as before


@pytest.mark.parametrize('gated', [False, True])
@pytest.mark.parametrize('chunks', [False, True])
def test_dinov2s_own_names(tmp_path, gated, chunks):
  fields = DINO | {'mlp': 'swiglu' if gated else "mlp(gelu='exact')"}
  actual = random_model(
    block='block(layer_scale=1e-5)', mask_token=True, **fields
  )
  names = [(r'mlp\.fc1', 'mlp.w12'), (r'mlp\.fc2', 'mlp.w3')] * gated
  names += [(r'^blocks\.', 'blocks.0.')] * chunks
  mask = np.asarray(actual.params['mask_token'])[0]
  path = their_file(tmp_path, actual, *names, mask_token=mask)
  loaded = vit_jax.load(path, num_heads=3)
  assert_same(loaded, actual)
  assert loaded.resize == 'dino'
  notes = export.write(loaded, tmp_path / 'again', 'timm', 'here')
  assert notes == ['the token of masked patches is left out']
  again = vit_jax.load(tmp_path / 'again')
  assert (again.resize, again.model.mask_token) == ('dino', False)
  params = {k: x for k, x in loaded.params.items() if k != 'mask_token'}
  jax.tree.map(np.testing.assert_array_equal, again.params, params)


def test_dinov2s_own_names_with_registers(tmp_path):
  """Registers have no position in its file; timm adds the class token's."""
  fields = {'block': 'block(layer_scale=1e-5)', 'registers': 4, **DINO}
  actual = random_model(positions="learned(tokens='patches')", **fields)
  names = [('reg_token', 'register_tokens')]
  row = np.full((1, 1, 24), 0.25, np.float32)
  table = np.concatenate([row, actual.params['position_embedding']], axis=1)
  mask = np.zeros((1, 24), np.float32)
  path = their_file(tmp_path, actual, *names, pos_embed=table, mask_token=mask)
  loaded = vit_jax.load(path, num_heads=3)
  assert loaded.resize == 'bicubic_antialias'
  assert loaded.model.positions[0].tokens == 'class'
  images = random_images(32, 32)
  actual.params['class_token'] = actual.params['class_token'] + row
  np.testing.assert_allclose(
    logits(loaded, images), logits(actual, images), atol=1e-5
  )


@pytest.mark.parametrize('normalised', [False, True])
def test_eva02s_own_names(tmp_path, normalised):
  mlp = f'swiglu(hidden_norm={normalised})'
  actual = random_model(**EVA02 | {'mlp': mlp})
  names = [
    (r'mlp\.fc1\.', 'mlp.w12.'),
    (r'mlp\.fc1_g', 'mlp.w1'),
    (r'mlp\.fc1_x', 'mlp.w2'),
    (r'mlp\.fc2', 'mlp.w3'),
    (r'mlp\.norm', 'mlp.ffn_ln'),
  ]
  angles = {'rope.freqs_cos': np.ones((16, 8), np.float32)}
  path = their_file(tmp_path, actual, *names, **angles)
  if normalised:  # its queries, keys and values are apart
    arrays = read(path)
    for i in range(2):
      for name, x in zip(
        'qkv',
        np.split(arrays.pop(f'blocks.{i}.attn.qkv.weight'), 3),
        strict=True,
      ):
        arrays[f'blocks.{i}.attn.{name}_proj.weight'] = x
      arrays[f'blocks.{i}.attn.q_proj.bias'] = arrays.pop(
        f'blocks.{i}.attn.q_bias'
      )
    containers.write_safetensors(path, arrays, {})
  loaded = vit_jax.load(path, num_heads=3, positions=EVA02['positions'])
  assert_same(loaded, actual)
  if normalised:
    del arrays['blocks.1.attn.k_proj.weight']
    containers.write_safetensors(path, arrays, {})
    with pytest.raises(
      UserError,
      match=r'missing: blocks\.1\.attn\.qkv\.weight.* unknown: .*q_proj',
    ):
      vit_jax.load(path, num_heads=3, positions=EVA02['positions'])


def test_dinov3s_own_names(tmp_path):
  """Its keys' biases are masked, whatever they hold."""
  actual = random_model(
    positions='rope',
    attention='attention(key_bias=False)',
    block='block(layer_scale=1e-5)',
    registers=4,
    mask_token=True,
    layer_norm_epsilon=1e-5,
    **DINO,
  )
  names = [
    ('reg_token', 'storage_tokens'),
    (r'gamma_([12])', r'ls\1.gamma'),
  ]
  mask = np.asarray(actual.params['mask_token'])[0]
  further = {
    'mask_token': mask,
    'rope_embed.periods': np.ones(2, np.float32),
  }
  path = their_file(tmp_path, actual, *names, **further)
  arrays = read(path)
  nothing = np.full(24, np.nan, np.float32)
  for i in range(2):
    start = f'blocks.{i}.attn.'
    query, value = (arrays.pop(f'{start}{x}_bias') for x in 'qv')
    arrays[f'{start}qkv.bias'] = np.concatenate([query, nothing, value])
    arrays[f'{start}qkv.bias_mask'] = np.repeat([1.0, 0, 1], 24)
  containers.write_safetensors(path, arrays, {})
  assert_same(vit_jax.load(path, num_heads=3, image_size=32), actual)


def test_a_grid_of_positions_that_is_not_square(tmp_path):
  positions = "learned(tokens='patches', resize='bicubic', grid=(2, 8))"
  actual = random_model((16, 64), mlp="mlp(gelu='exact')", positions=positions)
  export.write(actual, tmp_path / 'x', 'timm', 'here')
  assert_same(vit_jax.load(tmp_path / 'x'), actual)


def test_factorized_positions_are_resized_for_each_image(tmp_path):
  positions = 'factorized(keep_aspect=True, grid=(4, 4))'
  actual = random_model(
    mlp="mlp(gelu='exact')", pool='mean', positions=positions
  )
  export.write(actual, tmp_path / 'x', 'timm', 'here')
  other = vit_jax.load(tmp_path / 'x').adapted(image_size=(24, 40))
  assert logits(other, random_images(24, 40)).shape == (2, 5)


def test_how_a_bare_file_rotates_is_said(tmp_path, caplog):
  path = their_file(tmp_path, random_model(**EVA02))
  with caplog.at_level('WARNING', 'absl'):
    loaded = vit_jax.load(path, num_heads=3)
  assert "assumed: rope(kind='eva02'" in caplog.text
  assert loaded.model.positions[1].grid == (16, 16)
  assert flat(loaded).keys() == flat(random_model(**EVA02)).keys()
  loaded = vit_jax.load(path, num_heads=3, positions='learned')
  assert len(loaded.model.positions) == 1
