"""DINO and DINOv2: runs, losses, masks and mistakes."""

import commands
from flax import traverse_util
import jax
import jax.numpy as jnp
import methods
import numpy as np
import optax
import pytest
from safetensors.numpy import load_file

import vit_jax
from vit_jax import convert
from vit_jax.config import UserError
from vit_jax.data.device.rng import Rng
from vit_jax.models import prototypes as heads
from vit_jax.objectives import prototypes
from vit_jax.runs import checkpoint
from vit_jax.runs import restoring
from vit_jax.train import experiment as experiment_lib
from vit_jax.train import loop
from vit_jax.weights import resize

METHODS = ('dino', 'dinov2')
TANH = "mlp(gelu='tanh')"


@pytest.fixture(params=METHODS)
def finished(request, method_run):
  """A method and the work directory of its run, with stochastic depth."""
  return request.param, method_run(request.param)


def build(method, options=(), **overrides):
  return experiment_lib.build(methods.config(method, options, **overrides))


def test_the_teacher_is_evaluated_and_loaded(finished):
  _, path = finished
  vit = vit_jax.load(path)
  assert vit.origin.averaged
  actual = checkpoint.checksums(vit.params)
  stored = methods.final_state(path)
  for name, value in actual.items():
    assert value == stored[f'extra/average/trunk/{name}'], name
  assert any(x != stored[f'params/trunk/{name}'] for name, x in actual.items())


def test_the_heads_travel_in_the_authors_names(finished, tmp_path):
  """As the teacher of a checkpoint of torch, from which a run starts."""
  torch = pytest.importorskip('torch')
  method, path = finished
  out = tmp_path / 'out'
  assert commands.run(convert, path, out, '--to=timm', '--whole') == 0
  arrays = load_file(out / 'model.safetensors')
  name = {'dino': 'head', 'dinov2': 'ibot_head'}[method]
  assert arrays[f'{name}.last_layer.weight_g'].shape[1] == 1
  assert 'backbone.norm.weight' in arrays
  tensors = {k: torch.from_numpy(x) for k, x in arrays.items()}
  student = {k: 2 * x for k, x in tensors.items()}
  torch.save({'student': student, 'teacher': tensors}, tmp_path / 'x.pth')
  actual = build(
    method,
    init_from__path=str(tmp_path / 'x.pth'),
    model__mlp=TANH,  # which the file does not say
  ).init()
  params, _, _ = restoring.restore_params(path, None)
  flat, expected = (
    traverse_util.flatten_dict(jax.device_get(x), sep='/')
    for x in (actual.params, params)
  )
  for key in ('head/last_layer/kernel', 'head/dense_0/bias'):
    np.testing.assert_array_equal(flat[key], expected[key])
  key = 'trunk/blocks_1/mlp/up/kernel'
  np.testing.assert_array_equal(flat[key], expected[key])
  config = methods.config(method, {'bottleneck': 4}, model__mlp=TANH)
  config.init_from.path = str(tmp_path / 'x.pth')
  with pytest.raises(UserError, match=r'^[^\n]*beside its trunk[^\n]*$'):
    experiment_lib.build(config)


@pytest.mark.slow
@pytest.mark.parametrize('method', METHODS)
def test_the_student_learns(method):
  e = build(
    method,
    {'batch_norm': method == 'dino', 'freeze_last_layer': '0 steps'},
    train__duration='30 steps',
    optim__learning_rate=5e-3,
  )
  state, losses = e.init(), []
  with e.train_batches(0) as batches:
    for step in range(30):
      state, metrics = e.program.train_step(state, next(batches), step)
      losses.append(float(metrics['loss']))
      assert 0 < metrics['teacher_entropy'] < np.log(32)
  assert np.mean(losses[-5:]) < np.mean(losses[:3]) - 0.1


@pytest.mark.parametrize('method', METHODS)
def test_running_statistics_of_all_heads_move(method):
  e = build(method, {'batch_norm': True})
  state = e.init()
  before = jax.device_get(state.extra['statistics'])
  with e.train_batches(0) as batches:
    state, _ = e.program.train_step(state, next(batches), 0)
  after = traverse_util.flatten_dict(state.extra['statistics'], sep='/')
  heads_with_norms = {name.partition('/')[0] for name in after}
  assert heads_with_norms == {'head', *['patch_head'] * (method == 'dinov2')}
  for name, x in traverse_util.flatten_dict(before, sep='/').items():
    assert np.any(x != after[name]), name


def test_the_last_layer_is_held_and_the_teacher_follows():
  e = build('dino', train__duration='8 steps', optim__clip='')
  state, before = e.init(), []
  with e.train_batches(0) as batches:
    for step in range(3):
      before.append(jax.device_get(state))
      state, _ = e.program.train_step(state, next(batches), step)
  before.append(jax.device_get(state))
  kernels = [x.params['head']['last_layer']['kernel'] for x in before]
  np.testing.assert_array_equal(kernels[0], kernels[2])
  assert np.abs(kernels[3] - kernels[2]).max() > 1e-5
  # As if it had trained before: steps are no larger than later ones.
  moments = optax.tree.get(before[2].opt_state, 'nu')['head']['last_layer']
  assert np.all(moments['kernel'] > 0)
  for state in before:
    np.testing.assert_array_equal(
      state.params['head']['last_layer']['scale'], 1
    )
  step, momentum = 2, 1 - 0.004 * (1 + np.cos(np.pi * 2 / 8)) / 2
  old, new = before[step], before[step + 1]
  for name in ('trunk', 'head'):
    jax.tree.map(
      lambda t, p, actual: np.testing.assert_allclose(
        actual, momentum * t + (1 - momentum) * p, atol=1e-6
      ),
      old.extra['average'][name],
      new.params[name],
      new.extra['average'][name],
    )
  assert new.extra['updates'] == 3
  assert new.eval_params is new.extra['average']


