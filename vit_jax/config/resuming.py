"""What a run that is resumed takes from its first config, and may change."""

import re

import ml_collections

from vit_jax.config.keys import AUTO
from vit_jax.config.keys import flatten
from vit_jax.config.keys import INIT_FROM
from vit_jax.config.keys import set_value
from vit_jax.config.keys import TASK
from vit_jax.config.keys import to_dict
from vit_jax.config.keys import with_accumulation
from vit_jax.config.parts import parse

# Keys that may change when a run is resumed: how often it logs, evaluates and
# saves; how a step is computed, if only the order of sums changes (but see
# _KEYS_OF_MASKS); what happens after a step that is not finite; and which
# damaged images are skipped.
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

# Schedules that do not depend on the duration, except for a cooldown at the
# end: runs with them may be made longer.
OPEN_ENDED = ('constant', 'rsqrt', 'wsd')


def fill(
  config: ml_collections.ConfigDict, stored: ml_collections.ConfigDict
) -> ml_collections.ConfigDict:
  """Fills unset values of a config from the run that it resumes.

  These are values that otherwise come from the data and the checkpoint at
  init_from.path: the number of classes and of their images, bits and intensity
  window, mean, std, interpolation, the words of captions and how positions are
  resized, and the whole model if its name is 'init_from'. `stored` is the
  config with which the run began; all its values are set.
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
  if config.init_from.path and not config.init_from.resize:
    config.init_from.resize = stored.init_from.resize
  if config.train.accumulation == AUTO:
    config = with_accumulation(config, stored.train.accumulation)
  for key, value in stored.objective.options.items():
    if key not in config.objective.options:
      config.objective.options[key] = value
  if config.objective.class_counts is None:
    set_value(config, 'objective.class_counts', stored.objective.class_counts)
  return config


def differences(
  old: ml_collections.ConfigDict,
  new: ml_collections.ConfigDict,
  resumable: bool = False,
) -> list[str]:
  """Lists keys that differ, as 'key: old -> new'.

  They are those that a resumed run may change if `resumable`, else all others.
  """
  before, after = (dict(flatten(to_dict(config))) for config in (old, new))
  may_change = RESUMABLE_KEYS
  if parse(old.optim.schedule, 'optim.schedule').name in OPEN_ENDED:
    may_change += r'|train\.duration'
  changes = []
  for key in sorted(before.keys() | after.keys()):
    if before.get(key) == after.get(key):
      continue
    is_resumable = bool(re.fullmatch(may_change, re.sub(TASK, '', key)))
    reason = ''
    if old.train.rng == 'rbg' and re.fullmatch(_KEYS_OF_MASKS, key):
      is_resumable = False
      reason = " (on which the masks of dropout depend with train.rng='rbg')"
    if is_resumable == resumable:
      changes.append(
        f'{key}: {before.get(key)!r} -> {after.get(key)!r}{reason}'
      )
  return changes
