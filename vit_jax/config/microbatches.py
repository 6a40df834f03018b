"""The number of microbatches that a training batch is computed in."""

import ml_collections

# A value of train.accumulation: as few microbatches as fit in memory.
AUTO = 'auto'


def num_microbatches(config: ml_collections.ConfigDict) -> int:
  """Returns the number of microbatches of a training batch.

  That is `train.accumulation`, or the number of SAM's groups if that is larger,
  since each group has its own perturbation.

  Args:
    config: The full config.
  """
  groups = config.optim.sam.groups if config.optim.sam.rho else 1
  return max(accumulation(config), groups)


def accumulation(config: ml_collections.ConfigDict) -> int:
  """Returns `train.accumulation`; 1 for 'auto', which training replaces."""
  value = config.train.accumulation
  return 1 if value == AUTO else value


def with_accumulation(
  config: ml_collections.ConfigDict, accumulation: int
) -> ml_collections.ConfigDict:
  """Returns a copy of a config with another `train.accumulation`."""
  config = config.copy_and_resolve_references()
  with config.train.ignore_type():  # an int may replace 'auto'
    config.train.accumulation = accumulation
  return config
