"""The keys of a config, with the values in force and their meanings."""

import dataclasses
import re
from typing import Any
from typing import TYPE_CHECKING

from vit_jax import config as config_lib
from vit_jax import tables
from vit_jax.config import meanings
from vit_jax.config import synonyms
from vit_jax.config import UserError

if TYPE_CHECKING:
  import ml_collections


@dataclasses.dataclass(frozen=True)
class Key:
  """A key of a config.

  Attributes:
    key: As 'optim.learning_rate'.
    value: The value in force; None: it comes from the data or the checkpoint,
      or is off.
    meaning: What it is for; '' for an option of an objective.
  """

  key: str
  value: Any
  meaning: str


def find(config: 'ml_collections.ConfigDict', word: str = '') -> list[Key]:
  """Returns the keys of a config in the order of their names.

  Neither its data nor a checkpoint is opened. All of the words must be in the
  key or its meaning, or they are another library's name of it, as 'lr'; '':
  all keys.
  """
  keys = [
    Key(key, value, meanings.meaning(key))
    for key, value in config_lib.flatten(_in_force(config))
  ]
  called = synonyms.keys_called(word)
  words = _plain(word).split()
  matches = [
    x
    for x in keys
    if x.key in called
    or all(part in _plain(f'{x.key} {x.meaning}') for part in words)
  ]
  if not matches:
    hint = synonyms.suggest(word, [x.key for x in keys], '--config.')
    raise UserError(
      f'--keys={word}: no key has this in its name or meaning'
      + (f'; {hint}' if hint else '')
    )
  return matches


def _plain(text: str) -> str:
  return re.sub(r'[\W_]+', ' ', text).lower()


def _in_force(
  config: 'ml_collections.ConfigDict',
) -> 'ml_collections.ConfigDict':
  """Returns a config with what its data need not say: options and model."""
  from vit_jax import objectives  # after the flags, since these import jax
  from vit_jax.train import experiment
  from vit_jax.train import variant

  config_lib.check(config)
  variant.check(config)
  config = config.copy_and_resolve_references()
  if not config.tasks:
    objectives.fill_options(config)
  if config.init_from.path:
    experiment.fill_model(config)
  else:
    experiment.fill_unset(config)
  return config


def as_json(keys: list[Key]) -> dict[str, Any]:
  """Returns keys as for JSON: `{key: {'value': ..., 'meaning': ...}}`."""
  return {x.key: {'value': x.value, 'meaning': x.meaning} for x in keys}


def table(keys: list[Key]) -> tables.Table:
  """Returns a row for each key."""
  return tables.Table((), [(x.key, repr(x.value), x.meaning) for x in keys])
