"""Models of Hugging Face's transformers, read and written, against itself."""

import dataclasses

from foreign import assert_same
from foreign import logits
from foreign import random_images
from foreign import random_model
from foreign import torch_outputs
from foreign import transformers_model
import numpy as np
import other_libraries
from photographs import differences
from photographs import MEAN
import pytest

import vit_jax
from vit_jax.config import UserError
from vit_jax.weights.formats import export

_REASON = "needs torch and transformers: pip install -e '.[compat]'"
torch = pytest.importorskip('torch', reason=_REASON)
transformers = other_libraries.imported('transformers', _REASON)

SMALL = {
  'hidden_size': 48,
  'num_hidden_layers': 2,
  'num_attention_heads': 3,
  'image_size': 32,
  'patch_size': 8,
  'num_labels': 7,
}
VIT = {'intermediate_size': 96, **SMALL}
DINO = {'mlp_ratio': 2, **SMALL}
TOWER = {**VIT, 'intermediate_size': 64}
BIT = {
  'embedding_size': 16,
  'hidden_sizes': [32, 64],
  'depths': [1, 2],
  'num_groups': 4,
  'num_labels': 7,
}
TEXT = {
  **{k: TOWER[k] for k in ('hidden_size', 'intermediate_size')},
  **{'num_hidden_layers': 2, 'num_attention_heads': 3},
  **{'vocab_size': 20, 'max_position_embeddings': 6},
}
BOTH_TOWERS = {'vision_config': TOWER, 'text_config': TEXT}
PATCHES = {**TEXT, 'num_patches': 16, 'patch_size': 8}
del PATCHES['vocab_size'], PATCHES['max_position_embeddings']
# Class, and its config.
THEIR_CONFIGS = {
  'ViTForImageClassification': VIT,
  'ViTModel': VIT | {'pooler_output_size': 40},
  'DeiTForImageClassification': VIT | {'hidden_act': 'gelu_pytorch_tanh'},
  'DeiTForImageClassificationWithTeacher': VIT | {'qkv_bias': False},
  'IJepaForImageClassification': VIT,
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
  'Dinov2ForImageClassification': DINO,
  'Dinov2ForImageClassification, gated': DINO | {'use_swiglu_ffn': True},
  'Dinov2WithRegistersForImageClassification': DINO
  | {'num_register_tokens': 3},
  'DINOv3ViTModel': TOWER | {'num_register_tokens': 3, 'rope_theta': 50.0},
  'DINOv3ViTModel, gated': TOWER
  | {'use_gated_mlp': True, 'hidden_act': 'silu'},
  'DINOv3ViTModel, no biases': TOWER
  | {'query_bias': False, 'value_bias': False},
  'DINOv3ViTModel, all biases': TOWER
  | {'key_bias': True, 'num_register_tokens': 1},
  'Aimv2VisionModel': TOWER,
  'Aimv2VisionModel, native': TOWER | {'is_native': True, 'use_head': False},
  'Aimv2VisionModel, biases': TOWER | {'qkv_bias': True, 'mlp_bias': True},
  'BitModel': BIT,
  'BitForImageClassification': BIT,
  'Data2VecVisionModel': VIT | {'use_relative_position_bias': True},
  'CLIPVisionModel': TOWER,
  'SiglipVisionModel': TOWER,
  # No whole patches, as SigLIP's 384 pixels in patches of 14.
  'SiglipVisionModel, cropped': TOWER | {'image_size': 36},
  # Of other names, or with more than the trunk; they are written as the trunk.
  'ViTMSNModel': VIT,
  'ViTMSNForImageClassification': VIT,
  'Data2VecVisionForImageClassification': VIT
  | {'use_shared_relative_position_bias': True},
  'CLIPVisionModelWithProjection': TOWER | {'hidden_act': 'gelu'},
  'CLIPModel': BOTH_TOWERS,
  'SiglipModel': BOTH_TOWERS,
  'Siglip2VisionModel': PATCHES,
  'Siglip2Model': {'vision_config': PATCHES, 'text_config': TEXT},
}
NAMES = [*THEIR_CONFIGS]
OTHER_CLASSES = NAMES[NAMES.index('ViTMSNModel') :]
# Those that take images of one size.
FIXED = ('Bit', 'Aimv2', 'Data2Vec', 'ViTMSN')


