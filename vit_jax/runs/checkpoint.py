"""Saves the checkpoints of a run.

`WORKDIR/checkpoints/STEP/` has the train state, `WORKDIR/best/STEP/` the same
without the optimizer's state. A checkpoint has two Orbax items: `state`, a tree
of arrays, and `info`, a JSON object:

    format   2; of format 1, which has no `extra`, only parameters are read
    step     number of completed updates
    metrics  metrics of the evaluations at that step; null: still to be done
    counts   counters of the run at that step; missing in older checkpoints
    arrays   {path: {shape, dtype, checksum}} of all arrays of the state
    crc32    checksum of all of the above

Orbax writes into a temporary directory and renames it, so a directory STEP/ is
always complete. It detects files that are missing or truncated, but not a
flipped bit in an array; the checksums detect that. They are computed on the
device, or by NumPy, from the bits of the elements and their positions. So they
depend neither on the mesh nor on the number of processes. `restoring` reads
checkpoints.

Orbax is imported only in the functions that need it, since its import takes
half as long as that of JAX.
"""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import fractions
import functools
import inspect
import itertools
import json
import logging as python_logging
import os
import pathlib
import re
import sys
from typing import Any
from typing import TYPE_CHECKING
import zlib

from absl import logging
import jax
from jax.experimental import multihost_utils
import jax.numpy as jnp
import ml_collections
import numpy as np

from vit_jax import config as config_lib
from vit_jax.config import UserError
from vit_jax.parallel import processes
from vit_jax.parallel import sharding
from vit_jax.runs import workdir as workdir_lib

if TYPE_CHECKING:
  from vit_jax.runs import best

FORMAT = 2

# Key of an objective's state: its own moving average of all parameters.
AVERAGE = 'average'

PyTree = Any
# Returns the train state to fill, of `jax.ShapeDtypeStruct` leaves with
# shardings, for the paths of the stored arrays.
StateFor = Callable[[Collection[str]], PyTree]

_SMALL = 2**16  # elements of an array that NumPy sums, in 0.2 ms
_ORBAX = f'{os.sep}orbax{os.sep}'  # a part of the paths of Orbax's files


