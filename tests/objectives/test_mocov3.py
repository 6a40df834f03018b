"""MoCo v3: runs, published files, and its configs against the paper."""

import functools

import jax
import jax.numpy as jnp
import methods
import numpy as np
import pytest

import vit_jax
from vit_jax.models import describing
from vit_jax.models import projection
from vit_jax.train import experiment as experiment_lib
from vit_jax.weights.files import containers

make_config = functools.partial(methods.config, 'mocov3')
finished = methods.finished('mocov3')


def test_the_patch_embedding_stays_and_the_momentum_encoder_moves():
  e = experiment_lib.build(make_config())
  first = jax.device_get(e.init())
  with e.train_batches(0) as batches:
    batch = next(batches)
    state, _ = e.program.train_step(e.init(), batch, np.int32(0))
    state, metrics = e.program.train_step(state, batch, np.int32(1))
  before, after = first.params['trunk'], jax.device_get(state.params['trunk'])
  moved = jax.device_get(state.extra['momentum']['trunk'])
  for key in ('kernel', 'bias'):
    initial = before['patch_embedding'][key]
    np.testing.assert_array_equal(after['patch_embedding'][key], initial)
    np.testing.assert_array_equal(moved['patch_embedding'][key], initial)
  online, momentum = after['class_token'], moved['class_token']
  assert (online != before['class_token']).any() and (online != momentum).any()
  assert int(state.extra['step']) == 2
  assert 0.5 < float(metrics['momentum']) < 1


def test_batch_norm_is_torchs():
  torch = pytest.importorskip('torch')
  x = np.random.default_rng(0).normal(2, 3, (6, 5)).astype(np.float32)
  reference, norm = torch.nn.BatchNorm1d(5), projection.BatchNorm()
  variables = norm.init(jax.random.key(0), jnp.asarray(x))
  for _ in range(2):
    expected = reference(torch.tensor(x)).detach().numpy()
    actual, moved = norm.apply(variables, x, train=True, mutable=['statistics'])
    variables = variables | moved
    np.testing.assert_allclose(actual, expected, atol=1e-5)
  reference.eval()
  expected = reference(torch.tensor(x)).detach().numpy()
  np.testing.assert_allclose(norm.apply(variables, x), expected, atol=1e-5)
  for name, statistic in (
    ('mean', reference.running_mean),
    ('var', reference.running_var),
  ):
    actual = variables['statistics'][name]
    np.testing.assert_allclose(actual, statistic.numpy(), rtol=1e-5)


def published(finished, path):
  """Writes a run as a file with the names of the authors' files."""
  from vit_jax.models import values
  from vit_jax.weights.formats import moco
  from vit_jax.weights.formats import tables
  from vit_jax.weights.formats import timm_vit

  e = experiment_lib.build(make_config(init_from__path=str(finished)))
  params = jax.device_get(e.init().params)
  model = describing.with_keys(e.program.objective.model, positions='learned')
  positions = {'position_embedding': np.zeros((1, 5, 16), np.float32)}
  trunk = params['trunk'] | positions
  arrays = {
    f'module.{prefix}_encoder.{name}': np.ascontiguousarray(x)
    for prefix in ('base', 'momentum')
    for name, x in tables.write(
      timm_vit.VIT.rules(values.model_values(model)), trunk
    )
  }
  foreign = e.program.objective.foreign('timm')
  heads = {k: params[k] for k in ('projector', 'predictor')}
  for name, x in tables.write(foreign.rules, heads):
    arrays[moco.stored(name)] = np.ascontiguousarray(x)
  for i in (1, 4, 7):  # what a file has beside the parameters
    name = f'module.base_encoder.head.{i}.num_batches_tracked'
    arrays[name] = np.ones(1, np.int64)
  containers.write_safetensors(path, arrays, {'format': 'pt'})
  return params


def test_files_of_the_authors_load(finished, tmp_path):
  path = tmp_path / 'moco.safetensors'
  params = published(finished, path)
  vit = vit_jax.load(path, num_heads=2)
  assert vit.model.num_classes == 0 and vit.format == 'timm'
  np.testing.assert_array_equal(
    vit.params['class_token'], params['trunk']['class_token']
  )
  e = experiment_lib.build(
    make_config(init_from__path=str(path), model__mlp="mlp(gelu='exact')")
  )
  actual = jax.device_get(e.init().params)
  for name in ('projector', 'predictor'):
    jax.tree.map(np.testing.assert_array_equal, actual[name], params[name])


def test_its_small_vit_has_twelve_heads():
  """As its files do not say; DeiT's of the same sizes has six."""
  from vit_jax.weights.formats import moco

  assert moco.HEADS == {384: 12, 768: 12}
