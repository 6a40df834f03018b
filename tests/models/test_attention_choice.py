"""Which attention a layer takes on a platform; what it cannot do, it avoids."""

import contextlib
import types

from absl import logging
import jax
import jax.numpy as jnp
import pytest

from vit_jax import models
from vit_jax.models import attention
from vit_jax.models import context as context_lib
from vit_jax.models.parts import fused_attention
from vit_jax.models.parts import kernels

FIELDS = {'hidden_size': 128, 'num_heads': 2, 'mlp_dim': 32, 'depth': 2}
KERNEL = 'tpu_custom_call'


class Device(types.SimpleNamespace):
  """A device that is made up."""

  __hash__ = object.__hash__


def tpu(kind, count=1):
  """Puts a mesh of TPUs in the context."""
  device = jax.sharding.AbstractDevice(kind, 1, 'tpu')
  mesh = jax.sharding.AbstractMesh(
    (count,),
    ('data',),
    (jax.sharding.AxisType.Auto,),
    abstract_device=device,
  )
  return jax.sharding.use_abstract_mesh(mesh)


def trace(batch_size=2, implementation='auto', **fields):
  """Traces the gradient of a model for the platform of `default_backend`."""
  model = models.create_model('ViT-Ti/4', 5, **FIELDS | fields)
  model = models.with_kernel(model, implementation)
  params = models.abstract_params(model, (8, 8, 3))
  images = jax.ShapeDtypeStruct((batch_size, 8, 8, 3), jnp.float32)

  def loss(params, images):
    return (model.apply({'params': params}, images) ** 2).sum()

  return jax.jit(jax.grad(loss)).trace(params, images)


def has_kernel(traced):
  """Whether a program that can be lowered for TPUs has the kernel."""
  return KERNEL in traced.lower(lowering_platforms=('tpu',)).as_text()


@pytest.fixture
def on(monkeypatch):
  """Sets the platform, and devices that JAX sees."""

  def set_platform(platform, **device):
    monkeypatch.setattr(jax, 'default_backend', lambda: platform)
    if device:
      device = Device(platform=platform, **device)
      monkeypatch.setattr(jax, 'devices', lambda: [device])

  return set_platform


@pytest.mark.parametrize('implementation', ['auto', 'fused'])
@pytest.mark.parametrize(
  ('kind', 'fields', 'precision', 'expected'),
  [
    ('TPU v4', {}, None, True),
    ('TPU v5 lite', {'dtype': jnp.bfloat16}, None, True),
    ('TPU v6 lite', {'dtype': jnp.bfloat16}, 'default', True),
    ('TPU v5', {'attention': 'attention(qk_norm=True)'}, 'bfloat16', True),
    ('TPU v2', {}, None, False),
    ('TPU v3', {'dtype': jnp.bfloat16}, None, False),
    ('TPU v5', {'dtype': jnp.float16}, None, False),
    ('TPU v5', {}, 'high', False),
    ('TPU v5', {}, 'highest', False),
    ('TPU v5', {'dtype': jnp.bfloat16}, 'tensorfloat32', False),
    ('TPU v5', {}, 'F32_F32_F32', False),
    ('TPU v5', {'batch_size': 0}, None, False),
    ('TPU v5', {'hidden_size': 96}, None, False),  # not whole registers
  ],
)
def test_tpus_get_what_works(
  implementation, kind, fields, precision, expected, on
):
  on('tpu')
  matmul = jax.default_matmul_precision(precision)
  with tpu(kind), matmul if precision else contextlib.nullcontext():
    assert (
      has_kernel(trace(implementation=implementation, **fields)) == expected
    )


@pytest.mark.parametrize(
  ('kind', 'tokens', 'expected'),
  [
    ('TPU v4', 197, True),
    ('TPU v4', 577, False),
    ('TPU v5 lite', 577, True),
    ('TPU7x', 577, True),
    ('TPU v4', 1025, False),
    ('TPU v5 lite', 1025, True),
    ('TPU v5', 1025, True),
    ('TPU v5', 1369, False),
    ('TPU v6 lite', 1369, True),
    ('TPU v6 lite', 2049, False),
  ],
)
def test_more_tokens_fit_where_a_chip_has_more_memory(
  kind, tokens, expected, on
):
  on('tpu')
  layer = attention.Attention(12, dtype=jnp.bfloat16)
  context = context_lib.Context()
  x = jax.ShapeDtypeStruct((2, tokens, 768), jnp.bfloat16)
  with tpu(kind):
    variables = jax.eval_shape(
      lambda key, x: layer.init(key, x, context), jax.random.key(0), x
    )
    traced = jax.jit(
      lambda variables, x: layer.apply(variables, x, context)
    ).trace(variables, x)
    assert has_kernel(traced) == expected


