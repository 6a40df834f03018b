"""Collectives, loops and products, read from compiled programs."""

import ast

import case_files
import jax
from jax import lax
from jax.experimental import mesh_utils
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
import pytest
import tiny

from vit_jax.ahead import collectives
from vit_jax.ahead import compiled
from vit_jax.ahead import device_groups
from vit_jax.ahead import hlo
from vit_jax.ahead import products
from vit_jax.parallel import hardware

AXES = ('data', 'fsdp', 'tensor')


def program(name):
  return (tiny.TESTS / 'ahead' / f'{name}.hlo').read_text()


def count(fn, in_spec, out_spec, *args, shape=(2, 2, 2)):
  """Returns the collectives of a function that runs on each of 8 devices."""
  devices = mesh_utils.create_device_mesh(shape, jax.devices())
  mesh = jax.sharding.Mesh(devices, AXES)
  mapped = jax.shard_map(
    fn, mesh=mesh, in_specs=in_spec, out_specs=out_spec, check_vma=False
  )
  text = jax.jit(mapped).lower(*args).compile().as_text()
  return collectives.count(hlo.parse(text), dict(mesh.shape))


def show(collectives):
  return [
    (c.kind, c.axes, c.group_size, c.executions, c.bytes) for c in collectives
  ]


def test_each_kind():
  """Bytes are of the whole array: 1,024 floats on each device."""
  x = jax.ShapeDtypeStruct((8 * 1024,), jnp.float32)
  whole, part = P(AXES), P()

  def gather(x):
    return lax.all_gather(x, 'fsdp', tiled=True)

  expected = ('all-gather', ('fsdp',), 2, 1, 2 * 4096)
  assert show(count(gather, whole, part, x)) == [expected]

  def reduce(x):
    return lax.psum(x, ('data', 'tensor'))

  expected = ('all-reduce', ('data', 'tensor'), 4, 1, 4096)
  assert show(count(reduce, whole, part, x)) == [expected]

  def scatter(x):
    return lax.psum_scatter(x, 'tensor', tiled=True)

  expected = ('reduce-scatter', ('tensor',), 2, 1, 4096)
  assert show(count(scatter, whole, whole, x)) == [expected]

  def exchange(x):
    return lax.all_to_all(x.reshape(2, -1), 'data', 0, 0)

  expected = ('all-to-all', ('data',), 2, 1, 4096)
  assert show(count(exchange, whole, whole, x)) == [expected]

  def shift(x):
    return lax.ppermute(x, 'fsdp', [(0, 1), (1, 0)])

  expected = ('collective-permute', ('fsdp',), 2, 1, 4096)
  assert show(count(shift, whole, whole, x)) == [expected]


def test_loops_multiply():
  """Scans within loops, and the same collective behind them."""

  def fn(x):
    def inner(x, _):
      return lax.psum(x, 'fsdp') * 0.1, None

    def outer(_, x):
      return lax.scan(inner, x, length=3)[0] + lax.pmax(x, 'fsdp')

    return lax.psum(lax.fori_loop(0, 5, outer, x), 'fsdp')

  x = jax.ShapeDtypeStruct((256,), jnp.float32)
  (actual,) = count(fn, P(), P(), x)
  assert (actual.executions, actual.bytes) == (21, 21 * 1024)
  text = jax.jit(lambda x: lax.while_loop(lambda x: x.sum() < 9, jnp.exp, x))
  module = hlo.parse(text.lower(x).compile().as_text())
  assert len(hlo.unknown_loops(module)) == 1


@pytest.mark.parametrize(
  ('dtype', 'size'),
  [('float32', 4), ('float16', 2), ('int8', 1), ('bool', 1), ('complex64', 8)],
)
def test_sizes_of_types(dtype, size):
  x = jax.ShapeDtypeStruct((64,), dtype)
  (actual,) = count(lambda x: lax.all_gather(x, 'data'), P(), P(), x)
  assert actual.bytes == 2 * 64 * size
  assert actual.narrow_bytes == actual.bytes


def test_what_the_cpu_widens():
  """It sums bfloat16 as float32."""
  x = jax.ShapeDtypeStruct((64, 64), jnp.bfloat16)
  for fn in (lambda x: x, lambda x: x * 2, lambda x: x @ x):
    (actual,) = count(lambda x, f=fn: lax.psum(f(x), 'data'), P(), P(), x)
    assert (actual.bytes, actual.narrow_bytes) == (64 * 64 * 4, 64 * 64 * 2)
  x = jax.ShapeDtypeStruct((64, 64), jnp.float32)
  (actual,) = count(lambda x: lax.psum(x, 'data') * 2, P(), P(), x)
  assert actual.narrow_bytes == actual.bytes