def test_local_crops_have_resized_positions():
  """As the trunk would have them with a table of that size."""
  e = build('dino')
  objective, params = e.program.objective, e.init().params['trunk']
  images = jax.random.normal(jax.random.key(0), (2, 3, 4, 4, 1))
  actual = jax.jit(objective.apply_crops)(params, images)['features']
  table = np.asarray(params['position_embedding'])
  prefix = 2  # class token and register
  small = resize.positions(table[:, prefix:], (4, 4), (2, 2), 'bicubic')
  resized = params | {
    'position_embedding': np.concatenate([table[:, :prefix], small], axis=1)
  }
  apply = jax.jit(objective.apply)
  for i in range(3):
    expected = apply(resized, images[:, i])
    np.testing.assert_allclose(actual[:, i], expected, atol=1e-5)


def test_crops_of_one_size_have_masks_of_their_own():
  """Local ones are as large as global ones here."""
  overrides = {'model__dropout_rate': 0.5}
  objective = build('dino', {'local_size': 8}, **overrides).program.objective
  params = jax.jit(objective.init)(jax.random.key(0))
  image = jax.random.normal(jax.random.key(1), (8, 8, 1))
  images = jnp.broadcast_to(image, (1, 2, 8, 8, 1))
  rng = Rng(jax.random.key(2, impl='threefry2x32'), jnp.arange(1))
  see = jax.jit(objective.see, static_argnames='is_local')
  actual = [
    see(params, images, rng, is_local=is_local)['features'][0]
    for is_local in (False, True)
  ]
  assert len(np.unique(np.concatenate(actual), axis=0)) == 4


def test_masks_depend_on_the_row_alone():
  objective = build('dinov2').program.objective
  key, rows = jax.random.key(3), jnp.arange(16)
  all_masks = objective.draw_masks(Rng(key, rows))
  part = objective.draw_masks(Rng(key, rows[4:8]))
  np.testing.assert_array_equal(all_masks[4:8], part)
  counts = np.sort(all_masks.sum(axis=-1).ravel())
  assert (counts[:16] == 0).all() and (counts[16:] > 0).all()
  assert counts[-1] <= 8 and counts[16] <= 3


def test_sinkhorn_uses_all_prototypes_alike():
  logits = jax.random.normal(jax.random.key(0), (3, 40, 8))
  actual = prototypes.sinkhorn_knopp(logits, 0.5, 50)
  np.testing.assert_allclose(actual.sum(axis=-1), 1, rtol=1e-5)
  np.testing.assert_allclose(actual.sum(axis=(0, 1)), 120 / 8, rtol=1e-3)
  large = prototypes.sinkhorn_knopp(1e4 * logits, 0.5, 3)
  assert jnp.isfinite(large).all()


@pytest.mark.slow
def test_no_masked_patch_is_no_error():
  """As before `mask_start`, and without a centre to move."""
  weights = jnp.zeros((2, 5))
  logits = jax.random.normal(jax.random.key(0), (2, 5, 8))
  for actual in (
    prototypes.sinkhorn_knopp(logits, 0.1, 3, weights),
    prototypes.patch_loss(logits, jax.nn.softmax(logits), weights, 0.1),
    prototypes.update_centre(jnp.ones(8), logits, 0.9, weights),
  ):
    assert jnp.isfinite(actual).all()
  e = build('dinov2', {'mask_start': '100 steps'})
  with e.train_batches(0) as batches:
    _, metrics = e.program.train_step(e.init(), next(batches), 0)
  assert metrics['patch_loss'] == 0 and metrics['ok']


def test_koleo_is_the_distance_to_the_nearest():
  x = np.array([[1, 0], [3, 0.1], [0, 2], [-1, 1]], np.float32)
  unit = x / np.linalg.norm(x, axis=1, keepdims=True)
  gaps = np.linalg.norm(unit[:, None] - unit, axis=-1) + 9 * np.eye(4)
  expected = -np.log(gaps.min(axis=1)).mean()
  assert prototypes.koleo(jnp.asarray(x)) == pytest.approx(expected, rel=1e-4)


def test_a_temperature_warms_up():
  actual = [float(prototypes.warmed_up(0.04, 0.07, 4, i)) for i in range(6)]
  np.testing.assert_allclose(actual, [0.04, 0.05, 0.06, 0.07, 0.07, 0.07])
  assert prototypes.warmed_up(0.04, 0.07, 0, 0) == pytest.approx(0.07)
  assert prototypes.warmed_up(0.04, 0.07, 1, 0) == pytest.approx(0.04)


def test_a_head_of_one_layer_and_scales():
  head = heads.PrototypeHead(12, bottleneck=4, layers=1)
  x = jax.random.normal(jax.random.key(0), (3, 6))
  params = head.init(jax.random.key(1), x)['params']
  params['last_layer']['scale'] = jnp.arange(12.0)
  logits = head.apply({'params': params}, x)
  assert (jnp.abs(logits) <= jnp.arange(12) + 1e-5).all()


def test_a_collapse_is_told_once(tmp_path, capsys):
  config = methods.config(
    'dino',
    {'teacher_temperature': 1e3, 'teacher_temperature_start': 1e3},
    train__duration='6 steps',
  )
  assert loop.run(config, str(tmp_path / 'run')).status == 0
  log = (tmp_path / 'run' / 'train.log').read_text()
  assert log.count('the teacher has collapsed') == 1
  assert 'equal probabilities of all prototypes' in log
  assert prototypes.collapse(1e-3, 32) == 'one prototype'
  assert not prototypes.collapse(2.0, 32)
