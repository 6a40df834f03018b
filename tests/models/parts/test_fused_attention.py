"""The attention kernel of TPUs, interpreted on this CPU."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vit_jax
from vit_jax import models
from vit_jax.models import describing
from vit_jax.models.parts import fused_attention
from vit_jax.models.parts import rotary

# Tokens, hidden size, heads: of 64 channels as in most ViTs; of 80, which are
# no divisor of a register's lanes, as in ViT-H; and of 256.
SHAPES = [(17, 128, 2), (5, 384, 6), (10, 640, 8), (33, 256, 1)]


def plain(qkv, num_heads):
  """The softmax attention of a tutorial, in the type of `qkv`."""
  query, key, value = (
    qkv[:, :, i].reshape(*qkv.shape[:2], num_heads, -1) for i in range(3)
  )
  scores = jnp.einsum('bqhk,bthk->bhqt', query, key) * query.shape[-1] ** -0.5
  y = jnp.einsum('bhqt,bthk->bqhk', jax.nn.softmax(scores), value)
  return y.reshape(*qkv.shape[:2], -1)


@functools.partial(jax.jit, static_argnums=(0, 2))
def values_and_gradients(attend, qkv, num_heads, grad):
  """Returns the output and the gradient for qkv."""
  y, pull_back = jax.vjp(lambda x: attend(x, num_heads), qkv)
  return y, *pull_back(grad)


def example(tokens, hidden_size, dtype):
  keys = jax.random.split(jax.random.key(tokens))
  qkv = 2 * jax.random.normal(keys[0], (2, tokens, 3, hidden_size))
  grad = jax.random.normal(keys[1], (2, tokens, hidden_size))
  return qkv.astype(dtype), grad.astype(dtype)


@pytest.mark.parametrize(('tokens', 'hidden_size', 'num_heads'), SHAPES)
def test_is_softmax_attention(tokens, hidden_size, num_heads):
  qkv, grad = example(tokens, hidden_size, jnp.float32)
  shape = (2, tokens, hidden_size)
  assert fused_attention.fits(shape, num_heads, jnp.float32)
  actual = values_and_gradients(
    fused_attention.fused_attention, qkv, num_heads, grad
  )
  for x, expected in zip(
    actual, values_and_gradients(plain, qkv, num_heads, grad), strict=True
  ):
    np.testing.assert_allclose(x, expected, atol=1e-5 * abs(expected).max())


@pytest.mark.parametrize(('tokens', 'hidden_size', 'num_heads'), SHAPES)
def test_bfloat16_is_as_exact_as_the_plain_formulation(
  tokens, hidden_size, num_heads
):
  """Root mean square errors of outputs and gradients."""
  qkv, grad = example(tokens, hidden_size, jnp.bfloat16)
  with jax.enable_x64():
    exact = values_and_gradients(
      plain, qkv.astype(jnp.float64), num_heads, grad.astype(jnp.float64)
    )
    exact = [np.asarray(x) for x in exact]
  errors = [
    [
      np.sqrt(np.mean((np.asarray(x, np.float64) - y) ** 2))
      for x, y in zip(
        values_and_gradients(f, qkv, num_heads, grad), exact, strict=True
      )
    ]
    for f in (fused_attention.fused_attention, plain)
  ]
  assert errors[0][0] <= errors[1][0]
  assert errors[0][1] <= errors[1][1]


@pytest.mark.parametrize(
  'fields',
  [
    {},
    {'hidden_size': 640, 'num_heads': 8},  # heads that share registers unevenly
    {'norm': 'rms_norm', 'positions': 'learned + rope'},
    {'block': "lora(2, layers=('query', 'value', 'out'))"},
    {
      'positions': "learned + rope(kind='rope_vit_mixed')"
    },  # outside the kernel
  ],
)
def test_a_model_of_kernels_is_the_same_function(fields):
  """With norms of queries and keys; the last layer reads one token."""
  assert_same_function({'attention': 'attention(qk_norm=True)', **fields})


@pytest.mark.parametrize(
  'fields',
  [
    {'positions': 'rope'},
    {'hidden_size': 384, 'num_heads': 12},
    {'hidden_size': 512, 'num_heads': 2, 'positions': 'rope'},
  ],
)
def test_a_loop_over_registers_is_the_same_function(fields, monkeypatch):
  """As long sequences have it; a register holds two heads, four, or a half."""
  monkeypatch.setattr(fused_attention, '_LONG', 4)
  fields = {'hidden_size': 256, 'num_heads': 4, **fields}
  assert_same_function({'attention': 'attention(qk_norm=True)', **fields})


def mesh_of_one():
  """Without a mesh in the context, several devices get no kernel."""
  auto = (jax.sharding.AxisType.Auto,)
  return jax.make_mesh((1,), ('data',), auto, devices=jax.devices()[:1])


def assert_same_function(fields):
  """Compares the loss and its gradient with a plain formulation's."""
  fields = {'hidden_size': 128, 'num_heads': 2, 'depth': 2, **fields}
  model = vit_jax.create_model('ViT-Ti/4', 5, **fields)
  images = jax.random.normal(jax.random.key(0), (2, 8, 12, 3))
  params = models.init_params(model, jax.random.key(1), images.shape[1:])
  # No scale or bias is 1 or 0, as it would be at the start.
  keys = iter(jax.random.split(jax.random.key(2), 200))
  params = jax.tree.map(
    lambda x: x + 0.1 * jax.random.normal(next(keys), x.shape), params
  )

  @functools.partial(jax.jit, static_argnums=1)
  @jax.value_and_grad
  def grads(params, model):
    return (model.apply({'params': params}, images) ** 2).sum()

  rotates = 'rope' in describing.key_values(model)['positions']
  fused = models.with_kernel(model, 'fused')
  with jax.set_mesh(mesh_of_one()):
    assert 'pallas_call' in str(jax.make_jaxpr(grads, 1)(params, fused))
    loss, actual = grads(params, fused)
  expected_loss, expected = grads(params, model)
  np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
  for layer in ('blocks_0', 'blocks_1'):
    # Without rotation softmax does not depend on a bias of keys.
    of_keys = actual[layer]['attention'].get('key_norm', {})
    if 'bias' in of_keys and not rotates:
      np.testing.assert_allclose(of_keys.pop('bias'), 0, atol=1e-5)
      expected[layer]['attention']['key_norm'].pop('bias')
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5 * abs(b).max()),
    actual,
    expected,
  )