@pytest.mark.parametrize(
  ('platform', 'device', 'expected'),
  [
    ('gpu', {'compute_capability': '9.0'}, 'cudnn'),
    ('gpu', {'compute_capability': '12.1'}, 'cudnn'),
    ('gpu', {'compute_capability': '7.5'}, 'einsum'),
    ('gpu', {'compute_capability': 'gfx942'}, 'einsum'),  # ROCm
    ('gpu', {}, 'einsum'),
    ('METAL', {}, 'einsum'),
    ('xpu', {}, 'einsum'),
  ],
)
@pytest.mark.parametrize('implementation', ['auto', 'cudnn'])
def test_gpus_get_what_works(
  platform, device, expected, implementation, on, monkeypatch
):
  attend, kernels_taken = jax.nn.dot_product_attention, []

  def recording(*args, implementation, **kwargs):
    kernels_taken.append(implementation)
    return attend(*args, **kwargs)

  monkeypatch.setattr(jax.nn, 'dot_product_attention', recording)
  on(platform, device_kind='', **device)
  if platform != 'gpu' and implementation == 'cudnn':
    pytest.skip('only who asks for cuDNN gets it there')
  trace(implementation=implementation, dtype=jnp.bfloat16)
  assert ('cudnn' in kernels_taken) == (expected == 'cudnn')


def test_auto_says_in_the_log_what_it_takes(on, monkeypatch):
  lines = []
  monkeypatch.setattr(
    logging, 'info', lambda text, *args: lines.append(text % args)
  )
  kernels.log_choice.cache_clear()
  on('tpu')
  with tpu('TPU v5 lite'):
    trace()
    trace(dtype=jnp.float16)
    trace()
  trace()
  text = '\n'.join(lines)
  assert "'fused'" in text
  assert 'float16' in text
  assert 'jax.set_mesh' in text
  assert len(lines) == len(set(lines))


@pytest.mark.parametrize('implementation', ['auto', 'fused'])
@pytest.mark.parametrize('compiles', [True, False])
def test_a_kernel_that_does_not_compile_is_not_taken(
  implementation, compiles, on, monkeypatch
):
  """No compiler has a device that is made up; the log has its first line."""
  lines = []
  monkeypatch.setattr(
    logging, 'info', lambda text, *args: lines.append(text % args)
  )
  for cached in (kernels.log_choice, fused_attention.compile_problem):
    cached.cache_clear()
  on('tpu', device_kind='TPU v5 lite')
  monkeypatch.setattr(jax, 'local_devices', jax.devices)
  if compiles:
    monkeypatch.setattr(fused_attention, '_compile', lambda *_: None)
  with tpu('TPU v5 lite'):
    traced = trace(
      implementation=implementation,
      attention='attention(qk_norm=True)',
      positions='rope',
    )
    assert has_kernel(traced) == compiles
  (line,) = [x for x in lines if 'attention on tpu' in x and 'first' not in x]
  expected = "'fused'" if compiles else 'the compiler refuses it: '
  assert expected in line
  fused_attention.compile_problem.cache_clear()


def softmax_types(implementation):
  """Types of the exponentials in a layer that computes in bfloat16."""
  traced = trace(implementation=implementation, dtype=jnp.bfloat16)
  actual = set()

  def visit(jaxpr):
    for equation in jaxpr.eqns:
      if equation.primitive.name == 'exp' and equation.outvars[0].aval.ndim > 1:
        actual.add(equation.outvars[0].aval.dtype.name)
      for value in jax.tree.leaves(equation.params):
        for inner in (value, getattr(value, 'jaxpr', None)):
          if hasattr(inner, 'eqns'):
            visit(inner)

  visit(traced.jaxpr.jaxpr)
  return actual


@pytest.mark.parametrize(
  ('implementation', 'expected'),
  [
    ('plain', {'float32'}),
    ('einsum', {'float32'}),
    ('xla', {'float32'}),
    ('fused', {'float32'}),
  ],
)
def test_the_softmax_has_the_type_that_is_documented(implementation, expected):
  """In the docstring of `Attention`."""
  with tpu('TPU v5 lite'):
    assert softmax_types(implementation) == expected


@pytest.mark.parametrize(
  ('kind', 'expected'),
  [('dinov3', (True, True)), ('rope_vit_mixed', (None, None))],
)
def test_the_kernel_that_is_tried_is_the_one_that_is_called(
  kind, expected, on, monkeypatch
):
  """It neither rotates nor normalises where it cannot rotate."""
  tried = []
  monkeypatch.setattr(
    fused_attention, 'compile_problem', lambda *args: tried.append(args) or ''
  )
  on('tpu', device_kind='TPU v5 lite')
  monkeypatch.setattr(jax, 'local_devices', jax.devices)
  with tpu('TPU v5 lite'):
    traced = trace(
      attention='attention(qk_norm=True)', positions=f"rope(kind='{kind}')"
    )
    assert has_kernel(traced)
  assert {(x.rotates_halves, x.centers) for x, _ in tried} == {expected}
