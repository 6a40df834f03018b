"""Image towers of CLIP and SigLIP as trunks, against their own libraries."""

import json

from foreign import assert_same
from foreign import flat
from foreign import images_of
from foreign import logits
from foreign import of_transformers
from foreign import random_model
from foreign import read
import numpy as np
import other_libraries
import pytest

import vit_jax
from vit_jax.config import UserError
from vit_jax.weights.files import containers
from vit_jax.weights.formats import export

_REASON = "needs torch and transformers: pip install -e '.[compat]'"
TOLERANCE = {'atol': 1e-4, 'rtol': 0}
SMALL = {
  'hidden_size': 48,
  'intermediate_size': 64,
  'num_hidden_layers': 2,
  'num_attention_heads': 3,
}
VISION = SMALL | {'image_size': 32, 'patch_size': 8}
TEXT = SMALL | {'vocab_size': 20, 'max_position_embeddings': 6}
BOTH = {'vision_config': VISION, 'text_config': TEXT}
PATCHES = SMALL | {'num_patches': 16, 'patch_size': 8}
THEIRS = {
  'CLIPVisionModel': VISION,
  'CLIPVisionModelWithProjection': VISION | {'hidden_act': 'gelu'},
  'CLIPModel': BOTH,
  'SiglipVisionModel': VISION,
  'SiglipModel': BOTH,
  'Siglip2VisionModel': PATCHES,
  'Siglip2Model': {'vision_config': PATCHES, 'text_config': TEXT},
}
CLIP = {'pre_norm': True, 'patch_bias': False, 'layer_norm_epsilon': 1e-5}


