"""Plans of training steps for devices that are not there."""

import functools
import math

import jax
import pytest
import tiny

from vit_jax import config as config_lib
from vit_jax import optim
from vit_jax.ahead import plan as plan_lib
from vit_jax.config import UserError
from vit_jax.data import features
from vit_jax.parallel import sharding
from vit_jax.train import program

# Wide enough that most parameters are sharded.
WIDE = {
  'model__hidden_size': 64,
  'model__mlp_dim': 256,
  'model__depth': 2,
  'model__num_classes': 10,
  'optim__clip_norm': 1.0,
  'train__ema_decay': 0.9,
  'mesh__data': 1,
  'mesh__fsdp': 8,
  'mesh__min_size': 1024,
}

FEATURES = {
  'image': features.Image(),
  'label': features.Label(tuple('0123456789')),
}


def wide_config(**overrides):
  return tiny.config(**(WIDE | overrides))


def parameter_bytes(config):
  """Returns the bytes of the sharded parameters, and of all."""
  placed = program.create(config, FEATURES, optim.Lengths(10)).param_shardings
  sizes = [(p.spec, math.prod(p.shape)) for p in placed.values()]
  return (
    4 * sum(size for spec, size in sizes if spec),
    4 * sum(size for _, size in sizes),
  )


@functools.cache
def planned(**overrides):
  return plan_lib.make(wide_config(**overrides))


def count_bytes(plan, kind):
  return sum(c.bytes for c in plan.collectives if c.kind == kind)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('overrides', 'gathers'),
  [
    ({}, 1),
    # The backward pass has nothing of the forward pass but its inputs.
    ({'model__remat': 'full'}, 2),
    ({'model__scan': True}, 2),
  ],
)
def test_fsdp_gathers_and_reduces_parameters_alone(overrides, gathers):
  """Neither activations, nor a gradient twice."""
  plan = planned(**overrides)
  sharded, everything = parameter_bytes(wide_config(**overrides))
  assert 0.95 * everything < sharded < everything
  gathered, reduced = (
    count_bytes(plan, kind) for kind in ('all-gather', 'all-reduce')
  )
  assert 0.9 * gathers * sharded < gathered < 1.1 * gathers * sharded
  # Gradients, and some numbers as the loss.
  assert everything <= reduced < 1.01 * everything
  kept = sum(c.bytes for c in plan.collectives if c.parts == 8)
  assert 0.99 * sharded < kept < 1.01 * sharded
  others = {c.kind for c in plan.collectives} - {'all-gather', 'all-reduce'}
  assert not others and not plan.unknown_loops
  assert all(c.axes == ('fsdp',) for c in plan.collectives)


def test_each_part_of_a_batch_reduces_its_gradients():
  """What accumulation costs; sums over devices do not wait for the last."""
  plans = planned(), planned(train__accumulation=2)
  reduced = [count_bytes(plan, 'all-reduce') for plan in plans]
  assert reduced[1] == pytest.approx(2 * reduced[0], rel=0.01)
  gathered = [count_bytes(plan, 'all-gather') for plan in plans]
  assert gathered[0] <= gathered[1] <= 2 * gathered[0]


def test_data_parallel_reduces_gradients_alone():
  plan = planned(mesh__data=8, mesh__fsdp=1)
  _, everything = parameter_bytes(wide_config())
  assert everything <= count_bytes(plan, 'all-reduce') < 1.01 * everything
  assert {(c.kind, c.axes, c.parts) for c in plan.collectives} == {
    ('all-reduce', ('data',), 1)
  }


def test_what_each_device_holds_and_computes():
  plan, whole = planned(), planned(mesh__fsdp=1)
  assert plan.devices == 8 and whole.devices == 1
  for name in ('parameters', 'gradients', 'optimizer', 'average'):
    assert whole.memory[name] / 8 < plan.memory[name] < whole.memory[name] / 6
  assert sum(plan.memory.values()) == pytest.approx(2 * plan.memory['total'])
  assert plan.model_flops == whole.model_flops // 8
  assert whole.flops == pytest.approx(whole.model_flops, rel=0.02)
  assert plan.flops == pytest.approx(plan.model_flops, rel=0.02)
  assert not whole.collectives


def test_huge_state_is_split():
  """ViT-H/14 at fsdp=8: an eighth of the state on each device."""
  config = config_lib.default()
  config.model.update(name='ViT-H/14', num_classes=1000, scan=True)
  config.mesh.update(data=1, fsdp=8)
  state = program.create(config, FEATURES, optim.Lengths(10)).abstract_state()
  whole = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state))
  assert whole > 7 * 2**30
  part = sharding.bytes_per_device(state)
  assert part == pytest.approx(whole / 8, rel=0.01)


@pytest.mark.slow
def test_more_devices_than_here():
  config = wide_config(mesh__data=-1, train__batch_size=64)
  plan = plan_lib.run(config, 16)
  assert plan.mesh == {'data': 2, 'fsdp': 8, 'tensor': 1}
  axes = {c.axes for c in plan.collectives if c.parts == 8}
  assert axes <= {('fsdp',), ('data', 'fsdp')} and axes
  with pytest.raises(UserError, match='plan for 1 to'):
    plan_lib.run(config, 0)


@pytest.mark.parametrize(
  ('text', 'devices', 'sizes'),
  [
    ('data=1,fsdp=8,tensor=1', None, (1, 8, 1)),
    ('fsdp=8', 64, (8, 8, 1)),
    ('fsdp=8', None, (1, 8, 1)),
    ('tensor=2, fsdp=-1', 16, (1, 8, 2)),
    ('2,4,1', 8, (2, 4, 1)),
    ('-1,4,2', 32, (4, 4, 2)),
  ],
)
def test_mesh_of_a_flag(text, devices, sizes):
  assert tuple(plan_lib.parse_mesh(text, devices).values()) == sizes


def test_no_mesh():
  for text in ('model=8', '8', 'fsdp=0', 'fsdp=2,fsdp=4'):
    with pytest.raises(UserError, match=f'--mesh={text}'):
      plan_lib.parse_mesh(text, None)
  for text in ('-1,-1,1', '2,3,1', 'fsdp=3'):
    with pytest.raises(UserError, match=f'--mesh={text}'):
      plan_lib.parse_mesh(text, 8)


@pytest.mark.parametrize('name', ['mae', 'beit', 'dino', 'mocov3', 'igpt'])
def test_options_that_a_config_leaves_out_have_their_defaults(name):
  config = config_lib.load(str(tiny.ROOT / 'configs' / f'{name}_i1k.py'))
  config.model.num_classes, config.train.batch_size = 10, 8
  program = plan_lib.make_program(plan_lib.complete(config))
  assert not set(type(program.objective).options) - set(
    program.config.objective.options
  )
  assert program.abstract_batch()['valid'].shape == (8,)
