"""Models of Hugging Face's transformers, read and written, against itself."""

import dataclasses

from foreign import assert_same
from foreign import logits
from foreign import random_images
from foreign import random_model
from foreign import transformers_model
import numpy as np
import other_libraries
from photographs import differences
from photographs import MEAN
import pytest

import vit_jax
from vit_jax.weights.formats import export

_REASON = "needs torch and transformers: pip install -e '.[compat]'"
torch = pytest.importorskip('torch', reason=_REASON)
transformers = other_libraries.imported('transformers', _REASON)

TOLERANCE = {'atol': 1e-4, 'rtol': 0}
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
# Class and what its config has beside the above.
THEIRS = {
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
}


@pytest.fixture(autouse=True)
def quiet():
  transformers.utils.logging.disable_progress_bar()
  torch.set_num_threads(2)


def theirs(name):
  """Returns one of their models with random weights."""
  return transformers_model(name, THEIRS[name])[-1]


def answer(model, images, **kwargs):
  """Returns their logits, or what their pooler gives."""
  with torch.no_grad():
    pixels = torch.tensor(np.moveaxis(images, -1, 1).copy())
    output = model(pixels, **kwargs)
  found = output.logits if 'logits' in output else output.pooler_output
  return found.numpy()


@pytest.mark.parametrize('name', THEIRS)
def test_their_models_here(tmp_path, name):
  """Also for images of another, oblong size; and back, to the bit."""
  model = theirs(name)
  model.save_pretrained(tmp_path / 'theirs')
  loaded = vit_jax.load(tmp_path / 'theirs')
  images = random_images(32, 32)
  np.testing.assert_allclose(
    logits(loaded, images), answer(model, images), **TOLERANCE
  )
  images = random_images(48, 32)
  flag = {} if 'Dino' in name else {'interpolate_pos_encoding': True}
  np.testing.assert_allclose(
    logits(vit_jax.load(tmp_path / 'theirs', image_size=(48, 32)), images),
    answer(model, images, **flag),
    **TOLERANCE,
  )
  export.write(loaded, tmp_path / 'ours', 'huggingface', 'here')
  again, differs = type(model).from_pretrained(
    tmp_path / 'ours', output_loading_info=True
  )
  assert not any(differs.values()), differs
  arrays = again.state_dict()
  for key, array in model.state_dict().items():
    assert torch.equal(array, arrays[key]), key
  np.testing.assert_array_equal(
    answer(again, images, **flag), answer(model, images, **flag)
  )


def test_dinov2_with_images_smaller_than_its_positions(tmp_path):
  """As Meta's: config.json has 518 pixels, preprocessor_config.json 224."""
  model = theirs('Dinov2ForImageClassification')
  model.save_pretrained(tmp_path)
  processor = transformers.BitImageProcessorPil(
    size={'shortest_edge': 28}, crop_size={'height': 24, 'width': 24}
  )
  processor.save_pretrained(tmp_path)
  loaded = vit_jax.load(tmp_path)
  assert loaded.preprocess.image_size == loaded.position_size == (24, 24)
  images = random_images(24, 24)
  np.testing.assert_allclose(
    logits(loaded, images), answer(model, images), **TOLERANCE
  )


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


@pytest.mark.parametrize('name', OURS)
def test_our_models_there(tmp_path, name):
  ours = random_model(classes=('ant', 'bee', 'cow'), **OURS[name])
  notes = export.write(ours, tmp_path / 'x', 'huggingface', 'here')
  assert bool(notes) == (name in REWRITTEN)
  model, told = transformers.AutoModelForImageClassification.from_pretrained(
    tmp_path / 'x', output_loading_info=True
  )
  assert not any(told.values()), told
  images = random_images(*ours.position_size, ours.preprocess.channels)
  np.testing.assert_allclose(
    logits(ours, images), answer(model.eval(), images), **TOLERANCE
  )
  assert model.config.id2label[1] == 'bee'
  again = vit_jax.load(tmp_path / 'x')
  if name in REWRITTEN:
    np.testing.assert_allclose(
      logits(again, images), logits(ours, images), **TOLERANCE
    )
  else:
    assert_same(again, ours)


ALIASES = {
  'ViTMSNModel': VIT,
  'ViTMSNForImageClassification': VIT,
  'Data2VecVisionForImageClassification': VIT
  | {'use_shared_relative_position_bias': True},
}


@pytest.mark.parametrize('name', ALIASES)
def test_classes_of_other_names(tmp_path, name):
  """They are ViT's and BEiT's, and are written as these."""
  THEIRS[name] = ALIASES[name]
  model = theirs(name)
  model.save_pretrained(tmp_path / 'theirs')
  loaded = vit_jax.load(tmp_path / 'theirs')
  images = random_images(32, 32)
  with torch.no_grad():
    output = model(torch.tensor(np.moveaxis(images, -1, 1).copy()))
  expected = output.get('logits', output.get('pooler_output'))
  if expected is None:
    expected = output.last_hidden_state[:, 0]
  np.testing.assert_allclose(logits(loaded, images), expected, **TOLERANCE)
  export.write(loaded, tmp_path / 'ours', 'huggingface', 'here')
  again = vit_jax.load(tmp_path / 'ours')
  assert_same(again, loaded)


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

  def theirs(image, processor=processor):
    pixels = processor(image, return_tensors='np')['pixel_values'][0]
    return np.moveaxis(pixels, 0, -1)

  assert max(differences(loaded.preprocess, jpegs, theirs)) < 1e-6
  export.write(loaded, tmp_path / 'y', 'huggingface', 'here')
  again = vit_jax.load(tmp_path / 'y', as_stored=True).preprocess
  assert again == dataclasses.replace(loaded.preprocess, classes=again.classes)
  back = transformers.AutoImageProcessor.from_pretrained(
    tmp_path / 'y', backend='pil'
  )

  def theirs_again(image):
    return theirs(image, back)

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
  with torch.no_grad():
    output = model(torch.tensor(np.moveaxis(images, -1, 1).copy()))
  found = logits(loaded, images)
  np.testing.assert_allclose(found[:, :48], output.pooler_output, **TOLERANCE)
  patches = output.last_hidden_state[:, -16:].mean(1)
  np.testing.assert_allclose(found[:, 48:], patches, **TOLERANCE)
