"""The mesh and its rules: where arrays are, and that nothing else changes."""

import functools
import itertools
import re

import jax
import numpy as np
import pytest
import tiny

from vit_jax import config as config_lib
from vit_jax import models
from vit_jax.models import layouts
from vit_jax.optim import parameter_tables
from vit_jax.parallel import mesh as mesh_lib
from vit_jax.parallel import sharding
from vit_jax.runs import checkpoint
from vit_jax.train import experiment as experiment_lib
from vit_jax.train import start

UserError = config_lib.UserError

MESHES = [(8, 1, 1), (1, 8, 1), (2, 2, 2), (1, 1, 8)]
STEPS = 4
# Something of everything that is random, and sizes that 8 devices divide.
MODEL = tiny.RANDOM | {
  'model__num_heads': 8,
  'model__hidden_size': 64,
  'model__mlp_dim': 128,
  'optim__name': 'sgd',
  'optim__warmup': '0 steps',
  'mesh__min_size': 0,
}


def sizes(mesh):
  return dict(zip(mesh_lib.AXES, mesh, strict=True))


@functools.cache  # compiled functions are shared
def build(mesh=(1, 1, 1), **overrides):
  axes = {f'mesh__{axis}': n for axis, n in sizes(mesh).items()}
  config = tiny.config(**MODEL | axes | overrides)
  experiment_lib.check(config)
  return experiment_lib.build(config)


def run_steps(e, state, start, stop):
  """Returns the state after some steps, and their losses."""
  losses = []
  with e.train_batches(start) as batches:
    for step in range(start, stop):
      batch = next(batches)
      state, metrics = e.program.train_step(state, batch, np.int32(step))
      losses.append(float(metrics['loss']))
  return state, losses


@functools.cache
def reference():
  """The unrolled parameters after all steps on one device, and the losses."""
  e = build()
  state, losses = run_steps(e, e.init(), 0, STEPS)
  return jax.device_get(state.params), losses


def assert_as_reference(params, losses, start=0):
  expected, expected_losses = reference()
  np.testing.assert_allclose(losses, expected_losses[start:], rtol=1e-5)
  unrolled = layouts.relayout(jax.device_get(params), expected)
  jax.tree.map(
    lambda a, b: np.testing.assert_array_less(
      np.linalg.norm(a - b), 1e-5 * np.linalg.norm(b) + 1e-12
    ),
    unrolled,
    expected,
  )


@pytest.mark.slow
@pytest.mark.parametrize('scan', [False, True])
@pytest.mark.parametrize('i', range(len(MESHES)))
def test_same_numbers_on_every_mesh(i, scan):
  """Dropout, stochastic depth and shifts of the images included.

  Any two of a mesh, scanned layers and microbatches meet in a case.
  """
  mesh, accumulation = MESHES[i], 1 if scan == (i % 2 == 1) else 2
  e = build(mesh, model__scan=scan, train__accumulation=accumulation)
  state, losses = run_steps(e, e.init(), 0, STEPS)
  assert_as_reference(state.params, losses)


@pytest.mark.slow
@pytest.mark.parametrize(
  'fields',
  [
    {},
    {
      'norm': 'rms_norm',
      'positions': 'learned + rope',
      'attention': 'attention(qk_norm=True)',
    },
  ],
)
def test_a_kernel_is_split_as_the_compiler_splits_the_rest(fields):
  """The kernel of TPUs, interpreted; it computes other bits than the plain."""
  model = {
    **{f'model__{name}': value for name, value in fields.items()},
    'model__hidden_size': 256,  # 128 lanes for each of two parts
    'model__num_heads': 2,
    'model__attention_dropout_rate': 0.0,
  }
  parameters = []
  for mesh, implementation in [((2, 2, 2), 'fused'), ((1, 1, 1), 'plain')]:
    e = build(mesh, model__attention_implementation=implementation, **model)
    program = e.program
    traced = program.train_step.trace(
      program.abstract_state(), program.abstract_batch(), np.int32(0)
    )
    assert ('pallas_call' in str(traced.jaxpr)) == (implementation == 'fused')
    parameters.append(run_steps(e, e.init(), 0, 2)[0].params)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5 * abs(b).max()),
    *jax.device_get(parameters),
  )