@pytest.mark.parametrize('kind', ['dinov3', 'eva02'])
@pytest.mark.parametrize(('tokens', 'hidden_size', 'num_heads'), SHAPES)
def test_rotates_queries_and_keys(tokens, hidden_size, num_heads, kind):
  """As outside the kernel; the first token stays as it is."""
  qkv, grad = example(tokens, hidden_size, jnp.float32)
  size = hidden_size // num_heads
  tables = rotary.table(kind, (tokens - 1, 1), size, 100.0)
  rotation = rotary.Rotation(
    *rotary.token_tables(*tables, prefix=1, kept_patches=None),
    rotary.KINDS[kind].halves,
  )
  shape = (2, tokens, hidden_size)
  turn = fused_attention.make_turn(rotation, None, shape, jnp.float32)
  assert turn is not None

  def inside(qkv, num_heads):
    return fused_attention.fused_attention(qkv, num_heads, turn)

  def outside(qkv, num_heads):
    parts = [qkv[:, :, i].reshape(2, tokens, num_heads, -1) for i in range(3)]
    parts[:2] = (rotation(x, None) for x in parts[:2])
    return plain(jnp.stack([x.reshape(shape) for x in parts], 2), num_heads)

  actual = values_and_gradients(inside, qkv, num_heads, grad)
  expected = values_and_gradients(outside, qkv, num_heads, grad)
  for x, y in zip(actual, expected, strict=True):
    np.testing.assert_allclose(x, y, atol=1e-5 * abs(y).max())


