"""Saves the checkpoints of a run, and restores the run from them.

`WORKDIR/checkpoints/STEP/` has the train state, `WORKDIR/best/STEP/` the same
without the optimizer's state. `checkpoint_format` describes the files.

Orbax is imported only in the functions that need it, since its import takes
half as long as that of JAX.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import fractions
import functools
import itertools
import pathlib
import sys
from typing import Any
from typing import TYPE_CHECKING

from absl import logging
import jax
from jax.experimental import multihost_utils
import ml_collections

from vit_jax import config as config_lib
from vit_jax.config import UserError
from vit_jax.parallel import processes
from vit_jax.runs import checkpoint_format

if TYPE_CHECKING:
  from vit_jax.runs import best

PyTree = Any


class Checkpointer:
  """Saves the train state of a run, and restores the newest good one.

  Only one may be open on a work directory, since opening removes the remains of
  interrupted saves. With several processes, all must make the same calls.

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

    Raises:
      UserError: The directories cannot be made.
    """
    workdir = pathlib.Path(workdir).resolve()  # Orbax needs absolute paths
    checkpoint_format.quiet_orbax()
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
    Does nothing for a step that has a checkpoint already.

    Args:
      step: Number of completed updates.
      state: The train state: a flax.struct dataclass of arrays.
      metrics: Metrics of the evaluations at this step; None: they are still to
        be done.
      counts: Counters of the run at this step, by name.

    Returns:
      Whether the step had no checkpoint yet.

    Raises:
      UserError: This checkpoint, or the one before, could not be written.
    """
    self.save_best(step, state, metrics)
    return self._store.save(step, state, metrics, counts)

  def save_best(
    self, step: int, state: PyTree, metrics: dict[str, float] | None
  ) -> None:
    """Writes best/STEP in the background if the metric is the best so far.

    The metric is `config.checkpoint.best`. The old best is removed once the new
    one is complete.

    Args:
      step: Number of completed updates.
      state: The train state; all but `opt_state` is written.
      metrics: Metrics of the evaluations at this step.

    Raises:
      UserError: This best, or the one before, could not be written.
    """
    if self._best is not None:
      self._best.save(step, state, metrics or {})

  def restore(
    self, state_for: checkpoint_format.StateFor
  ) -> tuple[PyTree, int, dict[str, float] | None] | None:
    """Reads the newest good checkpoint.

    A warning names a damaged checkpoint. It is renamed to `STEP.damaged` once
    an older one was read. If the run stopped before it had written its best
    checkpoint, this writes it.

    Args:
      state_for: Returns the train state to fill, of `jax.ShapeDtypeStruct`
        leaves with shardings, for the paths of the stored arrays.

    Returns:
      The train state, its step, and its metrics as given to `save`; None if
      there is no checkpoint.

    Raises:
      UserError: The newest one does not fit the train state (all differences
        are listed), needs a newer version, or all are damaged.
    """
    self.wait()
    restored = newest_good(self._store.directory, state_for)
    if restored is None:
      return None
    state, info, path, damaged = restored
    if damaged:
      self._store.set_aside(damaged)
      logging.warning('Using the checkpoint before, %s', path)
    self.counts = dict(info.get('counts', {}))
    self.save_best(info['step'], state, info['metrics'])
    return state, info['step'], info['metrics']

  def wait(self) -> None:
    """Blocks until all checkpoints are written.

    Raises:
      UserError: One could not be written.
    """
    self._store.wait()
    if self._best is not None:
      self._best.store.wait()

  def close(self) -> None:
    """Waits until all checkpoints are written, then ends all threads.

    Raises:
      UserError: One could not be written.
    """
    try:
      self._store.close()
    finally:
      if self._best is not None:
        self._best.store.close()


def newest_good(
  directory: pathlib.Path,
  state_for: checkpoint_format.StateFor,
  at_most: int | None = None,
) -> tuple[PyTree, dict[str, Any], pathlib.Path, list[pathlib.Path]] | None:
  """Reads the newest good checkpoint, of at most a given step.

  Returns:
    The train state, its info, its path, and the paths of newer checkpoints that
    are damaged; None if there is no checkpoint.

  Raises:
    UserError: One does not fit or needs a newer version, or all are damaged.
  """
  paths = _newest_first(directory)
  if at_most is not None:
    paths = [path for path in paths if int(path.name) <= at_most]
  newest = first_good(
    paths, lambda path: checkpoint_format.restore(path, state_for)
  )
  if newest is None:
    return None
  (state, info), path, damaged = newest
  return state, info, path, damaged