@pytest.mark.slow
def test_resumes_on_any_mesh(tmp_path):
  """Each of four runs goes on where another one, laid out otherwise, was."""
  section, half = tiny.config().checkpoint, STEPS // 2
  hows = [(mesh, i % 2 == 1) for i, mesh in enumerate(MESHES)]
  experiments = [
    build(m, model__scan=s, train__accumulation=1) for m, s in hows
  ]
  for i, e in enumerate(experiments):
    state, _ = run_steps(e, e.init(), 0, half)
    saved = jax.device_get(state)
    with checkpoint.Checkpointer(tmp_path / f'{i}', section) as checkpoints:
      checkpoints.save(half, state)
    other = experiments[i - 1].program
    with checkpoint.Checkpointer(tmp_path / f'{i}', section) as checkpoints:
      restored, step, _ = checkpoints.restore(other.state_to_read)
    restored = other.adopt(restored)
    jax.tree.map(
      np.testing.assert_array_equal,
      jax.device_get(restored),
      layouts.relayout(saved, restored),
    )
    state, losses = run_steps(experiments[i - 1], restored, step, STEPS)
    assert_as_reference(state.params, losses, start=half)


def test_optimizer_and_average_follow_the_parameters():
  e = build((1, 8, 1), optim__name='adamw', train__ema_decay=0.9)
  state = e.init()
  spec = jax.sharding.PartitionSpec('fsdp', None)
  actual = {
    name.split('/')[0]: x
    for path, x in jax.tree_util.tree_leaves_with_path(state)
    if (
      name := jax.tree_util.keystr(path, simple=True, separator='/')
    ).endswith('blocks_1/mlp/up/kernel')
  }
  assert actual.keys() == {'params', 'opt_state', 'ema_params'}
  for x in actual.values():
    assert x.sharding.spec == spec
    assert {shard.data.shape for shard in x.addressable_shards} == {(8, 128)}
  total = sum(x.nbytes for x in jax.tree.leaves(state))
  assert sharding.bytes_per_device(state) < 0.15 * total
  # The step makes the new state in place of the old one.
  after, _ = run_steps(e, state, 0, 1)
  assert all(x.is_deleted() for x in jax.tree.leaves(state))
  where = jax.tree.map(lambda x: x.sharding, e.program.abstract_state())
  assert jax.tree.map(lambda x: x.sharding, after) == where


@functools.cache
def make_params(name, scan):
  size = 16 if name.endswith('/8') else 224
  model = models.create_model(name, num_classes=1000)
  if scan:
    model = model.clone(scan=True)
  return models.abstract_params(model, (size, size, 3))


def place(params, mesh, **changes):
  config = config_lib.default().mesh
  for key, value in changes.items():
    config[key] = value
  return sharding.shard_params(config, sizes(mesh), params)


@pytest.mark.slow
@pytest.mark.parametrize('name', models.list_models())
def test_default_rules_know_every_model(name):
  """What is large is split by fsdp, and heads and MLPs by tensor."""
  scans = (False,) if name.startswith('BiT') else (False, True)
  for scan in scans:
    shardings = place(make_params(name, scan), (1, 8, 1))
    for path, p in shardings.items():
      is_vector = path.endswith(('bias', 'scale'))
      assert bool(p.spec) == (np.prod(p.shape) >= 4096) or is_vector, path
    heads = {p: x.shape[-2] for p, x in shardings.items() if 'qkv/kernel' in p}
    tensor = 1 if any(h % 2 for h in heads.values()) else 2
    for path, p in place(make_params(name, scan), (1, 2, tensor)).items():
      if path.startswith('blocks') and path.endswith('kernel'):
        axes = set(itertools.chain(*map(sharding.entry_axes, p.spec)))
        assert axes == {'fsdp', 'tensor'} if tensor == 2 else {'fsdp'}, path


@pytest.mark.parametrize('name', ['ViT-H/14', 'Mixer-B/16', 'R50+ViT-B/16'])
def test_scanned_layers_are_placed_as_unrolled_ones(name):
  flat, stacked = (
    place(make_params(name, s), (2, 4, 2)) for s in (False, True)
  )
  for path, p in flat.items():
    if path.startswith('blocks_3/'):
      q = stacked[path.replace('blocks_3/', 'blocks/')]
      assert q.spec == ((None, *p.spec) if p.spec else ())
      assert q.bytes_per_device == q.shape[0] * p.bytes_per_device


