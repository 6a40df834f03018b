"""The tasks of a run that trains several on one trunk: `config.tasks`."""

from collections.abc import Mapping
import re

import ml_collections

from vit_jax.config import keys
from vit_jax.config import parts
from vit_jax.config.errors import UserError
from vit_jax.config.registry import wing

# Which task a step is of; see `config.train.task_sampling`.
SAMPLINGS = ('epochs', 'uniform', 'weighted', 'alternating', 'accumulated')


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
      of the steps for `train.task_sampling` 'weighted', and the weight in the
      loss for 'accumulated'.
    modality: Tasks of one modality share the patch embedding and the positions.
      '': the kind of the data, such as 'image' or 'volume'.
    batch_size: Number of examples in a step of this task. 0:
      `train.batch_size`.
    rate_factor: Factor of the learning rate in steps of this task.
  """
  parts = {part: keys.to_dict(config)[part] for part in keys.TASK_PARTS}
  settings = {
    'weight': weight,
    'modality': modality,
    'batch_size': batch_size,
    'rate_factor': rate_factor,
  }
  return keys.task_from_dict(parts | settings)


def for_task(
  config: ml_collections.ConfigDict, name: str
) -> ml_collections.ConfigDict:
  """Returns the config that trains one of the tasks alone.

  Args:
    config: The full config.
    name: A key of `config.tasks`.

  Raises:
    UserError: There is no such task, or it has a key that is not known.
  """
  if name not in config.tasks:
    raise UserError(
      f'there is no task {name!r}: the tasks are {", ".join(config.tasks)}'
    )
  stored = keys.to_dict(config)
  spec = stored.pop('tasks')[name]
  try:
    task_config = keys.from_dict(
      stored | {part: spec[part] for part in keys.TASK_PARTS}
    )
    for key, value in spec['model'].items():
      keys.set_value(task_config, f'model.{key}', value)
  except (KeyError, TypeError):
    raise UserError(
      f'config.tasks.{name} must be made by config.task(config)'
    ) from None
  except UserError as e:
    raise UserError(f'config.tasks.{name}: {e}') from None
  task_config.train.batch_size = (
    spec['batch_size'] or task_config.train.batch_size
  )
  task_config.optim.learning_rate *= spec['rate_factor']
  task_config.train.patience = task_config.checkpoint.best = (
    ''  # the whole run's
  )
  return task_config


def with_task_values(
  config: ml_collections.ConfigDict,
  filled: Mapping[str, ml_collections.ConfigDict],
) -> ml_collections.ConfigDict:
  """Returns a config with the values that its tasks took from their data.

  Args:
    config: The full config.
    filled: Configs of `for_task` by task, with these values set.
  """
  stored = keys.to_dict(config)
  for name, task_config in filled.items():
    own_stored = keys.to_dict(task_config)
    entry = stored['tasks'][name]
    entry |= {part: own_stored[part] for part in keys.TASK_PARTS}
    entry['model'] |= {
      key: value
      for key, value in own_stored['model'].items()
      if value != stored['model'][key]
    }
  return keys.from_dict(stored)


def resumed(
  config: ml_collections.ConfigDict, stored: ml_collections.ConfigDict
) -> ml_collections.ConfigDict:
  """Returns a config with unset values filled from the run that it resumes.

  As `resuming.fill`, also in each task.
  """
  if config.tasks.keys() != stored.tasks.keys():
    return config  # which `resuming.differences` then lists
  fill = wing('vit_jax.config.resuming:fill')
  filled = {
    name: fill(for_task(config, name), for_task(stored, name))
    for name in config.tasks
  }
  filled_config: ml_collections.ConfigDict = fill(config, stored)
  return with_task_values(filled_config, filled) if filled else filled_config


def check(config: ml_collections.ConfigDict) -> None:
  """Checks what tasks add to a config; each task's own config is checked alone.

  Raises:
    UserError: A value cannot work.
  """
  if not config.tasks:
    return
  for name, spec in config.tasks.items():
    if not re.fullmatch(r'[A-Za-z]\w*', name):
      raise UserError(
        f'config.tasks has a task {name!r}: its name must be letters, digits'
        ' and _, with a letter first'
      )
    is_config = isinstance(spec, ml_collections.ConfigDict)
    if not is_config or not set(keys.task_from_dict({})) <= set(spec):
      raise UserError(
        f'config.tasks.{name} must be made by config.task(config)'
      )
    for key, least in (('weight', 0), ('batch_size', -1), ('rate_factor', 0)):
      if not least < spec[key]:
        raise UserError(
          f'config.tasks.{name}.{key} is {spec[key]}: it must be more than'
          f' {least}'
        )
  _check_whole(config)


def _check_whole(config: ml_collections.ConfigDict) -> None:
  """Checks keys outside the tasks that do not work with several."""
  named = [name for name, spec in config.evals.items() if spec.split]
  if named:
    raise UserError(
      f'config.evals.{named[0]}.split is set, but each task has evaluations of'
      f' its own: set config.tasks.NAME.evals.{named[0]}.split'
    )
  if config.train.steps_per_call > 1:
    raise UserError(
      f'config.train.steps_per_call is {config.train.steps_per_call}, but steps'
      ' of several tasks are different programs: set it to 1'
    )
  if config.train.patch_sizes:
    raise UserError(
      f'config.train.patch_sizes is {config.train.patch_sizes}, but tasks have'
      ' one size of patches: leave it out'
    )
  if config.train.accumulation == keys.AUTO:
    raise UserError(
      "config.train.accumulation is 'auto', which measures a single task: write"
      ' a number'
    )
  if config.train.task_layers and config.model.scan:
    raise UserError(
      f'config.train.task_layers is {config.train.task_layers}, but scanned'
      ' layers are one array, that of all tasks: set config.model.scan=False'
    )
  if config.train.task_sampling == 'accumulated':
    _check_accumulated(config)
  _check_evaluations(config)


def _check_accumulated(config: ml_collections.ConfigDict) -> None:
  """Checks keys that need an update of each task's own."""
  for name in config.tasks:
    head = for_task(config, name).model.head
    if head and parts.parse(head, 'model.head').options.get('norm') == 'batch':
      raise UserError(
        "config.train.task_sampling is 'accumulated', which does not measure"
        f' the statistics of the model of task {name}: leave norm of'
        ' model.head out'
      )
    if config.tasks[name].rate_factor != 1:
      raise UserError(
        f'config.tasks.{name}.rate_factor is not 1, but with'
        " config.train.task_sampling 'accumulated' all tasks have one learning"
        ' rate: set weights instead'
      )


def _check_evaluations(config: ml_collections.ConfigDict) -> None:
  names = [
    f'{name}_{evaluation}'
    for name, spec in config.tasks.items()
    for evaluation in spec.evals
  ]
  twice = [name for name in names if names.count(name) > 1]
  if twice:
    raise UserError(
      f'two evaluations of config.tasks are called {twice[0]}: rename one'
    )


def each_task(
  config: ml_collections.ConfigDict,
) -> dict[str, ml_collections.ConfigDict]:
  """Returns the config of each task, by name; of one task {'': config}."""
  names = {name: for_task(config, name) for name in config.tasks}
  return names or {'': config}


def all_evaluations(
  config: ml_collections.ConfigDict,
) -> dict[str, ml_collections.ConfigDict]:
  """Returns the evaluations that run, by their name in results.

  Of several tasks, it is the task's and its own: 'digits_val'.
  """
  if not config.tasks:
    return {name: spec for name, spec in config.evals.items() if spec.split}
  return {
    f'{task}_{name}': spec
    for task, task_config in config.tasks.items()
    for name, spec in task_config.evals.items()
    if spec.split
  }
