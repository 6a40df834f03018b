"""Says why a run cannot go on in a work directory, with every difference."""

from collections.abc import Mapping
from collections.abc import Sequence
import pathlib
from typing import Any

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

  Args:
    workdir: The work directory.
    before: The config of the run.
    differences: Keys, old and new values, from `config.differences`.
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


def other_arrays(
  path: pathlib.Path,
  stored: Mapping[str, tuple[str, Any]],
  expected: Mapping[str, tuple[str, Any]],
) -> UserError:
  """Returns the error for a checkpoint that does not fit the train state.

  Args:
    path: Path of the checkpoint.
    stored: Type and shape of its arrays, by path.
    expected: The same of the train state.
  """
  differences = []
  for key in sorted(stored.keys() | expected.keys()):
    texts = [
      f'{arrays[key][0]}{arrays[key][1]}' if key in arrays else 'nothing'
      for arrays in (stored, expected)
    ]
    if texts[0] != texts[1]:
      differences.append(f'{key}: stored {texts[0]}, expected {texts[1]}')
  return UserError(
    f'checkpoint {path} does not fit the config: {"; ".join(differences)}; use'
    ' the config it was made with, or another work directory'
  )
