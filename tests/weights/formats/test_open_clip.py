"""Image towers of open_clip as trunks, against open_clip, and timm's names."""

import json

from foreign import assert_same
from foreign import images_of
from foreign import logits
from foreign import random_model
import numpy as np
import other_libraries
from photographs import differences
import pytest

import vit_jax
from vit_jax.config import UserError
from vit_jax.weights.files import containers
from vit_jax.weights.formats import export

CLIP = {
  'pre_norm': True,
  'patches': 'patches(bias=False)',
  'layer_norm_epsilon': 1e-5,
}
TIMM = {
  'CLIP': CLIP | {'mlp': "mlp(gelu='exact')"},
  'CLIP, OpenAI': CLIP | {'mlp': "mlp(gelu='sigmoid')", 'num_classes': 0},
  'RMSNorm': {'norm': 'rms_norm', 'mlp': "mlp(gelu='exact')", 'registers': 1},
  'CLIP, the mean': CLIP | {'pool': 'mean(norm_after=True)'},
}


@pytest.mark.parametrize('name', TIMM)
def test_timms_names_both_ways(tmp_path, name):
  ours = random_model(**TIMM[name])
  assert not export.write(ours, tmp_path / 'x', 'timm', 'here')
  assert_same(vit_jax.load(tmp_path / 'x'), ours)
  config = json.loads((tmp_path / 'x' / 'config.json').read_text())
  arguments = config['model_args']
  assert arguments.get('pre_norm') or arguments['norm_layer'] == 'rmsnorm'


@pytest.mark.parametrize(
  ('to', 'changed', 'message'),
  [
    ('timm', {'patches': 'patches'}, 'after a patch embedding with a bias'),
    (
      'timm',
      {'positions': "learned + rope(kind='eva02')"},
      r"mlp\(gelu='tanh'\)",
    ),
    ('google', {}, 'pre_norm=True'),
  ],
)
def test_parts_without_a_place(tmp_path, to, changed, message):
  ours = random_model(**CLIP | {'num_classes': 0} | changed)
  with pytest.raises(UserError, match=f'no place for.*{message}'):
    export.write(ours, tmp_path / 'x', to, 'here')


VISION = {'layers': 2, 'width': 96, 'patch_size': 8, 'image_size': 32}
TEXT = {'layers': 1, 'width': 64, 'heads': 1, 'vocab_size': 20}


def their_model(vision, **fields):
  """Returns open_clip, a random model, its config and its arrays."""
  torch = pytest.importorskip('torch', reason='needs torch: vit_jax[compat]')
  open_clip = other_libraries.imported('open_clip')
  torch.manual_seed(0)
  config = {'embed_dim': 16, 'vision_cfg': vision, 'text_cfg': TEXT, **fields}
  is_timms = 'timm_model_name' in vision
  kind = open_clip.model.CustomTextCLIP if is_timms else open_clip.model.CLIP
  model = kind(**config).eval()
  with torch.no_grad():
    for parameter in () if is_timms else model.visual.parameters():
      parameter.normal_(std=0.3)
  arrays = {k: x.contiguous().numpy() for k, x in model.state_dict().items()}
  return open_clip, model, config, arrays


def assert_theirs(loaded, model, images, projection=None):
  """Asserts that features are open_clip's; theirs are projected."""
  import torch

  with torch.no_grad():
    pixels = torch.tensor(np.moveaxis(images, -1, 1).copy())
    expected = model(pixels).numpy()
  features = logits(loaded, images)
  if projection is not None:
    features = features @ projection
  np.testing.assert_allclose(
    features, expected, atol=2e-4 * max(1, abs(features).max())
  )


@pytest.mark.parametrize(
  ('fields', 'vision', 'preprocess_cfg'),
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
def test_directories(tmp_path, jpegs, fields, vision, preprocess_cfg, name):
  """Features and pixels are open_clip's, by its own config alone."""
  open_clip, model, config, arrays = their_model(VISION | vision, **fields)
  (tmp_path / 'open_clip_config.json').write_text(
    json.dumps({'model_cfg': config, 'preprocess_cfg': preprocess_cfg})
  )
  if name == 'x.pth':
    import torch

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
  assert_theirs(loaded, model.visual, pixels, arrays['visual.proj'])


def test_a_tower_of_timm(tmp_path):
  """Its name says the GELU and heads; the GELU of the text does not matter."""
  vision = {'timm_model_name': 'test_vit', 'timm_pool': 'token'}
  _, model, config, arrays = their_model(
    vision | {'image_size': 160}, quick_gelu=True
  )
  (tmp_path / 'open_clip_config.json').write_text(
    json.dumps({'model_cfg': config})
  )
  path = tmp_path / 'open_clip_model.safetensors'
  containers.write_safetensors(path, arrays, {})
  loaded = vit_jax.load(tmp_path)
  assert_theirs(loaded, model.visual.trunk, images_of(160, 160))


@pytest.mark.parametrize('gelu', ['exact', 'sigmoid'])
def test_a_file_alone(tmp_path, caplog, gelu):
  """Where nothing says the GELU, that is said; the caller can name it."""
  vision = VISION | {'width': 128}
  _, model, _, arrays = their_model(vision, quick_gelu=gelu == 'sigmoid')
  path = tmp_path / 'open_clip_model.safetensors'
  containers.write_safetensors(path, arrays, {})
  loaded = vit_jax.load(path)
  assert 'no file says which GELU' in caplog.text
  if gelu == 'sigmoid':
    loaded = vit_jax.load(path, mlp="mlp(gelu='sigmoid')")
  assert loaded.model.block.attention.num_heads == 2 and loaded.model.pre_norm
  images = images_of(32, 32)
  assert_theirs(loaded, model.visual, images, arrays['visual.proj'])
  probe = {'visual.attn_pool.probe': np.zeros(2)}
  containers.write_safetensors(path, arrays | probe, {})
  with pytest.raises(UserError, match=r'it has visual.attn_pool.probe: of op'):
    vit_jax.load(path)
  del arrays['visual.ln_pre.bias']
  containers.write_safetensors(path, arrays, {})
  with pytest.raises(UserError, match=r'missing: .*norm_pre.bias'):
    vit_jax.load(path)


@pytest.mark.parametrize(
  ('key', 'value', 'advice'),
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
def test_json_that_is_wrong(tmp_path, key, value, advice):
  names = 'visual.class_embedding', 'visual.ln_post.weight'
  arrays = dict.fromkeys(names, np.zeros(64, np.float32))
  path = tmp_path / 'open_clip_model.safetensors'
  containers.write_safetensors(path, arrays, {})
  content = {'model_cfg': {'vision_cfg': {'width': 64}}, 'preprocess_cfg': {}}
  *parents, last = key.split('.')
  place = content
  for parent in parents:
    place = place[parent]
  place[last] = value
  (tmp_path / 'open_clip_config.json').write_text(json.dumps(content))
  message = f'its open_clip_config.json says {key}.*{advice}'
  with pytest.raises(UserError, match=message):
    vit_jax.load(tmp_path)
