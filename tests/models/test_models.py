"""Names, sizes and the function that a ViT computes."""

import functools
import pathlib

import case_files
import compiled
import flax.linen as nn
import jax
import jax.numpy as jnp
import mistakes
import numpy as np
import pytest

import vit_jax
from vit_jax import config as config_lib
from vit_jax import models
from vit_jax.models import attention as attention_lib
from vit_jax.models import block
from vit_jax.models import describing
from vit_jax.models import dropout
from vit_jax.models import embedding
from vit_jax.models import layouts
from vit_jax.models import patches
from vit_jax.models import registry
from vit_jax.models.context import Context
from vit_jax.train import flops

# Parameters at 224 px and 1000 classes; forward GFLOP where it is published.
PUBLISHED = {
  'ViT-Ti/16': (5_717_416, 2.51),
  'ViT-S/16': (22_050_664, 9.20),
  'ViT-S/32': (22_878_952, None),
  'ViT-B/8': (86_576_872, None),
  'ViT-B/16': (86_567_656, 35.1),
  'ViT-B/32': (88_224_232, None),
  'ViT-L/16': (304_326_632, 123.1),
  'ViT-L/32': (306_535_400, None),
  'ViT-H/14': (632_045_800, 334.6),
  'ViT-g/14': (1_012_611_432, None),
  'R+ViT-Ti/16': (6_337_704, None),
  'R26+ViT-S/32': (36_431_912, None),
  'R26+ViT-B/32': (101_383_976, None),
  'R50+ViT-B/16': (98_659_112, None),
  'R50+ViT-L/32': (328_994_856, None),
  'Mixer-S/16': (18_528_264, None),
  'Mixer-S/32': (19_104_624, None),
  'Mixer-B/16': (59_880_472, None),
  'Mixer-B/32': (60_293_428, None),
  'Mixer-L/16': (208_196_168, None),
  # timm's resnetv2_*_bit with 1000 classes.
  'BiT-R50x1': (25_549_352, None),
  'BiT-R50x3': (217_319_080, None),
  'BiT-R101x1': (44_541_480, None),
  'BiT-R101x3': (387_934_888, None),
  'BiT-R152x2': (236_335_208, None),
  'BiT-R152x4': (936_533_224, None),
}
# Millions of parameters of models of colours (Generative Pretraining from
# Pixels, section 3.3).
COLOURED = {'iGPT-S': 76, 'iGPT-M': 455, 'iGPT-L': 1362}
RATES = {
  'dropout_rate': 0.3,
  'attention_dropout_rate': 0.2,
  'stochastic_depth': 0.4,
}
VIT, MIXER = 'ViT-Ti/4', 'Mixer-S/4'
POSITIONS = (
  'none',
  'learned',
  'factorized',
  *(f"sincos2d(kind='{kind}')" for kind in embedding.SINCOS),
)
SIZES = {
  VIT: {'hidden_size': 32, 'mlp_dim': 48, 'num_heads': 4},
  MIXER: {'hidden_size': 24, 'mlp_dim': 32, 'tokens_mlp_dim': 10},
}


def tiny(name=VIT, **overrides):
  # A head of zeros would make all models equal.
  fields = {'depth': 3, 'initializers': 'lecun'} | SIZES[name] | overrides
  return models.create_model(name, 5, **fields)


def random_tiny(name=VIT):
  """All that is random in a training step; a Mixer has no attention."""
  has = [key for key in RATES if name == VIT or key != 'attention_dropout_rate']
  return tiny(name, **{key: RATES[key] for key in has})


def count(tree):
  return sum(x.size for x in jax.tree.leaves(tree))


@functools.cache
def example(name=VIT):
  """A tiny model's parameters, and images that are not square."""
  images = jax.random.normal(jax.random.key(1), (6, 8, 16, 3))
  params = models.init_params(tiny(name), jax.random.key(0), (8, 16, 3))
  return params, images


def apply(model, params, images, *, seed=None, mutable=False, rows=None):
  kwargs = {'mutable': mutable, 'rows': rows}
  if seed is not None:
    kwargs |= {'train': True, 'rngs': {'dropout': jax.random.key(seed)}}
  return compiled.apply(model, {'params': params}, images, **kwargs)


