"""Image towers in files of open_clip, against itself."""

import json

from foreign import flat
from foreign import logits
from foreign import random_images
from foreign import random_model
from foreign import read
from foreign import torch_outputs
import numpy as np
import other_libraries
from photographs import differences
import pytest

import vit_jax
from vit_jax.config import UserError
from vit_jax.weights.files import containers
from vit_jax.weights.formats import export

_REASON = "needs torch and transformers: pip install -e '.[compat]'"
CLIP = {
  'pre_norm': True,
  'patches': 'patches(bias=False)',
  'layer_norm_epsilon': 1e-5,
}


def test_a_tower_of_another_model_is_refused(tmp_path):
  containers.write_safetensors(
    tmp_path / 'model.safetensors',
    {'vision_model.embeddings.patch_embedding.weight': np.zeros((4, 3, 2, 2))},
    {},
  )
  (tmp_path / 'config.json').write_text(json.dumps({'model_type': 'flava'}))
  with pytest.raises(UserError, match="model_type 'flava': those that can be"):
    vit_jax.load(tmp_path)


@pytest.mark.parametrize('act', ['gelu', 'quick_gelu'])
def test_open_clip(tmp_path, act):
  """The image tower of its state dict, whose GELU the caller names."""
  torch = pytest.importorskip('torch', reason=_REASON)
  open_clip = other_libraries.imported('open_clip')
  torch.manual_seed(0)
  model = open_clip.model.CLIP(
    embed_dim=16,
    vision_cfg={'layers': 2, 'width': 128, 'patch_size': 8, 'image_size': 32},
    text_cfg={'layers': 1, 'width': 64, 'heads': 1, 'vocab_size': 20},
    quick_gelu=act == 'quick_gelu',
  ).eval()
  with torch.no_grad():
    for parameter in model.visual.parameters():
      parameter.normal_(std=0.1)
  arrays = {k: x.numpy() for k, x in model.state_dict().items()}
  arrays = {k: np.ascontiguousarray(x) for k, x in arrays.items()}
  path = tmp_path / 'open_clip_model.safetensors'
  containers.write_safetensors(path, arrays, {})
  gelu = 'sigmoid' if act == 'quick_gelu' else 'exact'
  loaded = vit_jax.load(path, mlp=f'mlp(gelu={gelu!r})')
  assert loaded.model.block.attention.num_heads == 2 and loaded.model.pre_norm
  images = random_images(32, 32)
  expected = torch_outputs(model.visual, images).numpy()
  actual = logits(loaded, images) @ arrays['visual.proj']
  np.testing.assert_allclose(actual, expected, atol=1e-4)


OPEN_CLIP = {
  'embed_dim': 16,
  'vision_cfg': {'layers': 2, 'width': 96, 'patch_size': 8, 'image_size': 32},
  'text_cfg': {'layers': 1, 'width': 64, 'heads': 1, 'vocab_size': 20},
}


@pytest.mark.parametrize(
  'model_cfg, vision, preprocess_cfg',
  [
    ({'quick_gelu': True}, {'head_width': 32}, {}),
    ({}, {'head_width': 24}, {'resize_mode': 'squash'}),
    (
      {'quick_gelu': False},
      {'head_width': 48, 'ls_init_value': 0.1, 'mlp_ratio': 2.5},
      {'resize_mode': 'longest', 'mean': [0.1, 0.2, 0.3], 'fill_color': 9},
    ),
    (
      {},
      {'head_width': 96, 'act_kwargs': {'approximate': 'tanh'}},
      {'interpolation': 'bilinear', 'std': [0.5, 0.6, 0.7]},
    ),
    (
      {'quick_gelu': True},
      {'head_width': 32, 'image_size': [32, 48], 'pool_type': 'avg'},
      {'interpolation': 'bilinear', 'resize_mode': 'shortest'},
    ),
    (
      {},
      {'norm_kwargs': {'eps': 1e-3}, 'no_ln_pre': True, 'head_width': 32},
      {'resize_mode': 'longest', 'size': 224, 'interpolation': 'random'},
    ),
  ],
)
@pytest.mark.parametrize('name', ['open_clip_model.safetensors', 'x.pth'])
def test_directories_of_open_clip(
  tmp_path, jpegs, model_cfg, vision, preprocess_cfg, name
):
  """Features and pixels are open_clip's, by its own config alone."""
  open_clip = other_libraries.imported('open_clip')
  import torch

  torch.manual_seed(0)
  config = OPEN_CLIP | model_cfg
  config['vision_cfg'] = OPEN_CLIP['vision_cfg'] | vision
  (tmp_path / 'open_clip_config.json').write_text(
    json.dumps({'model_cfg': config, 'preprocess_cfg': preprocess_cfg})
  )
  model = open_clip.model.CLIP(**config).eval()
  with torch.no_grad():
    for parameter in model.visual.parameters():
      parameter.normal_(std=0.3)
  arrays = {k: x.contiguous().numpy() for k, x in model.state_dict().items()}
  if name == 'x.pth':
    torch.save({'state_dict': model.state_dict()}, tmp_path / name)
  else:
    containers.write_safetensors(tmp_path / name, arrays, {})
  loaded = vit_jax.load(tmp_path)
  images = open_clip.transform.PreprocessCfg(
    **preprocess_cfg | {'size': config['vision_cfg']['image_size']}
  )
  transform = open_clip.transform.image_transform_v2(images, is_train=False)

  def theirs(image):
    return transform(image).numpy().transpose(1, 2, 0)

  assert max(differences(loaded.preprocess, jpegs, theirs)) < 1e-6
  pixels = loaded.preprocess(jpegs[:2])
  expected = torch_outputs(model.visual, pixels)
  features = logits(loaded, pixels) @ arrays['visual.proj']
  np.testing.assert_allclose(
    features, expected, atol=2e-4 * abs(features).max()
  )


