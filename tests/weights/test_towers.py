"""Files with two towers, written and read back.

tests/golden.py reads other programs' files, and writes them back to the bit.
"""

import json

import jax
import numpy as np
import pytest
import tower_files

import vit_jax
from vit_jax import models
from vit_jax.config import UserError
from vit_jax.models import registry
from vit_jax.models import text
from vit_jax.models import two_towers
from vit_jax.weights import two_towers as weights
from vit_jax.weights.files import containers
from vit_jax.weights.formats import google_towers
from vit_jax.weights.formats import huggingface_clip

_SMALL = {'hidden_size': 12, 'mlp_dim': 24, 'num_heads': 3, 'depth': 2}
_SIZE = (16, 16)


def _random(words=None, kind=text.TextTower, **fields):
  """Returns two towers with random parameters."""
  image = models.create_model('ViT-Ti/8', 0, **_SMALL, **fields)
  sizes = _SMALL | {'vocabulary': 9, 'length': 5, 'out_dim': 12}
  tower = registry.build_model(kind, **sizes | (words or {}))
  has_bias = kind is text.TextTower and 'pool' in fields
  model = two_towers.TwoTowers(image, tower, 0, has_bias)
  rng = np.random.default_rng(0)
  params = jax.tree.map(
    lambda x: rng.standard_normal(x.shape, np.float32),
    weights.abstract_params(model, _SIZE),
  )
  return model, params


def _assert_same(actual, model, params):
  assert actual.model.text == model.text
  assert actual.image_size == _SIZE
  jax.tree.map(np.testing.assert_array_equal, actual.params, params)


@pytest.mark.parametrize('stacked', [False, True])
@pytest.mark.parametrize('kind', [google_towers.LIT, google_towers.BIG_VISION])
def test_google(kind, stacked, tmp_path):
  model, params = _random(pool='map')
  path = tmp_path / 'towers.npz'
  arrays = tower_files.google_arrays(model, params, kind, stacked)
  containers.write_npz(path, arrays.items())
  _assert_same(weights.load(path), model, params)
  trunk = vit_jax.load(path)
  jax.tree.map(np.testing.assert_array_equal, trunk.params, params['image'])
  assert trunk.model.num_classes == 0
  images = np.zeros((1, *_SIZE, 3), np.float32)
  np.testing.assert_array_equal(
    trunk.model.apply({'params': trunk.params}, images),
    model.image.apply({'params': params['image']}, images),
  )


def _write_siglip(tmp_path, any_grid=False, **changed):
  model, params = _random(pool='map', words={'gelu': 'tanh'})
  model = model.clone(any_grid=any_grid)
  arrays = tower_files.transformers_arrays(model, params)
  arrays = {name: np.ascontiguousarray(x) for name, x in arrays.items()}
  containers.write_safetensors(tmp_path / 'model.safetensors', arrays, {})
  config = {'model_type': 'siglip', **changed}
  for tower in ('text', 'vision'):
    config[f'{tower}_config'] = {'num_attention_heads': 3}
  (tmp_path / 'config.json').write_text(json.dumps(config))
  return model, params


@pytest.mark.parametrize(
  ('any_grid', 'kind'), [(False, 'siglip'), (True, 'siglip2')]
)
def test_siglip(tmp_path, any_grid, kind):
  model, params = _write_siglip(tmp_path, any_grid, model_type=kind)
  towers = weights.load(tmp_path)
  _assert_same(towers, model, params)
  assert towers.model.any_grid == any_grid


# What both have, what each has, and fields that their configs have no word for.
_DRAWN = {
  'hidden_size': (12, 24),
  'mlp_dim': (24, 36),
  'num_heads': (1, 3, 6),
  'depth': (1, 2, 3),
  'vocabulary': (9, 20),
  'length': (3, 5),
  'gelu': ('exact', 'tanh', 'sigmoid'),
  'layer_norm_epsilon': (1e-5, 0.01),
}
_KINDS = {
  'clip': (
    {'pre_norm': True, 'patches': 'patches(bias=False)'},
    {'causal': True, 'has_head_bias': False},
  ),
  'siglip': ({'pool': 'map'}, {}),
}
_ENDS = {'clip': (('largest', 2), ('end', 7)), 'siglip': (('last', 0),)}
_WITHOUT_A_WORD = [
  {'qk_norm': True},
  {'pool': 'first'},
  {'norm': 'rms_norm'},
  {'mlp': 'swiglu', 'gelu': None},
  {'block': 'post_norm'},
  {'hidden_norm': True},
]