@pytest.mark.slow
@pytest.mark.parametrize('name', PUBLISHED)
def test_published_sizes(name):
  model = vit_jax.create_model(name)
  if hasattr(model, 'scan'):
    model = model.clone(scan=True)  # is traced sooner
  params = models.abstract_params(model, (224, 224, 3))
  parameters, gflop = PUBLISHED[name]
  assert count(params) == parameters
  if gflop:
    images = jax.ShapeDtypeStruct((1, 224, 224, 3), jnp.float32)
    actual = flops.count(model.apply, {'params': params}, images) / 1e9
    assert actual == pytest.approx(gflop, rel=2e-3)


@pytest.mark.parametrize('name', COLOURED)
def test_sizes_of_models_of_colours(name):
  model = vit_jax.create_model(name, 0, scan=True)
  params = models.abstract_params(model, (32, 32, 3))
  assert count(params) / 1e6 == pytest.approx(COLOURED[name], rel=0.01)


def test_all_published_names_are_listed():
  assert vit_jax.list_models() == [*PUBLISHED, *COLOURED]
  small = ['ViT-S/16', 'ViT-S/32', 'R26+ViT-S/32', 'Mixer-S/16', 'Mixer-S/32']
  assert vit_jax.list_models('*S/*') == small


@pytest.mark.parametrize(
  ('name', 'twins'),
  [
    pytest.param(
      VIT,
      [
        (True, 'none'),
        (True, 'products'),
        (False, 'activations'),
        (False, 'dots_saveable'),
      ],
      marks=pytest.mark.slow,
    ),
    (MIXER, [(True, 'full')]),
  ],
)
def test_scanned_remat_and_unrolled_are_one_function(name, twins):
  """Outputs, gradients, dropout and stochastic depth."""
  params, images = example(name)
  stacked = layouts.stack_layers(params)

  @functools.partial(jax.jit, static_argnums=1)
  @functools.partial(jax.value_and_grad, has_aux=True)
  def grads(params, model):
    logits = apply(model, params, images, seed=2)
    return (logits**2).sum(), logits

  model = random_tiny(name)
  (_, expected), expected_grads = grads(params, model)
  assert all(abs(x).max() > 0 for x in jax.tree.leaves(expected_grads))
  for scan, remat in twins:
    twin = model.clone(scan=scan, remat=remat)
    (_, actual), found_grads = grads(stacked if scan else params, twin)
    found_grads = layouts.unstack_layers(found_grads) if scan else found_grads
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5 * abs(b).max()),
      (actual, found_grads),
      (expected, expected_grads),
    )


@pytest.mark.slow
@pytest.mark.parametrize(
  ('implementation', 'qk_norm'),
  [('xla', False), ('xla', True), ('einsum', False)],
)
def test_implementations_of_attention_are_one_function(implementation, qk_norm):
  """Outputs and gradients; where it is returned the plain one computes it."""
  rate = 0.1 if implementation == 'einsum' else 0.0
  model = tiny(
    attention=f'attention(qk_norm={qk_norm})',
    dropout_rate=0.1,
    attention_dropout_rate=rate,
  )
  _, images = example()
  params = models.init_params(model, jax.random.key(0), images.shape[1:])
  twin = models.with_kernel(model, implementation)

  @functools.partial(jax.jit, static_argnums=1)
  @jax.value_and_grad
  def grads(params, model):
    return (apply(model, params, images, seed=2) ** 2).sum()

  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(
      a, b, atol=1e-5 * abs(b).max() + 1e-6
    ),
    grads(params, twin),
    grads(params, model),
  )
  captured = [
    compiled.apply(m, {'params': params}, images, mutable=('intermediates',))[1]
    for m in (twin, model)
  ]
  jax.tree.map(np.testing.assert_array_equal, *captured)


def test_odd_lengths_are_padded_for_cudnn(monkeypatch):
  """XLA takes the place of cuDNN, which needs a GPU."""
  attend, lengths = jax.nn.dot_product_attention, []

  def even(query, key, value, bias, implementation, **kwargs):
    lengths.append((query.shape[1], key.shape[1]))
    assert implementation == 'cudnn'
    return attend(query, key, value, bias, implementation='xla', **kwargs)

  monkeypatch.setattr(jax.nn, 'dot_product_attention', even)
  model = tiny(dtype=jnp.bfloat16, dropout_rate=0.0, stochastic_depth=0.0)
  params, images = example()
  twin = models.with_kernel(model, 'cudnn')

  @functools.partial(jax.jit, static_argnums=1)
  @jax.value_and_grad
  def grads(params, model):
    return (apply(model, params, images) ** 2).sum()

  actual, expected = grads(params, twin), grads(params, model)
  assert lengths and all(n % 2 == 0 for pair in lengths for n in pair)
  np.testing.assert_allclose(actual[0], expected[0], rtol=0.02)
  jax.tree.map(
    lambda a, b: np.testing.assert_array_less(
      np.linalg.norm(a - b), 0.05 * np.linalg.norm(b) + 1e-3
    ),
    actual[1],
    expected[1],
  )


