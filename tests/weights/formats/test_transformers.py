"""Models of Hugging Face's transformers, read and written, against itself."""

import dataclasses
import json

from foreign import assert_same
from foreign import images_of
from foreign import logits
from foreign import of_transformers
from foreign import random_model
import numpy as np
import other_libraries
from photographs import differences
from photographs import MEAN
import pytest

import vit_jax
from vit_jax.config import UserError
from vit_jax.weights.files import containers
from vit_jax.weights.formats import export

_REASON = "needs torch and transformers: pip install -e '.[compat]'"
torch = pytest.importorskip('torch', reason=_REASON)
transformers = other_libraries.imported('transformers', _REASON)

SMALL = {
  'hidden_size': 48,
  'num_hidden_layers': 2,
  'num_attention_heads': 3,
}
TRUNK = SMALL | {'image_size': 32, 'patch_size': 8, 'num_labels': 7}
VIT = {'intermediate_size': 96, **TRUNK}
DINO = {'mlp_ratio': 2, **TRUNK}
TOWER = SMALL | {'intermediate_size': 64, 'image_size': 32, 'patch_size': 8}
TEXT = SMALL | {
  'intermediate_size': 64,
  'vocab_size': 20,
  'max_position_embeddings': 6,
}
BOTH = {'vision_config': TOWER, 'text_config': TEXT}
PATCHES = SMALL | {'intermediate_size': 64, 'num_patches': 16, 'patch_size': 8}
BIT = {
  'embedding_size': 16,
  'hidden_sizes': [32, 64],
  'depths': [1, 2],
  'num_groups': 4,
  'num_labels': 5,
}
# Class and its config.
THEIRS = {
  'ViTForImageClassification': VIT,
  'ViTModel': VIT | {'pooler_output_size': 40},
  'DeiTForImageClassification': VIT | {'hidden_act': 'gelu_pytorch_tanh'},
  'DeiTForImageClassificationWithTeacher': VIT | {'qkv_bias': False},
  'IJepaForImageClassification': VIT,
  'ViTMSNModel': VIT,
  'ViTMSNForImageClassification': VIT,
  'BeitForImageClassification': VIT | {'use_relative_position_bias': True},
  'BeitForImageClassification, shared, class token': VIT
  | {
    'use_shared_relative_position_bias': True,
    'use_mean_pooling': False,
    'layer_scale_init_value': 0.0,
  },
  'BeitForImageClassification, absolute': VIT
  | {'use_absolute_position_embeddings': True},
  'BeitForImageClassification, no positions': VIT,
  'Data2VecVisionModel': TOWER | {'use_relative_position_bias': True},
  'Data2VecVisionForImageClassification': VIT
  | {'use_shared_relative_position_bias': True},
  'Dinov2ForImageClassification': DINO,
  'Dinov2ForImageClassification, gated': DINO | {'use_swiglu_ffn': True},
  'Dinov2WithRegistersForImageClassification': DINO
  | {'num_register_tokens': 3},
  'Aimv2VisionModel': TOWER,
  'Aimv2VisionModel, native': TOWER | {'is_native': True, 'use_head': False},
  'Aimv2VisionModel, biases': TOWER | {'qkv_bias': True, 'mlp_bias': True},
  'BitModel': BIT,
  'BitForImageClassification': BIT,
  'CLIPVisionModel': TOWER,
  'CLIPVisionModelWithProjection': TOWER | {'hidden_act': 'gelu'},
  'CLIPModel': BOTH,
  'SiglipVisionModel': TOWER,
  'SiglipVisionModel, no whole patches': TOWER | {'image_size': 36},
  'SiglipModel': BOTH,
  'Siglip2VisionModel': PATCHES,
  'Siglip2Model': {'vision_config': PATCHES, 'text_config': TEXT},
}
# Written as another class, of the same layers; the first two without a pooler.
ALIASES = ('ViTMSN', 'Data2VecVisionFor')
RENAMED = (*ALIASES, 'CLIP', 'Siglip')
# Not compared with images of another size.
ONE_SIZE = ('ViTMSN', 'Data2Vec', 'Aimv2', 'Bit', 'SiglipVisionModel, no')


