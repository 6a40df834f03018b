"""Chooses the number of microbatches, so that a step fits in memory.

The compiler reports how much temporary memory a step takes. This grows almost
linearly with the number of images in a microbatch, so a few compilations are
enough to find the `train.accumulation` that fits.
"""

import collections
from collections.abc import Mapping
import socket

from absl import logging
import jax
import ml_collections

from vit_jax import config as config_lib
from vit_jax import data
from vit_jax import optim
from vit_jax.parallel import memory
from vit_jax.parallel import processes
from vit_jax.parallel import sharding
from vit_jax.train import experiment as experiment_lib
from vit_jax.train import program as program_lib

_MOST_COMPILATIONS = 5
_BATCHES = 3  # on a device: one in use, two prefetched
_SHARE = 0.9  # largest share of the free memory that 'auto' uses


def choose(experiment: experiment_lib.Experiment) -> experiment_lib.Experiment:
  """Returns the experiment with the fewest microbatches that fit.

  This also compiles its step.

  Args:
    experiment: One with `train.accumulation='auto'`; nothing is on the devices.

  Raises:
    UserError: No number of microbatches fits.
  """
  room = _room(experiment)
  found, tried = _search(experiment, {}, room)
  if found is None:
    parts = min(tried, key=lambda parts: tried[parts])
    raise _too_small(experiment, parts, tried[parts], room, None)
  parts = found.config.train.accumulation
  if parts > 1:
    logging.info(
      "config.train.accumulation='auto' is %d: a step of all %d images takes"
      ' %s, in %d microbatches %s, and %s is free',
      *(parts, found.config.train.batch_size, _gib(max(tried.values()))),
      *(parts, _gib(min(tried.values())), _gib(room)),
    )
  return found


def check(
  experiment: experiment_lib.Experiment,
  compiled: jax.stages.Compiled,
  has_state: bool,
) -> None:
  """Checks that a step fits in memory.

  Args:
    experiment: The experiment that runs.
    compiled: Its first call.
    has_state: Whether the train state is already on the devices.

  Raises:
    UserError: The step does not fit; the error says what would fit.
  """
  temporary = program_lib.temporary_bytes(compiled)
  needed = _needed(experiment, temporary, has_state)
  room = _room(experiment)
  if needed <= room:
    return
  state = sharding.bytes_per_device(experiment.program.abstract_state())
  if has_state:
    needed, room = needed + state, room + state
  parts = config_lib.num_microbatches(experiment.config)
  measured = {parts: temporary}
  found, _ = _search(experiment, measured, room)
  raise _too_small(experiment, parts, needed, room, found)


def check_state(experiment: experiment_lib.Experiment) -> None:
  """Checks that the train state fits in memory, before anything is compiled.

  Raises:
    UserError: The state does not fit.
  """
  needed, room = _needed(experiment, 0, has_state=False), _room(experiment)
  if needed > room:
    raise config_lib.UserError(
      f'the train state needs {_gib(needed)} of memory{_each(experiment)}, and'
      f' {_gib(room)} is free: split it with config.mesh.fsdp, or take a'
      ' smaller model'
    )


