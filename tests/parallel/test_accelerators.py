"""What commands do where libtpu is installed and no TPU is there."""

import os

import pytest

from vit_jax.parallel import accelerators


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
  """A machine with libtpu and without any device; returns where TPUs are."""
  (tmp_path / 'libtpu.py').write_text('')
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.delenv('JAX_PLATFORMS', raising=False)
  monkeypatch.delenv('JAX_PLATFORM_NAME', raising=False)
  device = tmp_path / 'accel0'
  monkeypatch.setattr(accelerators, '_TPUS', (str(device),))
  monkeypatch.setattr(accelerators, '_plugins', lambda: iter(()))
  return device


def test_libtpu_is_not_loaded_without_a_tpu():
  accelerators.use_cpu_without_tpu()
  assert os.environ['JAX_PLATFORMS'] == 'cpu'


def test_a_tpu_is_used(machine):
  machine.touch()
  accelerators.use_cpu_without_tpu()
  assert 'JAX_PLATFORMS' not in os.environ


def test_the_choice_of_the_user_stays(monkeypatch):
  monkeypatch.setenv('JAX_PLATFORMS', 'tpu,cpu')
  accelerators.use_cpu_without_tpu()
  assert os.environ['JAX_PLATFORMS'] == 'tpu,cpu'
