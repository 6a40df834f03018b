"""The attention kernel of TPUs on several devices, lowered but not compiled.

Lowering needs no TPU. It fails where a kernel has no mesh to be split by.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from vit_jax import models
from vit_jax.evaluation import loaded as loaded_lib
from vit_jax.train import experiment as experiment_lib

# 128 channels fill a register of the chip.
FIELDS = {
  'model__name': 'ViT-Ti/4',
  'model__hidden_size': 128,
  'model__depth': 2,
  'model__attention': "attention(implementation='fused')",
}
KERNEL = 'tpu_custom_call'


def lowered(jitted, *args):
  return jitted.trace(*args).lower(lowering_platforms=('tpu',)).as_text()


@pytest.fixture
def programs(monkeypatch):
  """Texts of what is compiled in a test by `jax.jit`, lowered for TPUs."""
  texts, jit = [], jax.jit

  def lowering(function, **options):
    jitted = jit(function, **options)

    def call(*args):
      texts.append(lowered(jitted, *args))
      return jitted(*args)

    return call

  monkeypatch.setattr(jax, 'jit', lowering)
  return texts


@functools.cache
def experiment(devices):
  return experiment_lib.build(tiny.config(**FIELDS, mesh__data=devices))


def logits(objective, params, batch):
  return objective.model.apply({'params': params}, batch['image'])


# On eight devices, four and one.
@pytest.mark.parametrize('batch_size', [8, 4, 3])
def test_commands_split_the_kernel(batch_size, programs):
  """As predict, evaluate and embed do, by batches and by other arrays."""
  e = experiment(1)
  config = e.config.copy_and_resolve_references()
  config.train.batch_size = batch_size
  params = jax.device_get(e.init().params)
  programs.clear()
  applied = loaded_lib.Applied(e.program.objective, params, config)
  batch = {
    name: np.zeros((batch_size, *x.shape[1:]), x.dtype)
    for name, x in e.program.abstract_batch(batch_size).items()
  }
  list(applied(logits, e.source.features, [(0, batch)]))
  inputs = {'image': np.zeros((batch_size, 8, 8, 1), np.float32)}
  applied.compute(logits, inputs)
  assert [KERNEL in text for text in programs] == [True, True]


@pytest.mark.parametrize('devices', [1, 8])
def test_a_run_splits_the_kernel(devices):
  """Training, evaluation, and what evaluators compute beside batches."""
  program = experiment(devices).program
  state, batch = program.abstract_state(), program.abstract_batch(16)
  inputs = {'image': jax.ShapeDtypeStruct((8, 8, 8, 1), jnp.float32)}
  texts = [
    lowered(program.train_step, state, program.abstract_batch(), np.int32(0)),
    lowered(program.eval_step(logits), state.params, batch),
    lowered(program.compute(logits), state.params, inputs),
  ]
  assert all(KERNEL in text for text in texts)


@pytest.mark.parametrize('implementation', ['auto', 'fused'])
@pytest.mark.parametrize('split', [True, False])
def test_own_programs_work_without_a_mesh(implementation, split, monkeypatch):
  """The compiler could not split the kernel if the batch is split."""
  monkeypatch.setattr(jax, 'default_backend', lambda: 'tpu')
  model = models.create_model(
    'ViT-Ti/4',
    5,
    hidden_size=128,
    num_heads=2,
    depth=2,
    attention=f"attention(implementation='{implementation}')",
  )
  mesh = jax.make_mesh(
    (8,), ('batch',), axis_types=(jax.sharding.AxisType.Auto,)
  )
  rows = jax.sharding.NamedSharding(mesh, jax.P('batch' if split else None))
  images = jax.ShapeDtypeStruct((8, 8, 8, 3), jnp.float32, sharding=rows)
  params = models.abstract_params(model, (8, 8, 3))

  def loss(params, images):
    return (model.apply({'params': params}, images) ** 2).sum()

  apply = jax.jit(jax.grad(loss))
  assert KERNEL not in lowered(apply, params, images)
  with jax.set_mesh(mesh):
    assert KERNEL in lowered(apply, params, images)

  @jax.jit
  @functools.partial(
    jax.shard_map,
    mesh=mesh,
    in_specs=(jax.P(), jax.P('batch')),
    out_specs=jax.P(),
    check_vma=False,
  )
  def own_shards(params, images):
    return jax.lax.psum(jax.grad(loss)(params, images), 'batch')

  assert KERNEL in lowered(own_shards, params, images)
