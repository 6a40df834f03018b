"""The functions that BiT and the hybrids' stem compute, against NumPy."""

import functools

import compiled
from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.models import resnet


def tiny_bit(**overrides):
  fields = {
    'num_classes': 5,
    'stages': (2, 1),
    'stem_width': 8,
    'channels': (32, 48),
    'num_groups': 4,
    'initializers': 'lecun',  # a head of zeros would make all models equal
  }
  return resnet.BiT(**(fields | overrides))


def tiny_stem(**overrides):
  return resnet.ResNetStem(**({'stages': (2, 1), 'width': 32} | overrides))


@functools.cache
def example(model):
  """Parameters, all of them random, and images of odd height and width."""
  random = np.random.default_rng(0)
  images = random.normal(size=(2, 37, 22, 3)).astype(np.float32)
  params = jax.eval_shape(model.init, jax.random.key(0), images)['params']
  # Filters with a mean and a small variance.
  params = jax.tree.map(
    lambda x: random.normal(0.3, 0.1, x.shape).astype(np.float32), params
  )
  return params, images


@functools.partial(jax.jit, static_argnums=0)
def init(model, images):
  return compiled.init(model, jax.random.key(0), images)['params']


@functools.partial(jax.jit, static_argnums=0)
def apply(model, params, images):
  return compiled.apply(model, {'params': params}, images)


@functools.partial(jax.jit, static_argnums=0)
@functools.partial(jax.grad, argnums=1)
def gradient(model, params, images, weights):
  return (apply(model, params, images) * weights).sum()


