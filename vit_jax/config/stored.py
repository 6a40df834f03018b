"""Reads config.json: the inverse of `keys.to_dict`."""

from collections.abc import Mapping
import reprlib
from typing import Any

import ml_collections

from vit_jax.config.defaults import default
from vit_jax.config.defaults import evaluation
from vit_jax.config.errors import explained
from vit_jax.config.errors import UserError
from vit_jax.config.keys import flatten
from vit_jax.config.keys import set_value
from vit_jax.config.keys import tuples
from vit_jax.config.registry import wing


def from_dict(stored: Mapping[str, Any]) -> ml_collections.ConfigDict:
  """Returns the config of config.json's content, typed as in `default()`."""
  config = default()
  stored = _object({'config': stored}, 'config')
  tasks, entries = _object(stored, 'tasks'), [(config, stored)]
  for name in tasks:
    _add(config.tasks, name, wing('vit_jax.config.tasks:task')(config))
    entries.append((config.tasks[name], _object(tasks, name)))
  for entry, stored_entry in entries:
    for name in _object(stored_entry, 'evals'):
      if name not in entry.evals:
        _add(entry.evals, name, evaluation())
    options = _object(_object(stored_entry, 'objective'), 'options')
    for name, value in options.items():
      _add(entry.objective.options, name, tuples(value))
  for key, value in flatten({k: x for k, x in stored.items() if k != 'tasks'}):
    set_value(config, key, value)
  with explained('config.json does not hold a config'):
    for key, value in flatten({'tasks': tasks}):
      set_value(config, key, value)
  return config


def _object(holder: Mapping[str, Any], key: str) -> Mapping[str, Any]:
  entry = holder.get(key, {})
  if not isinstance(entry, Mapping):
    raise UserError(
      f'config.json does not hold a config: {key} is {reprlib.repr(entry)}, and'
      ' must be an object'
    )
  return entry


def _add(config: ml_collections.ConfigDict, name: str, value: Any) -> None:
  # The errors: it is the name of a method; it has dots.
  with explained('config.json does not hold a config', KeyError, ValueError):
    config[name] = value
