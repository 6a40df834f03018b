"""Says why a run cannot go on in a work directory, with every difference."""

from collections.abc import Sequence
import pathlib

import ml_collections

from vit_jax import config as config_lib
from vit_jax.config import UserError

_MOST_LISTED = 5  # differences of configs


def other_config(
  workdir: pathlib.Path,
  before: ml_collections.ConfigDict,
  differences: Sequence[str],
) -> UserError:
  """Returns the error for a run that began with another config.

  `differences` has keys, old and new values, from `resuming.differences`.
  """
  if [x.partition(':')[0] for x in differences] == ['train.duration']:
    return UserError(
      f'{workdir} cannot be made longer or shorter'
      f' ({"; ".join(differences)}): its learning rate follows the'
      f' {before.optim.schedule} schedule to the end of config.train.duration;'
      ' train on from its parameters in another --workdir, with'
      f' --config.init_from.path={workdir}'
    )
  listed = '; '.join(differences[:_MOST_LISTED])
  num_more = len(differences) - _MOST_LISTED
  if num_more > 0:
    listed += f'; and {config_lib.counted(num_more, "other key")}'
  return UserError(
    f'{workdir} was begun with another config: {listed}; run with the old'
    ' values to resume it, or give another --workdir'
  )


def other_classes(
  folder: pathlib.Path, before: Sequence[str], names: Sequence[str]
) -> UserError:
  """Returns the error for data with other classes than when a run began."""
  changes = {
    'without': [repr(name) for name in before if name not in names],
    'with': [repr(name) for name in names if name not in before],
  }
  texts = [f'{k} {config_lib.join_first(x)}' for k, x in changes.items() if x]
  return UserError(
    f'the data has other classes than when {folder} began:'
    f' {", ".join(texts) or "their order changed"}; bring the data back, or'
    ' give another --workdir'
  )
