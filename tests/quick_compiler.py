"""How tests compile: with flags for which XLA is fast, and each program once.

Most functions of a test run once, so that compiling takes longest.
"""

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import pathlib
import platform as platform_lib
import sys
import time

_DAYS = 14  # that a program is kept after a test compiled it


def flags(platform: str, flags_before: str | None = None) -> str:
  """Returns the value of XLA_FLAGS, which must be set before jax starts.

  Args:
    platform: Where jax will run, such as 'cpu'.
    flags_before: Its value before, if it has one.
  """
  xla_flags = flags_before or '--xla_backend_optimization_level=0'
  if (
    platform == 'cpu'
    and importlib.metadata.version('jaxlib').startswith('0.10.')
    and '--xla_cpu_use_fusion_emitters' not in xla_flags
  ):
    # Halves the rest. Later versions, and TPUs, end the process at these flags.
    xla_flags += (
      ' --xla_cpu_use_fusion_emitters=false'
      ' --xla_cpu_parallel_codegen_split_count=1'
    )
  return xla_flags


def cache_variables(platform: str) -> dict[str, str]:
  """Returns variables with which JAX keeps compiled programs for later tests.

  They are in a folder of `VIT_JAX_TEST_CACHE`, by default of the user's cache.
  Its name holds what a program depends on and JAX's own keys do not: versions,
  flags and the processor. An empty value keeps nothing. They must be set before
  jax starts, after XLA_FLAGS; the processes that tests start inherit them.

  Args:
    platform: Where jax will run, such as 'cpu'.
  """
  cache = os.environ.get('XDG_CACHE_HOME') or pathlib.Path.home() / '.cache'
  root = os.environ.get('VIT_JAX_TEST_CACHE', f'{cache}/vit_jax/tests')
  if not root:
    return {}
  try:
    pathlib.Path(root).mkdir(parents=True, exist_ok=True)
    _remove_old(pathlib.Path(root))
  except OSError:  # tests run without it, only longer
    return {}
  versions = [importlib.metadata.version(x) for x in ('jax', 'jaxlib')]
  facts = (
    sys.version,
    *versions,
    platform,
    os.environ['XLA_FLAGS'],
    _processor(),
    # With it, JAX compresses programs otherwise, in a seventh of the time.
    importlib.util.find_spec('zstandard') is not None,
  )
  name = hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
  return {
    'JAX_COMPILATION_CACHE_DIR': os.path.join(root, name),
    # The smallest, too: tests make thousands of them op by op.
    'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
    'JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES': '-1',
  }


def _processor() -> str:
  """Returns what code is compiled for: the model and its instructions."""
  facts = pathlib.Path('/proc/cpuinfo')
  if not facts.exists():
    return platform_lib.processor()
  lines = facts.read_text().splitlines()
  return '\n'.join(
    sorted(
      {x for x in lines if x.startswith(('model name', 'flags', 'Features'))}
    )
  )


def _remove_old(root: pathlib.Path) -> None:
  """Removes programs that were compiled long ago."""
  oldest = time.time() - _DAYS * 24 * 3600
  for path in root.glob('*/*'):
    with contextlib.suppress(FileNotFoundError):  # another process was sooner
      if path.stat().st_mtime < oldest:
        path.unlink()
