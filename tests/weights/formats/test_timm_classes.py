"""timm's other classes and blocks: there, back, and the same outputs."""

import json

from foreign import assert_same
from foreign import logits
from foreign import random_model
from foreign import read
from foreign import torch_outputs
import numpy as np
import other_libraries
import pytest
from safetensors import numpy as safetensors

import vit_jax
from vit_jax.config import UserError
from vit_jax.weights.formats import export

EXACT = {'mlp': "mlp(gelu='exact')"}
ROPE = {
  'positions': (
    "learned + rope(kind='rope_vit', base=1e4, grid=(3, 3), offset=1.0)"
  ),
}
# Perception Encoder.
PE = {
  **ROPE,
  **EXACT,
  'pre_norm': True,
  'patches': 'patches(bias=False)',
  'class_token': True,
  'layer_norm_epsilon': 1e-5,
}
SAPIENS = {
  'norm': 'rms_norm',
  'positions': 'rope',
  'attention': 'attention(qk_norm=True)',
  'mlp': 'swiglu',
  'block': 'block(layer_scale=1e-5, layer_scale_mlp=False)',
  'registers': 2,
}
RELATIVE = {
  **EXACT,
  'positions': 'relative_mlp_bias(hidden_dim=8, shared=False)',
  'pool': 'mean',
}
# Names of timm's models, and arguments beside SIZES. What each has here,
# test_every_field.py draws.
SIZES = {'embed_dim': 24, 'depth': 2, 'num_heads': 3, 'mlp_ratio': 2}
GRID = {'ref_feat_shape': (3, 3)}
KINDS = {
  'EVA-02 CLIP': ('eva02_base_patch16_clip_224', GRID),
  'EVA-02 with norms after layers': ('eva02_enormous_patch14_clip_224', {}),
  'BEiT-3': ('beit3_base_patch16_224', {'global_pool': 'token'}),
  'PE of features': ('vit_pe_lang_large_patch14_448', GRID),
  'PE with attention pooling': (
    'vit_pe_core_base_patch16_224',
    {**GRID, 'attn_pool_num_heads': 2},
  ),
  'Sapiens2': (
    'vit_large_patch16_sapiens2',
    {'embed_dim': 48, 'num_heads': 4, 'depth': 4}
    | {'num_kv_heads': (4, 2, 2, 4), 'num_reg_tokens': 2}
    | {'img_size': (32, 24)},
  ),
  'Sapiens2, its small one': (
    'vit_base_patch16_sapiens2',
    {'num_kv_heads': (3, 3), 'num_reg_tokens': 2},
  ),
  'fewer heads of keys in all layers': (
    'eva02_base_patch16_clip_224',
    {'attn_type': 'rope', 'num_kv_heads': 1, 'qkv_fused': False}
    | {'qkv_bias': False, **GRID},
  ),
  'AIMv2': ('aimv2_large_patch14_224', {}),
  'an MLP in each layer': ('vit_relpos_base_patch16_224', {'rel_pos_dim': 8}),
  'a shared MLP': (
    'vit_srelpos_small_patch16_224',
    {'rel_pos_dim': 8, 'class_token': True, 'global_pool': 'token'},
  ),
  'an MLP, and norms after layers': (
    'vit_relpos_base_patch16_rpn_224',
    {'rel_pos_dim': 8},
  ),
  'norms after layers': ('vit_base_patch16_rpn_224', {'init_values': None}),
  'ViT without a last norm': ('vit_intern300m_patch14_448', {}),
  'ViT that pools all tokens': ('test_vit3', {}),
  'an MLP beside attention': ('vit_pwee_patch16_reg1_gap_256', {}),
  'an MLP beside attention, without biases of both': (
    'vit_base_patch16_xp_224',
    {},
  ),
  'two attentions beside each other': ('vit_small_patch16_18x2_224', {}),
  'two attentions after a norm': (
    'vit_base_patch16_18x2_224',
    {'pre_norm': True, 'qk_norm': True, 'norm_layer': 'rmsnorm'}
    | {'init_values': 0.0},
  ),
  'differential attention beside an MLP': (
    'vit_dpwee_patch16_reg1_gap_256',
    {},
  ),
  'images that are no whole patches': (
    'vit_so400m_patch14_siglip_384',
    {'img_size': (36, 39)},
  ),
  'differential attention': (
    'vit_dwee_patch16_reg1_gap_256',
    {'qk_norm': True},
  ),
  'ViT without biases': ('vit_base_patch16_224', {'proj_bias': False}),
}
JOINT = {
  **EXACT,
  'attention': 'differential',
  'block': 'parallel(layer_scale=1e-5)',
  'pool': 'mean(norm_after=True)',
}


@pytest.fixture
def libraries():
  """PyTorch and timm, whose outputs are the reference."""
  return pytest.importorskip('torch'), other_libraries.imported('timm')