def test_init_does_not_depend_on_scan():
  params, _ = example()
  init = functools.partial(models.init_params, image_shape=(8, 16, 3))
  scanned = init(tiny(scan=True), jax.random.key(0))
  jax.tree.map(
    np.testing.assert_array_equal, scanned, layouts.stack_layers(params)
  )
  jax.tree.map(
    np.testing.assert_array_equal, layouts.unstack_layers(scanned), params
  )


@pytest.mark.parametrize('scan', [False, True])
def test_intermediates(scan):
  params, images = example()
  params = layouts.stack_layers(params) if scan else params
  model = tiny(scan=scan)
  logits, state = apply(model, params, images, mutable=('intermediates',))
  attention = state['intermediates']['attention']
  tokens = state['intermediates']['tokens']
  assert attention.shape == (3, 6, 4, 9, 9)  # [L, B, H, T, T]
  assert tokens.shape == (3, 6, 9, 32)  # [L, B, T, D]
  np.testing.assert_allclose(attention.sum(-1), 1, rtol=1e-5)
  plain = apply(model, params, images)  # compiled otherwise: rounding differs
  np.testing.assert_allclose(logits, plain, rtol=1e-5, atol=1e-6)
  # The last layer's class token, normalised, is what the head reads.
  norm = nn.LayerNorm(1e-6).apply({'params': params['norm']}, tokens[-1, :, 0])
  head = nn.Dense(5).apply({'params': params['head']}, norm)
  np.testing.assert_allclose(head, logits, rtol=1e-4, atol=1e-5)


def test_nothing_is_captured_unasked():
  """No array of all layers' attention is in the program."""
  params, images = example()

  def program(mutable):
    fn = functools.partial(apply, tiny(), mutable=mutable)
    return str(jax.make_jaxpr(fn)(params, images))

  assert 'f32[3,6,4,9,9]' in program(('intermediates',))
  assert 'f32[3,6,4,9,9]' not in program(False)


def test_rbg_masks_differ_between_the_parts_of_a_batch():
  key = jax.random.key(0, impl='rbg')
  parts = [jnp.array([0, 2, 4]), jnp.array([1, 3, 5])]
  masks = [
    dropout.keep_mask(dropout.DropoutKey(key, rows), 0.5, (64,))
    for rows in parts
  ]
  assert (masks[0] != masks[1]).any()


def test_equals_linens_own_attention():
  """One block against nn.MultiHeadDotProductAttention and nn.Dense."""
  params, _ = example()
  block = params['blocks_1']['attention']
  x = jax.random.normal(jax.random.key(3), (2, 9, 32))
  attention = attention_lib.Attention(num_heads=4)
  actual = compiled.apply(attention, {'params': block}, x, Context())
  qkv, names = block['qkv'], ('query', 'key', 'value')
  linen_params = {
    name: {'kernel': qkv['kernel'][:, i], 'bias': qkv['bias'][i]}
    for i, name in enumerate(names)
  }
  reference = nn.MultiHeadDotProductAttention(num_heads=4)
  expected = compiled.apply(
    reference, {'params': linen_params | {'out': block['out']}}, x
  )
  np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_patch_embedding_is_a_convolution():
  images = jax.random.normal(jax.random.key(0), (2, 12, 20, 3))
  embed = patches.Patches(7, (3, 5))
  params = compiled.init(embed, jax.random.key(1), images)['params']
  conv = nn.Conv(7, (3, 5), strides=(3, 5), padding='VALID')
  np.testing.assert_allclose(
    compiled.apply(embed, {'params': params}, images),
    compiled.apply(conv, {'params': params}, images),
    rtol=1e-4,
    atol=1e-5,
  )


@pytest.mark.slow
@pytest.mark.parametrize('pool', registry.PARTS['pool'])
@pytest.mark.parametrize('position', POSITIONS)
def test_positions_and_pools(pool, position):
  model = tiny(pool=pool, positions=position, depth=1)
  params = models.init_params(model, jax.random.key(0), (8, 16, 3))
  assert ('class_token' in params) == ('token' in pool)
  assert ('position_embedding' in params) == (position == 'learned')
  images = example()[1]
  mirrored = images[:, ::-1].reshape(6, 2, 4, 16, 3)[:, :, ::-1]
  mirrored = mirrored.reshape(6, 8, 16, 3)  # rows of patches change places
  is_same = np.allclose(
    apply(model, params, images), apply(model, params, mirrored), atol=1e-4
  )
  assert is_same == (position == 'none')


