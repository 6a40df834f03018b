"""A process that computes on a CPU keeps what it frees."""

import os
import platform
import subprocess
import sys

import pytest

# Takes a large block, fills it and frees it, twice; prints how many pages the
# second took.
SCRIPT = """
import ctypes, resource
from vit_jax import host_memory
host_memory.keep_freed()
libc, size = ctypes.CDLL(None), 256 * 2**20
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
def pages():
  before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
  block = libc.malloc(size)
  ctypes.memset(block, 1, size)
  libc.free(block)
  return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
first = pages()
kept = pages()
host_memory.trim()
print(first > 1000, kept > 1000, pages() > 1000)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != 'glibc', reason='needs glibc')
@pytest.mark.parametrize(
  ('environment', 'again'),
  [
    ({'JAX_PLATFORMS': 'cpu'}, False),
    ({'JAX_PLATFORMS': 'cuda'}, True),  # the host does not compute
    ({'JAX_PLATFORMS': 'cpu', 'MALLOC_TRIM_THRESHOLD_': '131072'}, True),
  ],
)
def test_a_large_block_is_filled_once(environment, again):
  """Until it is trimmed; not where the user has settings of their own."""
  own = ('MALLOC_', 'GLIBC_TUNABLES')
  kept = {k: v for k, v in os.environ.items() if not k.startswith(own)}
  result = subprocess.run(
    [sys.executable, '-c', SCRIPT],
    env=kept | environment,
    capture_output=True,
    text=True,
    check=True,
  )
  assert result.stdout.split() == ['True', str(again), 'True']
