"""Sets, stores and compares configs key by key."""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
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
from vit_jax.config.parts import parse
from vit_jax.config.registry import build
from vit_jax.config.registry import table_finder
from vit_jax.config.registry import wing

# Keys that may change when a run is resumed: how often it logs, evaluates and
# saves; how a step is computed, if only the order of sums changes (but see
# _KEYS_OF_MASKS); what happens
# after a step that is not finite; and which damaged images are skipped.
RESUMABLE_KEYS = (
  r'train\.(log_every|skip_nonfinite|max_skipped_in_a_row|stall_timeout'
  r'|hooks)'
  r'|train\.(accumulation|patience)'
  r'|checkpoint\..*|evals\..*|data\.(dir|num_workers|num_threads|cache'
  r'|skip_damaged)'
  r'|mesh\..*|model\.(scan|remat|attention_implementation)'
  r'|train\.steps_per_call|reporting'
)

# Of these, the keys on which the masks of dropout depend if train.rng='rbg'.
_KEYS_OF_MASKS = r'train\.accumulation|mesh\..*'

_TASK = r'^tasks\.\w+\.'  # the start of a task's keys

# The value of model.name that selects the model of the checkpoint at
# init_from.path.
INIT_FROM = 'init_from'

# Schedules that do not depend on the duration, except for a cooldown at the
# end: runs with them may be made longer.
OPEN_ENDED = ('constant', 'rsqrt', 'wsd')

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
  """Returns `config.model.depth` for 'model.depth'.

  Raises:
    KeyError: There is no such key.
  """
  return functools.reduce(lambda node, name: node[name], key.split('.'), config)


def to_dict(config: ml_collections.ConfigDict) -> dict[str, Any]:
  """Returns a config as for config.json: tuples as lists, None if not set."""
  return json.loads(json.dumps(config.to_dict()))


def from_dict(stored: Mapping[str, Any]) -> ml_collections.ConfigDict:
  """Returns the config of config.json's content, typed as in `default()`.

  Raises:
    UserError: This version does not know a key, or a value has another type.
  """
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
  """Returns an object of JSON in another; {} if it is not there.

  Raises:
    UserError: It is a list, a number or a string.
  """
  entry = holder.get(key, {})
  if not isinstance(entry, Mapping):
    raise UserError(
      f'config.json does not hold a config: {key} is {reprlib.repr(entry)}, and'
      ' must be an object'
    )
  return entry


def _add(config: ml_collections.ConfigDict, name: str, value: Any) -> None:
  """Adds a key to a config.

  Raises:
    UserError: It cannot be one.
  """
  # The errors: it is the name of a method; it has dots.
  with explained('config.json does not hold a config', KeyError, ValueError):
    config[name] = value


def set_value(config: ml_collections.ConfigDict, key: str, value: Any) -> None:
  """Sets one leaf by its dotted key; lists become tuples.

  Raises:
    UserError: There is no such key, or the value has another type.
  """
  *parents, leaf = key.split('.')
  node = config
  try:
    for parent in parents:
      node = node[parent]
      if not isinstance(node, ml_collections.ConfigDict):
        raise KeyError(parent)
    if _is_open(parents):
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


def _is_open(parents: Sequence[str]) -> bool:
  """Whether keys may be added: others than these functions check them."""
  is_model = [*parents[:1], *parents[2:]] == ['tasks', 'model']
  return is_model or list(parents[-2:]) == ['objective', 'options']


def _tuples(value: Any) -> Any:
  return tuple(map(_tuples, value)) if isinstance(value, list) else value


@functools.cache
def _optional_keys() -> frozenset[str]:
  return frozenset(key for key, x in flatten(default()) if x is None)


def check_set(key: str, value: Any) -> None:
  """Raises a UserError if a key that must have a value is None."""
  default_key = re.sub(_TASK, '', key)
  default_key = re.sub(
    r'^evals\.[^.]+\.', 'evals.val.', default_key
  )  # of any name
  if value is None and default_key not in _optional_keys():
    raise UserError(f'config.{key} is None: it must have a value')


