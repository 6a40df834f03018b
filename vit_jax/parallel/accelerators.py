"""Which accelerators there are, without importing jax."""

from collections.abc import Iterator
import glob
import importlib.util
import os

# Devices of JAX's plugins, by the start of their names. JAX itself looks for
# these of NVIDIA.
_DEVICES = {
  'xla_cuda': ('/dev/nvidia0', '/dev/nvidiactl', '/dev/dxg'),
  'xla_rocm': ('/dev/kfd',),
}
_TPUS = ('/dev/accel[0-9]*', '/dev/vfio/[0-9]*')


def use_cpu_without_tpu() -> None:
  """Keeps JAX from loading libtpu on a machine that has no accelerator.

  libtpu looks for a TPU, waits, and prints errors. `ahead` compiles for TPUs in
  processes that load it all the same. Call this before jax is imported.
  """
  if importlib.util.find_spec('libtpu') and not present():
    os.environ.setdefault('JAX_PLATFORMS', 'cpu')


def present() -> bool:
  """Whether JAX will compute on a GPU or TPU."""
  platforms = os.environ.get('JAX_PLATFORMS') or os.environ.get(
    'JAX_PLATFORM_NAME'
  )
  if platforms:
    return platforms.split(',')[0] != 'cpu'
  if importlib.util.find_spec('libtpu') and any(map(glob.glob, _TPUS)):
    return True
  return any(map(_has_device, _plugins()))


def _plugins() -> Iterator[str]:
  """Yields the names of JAX's plugins."""
  spec = importlib.util.find_spec('jax_plugins')  # a namespace
  for folder in (spec and spec.submodule_search_locations) or ():
    yield from os.listdir(folder)


def _has_device(plugin: str) -> bool:
  """Whether there is a device for a plugin; unknown plugins have theirs."""
  for start, paths in _DEVICES.items():
    if plugin.startswith(start):
      hidden = os.environ.get('CUDA_VISIBLE_DEVICES') in ('', '-1')
      return any(map(os.path.exists, paths)) and not hidden
  return not plugin.startswith('_')
