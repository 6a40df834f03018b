"""Operations counted in jaxprs, against counts by hand."""

import functools

from flax import linen as nn
import jax
import jax.numpy as jnp
import pytest

from vit_jax import models
from vit_jax.train import flops


def shape(*sizes):
  return jax.ShapeDtypeStruct(sizes, jnp.float32)


def test_products():
  assert flops.count(jnp.matmul, shape(3, 4), shape(4, 5)) == 2 * 3 * 4 * 5
  batched = functools.partial(jnp.einsum, 'bij,bjk->bik')
  counts = flops.count(batched, shape(7, 3, 4), shape(7, 4, 5))
  assert counts == 2 * 7 * 3 * 4 * 5
  assert flops.count(jnp.add, shape(3), shape(3)) == 0


@pytest.mark.parametrize('stride', [1, 2, 3])
@pytest.mark.parametrize('groups', [1, 4])
def test_gradients_of_a_convolution_take_as_much_as_itself(stride, groups):
  conv = functools.partial(
    jax.lax.conv_general_dilated,
    window_strides=(stride, stride),
    padding=((1, 1), (0, 2)),
    dimension_numbers=('NHWC', 'HWIO', 'NHWC'),
    feature_group_count=groups,
  )
  images, kernel = shape(2, 10, 13, 8), shape(3, 3, 8 // groups, 12)
  forward = flops.count(conv, images, kernel)
  h, w = -(-10 // stride), -(-13 // stride)
  assert forward == 2 * (2 * h * w * 12) * (9 * 8 // groups)

  def loss(images, kernel):
    return (conv(images, kernel) ** 2).sum()

  by_kernel = jax.grad(loss, 1)
  assert flops.count(by_kernel, images, kernel) == 2 * forward
  # Of the inputs' gradient some products fall on one side of the image only.
  both = flops.count(jax.grad(loss, (0, 1)), images, kernel)
  assert both == pytest.approx(3 * forward, rel=0.1)


def test_what_is_not_needed_does_not_count():
  def fn(x, w):
    unused = x @ w @ w
    del unused
    return jnp.tanh(x @ w), x @ x.T

  traced = jax.make_jaxpr(fn)(shape(2, 4), shape(4, 4))
  one, other = 2 * 2 * 4 * 4, 2 * 2 * 2 * 4
  assert flops.count_jaxpr(traced) == one + other
  assert flops.count_jaxpr(traced, [False, True]) == other


def test_loops_and_branches():
  x, w = shape(2, 4), shape(4, 4)
  one = 2 * 2 * 4 * 4

  def scanned(x, w):
    return jax.lax.scan(lambda x, _: (x @ w, None), x, None, length=5)[0]

  def either(x, w):
    return jax.lax.cond(x[0, 0] > 0, lambda: x @ w, lambda: x @ w @ w)

  def until(x, w):
    return jax.lax.while_loop(lambda x: x[0, 0] > 0, lambda x: x @ w, x)

  assert flops.count(scanned, x, w) == 5 * one
  assert flops.count(either, x, w) == 2 * one
  assert flops.count(jax.jit(jax.checkpoint(jnp.matmul)), x, w) == one
  assert flops.count(jax.nn.relu, x) == 0  # a custom derivative
  with pytest.raises(ValueError, match="in 'while' cannot be counted"):
    flops.count(until, x, w)


def vit_loss(scan, remat='none', pool='mean'):
  model = models.create_model(
    'ViT-Ti/16',
    10,
    hidden_size=32,
    depth=4,
    num_heads=2,
    pool=pool,
    scan=scan,
    remat=remat,
  )
  params = models.abstract_params(model, (32, 32, 3))

  def loss(params, images):
    return model.apply({'params': params}, images).sum()

  return loss, params


def test_a_scanned_model_takes_as_much_as_unrolled():
  images = shape(2, 32, 32, 3)
  counts = []
  for scan in (False, True):
    loss, params = vit_loss(scan)
    forward = flops.count(loss, params, images)
    both = flops.count(jax.value_and_grad(loss), params, images)
    assert both == 3 * forward - 2 * 2 * 4 * 768 * 32  # no gradient of images
    counts.append((forward, both))
  assert counts[0] == counts[1]
  loss, _ = vit_loss(True, 'full')
  assert flops.count(jax.value_and_grad(loss), params, images) > both


def test_the_last_layer_computes_what_is_read():
  """Unrolled, 4 of 5 tokens have no query, nor what follows attention."""
  images = shape(2, 32, 32, 3)
  counts = []
  for scan in (False, True):
    loss, params = vit_loss(scan, pool='token')
    counts.append(flops.count(loss, params, images))
  d, mlp = 32, 768
  of_token = 2 * (2 * d * d + 2 * 5 * d + 2 * d * mlp)
  assert counts[1] - counts[0] == 2 * 4 * of_token


def test_modules_add_up():
  class Twice(nn.Module):
    @nn.compact
    def __call__(self, x):
      y = nn.Dense(8, name='up')(x)
      return nn.Dense(4, name='down')(y) @ jnp.ones((4, 4))

  class Outer(nn.Module):
    @nn.compact
    def __call__(self, x):
      return Twice(name='twice')(x), x

  x = shape(2, 4)
  params = jax.eval_shape(Outer().init, jax.random.key(0), x)
  counts = flops.by_module(Outer().apply, params, x)
  product = 2 * 2 * 4 * 8
  assert counts == {
    (): (0, (2, 4)),
    ('twice',): (2 * 2 * 4 * 4, (2, 4)),
    ('twice', 'up'): (product, (2, 8)),
    ('twice', 'down'): (product, (2, 4)),
  }
  assert list(counts) == [(), ('twice',), ('twice', 'up'), ('twice', 'down')]
