"""timm's other classes and blocks: there, back, and the same outputs."""

import json

from foreign import assert_same
from foreign import logits
from foreign import random_model
from foreign import read
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
AIM = {
  **EXACT,
  'norm': 'rms_norm',
  'patches': 'normed',
  'attention': 'attention(qkv_bias=False, out_bias=False)',
  'mlp': 'swiglu(bias=False)',
  'pool': 'mean',
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
# Fields of a model, and name and arguments of timm's that is like it.
SIZES = {'embed_dim': 24, 'depth': 2, 'num_heads': 3, 'mlp_ratio': 2}
KINDS = {
  'EVA-02 CLIP': (
    {
      'positions': "learned + rope(kind='eva02')",
      'attention': 'attention(key_bias=False, out_norm=True)',
      **EXACT,
    },
    ('eva02_base_patch16_clip_224', {'ref_feat_shape': (3, 3)}),
  ),
  'EVA-02 with norms after layers': (
    {'attention': 'attention(key_bias=False)', 'block': 'post_norm', **EXACT},
    ('eva02_enormous_patch14_clip_224', {}),
  ),
  'BEiT-3': (
    {
      'attention': 'attention(out_norm=True)',
      'mlp': "mlp(gelu='exact', hidden_norm=True)",
      'layer_norm_epsilon': 1e-5,
    },
    ('beit3_base_patch16_224', {'global_pool': 'token'}),
  ),
  'PE of features': (
    PE
    | {'block': 'block(layer_scale=1e-5)', 'pool': 'mean', 'last_norm': False},
    ('vit_pe_lang_large_patch14_448', {'ref_feat_shape': (3, 3)}),
  ),
  'PE with attention pooling': (
    PE | {'pool': "map(num_heads=2, mlp_dim=96, prefix=True, gelu='exact')"},
    (
      'vit_pe_core_base_patch16_224',
      {'ref_feat_shape': (3, 3), 'attn_pool_num_heads': 2},
    ),
  ),
  'Sapiens2': (
    SAPIENS
    | {'hidden_size': 48, 'num_heads': 4, 'depth': 4}
    | {
      'attention': 'grouped(key_heads=2, full_layers=1, qk_norm=True)',
      'size': (32, 24),
    },
    (
      'vit_large_patch16_sapiens2',
      {'embed_dim': 48, 'num_heads': 4, 'depth': 4}
      | {'num_kv_heads': (4, 2, 2, 4), 'num_reg_tokens': 2}
      | {'img_size': (32, 24)},
    ),
  ),
  'Sapiens2, its small one': (
    SAPIENS,
    (
      'vit_base_patch16_sapiens2',
      {'num_kv_heads': (3, 3), 'num_reg_tokens': 2},
    ),
  ),
  'fewer heads of keys in all layers': (
    {
      **EXACT,
      'positions': "learned + rope(kind='eva02')",
      'attention': 'grouped(key_heads=1, qkv_bias=False, out_norm=True)',
    },
    (
      'eva02_base_patch16_clip_224',
      {'attn_type': 'rope', 'num_kv_heads': 1, 'qkv_fused': False}
      | {'qkv_bias': False, 'ref_feat_shape': (3, 3)},
    ),
  ),
  'AIMv2': (AIM, ('aimv2_large_patch14_224', {})),
  'an MLP in each layer': (
    RELATIVE
    | {'block': 'block(layer_scale=1e-5)', 'pool': 'mean(norm_after=True)'},
    ('vit_relpos_base_patch16_224', {'rel_pos_dim': 8}),
  ),
  'a shared MLP': (
    RELATIVE
    | {
      'positions': 'relative_mlp_bias(hidden_dim=8)',
      'pool': 'token',
      'class_token': True,
    },
    (
      'vit_srelpos_small_patch16_224',
      {'rel_pos_dim': 8, 'class_token': True, 'global_pool': 'token'},
    ),
  ),
  'an MLP, and norms after layers': (
    RELATIVE | {'block': 'post_norm'},
    ('vit_relpos_base_patch16_rpn_224', {'rel_pos_dim': 8}),
  ),
  'ViT without a last norm': (
    {'last_norm': False, **EXACT},
    ('vit_intern300m_patch14_448', {}),
  ),
  'ViT that pools all tokens': (
    {'pool': "map(prefix=True, gelu='exact')", 'registers': 1, **EXACT},
    ('test_vit3', {}),
  ),
  'an MLP beside attention': (
    {
      **EXACT,
      'positions': "learned(tokens='patches')",
      'block': 'parallel(layer_scale=1e-5)',
      'pool': 'mean(norm_after=True)',
      'registers': 1,
    },
    ('vit_pwee_patch16_reg1_gap_256', {}),
  ),
  'an MLP beside attention, without biases of both': (
    {
      **EXACT,
      'norm': 'rms_norm',
      'patches': 'patches(bias=False)',
      'positions': "learned(tokens='patches')",
      'attention': 'attention(qkv_bias=False, qk_norm=True)',
      'block': 'parallel',
      'pre_norm': True,
    },
    ('vit_base_patch16_xp_224', {}),
  ),
  'two attentions beside each other': (
    {**EXACT, 'block': 'branches(2, layer_scale=1e-5)'},
    ('vit_small_patch16_18x2_224', {}),
  ),
  'two attentions after a norm': (
    {
      **EXACT,
      'norm': 'rms_norm',
      'patches': 'patches(bias=False)',
      'attention': 'attention(qk_norm=True)',
      'block': 'branches(2)',
      'pre_norm': True,
    },
    (
      'vit_base_patch16_18x2_224',
      {
        'pre_norm': True,
        'qk_norm': True,
        'norm_layer': 'rmsnorm',
        'init_values': 0.0,
      },
    ),
  ),
  'differential attention beside an MLP': (
    {
      **EXACT,
      'attention': 'differential',
      'block': 'parallel(layer_scale=1e-5)',
      'pool': 'mean(norm_after=True)',
    },
    ('vit_dpwee_patch16_reg1_gap_256', {}),
  ),
  'images that are no whole patches': (
    {
      **EXACT,
      'size': (36, 39),
      'patches': 'patches(crop=True)',
      'pool': "map(gelu='exact')",
    },
    (
      'vit_so400m_patch14_siglip_384',
      {'img_size': (36, 39)},
    ),
  ),
  'differential attention': (
    {
      **EXACT,
      'positions': "learned(tokens='patches')",
      'attention': 'differential(qk_norm=True)',
      'block': 'block(layer_scale=1e-5)',
      'pool': 'mean(norm_after=True)',
      'registers': 1,
    },
    ('vit_dwee_patch16_reg1_gap_256', {'qk_norm': True}),
  ),
  'ViT without biases': (
    {
      'attention': 'attention(out_bias=False)',
      'mlp': "mlp(gelu='exact', bias=False)",
    },
    ('vit_base_patch16_224', {'proj_bias': False}),
  ),
}


JOINT = 'differential attention beside an MLP'


@pytest.mark.parametrize('kind', [x for x in KINDS if x != JOINT])
def test_there_and_back(tmp_path, kind):
  ours = random_model(**KINDS[kind][0])
  export.write(ours, tmp_path / 'x', 'timm', 'here')
  assert_same(vit_jax.load(tmp_path / 'x'), ours)


@pytest.fixture
def libraries():
  """PyTorch and timm, whose outputs are the reference."""
  return pytest.importorskip('torch'), other_libraries.imported('timm')


def answers(torch, model, images):
  """Returns the logits of a model of timm."""
  pixels = torch.tensor(np.moveaxis(images, -1, 1).copy())
  with torch.no_grad():
    return model.eval()(pixels).numpy()


@pytest.mark.parametrize('kind', KINDS)
def test_outputs_are_those_of_timm(tmp_path, kind, libraries):
  """Of its model that we read, and of ours that it reads."""
  import safetensors.torch

  torch, timm = libraries
  name, further = KINDS[kind][1]
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
  wanted = answers(torch, model, images)
  np.testing.assert_allclose(
    logits(loaded, images), wanted, atol=1e-4 * abs(wanted).max()
  )
  export.write(loaded, tmp_path / 'ours', 'timm', 'here')
  ours, theirs = (
    read(tmp_path / x / 'model.safetensors') for x in ('ours', 'theirs')
  )
  # But for those of EVA-02 all, whose queries, keys and values are apart.
  same = ours.keys() & theirs.keys()
  assert same == ours.keys() or 'blocks.0.attn.q_proj.weight' in theirs
  for key in same:
    np.testing.assert_array_equal(ours[key], theirs[key], key)
  again = timm.create_model(f'local-dir:{tmp_path / "ours"}', pretrained=True)
  np.testing.assert_allclose(
    answers(torch, again, images), wanted, atol=1e-4 * abs(wanted).max()
  )
  assert_same(vit_jax.load(tmp_path / 'ours'), loaded)


def test_layers_whose_keys_have_other_heads(tmp_path):
  ours = random_model(
    **SAPIENS | {'depth': 4, 'attention': 'grouped(key_heads=1, qk_norm=True)'}
  )
  export.write(ours, tmp_path / 'x', 'timm', 'here')
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
  ours = random_model(**fields)
  notes = export.write(ours, tmp_path / 'x', 'google', 'here')
  assert any('LayerScale is multiplied' in x for x in notes)
  loaded = vit_jax.load(tmp_path / 'x', mlp=EXACT['mlp'])
  images = np.random.default_rng(0).standard_normal((2, 32, 32, 3), np.float32)
  np.testing.assert_allclose(
    logits(loaded, images), logits(ours, images), atol=1e-4
  )


def test_layer_scale_after_norms_becomes_theirs(tmp_path):
  ours = random_model(block='post_norm(layer_scale=1.0)', **EXACT)
  notes = export.write(ours, tmp_path / 'x', 'timm', 'here')
  assert any('LayerScale is multiplied' in x for x in notes)
  images = np.random.default_rng(0).standard_normal((2, 32, 32, 3), np.float32)
  np.testing.assert_allclose(
    logits(vit_jax.load(tmp_path / 'x'), images),
    logits(ours, images),
    atol=1e-4,
  )


def test_two_biases_become_one(tmp_path):
  ours = random_model(**KINDS[JOINT][0])
  notes = export.write(ours, tmp_path / 'x', 'timm', 'here')
  assert any('after the MLP are added' in x for x in notes)
  images = np.random.default_rng(0).standard_normal((2, 32, 32, 3), np.float32)
  loaded = vit_jax.load(tmp_path / 'x')
  np.testing.assert_allclose(
    logits(loaded, images), logits(ours, images), atol=1e-4
  )
  export.write(loaded, tmp_path / 'y', 'timm', 'here')
  assert_same(vit_jax.load(tmp_path / 'y'), loaded)


@pytest.mark.parametrize(
  'fields,message',
  [
    ({'patches': 'normed'}, 'a norm after the patch embedding'),
    (PE | {'pool': "map(gelu='exact')"}, r'map\(prefix=False\)'),
    (PE | {'patches': 'patches'}, 'pre_norm=True beside patches'),
    (
      {'attention': 'attention(qk_norm=True)', 'block': 'post_norm'},
      r'attention\(qk_norm=True\) beside',
    ),
    (RELATIVE | {'registers': 2}, 'registers=2'),
    ({'pool': "map(query=False, gelu='exact')"}, r'map\(query=False\)'),
    (
      {
        'positions': "learned + rope(kind='eva02')",
        'attention': 'attention(out_bias=False)',
        'mlp': "mlp(gelu='exact', bias=False)",
      },
      r'attention\(out_bias=False\)',
    ),
    (
      {'positions': "learned + rope(kind='eva02')", 'block': 'branches(2)'},
      "block='branches'",
    ),
    (
      {
        'attention': 'attention(out_bias=False)',
        'mlp': "mlp(gelu='exact', bias=False)",
        'block': 'parallel',
      },
      'outputs without biases',
    ),
    (
      {'mlp': 'swiglu', 'block': 'branches(2)'},
      "mlp='swiglu' beside",
    ),
    (
      {'attention': 'attention(qk_norm=True, norm=rms_norm)'},
      r"attention\(norm='rms_norm'\)",
    ),
    (
      {'attention': 'grouped(key_heads=1)', 'block': 'post_norm'},
      "attention='grouped'",
    ),
    (
      {
        'positions': 'learned + relative_bias',
        'attention': 'grouped(key_heads=1)',
      },
      "attention='grouped'",
    ),
    (
      SAPIENS
      | {'mlp': "mlp(gelu='exact')", 'pool': "map(prefix=True, gelu='exact')"},
      'attention pooling beside norm',
    ),
  ],
)
def test_what_timm_has_no_place_for(tmp_path, fields, message):
  with pytest.raises(UserError, match=message) as e:
    export.write(random_model(**EXACT | fields), tmp_path / 'x', 'timm', 'here')
  assert '\n' not in str(e.value)