@pytest.mark.parametrize('seed', range(4))
@pytest.mark.parametrize('kind', _KINDS)
def test_random_towers_are_stored_or_refused(tmp_path, kind, seed):
  """To the bit, as a run with both towers writes them."""
  rng = np.random.default_rng(seed)
  image, words = _KINDS[kind]
  words = words | {k: x[rng.integers(len(x))] for k, x in _DRAWN.items()}
  ends = _ENDS[kind]
  words['pool'], words['end_token'] = ends[seed % len(ends)]
  fields = image | {'mlp': "mlp(gelu='tanh')", 'layer_norm_epsilon': 1e-5}
  model, _ = _random(words | {'out_dim': 12}, **fields)
  if kind == 'clip':
    model = model.clone(projection=12)
  rng = np.random.default_rng(seed)
  params = jax.tree.map(
    lambda x: rng.standard_normal(x.shape, np.float32),
    weights.abstract_params(model, _SIZE),
  )
  stored = huggingface_clip.objective_table(model, (*_SIZE, 3))
  arrays = tower_files.transformers_arrays(model, params)
  arrays = {name: np.ascontiguousarray(x) for name, x in arrays.items()}
  containers.write_safetensors(tmp_path / 'model.safetensors', arrays, {})
  (tmp_path / 'config.json').write_text(json.dumps(stored.config))
  _assert_same(weights.load(tmp_path), model, params)
  for other in _WITHOUT_A_WORD:
    changed, _ = _random(words | {'out_dim': 12} | other, **fields)
    changed = changed.clone(projection=model.projection)
    assert huggingface_clip.objective_table(changed, (*_SIZE, 3)) is None


def test_files_of_other_models(tmp_path):
  _write_siglip(tmp_path, model_type='flava')
  with pytest.raises(UserError, match="model_type 'flava': two towers of"):
    weights.load(tmp_path)
  np.savez(tmp_path / 'one.npz', x=np.zeros(3))
  with pytest.raises(UserError, match='holds no two towers'):
    weights.load(tmp_path / 'one.npz')


def test_all_differences_are_named(tmp_path):
  model, params = _random()
  arrays = tower_files.google_arrays(model, params, google_towers.LIT, False)
  del arrays['txt/Encoder_0/encoderblock_1/LayerNorm_1/bias']
  arrays['txt/more'] = np.zeros(3)
  path = tmp_path / 'towers.npz'
  containers.write_npz(path, arrays.items())
  with pytest.raises(UserError) as caught:
    weights.load(path)
  assert 'txt/Encoder_0/encoderblock_1/LayerNorm_1/bias' in str(caught.value)
  assert 'unknown: txt/more' in str(caught.value)


def test_lit_with_bert(tmp_path):
  model, params = _random(kind=text.Bert)
  path = tmp_path / 'towers.npz'
  arrays = tower_files.google_arrays(model, params, google_towers.LIT, False)
  containers.write_npz(path, arrays.items())
  _assert_same(weights.load(path, text_heads=3), model, params)
  for heads in (None, 5):
    with pytest.raises(UserError, match=r'BERT of width 12.*text_heads=') as e:
      weights.load(path, text_heads=heads)
    assert '\n' not in str(e.value)


def test_padding_does_not_change_what_bert_reads():
  model, params = _random(kind=text.Bert)
  tokens = np.array([[3, 4, 0, 0, 0], [5, 6, 7, 8, 1]])
  apply = jax.jit(lambda x: model.text.apply({'params': params['text']}, x))
  actual, short = apply(tokens)['features'], apply(tokens[:, :2])['features']
  np.testing.assert_allclose(actual[0], short[0], atol=1e-5)
  assert abs(actual[1] - short[1]).max() > 1e-3
