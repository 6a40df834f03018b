"""AIMv2, BiT and data2vec of transformers, read and written, against itself."""

from foreign import assert_same
from foreign import logits
from foreign import random_images
from foreign import random_model
from foreign import transformers_model
import numpy as np
import pytest

import vit_jax
from vit_jax.config import UserError
from vit_jax.weights.formats import export

TOWER = {
  'hidden_size': 24,
  'intermediate_size': 40,
  'num_hidden_layers': 2,
  'num_attention_heads': 3,
  'image_size': 32,
  'patch_size': 8,
}
BIT = {
  'embedding_size': 16,
  'hidden_sizes': [32, 64],
  'depths': [1, 2],
  'num_groups': 4,
  'num_labels': 5,
}
# Class and fields of its config.
THEIRS = {
  'Aimv2VisionModel': TOWER,
  'Aimv2VisionModel, native': TOWER | {'is_native': True, 'use_head': False},
  'Aimv2VisionModel, biases': TOWER | {'qkv_bias': True, 'mlp_bias': True},
  'BitModel': BIT,
  'BitForImageClassification': BIT,
  'Data2VecVisionModel': TOWER | {'use_relative_position_bias': True},
}
AIM = {
  'norm': 'rms_norm',
  'patches': 'normed',
  'mlp': 'swiglu',
  'pool': "map(mlp_dim=0, query=False, gelu='exact')",
  'num_classes': 0,
}


def answer(torch, model, images):
  """Returns what is like our features or logits."""
  with torch.no_grad():
    found = model(torch.tensor(np.moveaxis(images, -1, 1).copy()))
  if 'logits' in found:
    return found.logits.numpy()
  if found.get('pooler_output') is not None:
    return found.pooler_output.reshape(len(images), -1).numpy()
  tokens = found.last_hidden_state
  is_mean = 'Aimv2' in type(model).__name__
  return (tokens.mean(1) if is_mean else tokens[:, 0]).numpy()


@pytest.mark.parametrize('name', THEIRS)
def test_outputs_are_theirs_and_back(tmp_path, name):
  torch, _, model = transformers_model(name, THEIRS[name])
  model.save_pretrained(tmp_path / 'theirs')
  loaded = vit_jax.load(tmp_path / 'theirs')
  images = random_images(32, 32)
  if 'Bit' in name:
    loaded = vit_jax.load(tmp_path / 'theirs', image_size=32)
  wanted = answer(torch, model, images)
  np.testing.assert_allclose(
    logits(loaded, images), wanted, atol=1e-4 * abs(wanted).max()
  )
  export.write(loaded, tmp_path / 'ours', 'huggingface', 'here')
  again, told = type(model).from_pretrained(
    tmp_path / 'ours', output_loading_info=True
  )
  assert not any(told.values()), told
  for key, array in model.state_dict().items():
    assert torch.equal(array, again.state_dict()[key]), key
  assert_same(vit_jax.load(tmp_path / 'ours', image_size=32), loaded)


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
  found = vit_jax.load(tmp_path / 'x', image_size=32)
  assert_same(found, ours)


@pytest.mark.parametrize(
  'fields,message',
  [
    ({'num_classes': 3}, 'num_classes=3'),
    (
      {'pool': "map(mlp_dim=16, query=False, gelu='exact')"},
      r'map\(mlp_dim=16\)',
    ),
    (
      {'attention': 'attention(qkv_bias=False)'},
      r'attention\(out_bias=True\)',
    ),
    ({'registers': 2}, 'registers=2'),
    ({'norm': 'layer_norm'}, "norm='layer_norm'"),
  ],
)
def test_what_an_aimv2_has_no_place_for(tmp_path, fields, message):
  with pytest.raises(UserError, match=message) as e:
    export.write(
      random_model(**AIM | fields), tmp_path / 'x', 'huggingface', ''
    )
  assert '\n' not in str(e.value)
