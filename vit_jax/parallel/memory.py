"""How much memory is free, and what to say where it was too little.

jax is not imported here, since commands parse their flags before.
"""

from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import pathlib
import re
import resource
from typing import Any

import psutil

from vit_jax import config as config_lib

# What JAX's errors say: on accelerators, on CPUs, and of C++.
_EXHAUSTED = re.compile(
  'RESOURCE_EXHAUSTED|out of memory|bad_alloc|cannot allocate memory',
  re.IGNORECASE,
)
_CGROUPS = pathlib.Path('/sys/fs/cgroup')
_OWN_CGROUPS = pathlib.Path('/proc/self/cgroup')
# The limit, what is used, and in memory.stat the cached files among that, which
# the kernel gives up first: of both versions.
_FILES = (
  ('memory.max', 'memory.current', 'inactive_file'),
  ('memory.limit_in_bytes', 'memory.usage_in_bytes', 'total_inactive_file'),
)


def told(error: BaseException) -> str | None:
  """Returns the line that explains a lack of memory; None: it is another error.

  Args:
    error: Of any kind; JAX's are known by their names and texts.
  """
  is_jax = type(error).__name__ in ('JaxRuntimeError', 'XlaRuntimeError')
  if not isinstance(error, MemoryError) and not (
    is_jax and _EXHAUSTED.search(str(error))
  ):
    return None
  return f'there is too little memory ({config_lib.one_line(error)[:200]})'


@contextlib.contextmanager
def explained(advice: str) -> Iterator[None]:
  """Raises a UserError where memory is too little.

  Args:
    advice: What to do then.
  """
  try:
    yield
  except Exception as e:
    line = told(e)
    if line is None:
      raise
    raise config_lib.UserError(f'{line}: {advice}') from e


def free_per_device(devices: Sequence[Any]) -> int:
  """Returns the free memory of the fullest of some devices, in bytes.

  Args:
    devices: Of this process, `jax.Device`. Those of a CPU share the host's.
  """
  stats = [device.memory_stats() or {} for device in devices]
  if all('bytes_limit' in s for s in stats):
    return min(s['bytes_limit'] - s['bytes_in_use'] for s in stats)
  return free_on_host() // len(devices)


def free_on_host() -> int:
  """Returns the memory that this process can still have, in bytes.

  The least of what is available on the machine, in the control groups that hold
  the process, and in its address space (`ulimit -v`).
  """
  free = [psutil.virtual_memory().available, *_free_in_cgroups()]
  if has_address_limit():
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    free.append(limit - psutil.Process().memory_info().vms)
  return max(min(free), 0)


def has_address_limit() -> bool:
  """Whether memory counts as soon as it is asked for, and not when it is used.

  That is so where the address space is limited (`ulimit -v`).
  """
  limit, _ = resource.getrlimit(resource.RLIMIT_AS)
  return limit != resource.RLIM_INFINITY


def _free_in_cgroups() -> Iterator[int]:
  """Yields what is free in each control group that limits this process."""
  try:
    lines = _OWN_CGROUPS.read_text().splitlines()
  except OSError:  # not Linux
    return
  for line in lines:
    _, controllers, name = line.split(':', 2)
    if controllers in ('', 'memory'):
      root = _CGROUPS / controllers
      group = root / name.lstrip('/')
      for folder in (group, *group.parents):
        if folder.is_relative_to(root):
          yield from _free_in_cgroup(folder)


def _free_in_cgroup(folder: pathlib.Path) -> Iterator[int]:
  for limit, used, cached in _FILES:
    try:
      most = (folder / limit).read_text().strip()
      now = int((folder / used).read_text())
      stat = dict(
        line.split()
        for line in (folder / 'memory.stat').read_text().splitlines()
      )
    except OSError:  # of the other version, or not seen from a container
      continue
    if most != 'max':
      yield int(most) - now + int(stat.get(cached, 0))