def test_sums_that_are_then_cut():
  """Each device keeps a part: of one of two arrays that travel together."""
  mesh = jax.make_mesh(
    (1, 8, 1), AXES, axis_types=(jax.sharding.AxisType.Auto,) * 3
  )
  split = jax.sharding.NamedSharding(mesh, P('fsdp'))
  whole = jax.sharding.NamedSharding(mesh, P())

  @jax.jit
  def fn(x):
    kept = lax.with_sharding_constraint(x.T @ x, split) * 2
    return kept, lax.with_sharding_constraint(x.sum(0), whole) * 2

  x = jax.ShapeDtypeStruct((64, 32), jnp.float32, sharding=split)
  module = hlo.parse(fn.lower(x).compile().as_text())
  actual = collectives.count(module, dict(mesh.shape))
  assert [(c.kind, c.parts, c.bytes) for c in actual] == [
    ('all-reduce', 8, 32 * 32 * 4),
    ('all-reduce', 1, 32 * 4),
  ]
  assert products.flops(module) == 2 * 32 * 64 * 32 // 8


# As TPUs' compiler writes a reduce-scatter, cut down.
SCATTER = program('reduce_scatter_tpu')


def test_a_reduce_scatter_of_tpus():
  text = SCATTER.replace('%SCATTER', '%all-reduce-scatter.2.clone.1')
  text = text.replace('REST', 'replica_groups={{0,1,2,3}}, to_apply=%add')
  module = hlo.parse(text)
  mesh = {'data': 1, 'fsdp': 4, 'tensor': 1}
  (actual,) = collectives.count(module, mesh, as_written=True)
  assert (actual.kind, actual.axes, actual.group_size, actual.bytes) == (
    *('reduce-scatter', ('fsdp',), 4, 64 * 32 * 2),
  )
  v5e = hardware.named('v5e')
  assert not compiled.operations(module, v5e)  # as of every collective


# As TPUs' compiler writes a gather that goes on while a product is computed.
OVERLAPPED = program('gather_beside_products_tpu')


def test_a_gather_beside_products_counts_once():
  text = OVERLAPPED
  for name in ('START', 'DONE'):
    target = f'custom_call_target="AsyncCollective{name.title()}"'
    text = text.replace(name, target)
  mesh = {'data': 1, 'fsdp': 4, 'tensor': 1}
  (actual,) = collectives.count(hlo.parse(text), mesh, as_written=True)
  assert (actual.kind, actual.executions, actual.overlapped) == (
    'all-gather',
    1,
    1,
  )
  assert actual.bytes == 32 * 32 * 2


# As TPUs' compiler writes gathers by the SparseCores: CALL is how they are run.
# The first is done after a product has been computed, the second at once.
OFFLOADED = program('gathers_by_sparse_cores_tpu')
GATHER = program('gather_of_sparse_cores_tpu')


@pytest.mark.parametrize(
  ('call', 'called'),
  [
    ('call', 'to_apply=%gatherN'),
    ('custom-call', 'called_computations={%gatherN}'),
    ('async', 'calls=%nestedN'),
  ],
)
def test_gathers_by_sparse_cores(call, called):
  text = OFFLOADED
  for i in '01':
    text = text.replace(f'CALLED{i}', called.replace('N', i))
    text = text.replace(
      'GATHERS', GATHER.replace('N', i) + 'GATHERS' * (i < '1')
    )
  module = hlo.parse(text.replace('CALL', call))
  mesh = {'data': 1, 'fsdp': 4, 'tensor': 1}
  (actual,) = collectives.count(module, mesh, as_written=True)
  assert (actual.kind, actual.executions, actual.overlapped) == (
    'all-gather',
    2,
    1,
  )
  assert actual.bytes == 2 * 32 * 32 * 2
  operations = compiled.operations(module, hardware.named('v5p'))
  assert {x.name for x in operations} == {'p0', 'p1', 'p2', 'r'}


@pytest.mark.parametrize(
  'start', ['slice-start(%a)', 'async-start(%a), calls=%c']
)
def test_slices_that_are_started_read_what_they_take(start):
  """As jaxlib writes it, and as the compiler does."""
  module = hlo.parse(f"""HloModule jit_train_step, is_scheduled=true

%c (p: s8[64]) -> s8[16] {{
  %p = s8[64]{{0}} parameter(0)
  ROOT %part = s8[16]{{0:S(1)}} slice(%p), slice={{[0:16]}}
}}

ENTRY %main (a: s8[64]) -> s8[16] {{
  %a = s8[64]{{0}} parameter(0)
  %s = ((s8[64]{{0}}), s8[16]{{0:S(1)}}, s32[]{{:S(2)}}) {start}
  ROOT %d = s8[16]{{0:S(1)}} {start.split('-')[0]}-done(%s)
}}
""")
  (operation,) = compiled.operations(module, hardware.named('v6e'))
  assert (operation.name, operation.bytes) == ('s', 16)