def test_sincos2d_is_separable_and_unit_circles():
  table = embedding.sincos2d((3, 5), 16).reshape(3, 5, 4, 4)
  sin_x, cos_x, sin_y, cos_y = np.moveaxis(table, 2, 0)
  np.testing.assert_allclose(sin_x**2 + cos_x**2, 1, rtol=1e-5)
  np.testing.assert_allclose(sin_y**2 + cos_y**2, 1, rtol=1e-5)
  assert (sin_x == sin_x[:1]).all() and (sin_y == sin_y[:, :1]).all()
  np.testing.assert_allclose(sin_x[0, :, 0], np.sin(np.arange(5)), atol=1e-6)


@pytest.mark.parametrize(
  ('name', 'gelu'), [*((VIT, x) for x in block.GELUS), (MIXER, 'tanh')]
)
def test_bfloat16_computes_with_float32_parameters(name, gelu):
  params, images = example(name)
  fields = {'mlp': f"mlp(gelu='{gelu}')"}
  model = tiny(name, dtype=jnp.bfloat16, **fields)
  assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(params))
  logits, state = apply(model, params, images, mutable=('intermediates',))
  assert logits.dtype == jnp.float32
  assert state['intermediates']['tokens'].dtype == jnp.bfloat16
  exact = apply(tiny(name, **fields), params, images)
  assert abs(logits - exact).max() < 0.05 * abs(exact).max()


@pytest.mark.parametrize('impl', ['threefry2x32', 'rbg'])
@pytest.mark.parametrize('rate', [0.1, 0.5, 0.9])
def test_masks_keep_the_right_share(impl, rate):
  key = dropout.DropoutKey(jax.random.key(0, impl=impl), jnp.arange(64))
  keep = dropout.keep_mask(key, rate, (65, 33))
  assert keep.shape == (64, 65, 33)
  sigma = (rate * (1 - rate) / keep.size) ** 0.5
  assert abs(float(keep.mean()) - (1 - rate)) < 4 * sigma + 2**-16
  # Neighbours are independent, within a word, in a row and between rows.
  x = keep.astype(jnp.float32) - keep.mean()
  flat = x.reshape(64, -1)
  for a, b in [(flat[:, 1:], flat[:, :-1]), (flat[1:], flat[:-1])]:
    assert abs(float((a * b).mean())) < 4 * rate * (1 - rate) / a.size**0.5


def test_dropout_keeps_the_mean_and_the_dtype():
  key = dropout.DropoutKey(jax.random.key(0), jnp.arange(8))
  x = jnp.ones((8, 100, 100), jnp.bfloat16)
  y = dropout.dropout(x, 0.25, key)
  assert y.dtype == x.dtype and set(np.unique(y.astype(float))) == {
    0,
    1.3359375,
  }
  assert (
    dropout.dropout(x, 0.0, key) is x and dropout.dropout(x, 0.5, None) is x
  )


@pytest.mark.parametrize('name', SIZES)
def test_masks_belong_to_rows_of_the_global_batch(name):
  params, images = example(name)
  model = random_tiny(name)
  logits = apply(model, params, images, seed=2)
  part = apply(model, params, images[1::2], seed=2, rows=jnp.array([1, 3, 5]))
  np.testing.assert_allclose(part, logits[1::2], rtol=1e-4, atol=1e-5)
  other_seed = apply(model, params, images, seed=3)
  assert not np.allclose(logits, other_seed, atol=1e-3)


@pytest.mark.parametrize('name', SIZES)
def test_stochastic_depth_grows_linearly(name):
  """With a rate of nearly one the last layer is skipped, the first never."""
  params, images = example(name)
  model = tiny(name, stochastic_depth=0.9999)
  _, state = apply(model, params, images, seed=0, mutable=('intermediates',))
  tokens = state['intermediates']['tokens']
  np.testing.assert_array_equal(tokens[2], tokens[1])
  assert not np.allclose(tokens[0], tokens[1])
  plain, plain_state = apply(
    tiny(name), params, images, mutable=('intermediates',)
  )
  np.testing.assert_allclose(
    tokens[0], plain_state['intermediates']['tokens'][0], rtol=1e-5, atol=1e-6
  )
  assert np.isfinite(plain).all()


