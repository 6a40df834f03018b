"""In how many microbatches a training batch is computed."""

import ml_collections

# A value of train.accumulation: as few parts as fit in memory.
AUTO = 'auto'


def num_parts(config: ml_collections.ConfigDict) -> int:
  """Returns the parts that a training batch is computed in, one by one.

  Each group of SAM's is one, since it has a perturbation of its own.

  Args:
    config: The full config.
  """
  groups = config.optim.sam.groups if config.optim.sam.rho else 1
  return max(accumulation(config), groups)


def accumulation(config: ml_collections.ConfigDict) -> int:
  """Returns `train.accumulation`; 1 for 'auto', which training replaces."""
  value = config.train.accumulation
  return 1 if value == AUTO else value


def in_parts(
  config: ml_collections.ConfigDict, accumulation: int
) -> ml_collections.ConfigDict:
  """Returns a config with another `train.accumulation`."""
  config = config.copy_and_resolve_references()
  with config.train.ignore_type():  # which may be that of 'auto'
    config.train.accumulation = accumulation
  return config