class Checkpointer:
  """Saves the train state of a run, and restores the newest good one.

  Only one may be open on a work directory, since opening removes the remains of
  interrupted saves. With several processes, all must make the same calls. A
  UserError says which checkpoint could not be written; `save` and `save_best`
  also raise that of the checkpoint before, which was written in the background.

  Attributes:
    counts: The `counts` of the checkpoint that was restored; {} if there is
      none, or an older version wrote it.
  """

  def __init__(
    self,
    workdir: pathlib.Path | str,
    config: ml_collections.ConfigDict,
    keep_every: fractions.Fraction | None = None,
    lower_is_better: bool = False,
  ):
    """Opens `workdir/checkpoints`, and `workdir/best` if the config has it.

    Args:
      workdir: The work directory of the run.
      config: `config.checkpoint`; only `keep` and `best` are used.
      keep_every: Its `keep_every` in steps, from `config.period`: the first
        checkpoint at or after each multiple is kept for ever.
      lower_is_better: Whether lower values of the metric `best` are better.
    """
    workdir = pathlib.Path(workdir).resolve()  # Orbax needs absolute paths
    quiet_orbax()
    keep = functools.partial(steps_to_keep, keep=config.keep, every=keep_every)
    self.counts: dict[str, int] = {}
    self._store = Store(workdir / 'checkpoints', keep)
    self._best: best.Best | None = None
    if config.best:
      open_best = config_lib.wing('vit_jax.runs.best:Best')
      self._best = open_best(workdir / 'best', config.best, lower_is_better)

  def __enter__(self) -> 'Checkpointer':
    return self

  def __exit__(
    self, kind: object, error: BaseException | None, traceback: object
  ) -> None:
    try:
      self.close()
    except UserError as e:
      if error is None:
        raise
      # The first error propagates, not this one.
      if not isinstance(error, UserError):
        logging.error('%s', e)

  @property
  def best_step(self) -> int:
    """The step of the best metric so far; 0: there is none yet."""
    return self._best.step if self._best else 0

  def save(
    self,
    step: int,
    state: PyTree,
    metrics: dict[str, float] | None = None,
    counts: Mapping[str, int] | None = None,
  ) -> bool:
    """Writes a checkpoint in the background, also to best/ if it is the best.

    Returns once the arrays are off the device, so that `state` may be donated.
    Does nothing, and returns False, for a step that has a checkpoint already.

    Args:
      step: Number of completed updates.
      state: The train state: a flax.struct dataclass of arrays.
      metrics: Metrics of the evaluations at this step; None: they are still to
        be done.
      counts: Counters of the run at this step, by name.
    """
    self.save_best(step, state, metrics)
    return self._store.save(step, state, metrics, counts)

  def save_best(
    self, step: int, state: PyTree, metrics: dict[str, float] | None
  ) -> None:
    """Writes best/STEP in the background if the metric is the best so far.

    The metric is `config.checkpoint.best`. The old best is removed once the new
    one is complete. All of the state but `opt_state` is written.
    """
    if self._best is not None:
      self._best.save(step, state, metrics or {})

  def restore(
    self, state_for: StateFor
  ) -> tuple[PyTree, int, dict[str, float] | None] | None:
    """Reads the newest good checkpoint: the train state, its step and metrics.

    Returns None if there is no checkpoint. A warning names a damaged one, which
    is renamed to `STEP.damaged` once an older one was read. If the run stopped
    before it had written its best checkpoint, this writes it. A UserError lists
    all differences of a checkpoint that does not fit the train state.
    """
    self.wait()
    directory = self._store.directory
    if not step_folders(directory):
      return None
    newest_good = config_lib.wing('vit_jax.runs.restoring:newest_good')
    newest = newest_good(directory, state_for)
    if newest is None:
      return None
    state, info, path, damaged = newest
    if damaged:
      self._store.set_aside(damaged)
      logging.warning('Using the checkpoint before, %s', path)
    self.counts = dict(info.get('counts', {}))
    self.save_best(info['step'], state, info['metrics'])
    return state, info['step'], info['metrics']

  def wait(self) -> None:
    """Blocks until all checkpoints are written."""
    self._store.wait()
    if self._best is not None:
      self._best.store.wait()

  def close(self) -> None:
    """Waits until all checkpoints are written, then ends all threads."""
    try:
      self._store.close()
    finally:
      if self._best is not None:
        self._best.store.close()


def step_folders(directory: pathlib.Path) -> list[pathlib.Path]:
  """Lists the checkpoints that process 0 sees, the newest first.

  On a network file system another process may not see the newest yet.
  """
  names = processes.call_on_first(
    lambda: [path.name for path in workdir_lib.newest_first(directory)]
  )
  return [directory / name for name in names]


