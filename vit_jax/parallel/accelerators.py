"""Which accelerators there are, without importing jax."""

from collections.abc import Iterator
import contextlib
import glob
import importlib.util
import os
import sys

from vit_jax import config as config_lib

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


@contextlib.contextmanager
def explained() -> Iterator[None]:
  """Turns JAX's failure to start on its devices into a UserError.

  JAX raises a RuntimeError for it, or an AssertionError without a text where
  `JAX_PLATFORMS` asks for CUDA and there is no GPU.
  """
  try:
    yield
  except (AssertionError, RuntimeError):
    jax = sys.modules.get('jax')
    if jax is None:
      raise
    try:
      jax.devices()  # fails again if this was the cause
    except (AssertionError, RuntimeError) as e:
      reason, _, _ = config_lib.one_line(e).partition(' (set JAX_PLATFORMS')
      detail = f' ({reason})' if str(e) else ''
      problem = (
        f'JAX cannot use the devices of this machine{detail}: reinstall JAX, or'
        ' set JAX_PLATFORMS=cpu'
      )
      if platforms := os.environ.get('JAX_PLATFORMS'):
        problem = (
          f'JAX_PLATFORMS={platforms}, but JAX finds no such device{detail}:'
          ' unset the variable, or see docs/install.md for GPUs and TPUs'
        )
      raise config_lib.UserError(problem) from e
    raise


def _plugins() -> Iterator[str]:
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
