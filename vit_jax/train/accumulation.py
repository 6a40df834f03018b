"""Chooses the number of microbatches, so that a step fits in memory.

The compiler reports how much temporary memory a step takes. This grows almost
linearly with the number of images in a microbatch, so a few compilations are
enough to find the `train.accumulation` that fits.
"""

from collections.abc import Mapping

from absl import logging
import ml_collections

from vit_jax import config as config_lib
from vit_jax import data
from vit_jax import optim
from vit_jax.parallel import sharding
from vit_jax.train import experiment as experiment_lib
from vit_jax.train import program as program_lib
from vit_jax.train import start

_MOST_COMPILATIONS = 5
_BATCHES = 3  # on a device: one in use, two prefetched
_SHARE = 0.9  # largest share of the free memory that 'auto' uses


def choose(experiment: experiment_lib.Experiment) -> experiment_lib.Experiment:
  """Returns the experiment with the fewest microbatches that fit.

  This also compiles its step. Nothing is on the devices yet.
  """
  room = start.free_memory(experiment)
  fit, needed = _search(experiment, {}, room)
  if fit is None:
    parts = min(needed, key=lambda parts: needed[parts])
    raise _too_large(experiment, parts, needed[parts], room, None)
  parts = fit.config.train.accumulation
  if parts > 1:
    logging.info(
      "config.train.accumulation='auto' is %d: a step of all %d images takes"
      ' %s, in %d microbatches %s, and %s is free',
      *(parts, fit.config.train.batch_size, start.gib(max(needed.values()))),
      *(parts, start.gib(min(needed.values())), start.gib(room)),
    )
  return fit


def _outside_steps(experiment: experiment_lib.Experiment) -> int:
  """Returns the memory of a run outside its steps, in bytes per device."""
  e = experiment
  size = _BATCHES * sharding.bytes_per_device(e.program.abstract_batch())
  size += sum(x.cache.bytes_on_device() for x in e.parts.values())
  if start.is_on_host(e):  # a checkpoint is copied while it is written
    size += sharding.bytes_per_device(e.program.abstract_state())
  return size


def _search(
  experiment: experiment_lib.Experiment, measured: Mapping[int, int], room: int
) -> tuple[experiment_lib.Experiment | None, dict[int, int]]:
  """Finds the fewest microbatches with which a step fits.

  `measured` has temporary bytes by numbers of microbatches that do not fit, and
  `room` is the free bytes per device. Returns the experiment with its step
  compiled, or None if nothing that was tried fits; and the bytes needed, by the
  numbers of microbatches that were tried.
  """
  config, temporary, tried = experiment.config, dict(measured), dict[int, int]()
  limit = (
    room * _SHARE
    - _outside_steps(experiment)
    - start.needed_memory(experiment, 0, False)
  )
  limit /= start.steps_held(experiment)
  choices = {config_lib.num_microbatches(config): 1}  # the first try
  for _ in range(_MOST_COMPILATIONS):
    if temporary and len(choices) == 1:
      choices = _choices(config)
    parts = _guess(experiment, choices, temporary, limit)
    if parts is None:
      break
    candidate = experiment.with_accumulation(choices[parts])
    compiled = candidate.program.compile(candidate.first_call())
    temporary[parts] = program_lib.temporary_bytes(compiled)
    tried[parts] = start.needed_memory(candidate, temporary[parts], False)
    if temporary[parts] <= limit:
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
  temporary: Mapping[int, int],
  limit: float,
) -> int | None:
  """Returns the number of microbatches to try next; None: there is none.

  Temporary memory is modelled as a + b * images of a microbatch. The line goes
  through the last two measured points; with a single point, a is the size of
  the gradients. `temporary` has the measured bytes, none of which fits `limit`.
  """
  left = [parts for parts in choices if parts > max(temporary, default=0)]
  if not temporary or not left:
    return min(left, default=None)
  last = max(temporary)
  if len(temporary) > 1:
    before = sorted(temporary)[-2]
    slope = (temporary[before] - temporary[last]) / (1 / before - 1 / last)
    base = temporary[last] - slope / last
  else:
    state = experiment.program.abstract_state()
    trained = experiment.program.rules.trained(state.params)
    base = min(sharding.bytes_per_device(trained), temporary[last])
    slope = (temporary[last] - base) * last
  fitting = [parts for parts in left if base + slope / parts <= limit]
  return min(fitting, default=max(left))


def too_large(
  experiment: experiment_lib.Experiment, temporary: int, needed: int, room: int
) -> config_lib.UserError:
  """Returns the error for a step that does not fit, with what would fit.

  In bytes per device: `temporary` is of the step, `needed` of the step and the
  train state, and `room` is free without the train state.
  """
  parts = config_lib.num_microbatches(experiment.config)
  fit, _ = _search(experiment, {parts: temporary}, room)
  return _too_large(experiment, parts, needed, room, fit)


def _too_large(
  experiment: experiment_lib.Experiment,
  parts: int,
  needed: int,
  room: int,
  fit: experiment_lib.Experiment | None,
) -> config_lib.UserError:
  train = experiment.config.train
  problem = (
    f'a step of {config_lib.counted(train.batch_size, "image")} in'
    f' {config_lib.counted(parts, "microbatch")} needs {start.gib(needed)}'
    f' of memory{start.per_device(experiment)}, and {start.gib(room)} is free'
  )
  if fit is None:
    return config_lib.UserError(
      f'{problem}; nor do smaller ones fit: set config.model.remat=full, split'
      ' the state with config.mesh.fsdp, or take a smaller batch, model or'
      ' image'
    )
  size = train.batch_size // config_lib.num_microbatches(fit.config) * parts
  return config_lib.UserError(
    f'{problem}: --config.train.accumulation='
    f'{fit.config.train.accumulation} fits and computes the same'
    f" ('auto' finds it); or take --config.train.batch_size={size} in another"
    ' work directory'
  )