class Store:
  """One directory of checkpoints: an Orbax manager with clear errors."""

  def __init__(
    self,
    directory: pathlib.Path,
    to_keep: Callable[[Sequence[int]], set[int]],
  ):
    import orbax.checkpoint as ocp

    self.directory = directory
    self._to_keep = to_keep
    self._writing: int | None = None  # the step that is being written
    options = ocp.CheckpointManagerOptions(
      preservation_policy=self,
      cleanup_tmp_directories=True,
      lightweight_initialize=True,
      async_options=ocp.AsyncOptions(
        # If a directory cannot be made, Orbax's threads would wait 20 minutes.
        create_directories_asynchronously=False,
        barrier_sync_fn=_barrier(),
      ),
      # Both stores may write at once, so their barriers need different names.
      multiprocessing_options=ocp.options.MultiprocessingOptions(
        barrier_sync_key_prefix=directory.name
      ),
    )
    with self._explained():
      self._manager = ocp.CheckpointManager(directory, options=options)

  def should_preserve(
    self, checkpoints: Sequence[Any], *, context: object
  ) -> Sequence[bool]:
    """Tells Orbax which checkpoints to keep."""
    del context
    steps_kept = self._to_keep([checkpoint.step for checkpoint in checkpoints])
    return [checkpoint.step in steps_kept for checkpoint in checkpoints]

  def has(self, step: int) -> bool:
    """Whether a step has a checkpoint."""
    return step in self._manager.all_steps()

  def save(
    self,
    step: int,
    state: PyTree,
    metrics: dict[str, float] | None,
    counts: Mapping[str, int] | None = None,
  ) -> bool:
    """Writes a checkpoint; arguments and result as of `Checkpointer.save`."""
    import orbax.checkpoint as ocp

    self.wait()
    if self.has(step):
      return False
    if metrics is not None:
      metrics = {name: float(value) for name, value in metrics.items()}
    sums = checksums(state)
    arrays = {
      path: {
        'shape': list(x.shape),
        'dtype': jnp.dtype(x.dtype).name,
        'checksum': sums[path],
      }
      for path, x in sharding.leaves(state).items()
    }
    info = {
      'format': FORMAT,
      'step': int(step),
      'metrics': metrics,
      'counts': dict(counts or {}),
      'arrays': arrays,
    }
    info['crc32'] = crc32(info)
    self._writing = step
    with self._explained():
      self._manager.save(
        step,
        args=ocp.args.Composite(
          state=ocp.args.PyTreeSave(state), info=ocp.args.JsonSave(info)
        ),
        force=True,  # the train loop decides when to save
      )
    return True

  def wait(self) -> None:
    """Blocks until the checkpoint is written."""
    with self._explained():
      self._manager.wait_until_finished()
    self._writing = None

  def close(self) -> None:
    """Waits, then ends the threads."""
    try:
      self.wait()
    finally:
      self._manager.close()  # does not raise the same error again

  def set_aside(self, paths: Sequence[pathlib.Path]) -> None:
    """Renames damaged checkpoints to STEP.damaged."""
    if jax.process_index() == 0:
      with self._explained():
        for path in paths:
          names = (f'{path.name}.damaged{n or ""}' for n in itertools.count())
          targets = map(path.with_name, names)
          path.rename(next(x for x in targets if not x.exists()))
    if jax.process_count() > 1:
      multihost_utils.sync_global_devices('checkpoint: set aside')
    self._manager.reload()

  @contextlib.contextmanager
  def _explained(self) -> Iterator[None]:
    try:
      yield
    except (OSError, ValueError, RuntimeError) as e:
      path = self.directory
      if self._writing is not None:
        path = path / str(self._writing)
      raise UserError(
        f'cannot write checkpoint {path}: {cause(e)}; earlier'
        ' checkpoints are intact: make room for it, or make the directory'
        ' writable, and run the same command again'
      ) from e


def cause(error: BaseException) -> str:
  """Returns the useful part of an error's message, in one line."""
  while error.__cause__ is not None:  # Orbax wraps TensorStore's errors
    error = error.__cause__
  if isinstance(error, OSError) and error.strerror:
    return error.strerror
  text = str(error).strip() or type(error).__name__
  number = re.search(r"\[os_error_code='(\d+)'", text)  # of TensorStore
  if number:
    return os.strerror(int(number[1]))
  # The rest is the specification of the array, which runs to kilobytes.
  return text.splitlines()[0].split(' [tensorstore_spec')[0]


def _barrier() -> Callable[..., None] | None:
  """Returns the barrier of the writing threads of all processes."""
  if jax.process_count() == 1:
    return None
  meeting = config_lib.wing('vit_jax.parallel.peers:meeting')
  barrier: Callable[..., None] = meeting()
  return barrier