@pytest.fixture(autouse=True)
def quiet():
  transformers.utils.logging.disable_progress_bar()
  torch.set_num_threads(2)


def answer(model, images):
  """Returns what is like our logits, or else our features."""
  model = getattr(model, 'vision_model', model)
  name, (b, h, w, c) = type(model).__name__, images.shape
  resizes = h != w and not name.startswith(('Dino', 'Siglip2'))
  options = {'interpolate_pos_encoding': True} if resizes else {}
  inputs = [torch.tensor(np.moveaxis(images, -1, 1).copy())]
  if name.startswith('Siglip2'):  # it takes cut patches, a mask and the grid
    x = images.reshape(b, h // 8, 8, w // 8, 8, c).swapaxes(2, 3)
    inputs = [torch.tensor(x.reshape(b, -1, 64 * c))]
    inputs += [torch.ones(b, h * w // 64, dtype=torch.int32)]
    inputs += [torch.tensor([[h // 8, w // 8]] * b)]
  with torch.no_grad():
    output = model(*inputs, **options)
  if 'logits' in output:
    return output.logits.numpy()
  if output.get('pooler_output') is not None:
    return output.pooler_output.reshape(b, -1).numpy()
  tokens = output.last_hidden_state
  return (tokens.mean(1) if 'Aimv2' in name else tokens[:, 0]).numpy()


def assert_close(ours, theirs):
  atol = 1e-4 * max(1, abs(theirs).max())
  np.testing.assert_allclose(ours, theirs, rtol=0, atol=atol)


@pytest.mark.parametrize('name', THEIRS)
def test_their_models_here(tmp_path, name):
  """Also for images of another, oblong size; and back, to the bit."""
  *_, model = of_transformers(name, THEIRS[name])
  model.save_pretrained(tmp_path / 'theirs')
  size = 36 if 'no whole' in name else 32
  loaded = vit_jax.load(tmp_path / 'theirs', image_size=size)
  images = images_of(size, size)
  expected = answer(model, images)
  assert_close(logits(loaded, images), expected)
  if not name.startswith(ONE_SIZE):
    oblong = images_of(48, 32)
    resized = loaded.adapted(image_size=(48, 32))
    assert_close(logits(resized, oblong), answer(model, oblong))
  export.write(loaded, tmp_path / 'ours', 'huggingface', 'here')
  assert_same(vit_jax.load(tmp_path / 'ours', image_size=size), loaded)
  is_renamed = name.startswith(RENAMED)
  kind = transformers.AutoModel if is_renamed else type(model)
  again, differs = kind.from_pretrained(
    tmp_path / 'ours', output_loading_info=True
  )
  if not name.startswith(ALIASES):
    assert not any(differs.values()), differs
    assert_close(answer(again.eval(), images), expected)
  if not is_renamed:
    for key, array in model.state_dict().items():
      assert torch.equal(array, again.state_dict()[key]), key


def test_dinov2_with_images_smaller_than_its_positions(tmp_path):
  """As Meta's: config.json has 518 pixels, preprocessor_config.json 224."""
  *_, model = of_transformers('Dinov2ForImageClassification', DINO)
  model.save_pretrained(tmp_path)
  processor = transformers.BitImageProcessorPil(
    size={'shortest_edge': 28}, crop_size={'height': 24, 'width': 24}
  )
  processor.save_pretrained(tmp_path)
  loaded = vit_jax.load(tmp_path)
  assert loaded.preprocess.image_size == loaded.position_size == (24, 24)
  assert_close(
    logits(loaded, images_of(24, 24)), answer(model, images_of(24, 24))
  )


@pytest.mark.parametrize('name', ['Dinov2Model', 'Dinov2WithRegistersModel'])
def test_features_of_a_bare_dinov2(tmp_path, name, caplog):
  """They are the class token and the mean, and that is said."""
  *_, model = of_transformers(name, DINO)
  model.save_pretrained(tmp_path)
  loaded = vit_jax.load(tmp_path)
  assert 'features are the class token and the mean' in caplog.text
  images = images_of(32, 32)
  with torch.no_grad():
    output = model(torch.tensor(np.moveaxis(images, -1, 1).copy()))
  patches = output.last_hidden_state[:, -16:].mean(1)
  expected = np.concatenate([output.pooler_output, patches], -1)
  assert_close(logits(loaded, images), expected)


def test_what_is_no_trunk_is_refused(tmp_path):
  *_, model = of_transformers('SiglipForImageClassification', BOTH)
  model.save_pretrained(tmp_path)
  with pytest.raises(UserError, match='it has a classifier of the mean'):
    vit_jax.load(tmp_path)
  patch = 'vision_model.embeddings.patch_embedding.weight'
  path = tmp_path / 'model.safetensors'
  containers.write_safetensors(path, {patch: np.zeros((4, 3, 2, 2))}, {})
  (tmp_path / 'config.json').write_text(json.dumps({'model_type': 'flava'}))
  with pytest.raises(UserError, match="model_type 'flava': those that can be"):
    vit_jax.load(tmp_path)


DINO_HERE = {
  'positions': "learned(tokens='class')",
  'block': 'block(layer_scale=0.5)',
  'pool': 'token_and_mean',
}
OURS = {
  'ViT': {'mlp': "mlp(gelu='exact')"},
  'ViT, tanh': {'layer_norm_epsilon': 1e-12},
  'ViT, grey, oblong': {
    'channels': 1,
    'size': (16, 32),
    'attention': 'attention(qkv_bias=False)',
  },
  'DeiT': {'distillation_token': True, 'head': 'linear(distillation=False)'},
  'DeiT, distilled': {'distillation_token': True, 'mlp_dim': 50},
  'I-JEPA': {'pool': 'mean'},
  'DINOv2': DINO_HERE,
  'DINOv2, gated': DINO_HERE | {'mlp': 'swiglu', 'mlp_dim': 32},
  'DINOv2, registers': DINO_HERE | {'registers': 3, 'mlp': "mlp(gelu='exact')"},
}
# Computed in another form there.
REWRITTEN = {
  'fixed positions': {'positions': 'sincos2d', 'pool': 'mean'},
  'fixed, oblong': {'positions': 'sincos2d', 'size': (16, 32)},
  'DeiT III': {
    'positions': "learned(tokens='patches')",
    'block': 'block(layer_scale=0.5)',
  },
  'class without position': {
    'positions': "learned(tokens='patches')",
    'mlp': "mlp(gelu='exact')",
  },
}


@pytest.mark.parametrize('name', [*OURS, *REWRITTEN])
def test_our_models_there(tmp_path, name):
  options = OURS.get(name) or REWRITTEN[name]
  ours = random_model(classes=('ant', 'bee', 'cow'), **options)
  notes = export.write(ours, tmp_path / 'x', 'huggingface', 'here')
  assert bool(notes) == (name in REWRITTEN)
  model, differs = transformers.AutoModelForImageClassification.from_pretrained(
    tmp_path / 'x', output_loading_info=True
  )
  assert not any(differs.values()), differs
  images = images_of(*ours.position_size, ours.preprocess.channels)
  with torch.no_grad():
    pixels = torch.tensor(np.moveaxis(images, -1, 1).copy())
    assert_close(logits(ours, images), model.eval()(pixels).logits.numpy())
  assert model.config.id2label[1] == 'bee'
  again = vit_jax.load(tmp_path / 'x')
  if name in OURS:
    assert_same(again, ours)
  assert_close(logits(again, images), logits(ours, images))


AIM = {
  'norm': 'rms_norm',
  'patches': 'normed',
  'mlp': 'swiglu',
  'pool': "map(mlp_dim=0, query=False, gelu='exact')",
  'num_classes': 0,
}


@pytest.mark.parametrize(
  'fields',
  [
    AIM
    | {
      'attention': 'attention(qkv_bias=False, out_bias=False)',
      'mlp': 'swiglu(bias=False)',
      'pool': "map(mlp_dim=0, query=False, bias=False, gelu='exact')",
    },
    AIM | {'positions': "sincos2d(kind='sincos2d_mae')", 'pool': 'mean'},
    {'name': 'BiT-R50x1', 'stages': (1, 1, 1, 1), 'num_classes': 5},
  ],
)
def test_there_and_back(tmp_path, fields):
  ours = random_model(**fields)
  export.write(ours, tmp_path / 'x', 'huggingface', 'here')
  assert_same(vit_jax.load(tmp_path / 'x', image_size=32), ours)


CLIP = {
  'pre_norm': True,
  'patches': 'patches(bias=False)',
  'layer_norm_epsilon': 1e-5,
  'num_classes': 0,
}


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    (AIM | {'num_classes': 3}, 'num_classes=3'),
    (
      AIM | {'pool': "map(mlp_dim=16, query=False, gelu='exact')"},
      r'map\(mlp_dim=16\)',
    ),
    (
      AIM | {'attention': 'attention(qkv_bias=False)'},
      r'attention\(out_bias=True\)',
    ),
    (AIM | {'registers': 2}, 'registers=2'),
    (AIM | {'norm': 'layer_norm'}, "norm='layer_norm'"),
    (CLIP | {'num_classes': 3}, 'num_classes=3'),
    (CLIP | {'registers': 2}, 'registers=2'),
  ],
)
def test_parts_without_a_place(tmp_path, fields, message):
  with pytest.raises(UserError, match=f'no place for.*{message}') as e:
    export.write(random_model(**fields), tmp_path / 'x', 'huggingface', '')
  assert '\n' not in str(e.value)


PROCESSORS = {
  'ViT': {'size': {'height': 64, 'width': 64}},
  'ViT, bicubic': {'size': {'height': 40, 'width': 64}, 'resample': 3},
  'ViT, scaled': {'rescale_factor': 1 / 127.5, 'image_mean': [1, 1, 1]},
  'ViT, not scaled': {'do_rescale': False, 'image_mean': [99, 98, 97]},
  'ViT, not normalised': {'do_normalize': False},
  'DeiT': {},
  'DeiT, 1': {'size': {'height': 71, 'width': 80}, 'crop_size': 64},
  'Bit': {},
  'Bit, DINOv2': {'size': {'shortest_edge': 256}, 'image_mean': MEAN},
  'Bit, odd': {'size': {'shortest_edge': 73}, 'crop_size': 64, 'resample': 2},
}


@pytest.mark.parametrize('name', PROCESSORS)
def test_their_pixels_here(tmp_path, jpegs, name):
  """And what is written of them is read there and here."""
  export.write(random_model(), tmp_path / 'x', 'huggingface', 'here')
  kind = getattr(transformers, f'{name.split(",")[0]}ImageProcessorPil')
  processor = kind(**PROCESSORS[name])
  processor.save_pretrained(tmp_path / 'x')
  loaded = vit_jax.load(tmp_path / 'x', as_stored=True)
  export.write(loaded, tmp_path / 'y', 'huggingface', 'here')
  again = vit_jax.load(tmp_path / 'y', as_stored=True).preprocess
  assert again == dataclasses.replace(loaded.preprocess, classes=again.classes)
  written = transformers.AutoImageProcessor.from_pretrained(
    tmp_path / 'y', backend='pil'
  )
  for theirs in (processor, written):

    def pixels(image, theirs=theirs):
      array = theirs(image, return_tensors='np')['pixel_values'][0]
      return np.moveaxis(array, 0, -1)

    assert max(differences(loaded.preprocess, jpegs, pixels)) < 1e-6