@pytest.mark.parametrize(
  'kind', ['dinov3', 'eva02', 'rope_vit', 'rope_vit_mixed']
)
def test_a_rotated_model_of_kernels_is_the_same_function(kind):
  assert_same_function({'positions': f"rope(kind='{kind}')", 'registers': 2})


@pytest.mark.parametrize(
  ('kind', 'normalizes'), [('dinov3', True), ('eva02', False)]
)
def test_derivatives_of_all_kinds(kind, normalizes):
  """Forward mode, second order in each order of modes, and of examples."""
  tokens, size = 5, 64
  qkv, grad = example(tokens, 2 * size, jnp.float32)
  tangent = jnp.flip(qkv, 1)
  shape = (2, tokens, 2 * size)
  tables = rotary.table(kind, (tokens, 1), size, 100.0)
  rotation = rotary.Rotation(*tables, rotary.KINDS[kind].halves)
  turn = fused_attention.make_turn(rotation, None, shape, jnp.float32)
  scales = 1 + jax.random.normal(jax.random.key(0), (2, 2, size))

  def plainly(qkv, scales):
    parts = [qkv[:, :, i].reshape(2, tokens, 2, size) for i in range(3)]
    for i in range(2):
      if normalizes:
        parts[i] -= parts[i].mean(-1, keepdims=True)
        parts[i] /= jnp.sqrt((parts[i] ** 2).mean(-1, keepdims=True) + 1e-6)
        parts[i] = parts[i] * scales[i, 0] + scales[i, 1]
      parts[i] = rotation(parts[i], None)
    return plain(jnp.stack([x.reshape(shape) for x in parts], 2), 2)

  def kernel(qkv, scales):
    norms = fused_attention.Norms(scales, 1e-6, True) if normalizes else None
    return fused_attention.fused_attention(qkv, 2, turn, norms)

  def derivatives(attend):
    primals, tangents = (qkv, scales), (tangent, scales)

    def loss(*primals):
      return (grad * attend(*primals)).sum()

    def slope(*primals):
      return jax.jvp(loss, primals, tangents)[1]

    def steepness(*primals):
      grads = jax.grad(loss, (0, 1))(*primals)
      return sum((x**2).sum() for x in grads)

    @jax.jit
    def compute():
      return {
        'forward': jax.jvp(attend, primals, tangents),
        'reverse of forward': jax.grad(slope, (0, 1))(*primals),
        'forward of reverse': jax.jvp(
          jax.grad(loss, (0, 1)), primals, tangents
        ),
        'reverse of reverse': jax.grad(steepness, (0, 1))(*primals),
        'forward of forward': jax.jvp(slope, primals, tangents),
        'of several': jax.vmap(jax.grad(loss, (0, 1)))(
          jnp.stack([qkv, tangent]), jnp.stack([scales, 2 * scales])
        ),
        'several tangents': jax.vmap(
          lambda x: jax.jvp(attend, primals, (x, scales))[1]
        )(jnp.stack([qkv, tangent])),
      }

    return compute()

  actual, expected = derivatives(kernel), derivatives(plainly)
  for name, tree in expected.items():
    for x, y in zip(
      jax.tree.leaves(actual[name]), jax.tree.leaves(tree), strict=True
    ):
      scale = max(abs(y).max(), 1e-3)
      np.testing.assert_allclose(x, y, atol=3e-5 * scale, err_msg=name)


def test_shapes_that_do_not_fit():
  half, single = jnp.bfloat16, jnp.float32
  assert fused_attention.fits((8, 257, 1280), 16, half)  # ViT-H/14
  assert not fused_attention.fits((8, 257, 1280), 16, single)
  assert not fused_attention.fits((8, 197, 192), 3, half)  # ViT-Ti/16
  assert not fused_attention.fits((8, 577, 768), 12, half)  # 384 pixels
  # Nor can a loop go over heads of 80 channels, on any chip.
  assert not fused_attention.fits((8, 577, 1280), 16, half)