@pytest.mark.parametrize('scan', [False, True])
def test_uniform_stochastic_depth_skips_all_layers(scan):
  params, images = example()
  if scan:
    params = layouts.stack_layers(params)
  model = tiny(
    stochastic_depth=0.9999,
    block='block(stochastic_depth_uniform=True)',
    scan=scan,
  )
  _, state = apply(model, params, images, seed=0, mutable=('intermediates',))
  tokens = state['intermediates']['tokens']
  for layer in tokens[1:]:
    np.testing.assert_array_equal(layer, tokens[0])


def test_the_head_starts_with_its_bias():
  for name in ('ViT-Ti/4', 'Mixer-S/4'):
    model = vit_jax.create_model(
      name, num_classes=3, depth=1, head='linear(bias=-6.9)'
    )
    shapes = models.init_params(model, jax.random.key(0), (8, 8, 3))
    np.testing.assert_allclose(shapes['head']['bias'], -6.9, rtol=1e-6)


GELU = {'mlp': "mlp(gelu='exact')"}
LIBRARIES = {
  'timm': GELU,
  'Hugging Face': GELU | {'layer_norm_epsilon': 1e-12},
  'as it is': {},
}


@pytest.mark.parametrize(
  ('library', 'name', 'model'),
  case_files.read(pathlib.Path(__file__).with_name('names.txt')),
)
def test_names_of_timm_and_hugging_face(library, name, model):
  our_name, _, fields = model.partition('; ')
  fields = LIBRARIES[library] | mistakes.changes(fields)
  expected = models.create_model(our_name, 7, **fields)
  assert models.create_model(name, 7) == expected
  config = config_lib.default().model
  config.name, config.dropout_rate = name, 0.5
  if hasattr(expected, 'dropout_rate'):
    expected = describing.with_keys(expected, dropout_rate=0.5)
  else:
    config.dropout_rate = None
  assert models.from_config(config, 7) == expected


@pytest.mark.parametrize('name', SIZES)
def test_image_must_be_a_multiple_of_the_patch(name):
  params, images = example(name)
  with pytest.raises(ValueError, match='not a multiple of the patch'):
    apply(tiny(name), params, images[:, :7])


@pytest.mark.slow
@pytest.mark.parametrize('pool', registry.PARTS['pool'])
def test_trunk_gives_tokens_and_what_the_head_reads(pool):
  model = tiny(pool=pool, depth=1, registers=2)
  images = example()[1]
  params = models.init_params(model, jax.random.key(0), images.shape[1:])
  outputs = compiled.apply(model, {'params': params}, images, method='trunk')
  prefix = model.prefix_length
  assert outputs['tokens'].shape == (6, prefix + 8, 32)
  reads = {'token': outputs['tokens'][:, 0]}
  reads['mean'] = outputs['tokens'][:, prefix:].mean(axis=1)
  reads['token_and_mean'] = jnp.concatenate(list(reads.values()), axis=1)
  if pool in reads:
    np.testing.assert_allclose(outputs['features'], reads[pool], atol=1e-6)
  logits = nn.Dense(5).apply({'params': params['head']}, outputs['features'])
  np.testing.assert_allclose(
    logits, apply(model, params, images), rtol=1e-4, atol=1e-5
  )


@pytest.mark.parametrize('scan', [False, True])
@pytest.mark.parametrize(('pool', 'count'), [('token', 1), ('mean', 9)])
def test_the_last_norm_reads_only_what_the_pool_reads(pool, count, scan):
  model = tiny(pool=pool, class_token=True, scan=scan)
  params, images = example()
  params = layouts.stack_layers(params) if scan else params
  read = functools.partial(model.apply, method='trunk', features_only=True)
  shapes = jax.eval_shape(read, {'params': params}, images)
  assert shapes['tokens'].shape == (6, count, 32)


def test_a_trunk_stands_without_its_head():
  params, images = example()
  model = tiny()
  trunk_params = compiled.init(
    model, jax.random.key(0), images, method='trunk'
  )['params']
  assert trunk_params.keys() == params.keys() - {'head'}
  actual = compiled.apply(
    model, {'params': trunk_params}, images, method='trunk'
  )
  logits = compiled.apply(
    model, {'params': params | trunk_params}, images, method='trunk'
  )
  jax.tree.map(np.testing.assert_array_equal, actual, logits)
