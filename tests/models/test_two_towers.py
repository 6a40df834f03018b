"""Text towers, and two towers; tests/golden.py has other programs' answers."""

import compiled
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import models
from vit_jax.models import describing
from vit_jax.models import layouts
from vit_jax.models import refusals
from vit_jax.models import registry
from vit_jax.models import text
from vit_jax.models import two_towers

_SMALL = {'hidden_size': 12, 'mlp_dim': 24, 'num_heads': 3, 'depth': 2}
_TOKENS = jnp.array([[4, 1, 2, 9, 0, 0], [3, 5, 9, 0, 0, 0]])


def _tower(**values):
  model = registry.build_model(
    text.TextTower, vocabulary=10, length=6, **(_SMALL | values)
  )
  params = compiled.init(model, jax.random.key(0), _TOKENS)['params']
  return model, params


def _features(model, params, tokens, attended=None):
  return compiled.apply(model, {'params': params}, tokens, attended)['features']


@pytest.mark.parametrize(
  ('pool', 'places'),
  [('last', (5, 5)), ('first', (0, 0)), ('end', (3, 2)), ('largest', (3, 2))],
)
def test_the_position_that_is_read(pool, places):
  model, params = _tower(pool=pool, end_token=9)
  actual = compiled.apply(model, {'params': params}, _TOKENS)
  for i, position in enumerate(places):
    np.testing.assert_array_equal(
      actual['pooled'][i], actual['tokens'][i, position]
    )


def test_a_causal_tower_does_not_look_ahead():
  changed = _TOKENS.at[:, 4:].set(7)
  for causal in (True, False):
    model, params = _tower(pool='end', end_token=9, causal=causal)
    features = [_features(model, params, x) for x in (_TOKENS, changed)]
    is_same = np.allclose(*features, atol=1e-6)
    assert is_same == causal


@pytest.mark.parametrize('kernel', ['plain', 'einsum', 'xla'])
def test_tokens_that_are_not_attended_to(kernel):
  attended = _TOKENS > 0
  changed = jnp.where(attended, _TOKENS, 7)
  model, params = _tower(pool='first', attention_implementation=kernel)
  first, second = (
    _features(model, params, x, attended) for x in (_TOKENS, changed)
  )
  np.testing.assert_allclose(first, second, atol=1e-6)
  plain = models.with_kernel(model, 'plain')
  expected = _features(plain, params, _TOKENS, attended)
  np.testing.assert_allclose(first, expected, atol=1e-5)
  assert not np.allclose(first, _features(model, params, _TOKENS), atol=1e-3)


def test_scanned_is_the_same():
  model, params = _tower(out_dim=5)
  scanned = model.clone(scan=True)
  actual = _features(scanned, layouts.stack_layers(params), _TOKENS)
  expected = _features(model, params, _TOKENS)
  np.testing.assert_allclose(actual, expected, atol=1e-6)
  assert expected.shape == (2, 5)


def test_a_tower_is_made_of_the_options_of_its_parts():
  model, _ = _tower(causal=True, gelu='sigmoid', layer_norm_epsilon=1e-5)
  assert model.block.attention.causal and model.block.mlp.gelu == 'sigmoid'
  assert model.norm.epsilon == model.block.norm.epsilon == 1e-5
  values = describing.option_values(model)
  assert registry.build_model(text.TextTower, **values) == model
  with pytest.raises(refusals.UnknownFieldError, match="did you mean 'gelu'"):
    _tower(gelo='exact')


def test_a_text_that_is_too_long():
  model, params = _tower()
  with pytest.raises(ValueError, match='7 tokens is longer than the tower, 6'):
    compiled.apply(model, {'params': params}, jnp.zeros((1, 7), jnp.int32))


@pytest.mark.parametrize('has_bias', [False, True])
def test_logits_compare_embeddings(has_bias):
  image = models.create_model(
    'ViT-Ti/8', 0, pre_norm=True, patches='patches(bias=False)', **_SMALL
  )
  tower, _ = _tower(out_dim=8)
  model = two_towers.TwoTowers(image, tower, 8, has_bias)
  images = jax.random.normal(jax.random.key(1), (3, 16, 16, 3))
  params = compiled.init(model, jax.random.key(0), images, _TOKENS)['params']
  assert 'bias' not in params['image']['patch_embedding']
  assert ('logit_bias' in params) == has_bias
  bound = model.bind({'params': params})
  embedded = bound.embed_images(images)['embedding']
  texts = bound.embed_texts(_TOKENS)['embedding']
  for x in (embedded, texts):
    np.testing.assert_allclose(jnp.linalg.norm(x, axis=1), 1, rtol=1e-5)
  start = (10, -10) if has_bias else (1 / 0.07, 0)
  np.testing.assert_allclose(
    bound(images, _TOKENS), start[0] * embedded @ texts.T + start[1], atol=1e-4
  )
