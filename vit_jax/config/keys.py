"""Sets and stores configs key by key."""

from collections.abc import Iterator
from collections.abc import Mapping
import functools
import json
import re
import reprlib
from typing import Any

import ml_collections

from vit_jax.config.defaults import default
from vit_jax.config.defaults import evaluation
from vit_jax.config.errors import explained
from vit_jax.config.errors import UserError
from vit_jax.config.registry import build
from vit_jax.config.registry import wing

TASK = r'^tasks\.\w+\.'  # the start of a task's keys

# The value of model.name that selects the model of the checkpoint at
# init_from.path.
INIT_FROM = 'init_from'

# A value of train.accumulation: as few microbatches as fit in memory.
AUTO = 'auto'

# What `optim.sam` names.
SAM = {'sam': 'vit_jax.optim.sam:SAM', 'gsam': 'vit_jax.optim.sam:GSAM'}


def flatten(
  config: Mapping[str, Any], prefix: str = ''
) -> Iterator[tuple[str, Any]]:
  """Yields each leaf as `('model.depth', 12)`, in order of the keys."""
  for key in sorted(config):
    value = config[key]
    if isinstance(value, Mapping | ml_collections.ConfigDict):
      yield from flatten(value, f'{prefix}{key}.')
    else:
      yield prefix + key, value


def value_at(config: Mapping[str, Any], key: str) -> Any:
  """Returns `config.model.depth` for 'model.depth', or raises a KeyError."""
  return functools.reduce(lambda node, name: node[name], key.split('.'), config)


def to_dict(config: ml_collections.ConfigDict) -> dict[str, Any]:
  """Returns a config as for config.json: tuples as lists, None if not set."""
  return json.loads(json.dumps(config.to_dict()))


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
      _add(entry.objective.options, name, _tuples(value))
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


def set_value(config: ml_collections.ConfigDict, key: str, value: Any) -> None:
  """Sets one leaf by its dotted key; lists become tuples."""
  *parents, leaf = key.split('.')
  node = config
  try:
    for parent in parents:
      node = node[parent]
      if not isinstance(node, ml_collections.ConfigDict):
        raise KeyError(parent)
    is_model = [*parents[:1], *parents[2:]] == ['tasks', 'model']
    if is_model or parents[-2:] == ['objective', 'options']:
      # Keys may be added: others than these functions check them.
      node[leaf] = _tuples(value)
      return
    if leaf not in node or isinstance(node[leaf], ml_collections.ConfigDict):
      raise KeyError(leaf)
    check_set(key, value)
    if value is not None:
      node[leaf] = _tuples(value)
    elif node[leaf] is not None:  # ignore_type visits every key
      with node.ignore_type():
        node[leaf] = None
  except (KeyError, AttributeError):
    raise unknown_key(config, key) from None
  except TypeError:
    type_name = node.get_type(leaf).__name__
    raise UserError(
      f'config.{key} is {reprlib.repr(value)}, of type'
      f' {type(value).__name__}: it must be of type {type_name}'
    ) from None


def _tuples(value: Any) -> Any:
  return tuple(map(_tuples, value)) if isinstance(value, list) else value


@functools.cache
def _optional_keys() -> frozenset[str]:
  return frozenset(key for key, x in flatten(default()) if x is None)


def check_set(key: str, value: Any) -> None:
  """Raises a UserError if a key that must have a value is None."""
  # An evaluation of any name is like 'val'.
  default_key = re.sub(r'^evals\.[^.]+\.', 'evals.val.', re.sub(TASK, '', key))
  if value is None and default_key not in _optional_keys():
    raise UserError(f'config.{key} is None: it must have a value')


def unknown_key(config: ml_collections.ConfigDict, key: str) -> UserError:
  """Returns the error for an unknown key; it suggests a similar key."""
  names = [name for name, _ in flatten(config)]
  suggestion = wing('vit_jax.config.synonyms:suggest')(key, names)
  hint = suggestion or 'all keys are in vit_jax/config/defaults.py'
  if key.startswith('model.') and ', as in ' not in hint:
    hint += (
      ". Options of a part are in its text, as model.attention='attention("
      "qk_norm=True)'"
    )
  return UserError(f'config has no key {key!r}: {hint}')


def each_task(
  config: ml_collections.ConfigDict,
) -> dict[str, ml_collections.ConfigDict]:
  """Returns the config of each task, by name; of one task {'': config}."""
  if not config.tasks:
    return {'': config}
  for_task = wing('vit_jax.config.tasks:for_task')
  return {name: for_task(config, name) for name in config.tasks}


def all_evaluations(
  config: ml_collections.ConfigDict,
) -> dict[str, ml_collections.ConfigDict]:
  """Returns the evaluations that run, by their name in results.

  Of several tasks, it is the task's and its own: 'digits_val'.
  """
  return {
    f'{task}_{name}' if task else name: spec
    for task, task_config in each_task(config).items()
    for name, spec in task_config.evals.items()
    if spec.split
  }


def num_microbatches(config: ml_collections.ConfigDict) -> int:
  """Returns the number of microbatches of a training batch.

  That is `train.accumulation`, or the number of SAM's groups if that is larger,
  since each group has its own perturbation.
  """
  sharpness = sam(config)
  return max(accumulation(config), sharpness.groups if sharpness else 1)


def sam(config: ml_collections.ConfigDict) -> Any:
  """Returns what `optim.sam` of a full config names; None if it is empty."""
  if not config.optim.sam:
    return None
  return build(config.optim.sam, 'optim.sam', SAM)


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