def test_devices_are_in_order_of_their_processes(monkeypatch):
  """Whatever order JAX lists them in, as along the torus of a TPU slice."""
  shuffled = [jax.devices()[i] for i in (3, 0, 7, 4, 1, 6, 2, 5)]
  monkeypatch.setattr(jax, 'devices', lambda: shuffled)
  config = config_lib.default().mesh
  config.fsdp = 4
  mesh = mesh_lib.make_mesh(config)
  assert [device.id for device in mesh.devices.flat] == list(range(8))
  assert mesh_lib.host_part(mesh) == (0, 1)


def test_small_parameters_are_on_every_device():
  shardings = place(make_params('ViT-Ti/16', False), (1, 8, 1))
  assert shardings['class_token'].spec == ()
  assert shardings['head/kernel'].spec == ('fsdp', None)
  whole = place(make_params('ViT-Ti/16', False), (1, 8, 1), min_size=10**9)
  assert not any(p.spec for p in whole.values())


def test_own_rules_come_first():
  rules = (('^head/kernel', (None, 'fsdp')), (r'_[01]/mlp/up', (None, 'data')))
  params = make_params('ViT-Ti/16', False)
  kernels = {'head/kernel', 'blocks_0/mlp/up/kernel', 'blocks_2/mlp/up/kernel'}
  with pytest.raises(UserError, match='blocks_0/mlp/up/bias has 2 entries'):
    place(params, (2, 4, 1), rules=rules)
  rules = (rules[0], (r'_[01]/mlp/up/kernel', (None, 'data')))
  shardings = place(params, (2, 4, 1), rules=rules)
  assert {shardings[k].spec for k in kernels} == {
    (None, 'fsdp'),
    (None, 'data'),
    ('fsdp', None),
  }
  with pytest.raises(UserError, match='layers of blocks/mlp/up/kernel'):
    place(make_params('ViT-Ti/16', True), (2, 4, 1), rules=rules)


@pytest.mark.parametrize(
  ('mesh', 'rules', 'message'),
  [
    (
      (1, 5, 1),
      (('head/kernel', ('fsdp', None)),),
      r'head/kernel: fsdp=5 does not divide 192 of .192, 1000.: write None for',
    ),
    ((1, 8, 1), (('nothing', ('fsdp',)),), "rules.0. 'nothing' matches no"),
    ((1, 8, 1), (('a', ()), ('head', ())), "rules.1. 'head' matches no"),
    ((1, 8, 1), (('head/bias', ('fsdp', None)),), 'head/bias has 2 entries'),
    ((3, 1, 1), (('head/bias', ('data',)),), r'data=3 does not divide 1000'),
  ],
)
def test_rules_that_do_not_fit(mesh, rules, message):
  with pytest.raises(UserError, match=message) as error:
    place(make_params('ViT-Ti/16', False), mesh, rules=rules)
  assert '\n' not in str(error.value)


@pytest.mark.parametrize('scan', [False, True])
@pytest.mark.parametrize('tensor', [1, 3])
@pytest.mark.parametrize('fsdp', [2, 3, 5, 7, 8, 12, 64, 125])
def test_fsdp_splits_what_it_divides(fsdp, tensor, scan):
  """The dimension of the rule, or the largest other one, or none."""
  shardings = place(
    make_params('ViT-Ti/16', scan), (1, fsdp, tensor), min_size=0
  )
  line = parameter_tables.unsplit(shardings, sizes((1, fsdp, tensor)))
  whole = []
  for name, x in shardings.items():
    if not re.search('kernel$|class_token|position', name):
      continue
    shape = x.shape[name.startswith('blocks/') :]
    spec = x.spec[name.startswith('blocks/') :] or (None,) * len(shape)
    entries = [sharding.entry_axes(entry) for entry in spec]
    free = [
      n for n, axes in zip(shape, entries, strict=True) if 'tensor' not in axes
    ]
    split = [
      n for n, axes in zip(shape, entries, strict=True) if 'fsdp' in axes
    ]
    assert len(split) <= 1 and all(n % fsdp == 0 for n in split)
    if not split:
      assert all(n % fsdp for n in free)
      whole.append(name)
  assert bool(line) == bool(whole)
  if whole:
    size = sum(shardings[name].bytes_per_device for name in whole)
    assert f'{len(whole)} array' in line and f'{size:,} bytes' in line
    assert whole[0] in line and '\n' not in line