def unknown_key(config: ml_collections.ConfigDict, key: str) -> UserError:
  """Returns the error for an unknown key; it suggests a similar key."""
  names = [name for name, _ in flatten(config)]
  suggestion = wing('vit_jax.config.synonyms:suggest')(key, names)
  hint = suggestion or 'all keys are in vit_jax/config/defaults.py'
  if key.startswith('model.'):
    hint += (
      ". Options of a part are in its text, as model.attention='attention("
      "qk_norm=True)'"
    )
  return UserError(f'config has no key {key!r}: {hint}')


def fill(
  config: ml_collections.ConfigDict, stored: ml_collections.ConfigDict
) -> ml_collections.ConfigDict:
  """Fills unset values of a config with those of the run that it resumes.

  These are values that otherwise come from the data and the checkpoint at
  init_from.path: the number of classes and of their images, bits and intensity
  window, mean, std, interpolation, the words of captions and how positions are
  resized, and the whole model if its name is 'init_from'.

  Args:
    config: The config of the resumed run.
    stored: The config with which the run began; all its values are set.
  """
  config = config.copy_and_resolve_references()
  open_keys = ['num_classes'] if config.model.num_classes is None else []
  if config.model.name == INIT_FROM:
    open_keys += [key for key, value in config.model.items() if value is None]
    config.model.name = stored.model.name
  for key in open_keys:
    set_value(config, f'model.{key}', stored.model[key])
  if config.data.bits is None:
    set_value(config, 'data.bits', stored.data.bits)
  for key in ('mean', 'std', 'intensity_window', 'interpolation', 'words'):
    config.data[key] = config.data[key] or stored.data[key]
  if config.init_from.path:
    resize = config.init_from.resize or stored.init_from.resize
    config.init_from.resize = resize
  if config.train.accumulation == AUTO:
    config = with_accumulation(config, stored.train.accumulation)
  for key, value in stored.objective.options.items():
    if key not in config.objective.options:
      config.objective.options[key] = value
  if config.objective.class_counts is None:
    counts = stored.objective.class_counts
    set_value(config, 'objective.class_counts', counts)
  return config


def differences(
  old: ml_collections.ConfigDict,
  new: ml_collections.ConfigDict,
  resumable: bool = False,
) -> list[str]:
  """Lists keys that differ, as 'key: old -> new'.

  Args:
    old: The config with which the run began.
    new: The config with which it is resumed.
    resumable: Whether to list the keys that a resumed run may change, or all
      other keys.
  """
  before, after = (dict(flatten(to_dict(config))) for config in (old, new))
  may_change = RESUMABLE_KEYS
  if parse(old.optim.schedule, 'optim.schedule').name in OPEN_ENDED:
    may_change += r'|train\.duration'
  changes = []
  for key in sorted(before.keys() | after.keys()):
    if before.get(key) == after.get(key):
      continue
    is_resumable = bool(re.fullmatch(may_change, re.sub(_TASK, '', key)))
    reason = ''
    if old.train.rng == 'rbg' and re.fullmatch(_KEYS_OF_MASKS, key):
      is_resumable = False
      reason = " (on which the masks of dropout depend with train.rng='rbg')"
    if is_resumable == resumable:
      change = f'{key}: {before.get(key)!r} -> {after.get(key)!r}'
      changes.append(change + reason)
  return changes


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

  Args:
    config: The full config.
  """
  sharpness = sam(config)
  return max(accumulation(config), sharpness.groups if sharpness else 1)


def sam(config: ml_collections.ConfigDict) -> Any:
  """Returns what `optim.sam` of a full config names; None if it is empty.

  Raises:
    UserError: There is no such thing, or an option does not do.
  """
  if not config.optim.sam:
    return None
  return build(config.optim.sam, 'optim.sam', table_finder(SAM))


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