def _room(experiment: experiment_lib.Experiment) -> int:
  """Returns the free memory of the device with the least, in bytes."""
  free = memory.free_per_device(experiment.program.mesh.local_devices)
  everywhere = processes.gather((socket.gethostname(), free))
  if not _is_on_host(experiment):
    return min(free for _, free in everywhere)
  # Processes on one host share its memory.
  sharing = collections.Counter(host for host, _ in everywhere)
  return min(free // sharing[host] for host, free in everywhere)


def _is_on_host(experiment: experiment_lib.Experiment) -> bool:
  return experiment.program.mesh.devices.flat[0].platform == 'cpu'


def _needed(
  experiment: experiment_lib.Experiment, temporary: int, has_state: bool
) -> int:
  """Returns the least memory that a step needs per device, in bytes."""
  program = experiment.program
  needed = _times(experiment) * temporary
  if has_state:
    return needed
  return needed + sharding.bytes_per_device(program.abstract_state())


def _times(experiment: experiment_lib.Experiment) -> int:
  """Returns how many steps' temporary memory is held at once.

  The next step is dispatched before the current one has ended. On a CPU its
  memory is allocated at that time, but not used until the step begins.
  """
  return 2 if _is_on_host(experiment) and memory.has_address_limit() else 1


def _beside(experiment: experiment_lib.Experiment) -> int:
  """Returns the memory of a run outside its steps, in bytes per device."""
  e = experiment
  beside = _BATCHES * sharding.bytes_per_device(e.program.abstract_batch())
  beside += sum(x.cache.bytes_on_device() for x in e.parts.values())
  if _is_on_host(e):  # a checkpoint is copied while it is written
    beside += sharding.bytes_per_device(e.program.abstract_state())
  return beside


def _search(
  experiment: experiment_lib.Experiment, measured: Mapping[int, int], room: int
) -> tuple[experiment_lib.Experiment | None, dict[int, int]]:
  """Finds the fewest microbatches with which a step fits.

  Args:
    experiment: The experiment, with any accumulation.
    measured: Temporary bytes, by numbers of microbatches that do not fit.
    room: Free bytes per device.

  Returns:
    The experiment with that number of microbatches and its step compiled, or
    None if nothing that was tried fits; and the bytes needed, by the numbers of
    microbatches that were tried.
  """
  config, known, tried = experiment.config, dict(measured), dict[int, int]()
  limit = room * _SHARE - _beside(experiment) - _needed(experiment, 0, False)
  limit /= _times(experiment)
  choices = {config_lib.num_microbatches(config): 1}  # the first try
  for _ in range(_MOST_COMPILATIONS):
    if known and len(choices) == 1:
      choices = _choices(config)
    parts = _guess(experiment, choices, known, limit)
    if parts is None:
      break
    candidate = experiment.with_accumulation(choices[parts])
    compiled = candidate.program.compile(candidate.first_call())
    known[parts] = program_lib.temporary_bytes(compiled)
    tried[parts] = _needed(candidate, known[parts], False)
    if known[parts] <= limit:
      return candidate, tried
  return None, tried


def _choices(config: ml_collections.ConfigDict) -> dict[int, int]:
  """Returns the accumulations that a config permits, by number of microbatches.

  They divide the batch and give each device an equal part of each microbatch.
  Mixed pairs and SAM's groups are not split between microbatches.
  """
  choices: dict[int, int] = {}
  size = config.train.batch_size
  for accumulation in range(1, size + 1):
    if size % accumulation:
      continue
    config = config_lib.with_accumulation(config, accumulation)
    try:
      data.check(config)
      optim.check(config)
      sharding.check(config)
    except config_lib.UserError:
      continue
    choices.setdefault(config_lib.num_microbatches(config), accumulation)
  return choices


def _guess(
  experiment: experiment_lib.Experiment,
  choices: Mapping[int, int],
  known: Mapping[int, int],
  limit: float,
) -> int | None:
  """Returns the number of microbatches to try next; None: there is none.

  Temporary memory is modelled as a + b * images of a microbatch. The line goes
  through the last two measured points; with a single point, a is the size of
  the gradients.

  Args:
    experiment: The experiment that runs.
    choices: As `_choices` returns them.
    known: Temporary bytes by number of microbatches; none of them fits.
    limit: Largest number of temporary bytes that fits.
  """
  left = [parts for parts in choices if parts > max(known, default=0)]
  if not known or not left:
    return min(left, default=None)
  last = max(known)
  if len(known) > 1:
    before = sorted(known)[-2]
    slope = (known[before] - known[last]) / (1 / before - 1 / last)
    base = known[last] - slope / last
  else:
    state = experiment.program.abstract_state()
    trained = experiment.program.rules.trained(state.params)
    base = min(sharding.bytes_per_device(trained), known[last])
    slope = (known[last] - base) * last
  fitting = [parts for parts in left if base + slope / parts <= limit]
  return min(fitting, default=max(left))


def _too_small(
  experiment: experiment_lib.Experiment,
  parts: int,
  needed: int,
  room: int,
  found: experiment_lib.Experiment | None,
) -> config_lib.UserError:
  """Returns the error for a step that does not fit."""
  train = experiment.config.train
  problem = (
    f'a step of {config_lib.counted(train.batch_size, "image")} in'
    f' {config_lib.counted(parts, "microbatch")} needs {_gib(needed)}'
    f' of memory{_each(experiment)}, and {_gib(room)} is free'
  )
  if found is None:
    return config_lib.UserError(
      f'{problem}; nor do smaller ones fit: set config.model.remat=full, split'
      ' the state with config.mesh.fsdp, or take a smaller batch, model or'
      ' image'
    )
  size = train.batch_size // config_lib.num_microbatches(found.config) * parts
  return config_lib.UserError(
    f'{problem}: --config.train.accumulation='
    f'{found.config.train.accumulation} fits and computes the same'
    f" ('auto' finds it); or take --config.train.batch_size={size} in another"
    ' work directory'
  )


def _each(experiment: experiment_lib.Experiment) -> str:
  return ' for each device' if experiment.program.mesh.size > 1 else ''


def _gib(size: float) -> str:
  return f'{size / 2**30:.2f} GiB'
