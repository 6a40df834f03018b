"""What is known of devices."""

import types
from typing import Any

import jax
import numpy as np
import pytest

from vit_jax.config import UserError
from vit_jax.parallel import hardware
from vit_jax.parallel import mesh as mesh_lib


@pytest.mark.parametrize(
  ('kind', 'teraflops'),
  [
    ('NVIDIA A100-SXM4-80GB', 312),
    ('NVIDIA H100 80GB HBM3', 989),
    ('NVIDIA H100 PCIe', None),
    ('NVIDIA H200', 989),
    ('NVIDIA H200 NVL', None),
    ('TPU v4', 275),
    ('TPU v4 lite', None),
    ('TPU v5 lite', 197),
    ('TPU v5', 459),
    ('TPU v5p', 459),
    ('TPU v6 lite', 918),
  ],
)
def test_peak_flops(kind: str, teraflops: float | None) -> None:
  device: Any = types.SimpleNamespace(device_kind=kind)
  expected = teraflops and teraflops * 1e12
  assert hardware.peak_flops(device) == expected


def _mesh(platform: str, kind: str, size: int) -> Any:
  device = types.SimpleNamespace(platform=platform, device_kind=kind)
  return types.SimpleNamespace(devices=np.array([device] * size), size=size)


def test_the_peak_of_a_mesh() -> None:
  assert hardware.peak_flops(jax.devices('cpu')[0]) is None
  assert mesh_lib.peak_flops(_mesh('cpu', 'cpu', 2)) is None
  assert mesh_lib.peak_flops(_mesh('gpu', 'NVIDIA H100 PCIe', 2)) is None
  assert mesh_lib.peak_flops(_mesh('gpu', 'NVIDIA H200', 2)) == 2 * 989e12


@pytest.mark.parametrize(
  ('platform', 'kind', 'devices', 'parts'),
  [
    ('cpu', 'cpu', 2, ['xla_cpu_enable_concurrency_optimized_scheduler']),
    ('gpu', 'NVIDIA H200', 2, []),
    ('tpu', 'TPU v5', 1, []),
    ('tpu', 'TPU v5 lite', 2, ['windowed_einsum']),
    ('tpu', 'TPU v5', 2, ['windowed_einsum', 'offload_nd_reduce_scatter']),
    ('tpu', 'TPU v6 lite', 2, ['windowed_einsum', 'offload_3d_all_gather']),
    ('tpu', 'TPU of tomorrow', 2, ['windowed_einsum']),
  ],
)
def test_compiler_options(
  platform: str,
  kind: str,
  devices: int,
  parts: list[str],
  monkeypatch: pytest.MonkeyPatch,
) -> None:
  """SparseCores exchange arrays where there are some, and several devices."""
  mesh = _mesh(platform, kind, devices)
  actual = mesh_lib.compiler_options(mesh)
  assert all(any(part in name for name in actual) for part in parts)
  offloads = any('sparse_core' in name for name in actual)
  assert offloads == any('offload' in part for part in parts)
  assert bool(actual) == bool(parts)
  monkeypatch.setenv('VIT_JAX_SPARSE_CORES', '0')
  without = mesh_lib.compiler_options(mesh)
  assert not any('sparse_core' in name for name in without)
  assert (without == actual) != offloads


def test_names() -> None:
  for actual in hardware.TABLE:
    assert hardware.named(actual.name) is actual
  assert hardware.named('V5E').name == 'TPU v5e'
  with pytest.raises(UserError, match='B300: choose one of A100, H100'):
    hardware.named('B300')


def test_numbers_are_of_the_right_unit() -> None:
  for actual in hardware.TABLE:
    assert 1e14 < actual.peak_flops < 3e15
    assert 1.5e10 < actual.memory < 2e11
    assert 8e11 < actual.memory_bandwidth < 1e13
    assert 1e11 < actual.link_bandwidth < actual.memory_bandwidth
    assert actual.node_size >= 8
    if actual.network_bandwidth is not None:
      assert 3e9 < actual.network_bandwidth < actual.link_bandwidth
