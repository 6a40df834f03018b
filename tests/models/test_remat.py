"""What the backward pass keeps, and in which order GPUs store it."""

import jax
import jax.numpy as jnp
import pytest

from vit_jax.models import dropout
from vit_jax.models import mlp as mlp_lib
from vit_jax.models import spec as spec_lib

FIELDS = {'hidden_size': 32, 'mlp_dim': 48, 'num_heads': 4, 'depth': 1}


@pytest.mark.parametrize('implementation', ['cudnn', 'plain'])
def test_gpus_keep_the_order_of_tokens(implementation):
  """The constraint is in the program, and in that of the gradient."""
  spec = spec_lib.EncoderSpec(**FIELDS, attention_implementation=implementation)

  def loss(x):
    return (spec.row_major(x) ** 2).sum()

  text = jax.jit(jax.grad(loss)).lower(jnp.ones((2, 3, 4))).as_text()
  count = text.count('@LayoutConstraint')
  assert (count >= 2) == (implementation == 'cudnn')
  assert 'dense<[2, 1, 0]>' in text or not count


def test_remat_of_activations_keeps_their_arguments_and_results(capsys):
  """And nothing else that is as wide as the MLP."""
  for remat in ('none', 'activations'):
    spec = spec_lib.EncoderSpec(**FIELDS, remat=remat, dropout_rate=0.1)
    mlp = mlp_lib.Mlp(spec, spec.mlp_dim)
    x = jnp.ones((2, 5, 32))
    params = mlp.init(jax.random.key(0), x, None)
    key = dropout.DropoutKey(jax.random.key(1), jnp.arange(2))

    def loss(params, x, mlp=mlp, key=key):
      return (mlp.apply(params, x, key) ** 2).sum()

    jax.ad_checkpoint.print_saved_residuals(loss, params, x)
    kept = capsys.readouterr().out.count('f32[2,5,48]')
    assert kept == 2 if remat == 'activations' else kept > 3
