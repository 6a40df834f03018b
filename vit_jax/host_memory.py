"""Keeps the C library from giving memory back between steps.

On a CPU, XLA asks malloc for a step's temporary values as one block, gigabytes
of it, and frees that after the step. glibc maps such a block anew each time,
and the kernel fills it page by page: of a training step's time, a fifth
(docs/performance.md). Kept in the heap it is filled once.
"""

import contextlib
import ctypes
import importlib.util
import os
import platform

# Parameters of mallopt(3), from <malloc.h>.
_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8
_INT_MAX = 2**31 - 1

_ACCELERATORS = ('jax_cuda12_plugin', 'jax_cuda13_plugin', 'libtpu')


def keep_freed() -> None:
  """Lets this process keep what it frees, where it computes on a CPU.

  To be called before jax is imported. Nothing changes where the C library is
  another, where an accelerator's plugin is installed, or where the environment
  has settings of its own (MALLOC_*, GLIBC_TUNABLES).
  """
  if _is_tuned() or not _is_for_cpu():
    return
  libc = _glibc()
  if libc is not None:
    libc.mallopt(_MMAP_MAX, 0)
    libc.mallopt(_TRIM_THRESHOLD, _INT_MAX)
    libc.mallopt(_ARENA_MAX, 1)  # a thread's own arena maps large blocks


def trim() -> None:
  """Gives the pages back that are free now: of what ran once, as compiling."""
  libc = _glibc()
  if libc is not None:
    libc.malloc_trim(0)


def _is_tuned() -> bool:
  return any(
    name.startswith('MALLOC_') or name == 'GLIBC_TUNABLES'
    for name in os.environ
  )


def _is_for_cpu() -> bool:
  platforms = os.environ.get('JAX_PLATFORMS')
  if platforms:
    return platforms == 'cpu'
  return not any(map(importlib.util.find_spec, _ACCELERATORS))


def _glibc() -> ctypes.CDLL | None:
  if platform.libc_ver()[0] == 'glibc':
    with contextlib.suppress(OSError):
      return ctypes.CDLL(None)
  return None