def test_open_clips_tower_of_timm(tmp_path):
  """Its name says the GELU and heads; the GELU of the text does not matter."""
  open_clip = other_libraries.imported('open_clip')
  import torch

  torch.manual_seed(0)
  vision = {'timm_model_name': 'test_vit', 'timm_pool': 'token'}
  config = OPEN_CLIP | {'quick_gelu': True}
  config['vision_cfg'] = vision | {'image_size': 160}
  model = open_clip.model.CustomTextCLIP(**config).eval()
  (tmp_path / 'open_clip_config.json').write_text(
    json.dumps({'model_cfg': config})
  )
  arrays = {k: x.contiguous().numpy() for k, x in model.state_dict().items()}
  path = tmp_path / 'open_clip_model.safetensors'
  containers.write_safetensors(path, arrays, {})
  loaded = vit_jax.load(tmp_path)
  images = random_images(160, 160)
  expected = torch_outputs(model.visual.trunk, images).numpy()
  np.testing.assert_allclose(logits(loaded, images), expected, atol=1e-4)


@pytest.mark.parametrize(
  'key, value, wanted',
  [
    ('model_cfg.quick_gelu', 3, 'true or false'),
    ('model_cfg.vision_cfg.head_width', 7, 'divide the width 64'),
    ('model_cfg.vision_cfg.qk_norm', True, 'not known here'),
    ('model_cfg.vision_cfg.pool_type', 'none', 'tok'),
    ('model_cfg.vision_cfg.act_kwargs', {'inplace': True}, 'not known here'),
    ('preprocess_cfg.resize_mode', 'crop', 'shortest'),
    ('preprocess_cfg.mean', [1, 2], 'one for each of 3'),
    ('preprocess_cfg.fill_color', 300, '0 to 255'),
  ],
)
def test_json_of_open_clip(tmp_path, key, value, wanted):
  arrays = {
    'visual.class_embedding': np.zeros(64, np.float32),
    'visual.ln_post.weight': np.zeros(64, np.float32),
  }
  path = tmp_path / 'open_clip_model.safetensors'
  containers.write_safetensors(path, arrays, {})
  content = {'model_cfg': {'vision_cfg': {'width': 64}}, 'preprocess_cfg': {}}
  *parents, last = key.split('.')
  place = content
  for parent in parents:
    place = place[parent]
  place[last] = value
  (tmp_path / 'open_clip_config.json').write_text(json.dumps(content))
  with pytest.raises(
    UserError, match=f'its open_clip_config.json says {key}.*{wanted}'
  ):
    vit_jax.load(tmp_path)


def open_clips(name):
  """Returns the name that open_clip has for one of timm's."""
  for actual, expected in (
    ('cls_token', 'class_embedding'),
    ('pos_embed', 'positional_embedding'),
    ('patch_embed.proj', 'conv1'),
    ('norm_pre', 'ln_pre'),
    ('blocks.', 'transformer.resblocks.'),
    ('.norm', '.ln_'),
    ('attn.qkv.', 'attn.in_proj_'),
    ('attn.proj', 'attn.out_proj'),
    ('mlp.fc1', 'mlp.c_fc'),
    ('mlp.fc2', 'mlp.c_proj'),
  ):
    name = name.replace(actual, expected)
  return f'visual.{"ln_post" + name[4:] if name.startswith("norm.") else name}'


def test_names_of_open_clip(tmp_path, caplog):
  """Beside a text tower; where nothing says the GELU, that is said."""
  ours = random_model(
    **CLIP | {'mlp': "mlp(gelu='exact')", 'num_classes': 0, 'hidden_size': 64},
    num_heads=1,
    mlp_dim=64,
  )
  export.write(ours, tmp_path / 'timm', 'timm', 'here')
  arrays = {
    open_clips(k): np.ascontiguousarray(x[0] if k == 'pos_embed' else x)
    for k, x in read(tmp_path / 'timm' / 'model.safetensors').items()
  }
  outside = {'text_projection', 'visual.proj', 'ln_final.weight'}
  arrays |= dict.fromkeys(outside, np.zeros((2, 2), np.float32))
  path = tmp_path / 'open_clip_model.safetensors'
  containers.write_safetensors(path, arrays, {})
  actual = vit_jax.load(path)
  assert 'no file says which GELU' in caplog.text
  assert flat(actual).keys() == flat(ours).keys()
  for name, array in flat(ours).items():
    np.testing.assert_array_equal(flat(actual)[name], array)
  del arrays['visual.ln_pre.bias']
  containers.write_safetensors(path, arrays, {})
  with pytest.raises(UserError, match=r'missing: .*norm_pre.bias'):
    vit_jax.load(path)
  containers.write_safetensors(
    path, arrays | {'visual.attn_pool.probe': np.zeros(2)}, {}
  )
  with pytest.raises(
    UserError, match=r'it has visual.attn_pool.probe: of open'
  ):
    vit_jax.load(path)
