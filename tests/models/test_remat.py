"""What the backward pass keeps, and in which order GPUs store it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import models
from vit_jax.models import attention
from vit_jax.models import block
from vit_jax.models import context as context_lib
from vit_jax.models import dropout
from vit_jax.models.parts import kernels

FIELDS = {'hidden_size': 32, 'mlp_dim': 48, 'num_heads': 4, 'depth': 1}


@pytest.fixture
def any_version(monkeypatch):
  """The order is kept with the JAX of before 0.11, too."""
  monkeypatch.setattr(kernels, '_KEEPS_ORDER', True)


@pytest.mark.parametrize(
  ('platform', 'implementation', 'is_kept'),
  [
    ('gpu', 'auto', True),
    ('gpu', 'plain', False),  # as in exported programs
    ('cpu', 'auto', False),
    ('tpu', 'auto', False),
    ('cpu', 'cudnn', True),  # ahead of time, for a GPU
  ],
)
def test_gpus_keep_the_order_of_tokens(
  platform, implementation, is_kept, any_version, monkeypatch
):
  """The constraint is in the program, and in that of the gradient."""
  part = attention.Attention(4, implementation=implementation)

  def loss(x):
    return (kernels.row_major(x, part) ** 2).sum()

  with monkeypatch.context() as patch:
    patch.setattr(jax, 'default_backend', lambda: platform)
    traced = jax.jit(jax.grad(loss)).trace(jnp.ones((2, 3, 4)))
  text = traced.lower().as_text()
  count = text.count('@LayoutConstraint')
  assert (count >= 2) == is_kept
  assert 'dense<[2, 1, 0]>' in text or not count


@pytest.mark.parametrize('version', ['any', 'installed'])
def test_each_layer_keeps_the_order(version, monkeypatch):
  """Both sums, forward and backward; devices do not gather each other's."""
  attend = jax.nn.dot_product_attention

  def attend_here(*args, implementation, **kwargs):
    assert implementation == 'cudnn'
    return attend(*args, **kwargs)

  monkeypatch.setattr(jax.nn, 'dot_product_attention', attend_here)
  if version == 'any':
    monkeypatch.setattr(kernels, '_KEEPS_ORDER', True)
  model = models.create_model(
    *('ViT-Ti/4', 5),
    **FIELDS | {'depth': 2},
    attention="attention(implementation='cudnn')",
  )
  images = jnp.ones((4, 8, 8, 3))
  params = models.init_params(model, jax.random.key(0), images.shape[1:])

  def loss(params, images):
    return (model.apply({'params': params}, images) ** 2).sum()

  mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ('data',))
  rows = jax.sharding.NamedSharding(mesh, jax.P('data'))
  lowered = jax.jit(jax.grad(loss)).lower(params, jax.device_put(images, rows))
  if version == 'any':
    # Two sums in each of two layers, and their gradients.
    assert lowered.as_text().count('@LayoutConstraint') >= 2 * 2 * 2
  else:
    assert 'all-gather' not in lowered.compile().as_text()


def test_remat_of_activations_keeps_their_arguments_and_results(capsys):
  """And nothing else that is as wide as the MLP."""
  for remat in ('none', 'activations'):
    mlp = block.Mlp(48, dropout_rate=0.1)
    x = jnp.ones((2, 5, 32))
    params = mlp.init(jax.random.key(0), x, context_lib.Context())
    key = dropout.DropoutKey(jax.random.key(1), jnp.arange(2))
    context = context_lib.Context(dropout_key=key, remat=remat)

    def loss(params, x, mlp=mlp, context=context):
      return (mlp.apply(params, x, context) ** 2).sum()

    jax.ad_checkpoint.print_saved_residuals(loss, params, x)
    count = capsys.readouterr().out.count('f32[2,5,48]')
    assert count == 2 if remat == 'activations' else count > 3
