"""Measures free memory, and explains out-of-memory errors.

This module does not import jax, since commands parse their flags first.
"""

from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import itertools
import pathlib
import re
import resource
from typing import Any

import psutil

from vit_jax import config as config_lib

# Texts of JAX's errors on accelerators and on CPUs, and of C++'s.
_EXHAUSTED = re.compile(
  'RESOURCE_EXHAUSTED|out of memory|bad_alloc|cannot allocate memory',
  re.IGNORECASE,
)
# Advice for a training run, for a loop over batches, and for anything else.
TRAINING = (
  'raise config.train.accumulation, set config.model.remat=full, split the'
  ' state with config.mesh.fsdp, or lower config.train.batch_size'
)
BATCHES = 'lower --batch_size'
ANYTHING = (
  'take fewer images at a time, as with --batch_size, a smaller image or model,'
  ' or end other programs'
)

_CGROUPS = pathlib.Path('/sys/fs/cgroup')
_OWN_CGROUPS = pathlib.Path('/proc/self/cgroup')
# Files of cgroup versions 2 and 1: the limit, the memory in use, and the entry
# of memory.stat for cached files. Cached files count as in use, but the kernel
# frees them first.
_FILES = (
  ('memory.max', 'memory.current', 'inactive_file'),
  ('memory.limit_in_bytes', 'memory.usage_in_bytes', 'total_inactive_file'),
)


@contextlib.contextmanager
def explained(advice: str) -> Iterator[None]:
  """Turns an out-of-memory error into a UserError.

  Its advice is `TRAINING`, `BATCHES` or `ANYTHING`.
  """
  try:
    yield
  except Exception as e:
    # JAX's errors are recognised by their names and texts.
    is_jax = type(e).__name__ in ('JaxRuntimeError', 'XlaRuntimeError')
    if not isinstance(e, MemoryError) and not (
      is_jax and _EXHAUSTED.search(str(e))
    ):
      raise
    raise config_lib.UserError(
      f'there is too little memory ({config_lib.one_line(e)[:200]}): {advice}'
    ) from e


def free_per_device(devices: Sequence[Any]) -> int:
  """Returns the free memory of the device with the least, in bytes.

  The devices are of this process. CPU devices share the host's memory.
  """
  stats = [device.memory_stats() or {} for device in devices]
  if all('bytes_limit' in s for s in stats):
    return min(s['bytes_limit'] - s['bytes_in_use'] for s in stats)
  return free_on_host() // len(devices)


def free_on_host() -> int:
  """Returns the memory that this process can still allocate, in bytes.

  That is the minimum over the machine, the control groups of the process, and
  its address space (`ulimit -v`).
  """
  free = [psutil.virtual_memory().available, *_free_in_cgroups()]
  if has_address_limit():
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    free.append(limit - psutil.Process().memory_info().vms)
  return max(min(free), 0)


def has_address_limit() -> bool:
  """Whether the address space is limited (`ulimit -v`).

  With such a limit, memory counts from its allocation, not from its first use.
  """
  limit, _ = resource.getrlimit(resource.RLIMIT_AS)
  return limit != resource.RLIM_INFINITY


def _free_in_cgroups() -> Iterator[int]:
  try:
    lines = _OWN_CGROUPS.read_text().splitlines()
  except OSError:  # not Linux
    return
  for line in lines:
    _, controllers, name = line.split(':', 2)
    if controllers in ('', 'memory'):
      root = _CGROUPS / controllers
      group = root / name.lstrip('/')
      folders = [x for x in (group, *group.parents) if x.is_relative_to(root)]
      for folder, names in itertools.product(folders, _FILES):
        try:
          limit, used, statistics = (
            (folder / name).read_text() for name in (*names[:2], 'memory.stat')
          )
        except OSError:  # the other version, or invisible from a container
          continue
        cached = dict(x.split() for x in statistics.splitlines())
        if limit.strip() != 'max':
          yield int(limit) - int(used) + int(cached.get(names[2], 0))
