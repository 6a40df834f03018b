"""Peaks of devices."""

import types
from typing import Any

import jax
import pytest

from vit_jax import hardware


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


def test_the_peak_of_a_cpu_is_unknown() -> None:
  assert hardware.peak_flops(jax.devices('cpu')[0]) is None