def first_good(
  paths: Sequence[pathlib.Path], read: Callable[[pathlib.Path], Any]
) -> tuple[Any, pathlib.Path, list[pathlib.Path]] | None:
  """Returns content and path of the first good one, and the damaged before."""
  damaged: dict[pathlib.Path, str] = {}
  for path in paths:
    try:
      return read(path), path, list(damaged)
    except checkpoint_format.DamagedError as e:
      logging.warning('Checkpoint %s is damaged: %s', path, e)
      damaged[path] = str(e)
  if not damaged:
    return None
  causes = '; '.join(f'{path}: {cause}' for path, cause in damaged.items())
  raise UserError(
    f'all checkpoints are damaged: {causes}; restore one from a backup, or'
    ' start in another work directory'
  )


def _newest_first(directory: pathlib.Path) -> list[pathlib.Path]:
  """Lists the checkpoints that process 0 sees.

  On a network file system another process may not see the newest yet.
  """
  names = processes.call_on_first(
    lambda: [path.name for path in checkpoint_format.newest_first(directory)]
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
    self._writing: int | None = None  # the step that is being written
    options = ocp.CheckpointManagerOptions(
      preservation_policy=_Policy(to_keep),
      cleanup_tmp_directories=True,
      lightweight_initialize=True,
      async_options=ocp.AsyncOptions(
        # If a directory cannot be made, Orbax's threads would wait 20 minutes.
        create_directories_asynchronously=False,
        barrier_sync_fn=_meeting(),
      ),
      # Both stores may write at once, so their barriers need different names.
      multiprocessing_options=ocp.options.MultiprocessingOptions(
        barrier_sync_key_prefix=directory.name
      ),
    )
    with self._explained():
      self._manager = ocp.CheckpointManager(directory, options=options)

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
    info = checkpoint_format.make_info(step, state, metrics, counts)
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
          path.rename(_unused(path.with_name(path.name + '.damaged')))
    if jax.process_count() > 1:
      multihost_utils.sync_global_devices('checkpoint: set aside')
    self._manager.reload()

  @contextlib.contextmanager
  def _explained(self) -> Iterator[None]:
    """Turns errors of writing into a UserError."""
    try:
      yield
    except (OSError, ValueError, RuntimeError) as e:
      path = self.directory
      if self._writing is not None:
        path = path / str(self._writing)
      raise UserError(
        f'cannot write checkpoint {path}: {checkpoint_format.cause(e)}; earlier'
        ' checkpoints are intact: make room for it, or make the directory'
        ' writable, and run the same command again'
      ) from e


def _meeting() -> Callable[..., None] | None:
  """Returns the barrier of the writing threads of all processes.

  A thread that failed to write does not wait for the others: its process
  reports the error and ends.
  """
  if jax.process_count() == 1:
    return None
  import orbax.checkpoint as ocp

  wait = ocp.multihost.get_barrier_sync_fn()

  def meet(*, key: str, timeout_ms: int) -> None:
    if sys.exception() is None:  # else Orbax raises the exception next
      wait(key=key, timeout_ms=timeout_ms)

  return meet


class _Policy:
  """Orbax's interface for a function that selects which checkpoints to keep."""

  def __init__(self, to_keep: Callable[[Sequence[int]], set[int]]):
    self._to_keep = to_keep

  def should_preserve(
    self, checkpoints: Sequence[Any], *, context: object
  ) -> Sequence[bool]:
    del context
    steps_kept = self._to_keep([checkpoint.step for checkpoint in checkpoints])
    return [checkpoint.step in steps_kept for checkpoint in checkpoints]


def steps_to_keep(
  steps: Sequence[int], keep: int, every: fractions.Fraction | None
) -> set[int]:
  """Returns the steps of the checkpoints to keep.

  Args:
    steps: Steps of all checkpoints.
    keep: Number of newest checkpoints to keep.
    every: Also keep the first checkpoint at or after each multiple of this
      number of steps.
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


def _unused(path: pathlib.Path) -> pathlib.Path:
  names = (path.with_name(f'{path.name}{n or ""}') for n in itertools.count())
  return next(name for name in names if not name.exists())
