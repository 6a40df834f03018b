"""Flags with which XLA compiles fast: most functions of a test run once."""

import importlib.metadata


def flags(platform: str, given: str | None = None) -> str:
  """Returns the value of XLA_FLAGS, which must be set before jax starts.

  Args:
    platform: Where jax will run, such as 'cpu'.
    given: Its value before, if it has one.
  """
  found = given or '--xla_backend_optimization_level=0'
  if (
    platform == 'cpu'
    and importlib.metadata.version('jaxlib').startswith('0.10.')
    and '--xla_cpu_use_fusion_emitters' not in found
  ):
    # Halves the rest. Later versions, and TPUs, end the process at these flags.
    found += (
      ' --xla_cpu_use_fusion_emitters=false'
      ' --xla_cpu_parallel_codegen_split_count=1'
    )
  return found