@pytest.fixture(autouse=True)
def quiet():
  transformers.utils.logging.disable_progress_bar()
  torch.set_num_threads(2)


def their_model(name):
  """Returns one of their models with random weights."""
  return transformers_model(name, THEIR_CONFIGS[name])[-1]


def answer(model, images, **kwargs):
  """Returns their logits, or the features of their image tower."""
  tower = getattr(model, 'vision_model', model)
  if 'Siglip2' in type(model).__name__:  # patches, and their grid
    b, h, w, c = images.shape
    x = torch.tensor(images).reshape(b, h // 8, 8, w // 8, 8, c)
    x = x.swapaxes(2, 3).reshape(b, -1, 64 * c)
    mask = torch.ones(b, h * w // 64, dtype=torch.int32)
    with torch.no_grad():
      output = tower(x, mask, torch.tensor([[h // 8, w // 8]] * b))
  else:
    output = torch_outputs(tower, images, **kwargs)
  if 'logits' in output:
    return output.logits.numpy()
  if output.get('pooler_output') is not None:
    return output.pooler_output.reshape(len(images), -1).numpy()
  tokens = output.last_hidden_state
  is_mean = 'Aimv2' in type(model).__name__
  return (tokens.mean(1) if is_mean else tokens[:, 0]).numpy()


def assert_close(outputs, expected, name=''):
  atol = 1e-5 if name.startswith('DINOv3') else 1e-4
  if name.startswith(('Bit', 'Aimv2', 'Data2VecVisionModel')):
    atol *= abs(expected).max()
  np.testing.assert_allclose(outputs, expected, atol=atol, rtol=0)


@pytest.mark.parametrize('name', THEIR_CONFIGS)
def test_their_models_here(tmp_path, name):
  """Also for images of another, oblong size; and back, to the bit."""
  model = their_model(name)
  model.save_pretrained(tmp_path / 'theirs')
  size = THEIR_CONFIGS[name].get('image_size', 32)
  is_bit = name.startswith('Bit')  # whose files say no size
  loaded = vit_jax.load(tmp_path / 'theirs', image_size=32 if is_bit else None)
  images = random_images(size, size)
  expected = answer(model, images)
  assert_close(logits(loaded, images), expected, name)
  if not name.startswith(FIXED) and size == 32:
    oblong = random_images(48, 32)
    is_free = name.startswith(('Dino', 'DINO', 'Siglip2'))
    flag = {} if is_free else {'interpolate_pos_encoding': True}
    assert_close(
      logits(vit_jax.load(tmp_path / 'theirs', image_size=(48, 32)), oblong),
      answer(model, oblong, **flag),
      name,
    )
  export.write(loaded, tmp_path / 'ours', 'huggingface', 'here')
  kind = type(model)
  if name in OTHER_CLASSES:
    kind = transformers.AutoModel
    if 'Classification' in name:
      kind = transformers.AutoModelForImageClassification
  again, differs = kind.from_pretrained(
    tmp_path / 'ours', output_loading_info=True
  )
  if name not in OTHER_CLASSES:
    assert not any(differs.values()), differs
    arrays = again.state_dict()
    for key, array in model.state_dict().items():
      assert torch.equal(array, arrays[key]), key
  if name != 'ViTMSNModel':  # ViT's class has a pooler of random numbers
    assert_close(answer(again.eval(), images), expected, name)
  reread = vit_jax.load(tmp_path / 'ours', image_size=32 if is_bit else None)
  assert_same(reread, loaded)


def test_a_classifier_of_the_mean_is_refused(tmp_path):
  *_, model = transformers_model('SiglipForImageClassification', BOTH_TOWERS)
  model.save_pretrained(tmp_path)
  with pytest.raises(UserError, match='it has a classifier of the mean'):
    vit_jax.load(tmp_path)


def test_masked_patches_of_dinov3(tmp_path):
  model = their_model('DINOv3ViTModel')
  model.save_pretrained(tmp_path)
  loaded = vit_jax.load(tmp_path)
  images = random_images(32, 32)
  masked = np.random.default_rng(1).random((2, 16)) < 0.4
  output = torch_outputs(model, images, bool_masked_pos=torch.tensor(masked))
  seen = loaded.model.apply(
    {'params': loaded.params}, images, method='trunk', masked=masked
  )
  assert_close(seen['tokens'], output.last_hidden_state, 'DINOv3')


def test_dinov2_with_images_smaller_than_its_positions(tmp_path):
  """As Meta's: config.json has 518 pixels, preprocessor_config.json 224."""
  model = their_model('Dinov2ForImageClassification')
  model.save_pretrained(tmp_path)
  processor = transformers.BitImageProcessorPil(
    size={'shortest_edge': 28}, crop_size={'height': 24, 'width': 24}
  )
  processor.save_pretrained(tmp_path)
  loaded = vit_jax.load(tmp_path)
  assert loaded.preprocess.image_size == loaded.position_size == (24, 24)
  images = random_images(24, 24)
  assert_close(logits(loaded, images), answer(model, images))


DINO_HERE = {
  'positions': "learned(tokens='class')",
  'block': 'block(layer_scale=0.5)',
  'pool': 'token_and_mean',
}
OUR_MODELS = {
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
  'DINOv2': DINO_HERE,
  'DINOv2, gated': DINO_HERE | {'mlp': 'swiglu', 'mlp_dim': 32},
  'DINOv2, registers': DINO_HERE | {'registers': 3, 'mlp': "mlp(gelu='exact')"},
}


# Computed in another form there.
REWRITTEN = (
  'fixed positions',
  'fixed, oblong',
  'DeiT III',
  'class without position',
)


@pytest.mark.parametrize('name', OUR_MODELS)
def test_our_models_there(tmp_path, name):
  actual = random_model(classes=('ant', 'bee', 'cow'), **OUR_MODELS[name])
  notes = export.write(actual, tmp_path / 'x', 'huggingface', 'here')
  assert bool(notes) == (name in REWRITTEN)
  model, facts = transformers.AutoModelForImageClassification.from_pretrained(
    tmp_path / 'x', output_loading_info=True
  )
  assert not any(facts.values()), facts
  images = random_images(*actual.position_size, actual.preprocess.channels)
  assert_close(logits(actual, images), answer(model.eval(), images))
  assert model.config.id2label[1] == 'bee'
  again = vit_jax.load(tmp_path / 'x')
  if name in REWRITTEN:
    assert_close(logits(again, images), logits(actual, images))
  else:
    assert_same(again, actual)


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

  def their_model(image, processor=processor):
    pixels = processor(image, return_tensors='np')['pixel_values'][0]
    return np.moveaxis(pixels, 0, -1)

  assert max(differences(loaded.preprocess, jpegs, their_model)) < 1e-6
  export.write(loaded, tmp_path / 'y', 'huggingface', 'here')
  again = vit_jax.load(tmp_path / 'y', as_stored=True).preprocess
  assert again == dataclasses.replace(loaded.preprocess, classes=again.classes)
  back = transformers.AutoImageProcessor.from_pretrained(
    tmp_path / 'y', backend='pil'
  )

  def theirs_again(image):
    return their_model(image, back)

  assert max(differences(loaded.preprocess, jpegs, theirs_again)) < 1e-6


@pytest.mark.parametrize('name', ['Dinov2Model', 'Dinov2WithRegistersModel'])
def test_features_of_a_bare_dinov2(tmp_path, name, caplog):
  """They are the class token and the mean, and that is said."""
  torch.manual_seed(0)
  module = getattr(transformers, name)
  model = module(module.config_class(**DINO)).eval()
  model.save_pretrained(tmp_path)
  loaded = vit_jax.load(tmp_path)
  assert 'features are the class token and the mean' in caplog.text
  images = random_images(32, 32)
  output = torch_outputs(model, images)
  actual = logits(loaded, images)
  assert_close(actual[:, :48], output.pooler_output)
  patches = output.last_hidden_state[:, -16:].mean(1)
  assert_close(actual[:, 48:], patches)
