"""Features, embeddings, and the one pass that looks inside."""

import subprocess
import sys

import compiled
import jax
import jax.numpy as jnp
import numpy as np
import planted
import pytest
import tiny

import vit_jax
from vit_jax.config import UserError
from vit_jax.train import flops
from vit_jax.weights import batched
from vit_jax.weights import features

HYBRID = {
  'patches': 'hybrid(width=32)',
  'patch_size': (1, 2),
}


def captured(vit, images):
  return apply(vit.model, vit.params, images, mutable=('intermediates',))


def apply(model, params, images, mutable=False):
  return compiled.apply(model, {'params': params}, images, mutable=mutable)


@pytest.mark.parametrize(
  'model',
  [
    planted.tiny(),
    planted.tiny(distillation_token=True, registers=2),
    planted.tiny(pool='mean', dtype=jnp.bfloat16),
    planted.tiny(**HYBRID),
    planted.tiny_mixer(),
  ],
)
def test_one_pass_has_all_that_the_model_says(model):
  vit, images = planted.loaded(model), planted.images()
  logits, state = captured(vit, images)
  seen = planted.looked(vit, images)
  assert set(seen) == {'logits', *state['intermediates']}
  atol = 0.1 if model.dtype == jnp.bfloat16 else 1e-5
  for name, expected in {'logits': logits, **state['intermediates']}.items():
    assert seen[name].dtype == np.float32
    np.testing.assert_allclose(
      seen[name], expected.astype(jnp.float32), atol=atol, rtol=atol
    )
  h, w = features.patch_grid(vit)
  tokens = features.prefix_length(vit) + h * w
  assert seen['tokens'].shape == (3, 5, tokens, 16)


def test_scanned_layers_are_seen_the_same():
  for model in (planted.tiny(), planted.tiny_mixer()):
    vit, images = planted.loaded(model), planted.images()
    twin = planted.scanned(vit)
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4),
      planted.looked(twin, images),
      planted.looked(vit, images),
    )
    np.testing.assert_allclose(
      features.embeddings(twin, images),
      features.embeddings(vit, images),
      atol=1e-4,
    )


def test_attention_of_scanned_layers_costs_no_second_pass():
  vit = planted.scanned(planted.loaded(planted.tiny()))
  images = planted.images()
  plain = flops.count(lambda x: apply(vit.model, vit.params, x), images)
  assert plain <= flops.count(lambda x: captured(vit, x), images) <= 2 * plain


def test_features_are_the_tokens_of_chosen_layers():
  vit, images = planted.loaded(planted.tiny()), planted.images()
  tokens = captured(vit, images)[1]['intermediates']['tokens']
  actual = vit_jax.features(vit, images, layers=[-1, 0])
  np.testing.assert_allclose(actual, tokens[jnp.array([2, 0])], atol=1e-5)
  assert vit_jax.features(vit, images).shape == tokens.shape
  assert vit_jax.features(vit, images, layers=[]).shape == (
    0,
    *tokens.shape[1:],
  )


def test_batches_change_nothing():
  vit, images = planted.loaded(planted.tiny()), planted.images(7)
  for function in (vit_jax.features, vit_jax.embeddings):
    whole = function(vit, images)
    for size in (1, 3, 6):
      np.testing.assert_allclose(
        function(vit, images, batch_size=size), whole, atol=1e-5
      )
  parts = batched.in_batches(
    lambda x, y: {'sum': (x + y)[None], 'more': (x * y)[None, :, None]},
    [np.arange(7), np.arange(7)],
    4,
    axis=1,
  )
  np.testing.assert_array_equal(parts['sum'], [2 * np.arange(7)])
  np.testing.assert_array_equal(parts['more'][0, :, 0], np.arange(7) ** 2)


def test_large_attention_is_held_for_few_images_at_a_time(monkeypatch):
  vit, images = planted.loaded(planted.tiny()), planted.images()
  whole = planted.looked(vit, images)
  each = whole['attention'][:, 0].nbytes
  monkeypatch.setattr(features, '_MOST_ATTENTION', 2 * each + 1)
  assert features.attention_batch(vit) == 2
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5),
    planted.looked(vit, images),
    whole,
  )