class Reference:
  """The same formulas in float64, plainly written."""

  def __init__(self, *, same, groups, epsilon, standard):
    self.same = same
    self.groups = groups
    self.epsilon = epsilon
    self.standard = standard  # deviation of a filter from its variance

  def windows(self, x, k, stride, fill):
    """Returns [B, h, w, C, k, k]."""
    sides = []
    for n in x.shape[1:3]:
      total = max((-(-n // stride) - 1) * stride + k - n, 0)
      sides.append(
        (total // 2, total - total // 2) if self.same else (k // 2,) * 2
      )
    x = np.pad(x, ((0, 0), *sides, (0, 0)), constant_values=fill)
    x = np.lib.stride_tricks.sliding_window_view(x, (k, k), axis=(1, 2))
    return x[:, ::stride, ::stride]

  def conv(self, x, params, stride=1):
    kernel = params['kernel']
    filters = kernel.reshape(-1, kernel.shape[-1])
    filters = filters - filters.mean(0)
    filters = filters / self.standard((filters**2).mean(0))
    windows = self.windows(x, len(kernel), stride, 0)
    return np.einsum(
      'bhwcij,ijcf->bhwf', windows, filters.reshape(kernel.shape)
    )

  def norm(self, x, params):
    b, *_, c = x.shape
    grouped = x.reshape(b, -1, self.groups, c // self.groups)
    mean = grouped.mean((1, 3), keepdims=True)
    variance = grouped.var((1, 3), keepdims=True)
    y = ((grouped - mean) / np.sqrt(variance + self.epsilon)).reshape(x.shape)
    return y * params['scale'] + params['bias']

  def pool(self, x, fill):
    return self.windows(x, 3, 2, fill).max((-1, -2))


def relu(x):
  return np.maximum(x, 0)


def float64(tree):
  return jax.tree.map(lambda x: np.asarray(x, np.float64), tree)


def units(params):
  """Yields the units of two stages in order, and their strides."""
  for stage in (1, 2):
    for unit, p in sorted(params[f'stage{stage}'].items()):
      yield p, 2 if (stage, unit) == (2, 'unit1') else 1


def expected_stem(params, images):
  def standard(variance):
    return np.sqrt(variance) + 1e-5

  r = Reference(same=True, groups=32, epsilon=1e-6, standard=standard)
  params = float64(params)
  x = r.conv(float64(images), params['conv'], 2)
  x = r.pool(relu(r.norm(x, params['norm'])), -np.inf)
  for p, stride in units(params):
    y = relu(r.norm(r.conv(x, p['conv1']), p['norm1']))
    y = relu(r.norm(r.conv(y, p['conv2'], stride), p['norm2']))
    y = r.norm(r.conv(y, p['conv3']), p['norm3'])
    if 'conv_proj' in p:
      x = r.norm(r.conv(x, p['conv_proj'], stride), p['norm_proj'])
    x = relu(x + y)
  return x


def expected_bit(params, images, fill):
  def standard(variance):
    return np.sqrt(variance + 1e-8)

  r = Reference(same=False, groups=4, epsilon=1e-5, standard=standard)
  params = float64(params)
  x = r.pool(r.conv(float64(images), params['stem']['conv'], 2), fill)
  for p, stride in units(params):
    y = relu(r.norm(x, p['norm1']))
    if 'conv_proj' in p:
      x = r.conv(y, p['conv_proj'], stride)
    y = relu(r.norm(r.conv(y, p['conv1']), p['norm2']))
    y = relu(r.norm(r.conv(y, p['conv2'], stride), p['norm3']))
    x = x + r.conv(y, p['conv3'])
  return relu(r.norm(x, params['norm'])).mean((1, 2))


@pytest.mark.parametrize('height', [36, 37])
def test_stem_equals_a_formulation_in_numpy(height):
  model = tiny_stem()
  params, images = example(model)
  actual = apply(model, params, images[:, :height])
  assert actual.shape == (2, 5, 3, 256)
  expected = expected_stem(params, images[:, :height])
  np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-4)


def test_stem_alone():
  model = tiny_stem(stages=())
  params, images = example(model)
  assert set(params) == {'conv', 'norm'}
  assert apply(model, params, images).shape == (2, 10, 6, 32)


@pytest.mark.parametrize(
  ('height', 'zeros', 'fill'), [(36, True, 0), (37, False, -np.inf)]
)
def test_bit_equals_a_formulation_in_numpy(height, zeros, fill):
  model = tiny_bit(zero_padded_pool=zeros)
  params, images = example(model)
  images = images[:, :height]
  features = expected_bit(params, images, fill)
  head = float64(params['head'])
  np.testing.assert_allclose(
    apply(model, params, images),
    features @ head['kernel'] + head['bias'],
    rtol=1e-3,
    atol=1e-4,
  )
  actual = apply(model.clone(num_classes=0), params, images)
  np.testing.assert_allclose(actual, features, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize('model', [tiny_bit(), tiny_stem()])
def test_bfloat16_computes_with_float32_parameters(model):
  params, images = example(model)
  half = model.clone(dtype=jnp.bfloat16)
  fresh = jax.eval_shape(half.init, jax.random.key(0), images)
  assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(fresh))
  exact = apply(model, params, images)
  actual = apply(half, params, images)
  is_bit = isinstance(model, resnet.BiT)
  assert actual.dtype == (jnp.float32 if is_bit else jnp.bfloat16)
  assert abs(actual - exact).max() < 0.05 * abs(exact).max()


@pytest.mark.parametrize('model', [tiny_bit(), tiny_stem()])
def test_all_parameters_are_learned(model):
  params, images = example(model)
  random = np.random.default_rng(1)
  weights = random.normal(size=apply(model, params, images).shape)
  grads = gradient(model, params, images, weights)
  for grad in jax.tree.leaves(grads):
    assert np.isfinite(grad).all() and abs(grad).max() > 1e-4


@pytest.mark.parametrize('epsilons', [(1e-5, 1e-20), (0.0, 1e-8)])
def test_constant_filters_have_a_finite_gradient(epsilons):
  epsilon, variance_epsilon = epsilons
  conv = resnet.StdConv(
    4, (3, 3), epsilon=epsilon, variance_epsilon=variance_epsilon
  )
  params = {'kernel': jnp.full((3, 3, 3, 4), 0.5)}
  grads = gradient(conv, params, example(tiny_bit())[1], 1.0)
  assert np.isfinite(grads['kernel']).all()


def test_scale_and_mean_of_filters_do_not_matter():
  conv = resnet.StdConv(4, (3, 3))
  images = example(tiny_bit())[1]
  params = init(conv, images)
  shifted = jax.tree.map(lambda x: 3 * x + 1, params)
  np.testing.assert_allclose(
    apply(conv, params, images), apply(conv, shifted, images), atol=1e-4
  )


def test_a_fresh_unit_of_the_stem_is_its_shortcut():
  norm = functools.partial(nn.GroupNorm, 4)
  unit = resnet.PostActivationUnit(16, 1, False, resnet.StdConv, norm)
  x = np.random.default_rng(0).normal(size=(1, 4, 4, 16)).astype(np.float32)
  np.testing.assert_array_equal(apply(unit, init(unit, x), x), relu(x))


def test_a_fresh_head_is_zero():
  model = tiny_bit(stages=(), channels=(), initializers='vit')
  _, images = example(model)
  params = init(model, images)
  assert not params['head']['kernel'].any()
  assert not apply(model, params, images).any()


def test_trunk_gives_a_grid_and_what_the_head_reads():
  model = tiny_bit()
  params, images = example(model)
  outputs = compiled.apply(model, {'params': params}, images, method='trunk')
  assert outputs['tokens'].shape == (2, 5 * 3, 48)
  headless = {name: x for name, x in params.items() if name != 'head'}
  features = apply(tiny_bit(num_classes=0), headless, images)
  np.testing.assert_allclose(
    outputs['features'], features, rtol=1e-4, atol=1e-5
  )