def steps_to_keep(
  steps: Sequence[int], keep: int, every: fractions.Fraction | None
) -> set[int]:
  """Returns the steps of the checkpoints to keep: the newest `keep`.

  And the first at or after each multiple of `every` steps.
  """
  steps = sorted(steps)
  steps_kept = set(steps[-keep:])
  periods = 0
  if every:
    for step in steps:
      if step // every > periods:
        periods = int(step // every)
        steps_kept.add(step)
  return steps_kept


def crc32(info: dict[str, Any]) -> int:
  """Returns the checksum of the other entries of an `info`."""
  return zlib.crc32(json.dumps(info, sort_keys=True).encode())


def checksums(tree: PyTree) -> dict[str, int]:
  """Returns a 32-bit checksum of each array by its path, like 'params/kernel'.

  A change to a single element always changes it; any other change goes
  unnoticed with probability 2^-32.
  """
  # The functions run one after the other, since concurrent sums over several
  # CPU devices can deadlock: each holds threads that another one needs.
  return {path: int(_checksum(x)) for path, x in sharding.leaves(tree).items()}


def _checksum(x: jax.Array | np.ndarray | np.generic) -> Any:
  """Returns the checksum of an array.

  This compiles a small function for each shape; one for the whole tree would be
  as fast, but take ten times as long to compile. For small arrays of the host
  NumPy is faster than that.
  """
  is_on_host = isinstance(x, np.ndarray | np.generic) or (
    x.is_fully_addressable
    and all(device.platform == 'cpu' for device in x.devices())
  )
  if not is_on_host or x.size > _SMALL or x.dtype.itemsize > 4:
    return _device_checksum(x)
  values = np.atleast_1d(np.asarray(x))
  return _sum_of_bits(values.view(f'u{x.dtype.itemsize}'), np)


@jax.jit
def _device_checksum(x: jax.Array) -> jax.Array:
  if x.dtype == jnp.bool_:
    return _sum_of_bits(x, jnp)
  kind = {1: jnp.uint8, 2: jnp.uint16}.get(x.dtype.itemsize, jnp.uint32)
  return _sum_of_bits(jax.lax.bitcast_convert_type(x, kind), jnp)


def _sum_of_bits(bits: Any, xp: Any) -> Any:
  """Returns the checksum of the bits of an array, computed by `xp`.

  That is NumPy or jax.numpy. No array is reshaped but for indices, so that each
  device reads only its own shard.
  """
  position = xp.zeros((1,) * bits.ndim, xp.uint32)
  for axis, size in enumerate(bits.shape):
    shape = [1] * bits.ndim
    shape[axis] = size
    index = xp.arange(size, dtype=xp.uint32).reshape(shape)
    position = position * xp.uint32(size % 2**32) + index
  mixed = _mix(bits.astype(xp.uint32) ^ _mix(position + 1, xp), xp)
  return mixed.sum(dtype=xp.uint32)


def _mix(h: Any, xp: Any) -> Any:
  """The finalizer of MurmurHash3: a bijection of uint32 that spreads bits."""
  h = (h ^ (h >> 16)) * xp.uint32(0x85EBCA6B)
  h = (h ^ (h >> 13)) * xp.uint32(0xC2B2AE35)
  return h ^ (h >> 16)


@functools.cache
def quiet_orbax() -> None:
  """Keeps Orbax's own messages off the terminal, except for warnings.

  Orbax logs every detail. Each thread that sees a failure logs a traceback,
  although the error is also raised. Coroutines that a failure abandons log a
  message when they are garbage-collected, which may be at any time. So this
  setting is never undone.
  """
  previous = sys.unraisablehook

  def hook(unraisable: Any) -> None:
    source, error = unraisable.object, unraisable.exc_value
    if inspect.iscoroutine(source) and _ORBAX in source.cr_code.co_filename:
      return
    if source is None and str(error) == 'Event loop is closed':
      return
    previous(unraisable)

  def is_needed(record: python_logging.LogRecord) -> bool:
    warning = record.levelno == python_logging.WARNING
    return warning or _ORBAX not in record.pathname

  def not_abandoned(record: python_logging.LogRecord) -> bool:
    return 'exception was never retrieved' not in str(record.msg)

  sys.unraisablehook = hook
  logging.get_absl_logger().addFilter(is_needed)
  python_logging.getLogger('asyncio').addFilter(not_abandoned)