@pytest.mark.parametrize(
  ('model', 'width'),
  [
    (planted.tiny(), 16),
    (planted.tiny(pool='mean(norm_after=True)'), 16),
    (planted.tiny(pool='map'), 16),
    (planted.tiny(pool='token_and_mean'), 32),
    (planted.tiny(head='linear(pre_logits=7)'), 7),
    (planted.tiny_mixer(), 16),
    (planted.tiny_bit(), 16),
  ],
)
def test_embeddings_are_what_the_head_reads(model, width):
  vit, images = planted.loaded(model), planted.images()
  actual = vit_jax.embeddings(vit, images)
  assert actual.shape == (5, width) and actual.dtype == np.float32
  logits = actual @ vit.params['head']['kernel'] + vit.params['head']['bias']
  expected = apply(model, vit.params, images)
  np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)


def test_embeddings_of_two_heads_are_their_mean():
  model = planted.tiny(distillation_token=True)
  vit, images = planted.loaded(model), planted.images()
  both = model.clone(num_classes=0).apply(
    {'params': vit.params}, images, merge_heads=False
  )
  assert both.shape == (5, 2, 16)
  np.testing.assert_allclose(
    vit_jax.embeddings(vit, images), both.mean(axis=1), atol=1e-5
  )


def test_images_may_be_raw_or_prepared():
  vit = planted.loaded(planted.tiny())
  pixels = np.random.default_rng(0).integers(0, 256, (3, 20, 40, 3), np.uint8)
  prepared = vit.preprocess(pixels)
  for images in (prepared, jnp.asarray(prepared)):
    np.testing.assert_array_equal(
      vit_jax.embeddings(vit, pixels), vit_jax.embeddings(vit, images)
    )
  assert vit_jax.features(vit, pixels[0]).shape == (3, 1, 9, 16)


def test_a_run_can_be_looked_at(digits_run):
  vit = vit_jax.load(digits_run)
  pixels = np.zeros((2, 8, 8), np.uint8)
  assert vit_jax.features(vit, list(pixels)).shape[:2] == (1, 2)
  assert vit_jax.explore.attention_maps(vit, list(pixels)).shape[1] == 2


@pytest.mark.parametrize(
  ('model', 'call', 'message'),
  [
    (
      planted.tiny_bit,
      vit_jax.features,
      'a BiT, a ResNet, which has no tokens',
    ),
    (
      planted.tiny_mixer,
      vit_jax.explore.attention_maps,
      'a Mixer, which has no attention',
    ),
    (
      planted.tiny,
      lambda vit, x: vit_jax.features(vit, x, [3]),
      'no layer 3: the model has 3, 0 to 2',
    ),
    (
      planted.tiny,
      lambda vit, x: vit_jax.features(vit, x[:, :4]),
      r'shape \(5, 4, 16, 3\): what this model takes is \[B, 8, 16, 3\]',
    ),
    (planted.tiny, lambda vit, x: vit_jax.features(vit, x[:0]), 'float32'),
    (
      planted.tiny,
      lambda vit, x: features.patch_index(vit, (2, 0)),
      r'no patch \(2, 0\): rows are 0 to 1, columns 0 to 3',
    ),
  ],
)
def test_mistakes_are_one_line(model, call, message):
  vit = planted.loaded(model())
  with pytest.raises(UserError, match=message) as error:
    call(vit, planted.images())
  assert '\n' not in str(error.value)


def test_naming_the_functions_imports_no_jax():
  code = """
import sys
import vit_jax
import vit_jax.explore

assert vit_jax.explore.__name__ in sys.modules
assert not {'jax', 'sklearn'} & sys.modules.keys()
for module in (vit_jax, vit_jax.explore):
  for name in module.__all__:
    assert getattr(module, name)
"""
  subprocess.run([sys.executable, '-c', code], check=True, cwd=tiny.ROOT)


def test_unknown_names_are_errors():
  for module in (vit_jax, vit_jax.explore):
    with pytest.raises(AttributeError, match='attentoin'):
      getattr(module, 'attentoin')  # noqa: B009
