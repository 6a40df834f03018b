"""The configs of tasks that share one backbone: `config.tasks`."""

from collections.abc import Mapping

import ml_collections

from vit_jax.config import keys
from vit_jax.config.errors import explained
from vit_jax.config.errors import UserError
from vit_jax.config.stored import from_dict

# What each task has for itself.
_PARTS = ('data', 'augment', 'objective', 'evals')


def task(
  config: ml_collections.ConfigDict,
  weight: float = 1.0,
  modality: str = '',
  batch_size: int = 0,
  rate_factor: float = 1.0,
) -> ml_collections.ConfigDict:
  """Returns an entry of `config.tasks`.

  It has `data`, `augment`, `objective` and `evals` of its own, with the values
  of the config, and `model`, where keys of `config.model` may be set that
  differ for this task, as the name for another patch size.

  Args:
    config: The full config.
    weight: Weight of the task, relative to the other tasks. It is the fraction
      of the steps for `tasks(sampling='weighted')`, and the weight in the loss
      for 'accumulated'.
    modality: Tasks of one modality share the patch embedding and the positions.
      '': the kind of the data, such as 'image' or 'volume'.
    batch_size: Number of examples in a step of this task. 0:
      `train.batch_size`.
    rate_factor: Factor of the learning rate in steps of this task.
  """
  parts = {part: keys.to_dict(config)[part] for part in _PARTS}
  typed = from_dict(parts)
  entry = ml_collections.ConfigDict(
    {
      'weight': float(weight),
      'modality': modality,
      'batch_size': batch_size,
      'rate_factor': float(rate_factor),
      'model': {},
      **{part: typed[part] for part in _PARTS},
    }
  )
  entry.lock()
  for part in (entry.model, entry.evals, entry.objective.options):
    part.unlock()
  return entry


def for_task(
  config: ml_collections.ConfigDict, name: str
) -> ml_collections.ConfigDict:
  """Returns the config that trains one of the tasks alone."""
  if name not in config.tasks:
    raise UserError(
      f'there is no task {name!r}: the tasks are {", ".join(config.tasks)}'
    )
  stored = keys.to_dict(config)
  entry = stored.pop('tasks')[name]
  if not isinstance(entry, dict) or not set(task(config)) <= set(entry):
    raise UserError(f'config.tasks.{name} must be made by config.task(config)')
  with explained(f'config.tasks.{name}'):
    task_config = from_dict(stored | {part: entry[part] for part in _PARTS})
    for key, value in entry['model'].items():
      keys.set_value(task_config, f'model.{key}', value)
  task_config.train.batch_size = (
    entry['batch_size'] or task_config.train.batch_size
  )
  task_config.optim.learning_rate *= entry['rate_factor']
  for key in ('train.variant', 'train.patience', 'checkpoint.best'):
    keys.set_value(task_config, key, '')  # the whole run's
  return task_config


def with_task_values(
  config: ml_collections.ConfigDict,
  filled: Mapping[str, ml_collections.ConfigDict],
) -> ml_collections.ConfigDict:
  """Returns a config with the values that its tasks took from their data.

  `filled` has configs of `for_task` by task, with these values set.
  """
  stored = keys.to_dict(config)
  for name, task_config in filled.items():
    values, entry = keys.to_dict(task_config), stored['tasks'][name]
    entry |= {part: values[part] for part in _PARTS}
    entry['model'] |= {
      key: value
      for key, value in values['model'].items()
      if value != stored['model'][key]
    }
  return from_dict(stored)
