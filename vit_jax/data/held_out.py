"""Holds images out for evaluation, where the data have none of their own."""

import ml_collections

from vit_jax import config as config_lib
from vit_jax.data import sources
from vit_jax.data import splits


def hold_out(config: ml_collections.ConfigDict) -> None:
  """Evaluates on a fifth of the training images, if no others are there.

  Data that has val, or test in its place, keeps the splits of the config. So
  does data that cannot be opened, of which a run says what is wrong.
  """
  try:
    sources.open_source(config, config.evals.val.split)
  except splits.SplitError as e:
    train_split = e.only or 'train'
    config.data.split = f'{train_split}[:80%]'
    config.evals.val.split = f'{train_split}[80%:]'
  except config_lib.UserError:
    return