@pytest.mark.parametrize('kind', KINDS)
def test_outputs_are_those_of_timm(tmp_path, kind, libraries):
  """Of its model that we read, and of ours that it reads."""
  import safetensors.torch

  torch, timm = libraries
  name, further = KINDS[kind]
  arguments = SIZES | {'patch_size': 8, 'img_size': 32} | further
  torch.manual_seed(0)
  size = arguments['img_size']
  size = (size, size) if isinstance(size, int) else size
  model = timm.create_model(name, num_classes=5, **arguments)
  with torch.no_grad():
    for parameter in model.parameters():
      parameter.normal_(std=0.2)
  folder = tmp_path / 'theirs'
  folder.mkdir()
  weights = {k: x.contiguous() for k, x in model.state_dict().items()}
  safetensors.torch.save_file(weights, folder / 'model.safetensors')
  config = {
    'architecture': name,
    'num_classes': 5,
    'global_pool': model.global_pool,
    'model_args': arguments,
    'pretrained_cfg': {'input_size': [3, *size]},
  }
  (folder / 'config.json').write_text(json.dumps(config))
  loaded = vit_jax.load(folder)
  assert loaded.preprocess.image_size == size
  images = np.random.default_rng(0).standard_normal((2, *size, 3), np.float32)
  expected = torch_outputs(model.eval(), images).numpy()
  np.testing.assert_allclose(
    logits(loaded, images), expected, atol=1e-4 * abs(expected).max()
  )
  export.write(loaded, tmp_path / 'ours', 'timm', 'here')
  actual, theirs = (
    read(tmp_path / x / 'model.safetensors') for x in ('ours', 'theirs')
  )
  # But for those of EVA-02 all, whose queries, keys and values are apart.
  same = actual.keys() & theirs.keys()
  assert same == actual.keys() or 'blocks.0.attn.q_proj.weight' in theirs
  for key in same:
    np.testing.assert_array_equal(actual[key], theirs[key], key)
  again = timm.create_model(f'local-dir:{tmp_path / "ours"}', pretrained=True)
  np.testing.assert_allclose(
    torch_outputs(again.eval(), images).numpy(),
    expected,
    atol=1e-4 * abs(expected).max(),
  )
  assert_same(vit_jax.load(tmp_path / 'ours'), loaded)


def test_layers_whose_keys_have_other_heads(tmp_path):
  actual = random_model(
    **SAPIENS | {'depth': 4, 'attention': 'grouped(key_heads=1, qk_norm=True)'}
  )
  export.write(actual, tmp_path / 'x', 'timm', 'here')
  arrays = read(tmp_path / 'x' / 'model.safetensors')
  for x in 'kv':
    name = f'blocks.0.attn.{x}_proj'
    arrays[f'{name}.weight'] = np.tile(arrays[f'{name}.weight'], (3, 1))
    arrays[f'{name}.bias'] = np.tile(arrays[f'{name}.bias'], 3)
  safetensors.save_file(arrays, tmp_path / 'x' / 'model.safetensors')
  with pytest.raises(
    UserError, match='keys of its layers have 3, 1, 1, 1'
  ) as e:
    vit_jax.load(tmp_path / 'x')
  assert '\n' not in str(e.value)


def test_layer_scale_of_attention_alone_is_multiplied_in(tmp_path):
  fields = {'block': 'block(layer_scale=1.0, layer_scale_mlp=False)', **EXACT}
  actual = random_model(**fields)
  notes = export.write(actual, tmp_path / 'x', 'google', 'here')
  assert any('LayerScale is multiplied' in x for x in notes)
  loaded = vit_jax.load(tmp_path / 'x', mlp=EXACT['mlp'])
  images = np.random.default_rng(0).standard_normal((2, 32, 32, 3), np.float32)
  np.testing.assert_allclose(
    logits(loaded, images), logits(actual, images), atol=1e-4
  )


def test_layer_scale_after_norms_becomes_theirs(tmp_path):
  actual = random_model(block='post_norm(layer_scale=1.0)', **EXACT)
  notes = export.write(actual, tmp_path / 'x', 'timm', 'here')
  assert any('LayerScale is multiplied' in x for x in notes)
  images = np.random.default_rng(0).standard_normal((2, 32, 32, 3), np.float32)
  np.testing.assert_allclose(
    logits(vit_jax.load(tmp_path / 'x'), images),
    logits(actual, images),
    atol=1e-4,
  )


def test_two_biases_become_one(tmp_path):
  actual = random_model(**JOINT)
  notes = export.write(actual, tmp_path / 'x', 'timm', 'here')
  assert any('after the MLP are added' in x for x in notes)
  images = np.random.default_rng(0).standard_normal((2, 32, 32, 3), np.float32)
  loaded = vit_jax.load(tmp_path / 'x')
  np.testing.assert_allclose(
    logits(loaded, images), logits(actual, images), atol=1e-4
  )
  export.write(loaded, tmp_path / 'y', 'timm', 'here')
  assert_same(vit_jax.load(tmp_path / 'y'), loaded)
