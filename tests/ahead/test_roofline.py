"""Estimates of a step's time."""

import dataclasses

import pytest

from vit_jax.ahead import plan as plan_lib
from vit_jax.ahead import roofline
from vit_jax.ahead.collectives import Collective
from vit_jax.parallel import hardware

# Round numbers; two nodes of 4.
DEVICE = hardware.Hardware(
  name='X',
  pattern='X',
  peak_flops=1e12 / roofline.COMPUTE,
  memory=4 * 2**30,
  memory_bandwidth=2**30,
  node_size=4,
  link_bandwidth=100e6 / roofline.LINKS,
  network_bandwidth=10e6 / roofline.LINKS,
)
MESH = {'data': 2, 'fsdp': 2, 'tensor': 2}
PLAN = plan_lib.Plan(
  devices=8,
  mesh=MESH,
  batch_size=80,
  accumulation=1,
  hides_remat=False,
  memory={
    'parameters': 0.25,
    'gradients': 0.25,
    'optimizer': 0.5,
    'average': 0.0,
    'activations': 2.0,
    'total': 3.0,
  },
  collectives=[],
  flops=8 * 10**12,
  model_flops=6 * 10**12,
  unknown_loops=[],
  seconds={},
)


def collective(kind, axes, size, parts=1, count=0):
  """Of 1 MB, of which half the bytes need not be widened."""
  return Collective(kind, axes, size, parts, count, 2_000_000, 1_000_000)


def seconds(*actual, **changes):
  plan = dataclasses.replace(PLAN, collectives=list(actual))
  device = dataclasses.replace(DEVICE, **changes)
  result = roofline.estimate(plan, device)
  assert result is not None
  return result.communication


def test_a_step_without_communication():
  estimate = roofline.estimate(PLAN, DEVICE)
  assert estimate == roofline.Estimate(
    hardware='X',
    fits=True,
    compute=8.0,
    memory=4.0,
    update=2.0,
    communication={},
    best=10.0,
    worst=10.0,
    efficiency=(0.6, 0.6),
    images_per_second=(8.0, 8.0),
    bound='compute',
  )
  twice = dataclasses.replace(PLAN, accumulation=2)
  assert roofline.estimate(twice, DEVICE).memory == 8.0
  small = dataclasses.replace(DEVICE, memory=2**30, memory_bandwidth=2**28)
  estimate = roofline.estimate(PLAN, small)
  assert (estimate.memory, estimate.bound, estimate.fits) == (
    16.0,
    'memory',
    False,
  )


@pytest.mark.parametrize(
  ('kind', 'axes', 'size', 'milliseconds'),
  [
    # Half of 1 MB at 100 MB/s, within a node.
    ('all-gather', ('fsdp',), 2, 5),
    ('reduce-scatter', ('tensor',), 2, 5),
    ('all-reduce', ('fsdp',), 2, 10),
    ('all-reduce', ('fsdp', 'tensor'), 4, 15),
    ('collective-permute', ('fsdp',), 2, 10),
    # At 10 MB/s, between nodes.
    ('all-gather', ('data',), 2, 50),
    ('all-reduce', ('data',), 2, 100),
    ('collective-permute', ('data', 'fsdp'), 2, 100),
    # Three quarters within each node, and half of a quarter between them.
    ('all-gather', ('data', 'fsdp', 'tensor'), 8, 7.5 + 12.5),
    ('all-to-all', ('data', 'fsdp', 'tensor'), 8, 3.75 + 50),
  ],
)
def test_rings(kind, axes, size, milliseconds):
  (actual,) = seconds(collective(kind, axes, size)).values()
  assert 1e3 * actual == pytest.approx(milliseconds)


def test_each_collective_takes_a_moment():
  (actual,) = seconds(collective('all-gather', ('fsdp',), 2, 1, 300)).values()
  assert actual == pytest.approx(5e-3 + 300 * roofline.LATENCY)


def test_a_sum_that_is_cut_is_scattered():
  actual = collective('all-reduce', ('data', 'fsdp'), 4, parts=2)
  each = [
    (x.kind, x.axes, x.group_size, x.bytes)
    for x in roofline.transfers([actual], MESH)
  ]
  assert each == [
    ('reduce-scatter', ('fsdp',), 2, 1_000_000),
    ('all-reduce', ('data',), 2, 500_000),
  ]
  assert seconds(actual) == pytest.approx({'fsdp': 5e-3, 'data': 50e-3})
  odd = dataclasses.replace(actual, parts=3)
  (whole,) = roofline.transfers([odd], MESH)
  assert whole.kind == 'all-reduce'


def test_overlap():
  """Along tensor there is none; the rest is hidden, at best."""
  plan = dataclasses.replace(
    PLAN,
    collectives=[
      collective('all-reduce', ('tensor',), 2),
      collective('all-gather', ('data',), 2),
    ],
  )
  estimate = roofline.estimate(plan, DEVICE)
  assert estimate.best == pytest.approx(10 + 0.01)
  assert estimate.worst == pytest.approx(10 + 0.01 + 0.05)
  assert estimate.efficiency == pytest.approx((6 / 10.06, 6 / 10.01))
  slow = dataclasses.replace(DEVICE, network_bandwidth=25e3 / roofline.LINKS)
  estimate = roofline.estimate(plan, slow)
  assert estimate.best == pytest.approx(20 + 2 + 0.01)
  assert estimate.bound == 'data'


def test_a_network_of_unknown_speed():
  plan = dataclasses.replace(
    PLAN, collectives=[collective('all-gather', ('data',), 2)]
  )
  unknown = dataclasses.replace(DEVICE, network_bandwidth=None)
  assert roofline.estimate(plan, unknown) is None
  one_node = dataclasses.replace(unknown, node_size=8)
  assert roofline.estimate(plan, one_node).communication == {'data': 5e-3}


def test_table():
  estimates = [roofline.estimate(PLAN, DEVICE)]
  text = roofline.table(estimates)
  for assumption in roofline.ASSUMPTIONS:
    assert assumption.split()[0] in text
  assert '8000.00' in text and '*' not in text
  small = dataclasses.replace(DEVICE, memory=1.0)
  assert 'X *' in roofline.table([roofline.estimate(PLAN, small)])
  assert max(map(len, text.splitlines())) <= 100