def pooled(torch, model, images):
  """Returns what their image tower gives, before a projection."""
  tower = getattr(model, 'vision_model', model)
  with torch.no_grad():
    if 'Siglip2' not in type(tower).__name__:
      pixels = torch.tensor(np.moveaxis(images, -1, 1).copy())
      how = {} if images.shape[1] == 32 else {'interpolate_pos_encoding': True}
      return tower(pixels, **how).pooler_output.numpy()
    b, h, w, c = images.shape
    x = images.reshape(b, h // 8, 8, w // 8, 8, c).swapaxes(2, 3)
    found = tower(
      torch.tensor(x.reshape(b, -1, 64 * c)),
      torch.ones(b, h * w // 64, dtype=torch.int32),
      torch.tensor([[h // 8, w // 8]] * b),
    )
  return found.pooler_output.numpy()


@pytest.mark.parametrize('name', THEIRS)
def test_their_towers_here(tmp_path, name):
  """Also for oblong images; and back, to the bit."""
  torch, transformers, model = of_transformers(name, THEIRS[name])
  model.save_pretrained(tmp_path / 'theirs')
  loaded = vit_jax.load(tmp_path / 'theirs')
  assert loaded.model.num_classes == 0
  images = images_of(32, 32)
  expected = pooled(torch, model, images)
  np.testing.assert_allclose(logits(loaded, images), expected, **TOLERANCE)
  images = images_of(48, 32)
  np.testing.assert_allclose(
    logits(loaded.adapted(image_size=(48, 32)), images),
    pooled(torch, model, images),
    **TOLERANCE,
  )
  export.write(loaded, tmp_path / 'ours', 'huggingface', 'here')
  assert_same(vit_jax.load(tmp_path / 'ours'), loaded)
  again, told = transformers.AutoModel.from_pretrained(
    tmp_path / 'ours', output_loading_info=True
  )
  assert not any(told.values()), told
  images = images_of(32, 32)
  np.testing.assert_allclose(
    pooled(torch, again.eval(), images), expected, **TOLERANCE
  )


def test_images_that_are_no_whole_patches(tmp_path):
  """As SigLIP's 384 pixels in patches of 14."""
  fields = VISION | {'image_size': 36}
  torch, _, model = of_transformers('SiglipVisionModel', fields)
  model.save_pretrained(tmp_path / 'theirs')
  loaded = vit_jax.load(tmp_path / 'theirs')
  images = images_of(36, 36)
  with torch.no_grad():
    pixels = torch.tensor(np.moveaxis(images, -1, 1).copy())
    expected = model(pixels).pooler_output.numpy()
  np.testing.assert_allclose(logits(loaded, images), expected, **TOLERANCE)
  export.write(loaded, tmp_path / 'ours', 'huggingface', 'here')
  assert_same(vit_jax.load(tmp_path / 'ours'), loaded)


def test_a_classifier_of_the_mean_is_refused(tmp_path):
  *_, model = of_transformers('SiglipForImageClassification', BOTH)
  model.save_pretrained(tmp_path)
  with pytest.raises(UserError, match='it has a classifier of the mean'):
    vit_jax.load(tmp_path)


def test_a_tower_of_another_model_is_refused(tmp_path):
  containers.write_safetensors(
    tmp_path / 'model.safetensors',
    {'vision_model.embeddings.patch_embedding.weight': np.zeros((4, 3, 2, 2))},
    {},
  )
  (tmp_path / 'config.json').write_text(json.dumps({'model_type': 'flava'}))
  with pytest.raises(UserError, match="model_type 'flava': image towers of"):
    vit_jax.load(tmp_path)


TIMM = {
  'CLIP': CLIP | {'gelu': 'exact'},
  'CLIP, OpenAI': CLIP | {'gelu': 'sigmoid', 'num_classes': 0},
  'RMSNorm': {'norm': 'rms', 'gelu': 'exact', 'registers': 1},
  'CLIP, the mean': CLIP
  | {'gelu': 'tanh', 'pool': 'gap', 'norm_after_pool': True},
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
    ('huggingface', {'num_classes': 3}, 'a classifier after the tower of CLIP'),
    ('huggingface', {'registers': 2}, 'the tokens class_token, register_tok'),
    ('timm', {'patch_bias': True}, 'after a patch embedding with a bias'),
    ('timm', {'rotary': 'eva02'}, 'approximations of the GELU beside rotary'),
    ('google', {}, 'a LayerNorm before the layers'),
  ],
)
def test_parts_without_a_place(tmp_path, to, changed, message):
  ours = random_model(**CLIP | {'num_classes': 0} | changed)
  with pytest.raises(UserError, match=f'no place for.*{message}'):
    export.write(ours, tmp_path / 'x', to, 'here')


@pytest.mark.parametrize('act', ['gelu', 'quick_gelu'])
def test_open_clip(tmp_path, act):
  """The image tower of its state dict, whose GELU the caller names."""
  torch, open_clip = other_libraries.modules('torch', 'open_clip')
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
  loaded = vit_jax.load(path, gelu=gelu)
  assert loaded.model.num_heads == 2 and loaded.model.pre_norm
  images = images_of(32, 32)
  with torch.no_grad():
    pixels = torch.tensor(np.moveaxis(images, -1, 1).copy())
    expected = model.visual(pixels).numpy()
  found = logits(loaded, images) @ arrays['visual.proj']
  np.testing.assert_allclose(found, expected, atol=1e-4)


def open_clips(name):
  """Returns the name that open_clip has for one of timm's."""
  for ours, theirs in (
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
    name = name.replace(ours, theirs)
  return f'visual.{"ln_post" + name[4:] if name.startswith("norm.") else name}'


def test_names_of_open_clip(tmp_path, caplog):
  """Beside a text tower; where nothing says the GELU, that is said."""
  ours = random_model(
    **CLIP | {'gelu': 'exact', 'num_classes': 0, 'hidden_size': 64},
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
  found = vit_jax.load(path)
  assert 'no file says which GELU' in caplog.text
  assert flat(found).keys() == flat(ours).keys()
  for name, array in flat(ours).items():
    np.testing.assert_array_equal(flat(found)[name], array)
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
