"""Programs of one config, made once in a process.

Many tests run a config again: killed, resumed, continued. Tracing and lowering
its step takes most of such a run.
"""

import collections
import pickle
from typing import Any

from vit_jax.train import program as program_lib

_Program = program_lib.Program
_MOST = 16  # each keeps what it compiled
# What a run does between steps; and data, which `features` describe.
_BETWEEN = {
  '': ('checkpoint', 'evals', 'reporting', 'init_from'),
  'train': (
    *('duration', 'log_every', 'max_skipped_in_a_row', 'patience'),
    *('stall_timeout', 'steps_per_call'),
  ),
  'data': ('cache', 'dir', 'name', 'num_threads', 'num_workers', 'split'),
}
_programs: collections.OrderedDict[Any, program_lib.Program] = (
  collections.OrderedDict()
)


def share() -> None:
  """Gives the programs of a test to those after it."""
  program_lib.Program = _program


def make_anew() -> None:
  """Makes each program anew."""
  program_lib.Program = _Program


def forget() -> None:
  """Forgets the programs that were made."""
  _programs.clear()


def _program(config, features, lengths, devices=None):
  values = config.copy_and_resolve_references().to_dict()
  for section, keys in _BETWEEN.items():
    part = values[section] if section else values
    for key in keys:
      part.pop(key, None)
  try:
    key = pickle.dumps((values, features, lengths))
  except (AttributeError, TypeError, pickle.PicklingError):
    key = None  # of a source that a test defines
  if key is None or devices is not None:
    return _Program(config, features, lengths, devices)
  if key not in _programs:
    _programs[key] = _Program(config, features, lengths)
    while len(_programs) > _MOST:
      _programs.popitem(last=False)
  _programs.move_to_end(key)
  return _programs[key].with_config(config)
