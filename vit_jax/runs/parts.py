"""Where the parameters of each task lie in a run of several tasks.

The parameters of the layers that all tasks share have their usual paths. Those
that tasks of one modality share are below `modalities/NAME/`, and those of a
single task below `tasks/NAME/`. A task's own tree has none of these prefixes:
it is that of a run of this task alone.
"""

import dataclasses
import pathlib
import re
from typing import Any

from flax import traverse_util

from vit_jax.runs import safe_io
from vit_jax.runs import workdir as workdir_lib

# Modules of a trunk that all tasks share, and those that each has for itself.
# All others, as patch_embedding, are of the modality.
_SHARED = re.compile(r'(blocks|blocks_\d+|norm)/')
_TASK_MODULES = re.compile(r'(head|head_\w+|pre_logits|map_head|fc_norm)/')

_TASKS, _MODALITIES = 'tasks', 'modalities'


@dataclasses.dataclass(frozen=True)
class Part:
  """The parameters of one task, among those of a run.

  Attributes:
    task: Name of the task.
    modality: Its modality.
    trunk: Path of the trunk in the task's own tree; '': the whole tree.
    layers: Number of first layers that each modality has for itself.
  """

  task: str
  modality: str
  trunk: str = ''
  layers: int = 0

  def address(self, path: str) -> str:
    """Returns the path in the run of a path in the task's own tree."""
    before = f'{self.trunk}/' if self.trunk else ''
    trunk_path = path.removeprefix(before)
    if not path.startswith(before) or _TASK_MODULES.match(trunk_path):
      return f'{_TASKS}/{self.task}/{path}'
    layer = re.match(r'blocks_(\d+)/', trunk_path)
    is_first = layer is not None and int(layer[1]) < self.layers
    if _SHARED.match(trunk_path) and not is_first:
      return trunk_path
    return f'{_MODALITIES}/{self.modality}/{trunk_path}'

  def extract(self, params: Any) -> Any:
    """Returns the task's own tree of parameters.

    Args:
      params: Parameters of the run, nested dicts.
    """
    flat = traverse_util.flatten_dict(params, sep='/')
    before = f'{self.trunk}/' if self.trunk else ''
    places = {
      f'{_TASKS}/{self.task}/': '',
      f'{_MODALITIES}/{self.modality}/': before,
      '': before,
    }
    task_params = {}
    for name, x in flat.items():
      start = next(start for start in places if name.startswith(start))
      if not start and name.startswith((f'{_TASKS}/', f'{_MODALITIES}/')):
        continue  # of another task
      task_params[places[start] + name.removeprefix(start)] = x
    return traverse_util.unflatten_dict(task_params, sep='/')


def read(folder: pathlib.Path) -> Part | None:
  """Returns the part of a folder `tasks/NAME`; None for any other folder."""
  stored = safe_io.read_json(folder / workdir_lib.PART)
  return None if stored is None else Part(**stored)


def is_shared(name: str) -> bool:
  """Whether all tasks have the parameter at a path of the run."""
  return not name.startswith((f'{_TASKS}/', f'{_MODALITIES}/'))