@pytest.mark.slow
@pytest.mark.parametrize(
  ('mesh', 'axis'), [((1, 8, 1), 'fsdp=8'), ((2, 1, 4), 'tensor=4')]
)
def test_the_same_numbers_where_an_axis_divides_little(caplog, mesh, axis):
  """Kernels of [12, 40] and of [12, 10], and 2 heads."""
  odd = {
    'model__num_heads': 2,
    'model__hidden_size': 12,
    'model__mlp_dim': 40,
  }
  results = []
  for shape in ((1, 1, 1), mesh):
    e = build(shape, **odd)
    state, losses = run_steps(e, e.init(), 0, 3)
    results.append((jax.device_get(state.params), losses))
  (expected, expected_losses), (params, losses) = results
  np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6),
    params,
    expected,
  )
  places = e.program.param_shardings
  assert places['blocks_0/mlp/up/kernel'].spec != ()
  start.log_facts(e)
  assert f'warning: config.mesh.{axis} divides no' in caplog.text


@pytest.mark.parametrize('scan', [False, True])
def test_tensor_leaves_heads_whole_that_it_does_not_divide(scan):
  """3 heads of ViT-Ti on 2 devices; its MLP of 768 is split."""
  mesh = (1, 2, 2)
  shardings = place(make_params('ViT-Ti/16', scan), mesh)
  layer = 'blocks' if scan else 'blocks_0'
  stacked = (None,) if scan else ()
  specs = {
    name: shardings[f'{layer}/{name}/kernel'].spec[len(stacked) :]
    for name in ('attention/qkv', 'attention/out', 'mlp/up', 'mlp/down')
  }
  assert specs == {
    'attention/qkv': ('fsdp', None, None, None),
    'attention/out': (None, None, 'fsdp'),
    'mlp/up': ('fsdp', 'tensor'),
    'mlp/down': ('tensor', 'fsdp'),
  }
  line = parameter_tables.unsplit(shardings, sizes(mesh))
  assert line.startswith('config.mesh.tensor=2 divides no heads')
  assert f'{layer}/attention/qkv/kernel' in line and 'mlp' not in line


@pytest.mark.parametrize(
  ('overrides', 'message'),
  [
    ({'mesh__data': 16}, 'the platform has 8 devices, and 16'),
    (
      {'mesh__fsdp': 3, 'mesh__data': -1},
      '8 devices, and 3 must divide',
    ),
    ({'mesh__fsdp': -1, 'mesh__data': -1}, 'one alone may be -1'),
    ({'mesh__tensor': 0}, 'sizes must be positive'),
    ({'mesh__data': 8, 'train__batch_size': 12}, 'over 8 devices'),
    ({'mesh__rules': ('head',)}, r'rules\[0\] is .head.: it must be'),
    ({'mesh__rules': (('(', ()),)}, 'no regular expression'),
    ({'mesh__rules': (('head', ('model',)),)}, "no axis 'model'"),
    ({'mesh__rules': (('head', ('fsdp', 'fsdp')),)}, 'an axis twice'),
    ({'mesh__min_size': -1}, 'mesh.min_size is -1'),
  ],
)
def test_meshes_that_do_not_work(overrides, message):
  with pytest.raises(UserError, match=message) as error:
    experiment_lib.check(tiny.config(**overrides))
  assert '\n' not in str(error.value)


def test_the_table_says_where_everything_is():
  shardings = place(make_params('ViT-S/16', False), (1, 8, 1))
  table = parameter_tables.shardings_table(shardings).text()
  cells = [re.split('  +', row) for row in table.split('\n')]
  rows = {row[0]: row[1:] for row in cells}
  size = 12 * 384 * 1536 * 4 // 8
  assert rows['blocks_0..11/mlp/up/kernel'] == [
    '[384, 1536]',
    'fsdp .',
    '12',
    f'{size:,}',
  ]
  assert rows['class_token'][1] == 'on every device'