def test_products():
  def fn(x, w, images, kernel):
    y = lax.scan(lambda x, _: (x @ w, None), x, length=6)[0]
    z = lax.conv_general_dilated(images, kernel, (2, 2), 'VALID')
    return y, z

  shapes = (8, 16), (16, 16), (2, 3, 9, 9), (5, 3, 3, 3)
  args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
  text = jax.jit(fn).lower(*args).compile().as_text()
  matrices = 6 * 2 * 8 * 16 * 16
  convolution = 2 * (2 * 5 * 4 * 4) * (3 * 3 * 3)
  assert products.flops(hlo.parse(text)) == matrices + convolution


# As TPUs' compiler writes a loop: a counter behind copies, and no trip count.
LOOP = program('loop_tpu')
ADD = 'add(%before, %step)'
FUSED = 'fusion(%before, %step), kind=kLoop, calls=%increment'


@pytest.mark.parametrize(
  ('start', 'limit', 'step', 'relation', 'after', 'count'),
  [
    (0, 12, 1, 'LT', ADD, 12),
    (0, 4, 2, 'LT', ADD, 2),  # two parts of a product in each iteration
    (0, 5, 2, 'LT', ADD, 3),
    (1, 12, 1, 'LT', ADD, 11),  # the first is before the loop
    (0, 4, 2, 'LT', FUSED, 2),
    (0, 6, 1, 'LT', 'add(%held, %step)', 6),
    (0, 4, 1, 'LE', ADD, 5),
    (11, -1, -1, 'GT', ADD, 12),
    (11, 0, 1, 'GE', 'subtract(%before, %step)', 12),
    (0, 6, 3, 'NE', ADD, 2),
    (7, 3, 1, 'LT', ADD, 0),
    (0, 4, 1, 'GT swapped', ADD, 4),  # 4 > i
    (0, 7, 3, 'NE', ADD, None),  # for ever
    (0, 4, 0, 'LT', ADD, None),
    (0, 4, -1, 'LT', ADD, None),
    (0, 4, 2, 'LT', 'multiply(%before, %step)', None),
    (0, 4, 2, 'LT', 'subtract(%step, %before)', None),
    (0, 4, 2, 'LT', 'add(%before, %before)', None),
  ],
)
def test_iterations_of_a_loop(start, limit, step, relation, after, count):
  relation, _, swapped = relation.partition(' ')
  values = {
    'SIDES': '%limit, %counter' if swapped else '%counter, %limit',
    'RELATION': relation,
    'AFTER': after,
    'LIMIT': str(limit),
    'START': str(start),
    'STEP': str(step),
  }
  text = LOOP
  for name, value in values.items():
    text = text.replace(name, value)
  module = hlo.parse(text)
  loop = module.computations['main']['loop']
  assert hlo.trip_count(loop) == count
  assert hlo.unknown_loops(module) == (['loop'] if count is None else [])


def test_a_loop_that_starts_anywhere_is_unknown():
  text = LOOP.replace('copy(%first)', 'copy(%n)').replace('AFTER', ADD)
  for name, value in {'SIDES': '%counter, %limit', 'RELATION': 'LT'}.items():
    text = text.replace(name, value)
  for name in ('LIMIT', 'START', 'STEP'):
    text = text.replace(name, '4')
  assert hlo.unknown_loops(hlo.parse(text)) == ['loop']


@pytest.mark.parametrize(
  ('_', 'text', 'groups'), case_files.read(tiny.TESTS / 'ahead' / 'groups.txt')
)
def test_groups_of_devices(_, text, groups):
  actual = device_groups.parse(f'channel_id=1, {text}', 4)
  np.testing.assert_array_equal(actual, ast.literal_eval(groups))


def test_groups_that_cannot_be_read():
  for text in ('channel_id=1', 'replica_groups=mesh[8]'):
    with pytest.raises(ValueError, match='cannot be read'):
      device_groups.parse(text, 4)


# As GPU and TPU compilers write it: what starts and what is done are one.
ASYNCHRONOUS = program('asynchronous')


def test_asynchronous_collectives_count_once():
  module = hlo.parse(ASYNCHRONOUS)
  actual = collectives.count(module, {'data': 2, 'fsdp': 2, 'tensor': 1})
  both = ('data', 'fsdp')
  assert sorted(show(actual)) == [
    ('all-gather', both, 4, 1, 4 * 32),
    ('all-reduce', both, 4, 2, 2 * 32),  # the branch of most bytes
    ('all-reduce', ('fsdp',), 2, 1, 2 * 32),
    ('reduce-scatter', both, 4, 1, 64 * 2),
  ]


def test_what_is_no_program():
  with pytest.raises(ValueError, match='no ENTRY'):
    hlo.parse('HloModule empty')
