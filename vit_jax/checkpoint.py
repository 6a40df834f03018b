"""Checkpoints: what a run needs to go on, and what prediction needs.

`WORKDIR/checkpoints/STEP/` holds two Orbax items: `state`, the train state, and
`info`, a JSON object:

    format   1
    step     number of completed updates
    metrics  of the evaluations at that step; null: they are still to be done
    arrays   {path: {shape, dtype, checksum}}, every array of the state
    crc32    of all of the above

`WORKDIR/best/STEP/` is the same without the optimizer's state.

Orbax writes into a temporary directory and renames it, so that a checkpoint is
either whole or does not count. It notices files that are missing or cut short,
but not a flipped bit in an array: the checksums do. They are computed on the
device from the bits of the elements and their positions, so they depend neither
on the mesh nor on the number of hosts.
"""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import fractions
import functools
import gc
import inspect
import json
import logging as python_logging
import math
import os
import pathlib
import re
import sys
from types import TracebackType
from typing import Any
import zlib

from absl import logging
from flax import traverse_util
import jax
from jax.experimental import multihost_utils
import jax.numpy as jnp
import ml_collections
import numpy as np
import orbax.checkpoint as ocp

from vit_jax.config import UserError

FORMAT = 1

PyTree = Any


class _DamagedError(Exception):
  """A checkpoint is there, but is not what was written."""


class Checkpointer:
  """Saves the train state of a run, and finds the newest good one again.

  Only one may be open on a work directory: what an interrupted save left behind
  is removed at the start. With several processes, all make the same calls.
  """

  def __init__(
    self,
    workdir: pathlib.Path | str,
    config: ml_collections.ConfigDict,
    *,
    keep_every: fractions.Fraction | None = None,
  ):
    """Opens `workdir/checkpoints`, and `workdir/best` where it is asked for.

    Args:
      workdir: The work directory of the run.
      config: The whole config; `checkpoint.keep` and `checkpoint.best` count.
      keep_every: `config.checkpoint.keep_every` in steps (see `config.period`):
        the first checkpoint at or after each multiple is kept for ever.

    Raises:
      UserError: The directories cannot be made.
    """
    workdir = pathlib.Path(workdir).resolve()  # Orbax wants absolute paths
    self._quiet = contextlib.ExitStack()
    self._quiet.enter_context(_quiet())
    keep = functools.partial(
      steps_to_keep, keep=config.checkpoint.keep, every=keep_every
    )
    self._metric = config.checkpoint.best
    # Step and metric of what is in best/.
    self._best: tuple[int, float] | None = None
    self._best_store: _Store | None = None
    try:
      self._store = _Store(workdir / 'checkpoints', keep)
      if self._metric:
        self._find_best(workdir / 'best')
        self._best_store = _Store(
          workdir / 'best',
          lambda steps: {self._best[0]} if self._best else set(steps),
        )
    except UserError:
      self._quiet.close()
      raise

  def __enter__(self) -> 'Checkpointer':
    return self

  def __exit__(
    self,
    kind: type[BaseException] | None,
    error: BaseException | None,
    traceback: TracebackType | None,
  ) -> None:
    try:
      self.close()
    except UserError as e:
      if error is None:
        raise
      logging.error('%s', e)  # what went wrong first is what is raised

  def save(
    self, step: int, state: PyTree, metrics: dict[str, float] | None = None
  ) -> None:
    """Writes a checkpoint in the background, and the best where it is one.

    Returns once the arrays are off the device, so that `state` may be donated.
    Does nothing for a step that has a checkpoint already.

    Args:
      step: Number of completed updates.
      state: The train state: a flax.struct dataclass of arrays.
      metrics: Of the evaluations at this step; None: they are still to be done.

    Raises:
      UserError: This checkpoint, or the one before, could not be written.
    """
    self.save_best(step, state, metrics)
    self._store.save(step, state, metrics)

  def save_best(
    self, step: int, state: PyTree, metrics: dict[str, float] | None
  ) -> bool:
    """Writes best/STEP in the background where the metric is the best so far.

    The metric is `config.checkpoint.best`. Higher is better, except for names
    that end in 'loss' or 'error'. The old best goes once the new one is whole.

    Args:
      step: Number of completed updates.
      state: The train state; all but `opt_state` is written.
      metrics: Of the evaluations at this step.

    Returns:
      Whether it was the best.

    Raises:
      UserError: This best, or the one before, could not be written.
    """
    value = (metrics or {}).get(self._metric)
    if self._best_store is None or value is None:
      return False
    if not self._is_better(value) or self._best_store.has(step):
      return False
    self._best = (step, float(value))
    self._best_store.save(step, state.replace(opt_state=None), metrics)
    return True

  def restore(
    self, abstract_state: PyTree
  ) -> tuple[PyTree, int, dict[str, float] | None] | None:
    """Reads the newest good checkpoint.

    A damaged one is named in a warning and set aside as `STEP.damaged` once an
    older one was found to be good. Where the run stopped before its best was
    written, that is made up for.

    Args:
      abstract_state: The train state to fill: `jax.ShapeDtypeStruct` leaves
        whose shardings say where the arrays go.

    Returns:
      The train state, its step, and its metrics as given to `save`; None where
      there is no checkpoint.

    Raises:
      UserError: The newest one does not fit `abstract_state` (all differences
        are listed), needs a newer version, or all are damaged.
    """
    self.wait()
    damaged: dict[pathlib.Path, str] = {}
    for path in _checkpoints(self._store.directory):
      try:
        state, info = _restore(path, abstract_state)
      except _DamagedError as e:
        logging.warning('Checkpoint %s is damaged: %s', path, e)
        damaged[path] = str(e)
        continue
      if damaged:
        self._store.set_aside(damaged)
        logging.warning('Using the checkpoint before, %s', path)
      self.save_best(info['step'], state, info['metrics'])
      return state, info['step'], info['metrics']
    if damaged:
      raise _all_damaged(damaged)
    return None

  def wait(self) -> None:
    """Blocks until all is written.

    Raises:
      UserError: Something could not be written.
    """
    for store in self._stores():
      store.wait()

  def close(self) -> None:
    """Waits, then ends all threads.

    Raises:
      UserError: Something could not be written.
    """
    with contextlib.ExitStack() as stack:
      stack.enter_context(self._quiet)
      for store in self._stores():
        stack.callback(store.close)  # each, even where another one fails

  def _stores(self) -> list['_Store']:
    return [s for s in (self._store, self._best_store) if s is not None]

  def _is_better(self, value: float) -> bool:
    if self._best is None:
      return not math.isnan(value)
    if self._metric.endswith(('loss', 'error')):
      return value < self._best[1]
    return value > self._best[1]

  def _find_best(self, directory: pathlib.Path) -> None:
    for path in _checkpoints(directory):
      with contextlib.suppress(_DamagedError):
        info = _read_info(path)
        value = (info['metrics'] or {}).get(self._metric)
        if value is not None and self._is_better(value):
          self._best = (info['step'], value)


class _Store:
  """One directory of checkpoints: an Orbax manager, with errors for people."""

  def __init__(
    self,
    directory: pathlib.Path,
    to_keep: Callable[[Sequence[int]], set[int]],
  ):
    self.directory = directory
    self._writing: int | None = None  # the step that is on its way to the disk
    options = ocp.CheckpointManagerOptions(
      preservation_policy=_Policy(to_keep),
      cleanup_tmp_directories=True,
      lightweight_initialize=True,
      async_options=ocp.AsyncOptions(
        # Else threads wait 20 minutes for a directory that cannot be made.
        create_directories_asynchronously=False
      ),
    )
    with self._explained():
      self._manager = ocp.CheckpointManager(directory, options=options)
      _barrier('checkpoint: listed')
      # A process that was killed while it removed one left half of it.
      steps = self._manager.all_steps()
      for step in sorted(set(steps) - to_keep(steps)):
        self._manager.delete(step)

  def has(self, step: int) -> bool:
    return step in self._manager.all_steps()

  def save(
    self, step: int, state: PyTree, metrics: dict[str, float] | None
  ) -> None:
    self.wait()
    if self.has(step):
      return
    info = _info(step, state, metrics)
    self._writing = step
    with self._explained():
      self._manager.save(
        step,
        args=ocp.args.Composite(
          state=ocp.args.PyTreeSave(state), info=ocp.args.JsonSave(info)
        ),
        force=True,  # when to save is not Orbax's to decide
      )

  def wait(self) -> None:
    with self._explained():
      self._manager.wait_until_finished()
    self._writing = None

  def close(self) -> None:
    try:
      self.wait()
    finally:
      self._manager.close()  # which raises the same error only once

  def set_aside(self, paths: Sequence[pathlib.Path]) -> None:
    if jax.process_index() == 0:
      with self._explained():
        for path in paths:
          path.rename(_unused(path.with_name(path.name + '.damaged')))
    _barrier('checkpoint: set aside')
    self._manager.reload()

  @contextlib.contextmanager
  def _explained(self) -> Iterator[None]:
    """Turns a failure to write into one line."""
    try:
      yield
    except (OSError, ValueError, RuntimeError) as e:
      what = self.directory
      if self._writing is not None:
        what = what / str(self._writing)
      cause = _cause(e)
    else:
      return
    gc.collect()  # what the failure left over, while it is kept quiet
    raise UserError(
      f'cannot write checkpoint {what}: {cause}; earlier checkpoints are'
      ' intact: make room for it, or make the directory writable, and run the'
      ' same command again'
    )


class _Policy:
  """What Orbax asks about which checkpoints stay."""

  def __init__(self, to_keep: Callable[[Sequence[int]], set[int]]):
    self._to_keep = to_keep

  def should_preserve(
    self, checkpoints: Sequence[Any], *, context: object
  ) -> Sequence[bool]:
    del context
    kept = self._to_keep([checkpoint.step for checkpoint in checkpoints])
    return [checkpoint.step in kept for checkpoint in checkpoints]


def steps_to_keep(
  steps: Sequence[int], keep: int, every: fractions.Fraction | None
) -> set[int]:
  """Returns the newest `keep` steps, and the first in each period of `every`."""
  steps = sorted(steps)
  kept = set(steps[-keep:])
  periods = 0
  for step in steps if every else ():
    if step // every > periods:
      periods = step // every
      kept.add(step)
  return kept


def restore_params(
  workdir: pathlib.Path | str,
) -> tuple[PyTree, int, pathlib.Path]:
  """Reads the parameters for prediction, and nothing else.

  From best/ if there, else from the newest good checkpoint; their moving
  average if there. Changes nothing, so the run may still be going on.

  Args:
    workdir: The work directory of a run.

  Returns:
    The parameters (nested dicts of NumPy arrays), their step, and where they
    were found.

  Raises:
    UserError: There is no checkpoint, it needs a newer version, or all are
      damaged.
  """
  workdir = pathlib.Path(workdir).resolve()
  damaged: dict[pathlib.Path, str] = {}
  with _quiet():
    for name in ('best', 'checkpoints'):
      for path in _checkpoints(workdir / name):
        try:
          params, step = _read_params(path)
        except _DamagedError as e:
          logging.warning('Checkpoint %s is damaged: %s', path, e)
          damaged[path] = str(e)
        else:
          return params, step, path
  if damaged:
    raise _all_damaged(damaged)
  raise UserError(
    f'there is no checkpoint in {workdir}: neither best/ nor checkpoints/ has'
    ' one; give the work directory of a run that has saved'
  )


def checksums(tree: PyTree) -> dict[str, int]:
  """Returns a 32-bit checksum of each array, by its path, as 'params/kernel'.

  Any change to one element changes it; any other change does but once in 2^32.
  """
  leaves = _leaves(tree)
  # One small compiled function for each shape: one for the whole tree is as
  # fast, but takes ten times as long to compile.
  sums = jax.device_get([_checksum(x) for x in leaves.values()])
  return {path: int(x) for path, x in zip(leaves, sums, strict=True)}


@jax.jit
def _checksum(x: jax.Array) -> jax.Array:
  if x.dtype == jnp.bool_:
    bits = x.astype(jnp.uint32)
  else:
    kind = {1: jnp.uint8, 2: jnp.uint16}.get(x.dtype.itemsize, jnp.uint32)
    bits = jax.lax.bitcast_convert_type(x, kind).astype(jnp.uint32)
  # Without reshaping, so that each device reads its own part alone.
  position = jnp.zeros((), jnp.uint32)
  for axis, size in enumerate(bits.shape):
    index = jax.lax.broadcasted_iota(jnp.uint32, bits.shape, axis)
    position = position * jnp.uint32(size % 2**32) + index
  return jnp.sum(_mix(bits ^ _mix(position + 1)), dtype=jnp.uint32)


def _mix(h: jax.Array) -> jax.Array:
  """The finalizer of MurmurHash3: a bijection of uint32 that spreads bits."""
  h = (h ^ (h >> 16)) * jnp.uint32(0x85EBCA6B)
  h = (h ^ (h >> 13)) * jnp.uint32(0xC2B2AE35)
  return h ^ (h >> 16)


def _leaves(tree: PyTree) -> dict[str, Any]:
  return {
    jax.tree_util.keystr(path, simple=True, separator='/'): leaf
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
  }


def _info(
  step: int, state: PyTree, metrics: dict[str, float] | None
) -> dict[str, Any]:
  sums = checksums(state)
  if metrics is not None:
    metrics = {name: float(value) for name, value in metrics.items()}
  info = {
    'format': FORMAT,
    'step': int(step),
    'metrics': metrics,
    'arrays': {
      path: {
        'shape': list(x.shape),
        'dtype': jnp.dtype(x.dtype).name,
        'checksum': sums[path],
      }
      for path, x in _leaves(state).items()
    },
  }
  return {**info, 'crc32': _crc32(info)}


def _crc32(info: dict[str, Any]) -> int:
  return zlib.crc32(json.dumps(info, sort_keys=True).encode())


def _read_info(path: pathlib.Path) -> dict[str, Any]:
  try:
    info = ocp.JsonCheckpointHandler().restore(path / 'info')
    crc32 = info.pop('crc32')
  except (OSError, ValueError, KeyError, AttributeError, TypeError) as e:
    raise _DamagedError(f'info: {_cause(e)}') from None
  if _crc32(info) != crc32:
    raise _DamagedError('info has changed since it was written')
  if info['format'] > FORMAT:
    raise UserError(
      f'checkpoint {path} has format {info["format"]}, and this version reads'
      f' formats up to {FORMAT}: install the newer vit_jax that wrote it'
    )
  return info


def _restore(
  path: pathlib.Path, abstract_state: PyTree
) -> tuple[PyTree, dict[str, Any]]:
  """Reads and checks one checkpoint; all processes agree on the outcome."""
  problem, state, info = '', None, {}
  try:
    info = _read_info(path)
    _check_fits(path, info, abstract_state)
    restore_args = ocp.checkpoint_utils.construct_restore_args(abstract_state)
    state = _read_state(path, abstract_state, restore_args)
  except _DamagedError as e:
    problem = str(e)
  if jax.process_count() > 1:
    bad = multihost_utils.process_allgather(np.array(bool(problem)))
    if np.any(bad) and not problem:
      problem = f'process {int(np.argmax(bad))} could not read it'
  if problem:
    raise _DamagedError(problem)
  _verify(info, checksums(state))
  return state, info


def _read_params(path: pathlib.Path) -> tuple[PyTree, int]:
  info = _read_info(path)
  arrays = {tuple(key.split('/')): x for key, x in info['arrays'].items()}
  averaged = any(key[0] == 'ema_params' for key in arrays)
  name = 'ema_params' if averaged else 'params'
  wanted = traverse_util.unflatten_dict(
    {
      key: jax.ShapeDtypeStruct(x['shape'], x['dtype'])
      for key, x in arrays.items()
      if key[0] == name
    }
  )
  restore_args = jax.tree.map(
    lambda _: ocp.RestoreArgs(restore_type=np.ndarray), wanted
  )
  tree = _read_state(path, wanted, restore_args)
  _verify(info, checksums(tree))
  return tree[name], info['step']


def _read_state(
  path: pathlib.Path, wanted: PyTree, restore_args: PyTree
) -> PyTree:
  args = ocp.args.PyTreeRestore(
    item=wanted, restore_args=restore_args, partial_restore=True
  )
  # The handler itself, since a manager's restore waits for all processes, and
  # one that cannot read its part would leave the others waiting.
  handler = ocp.PyTreeCheckpointHandler()
  try:
    return handler.restore(path / 'state', args=args)
  except Exception as e:  # Orbax raises what it likes, bare Exception too
    cause = _cause(e)
  finally:
    handler.close()
  gc.collect()  # the reads that the first failure abandoned, while it is quiet
  raise _DamagedError(cause)


def _verify(info: dict[str, Any], sums: dict[str, int]) -> None:
  bad = [k for k, x in sums.items() if x != info['arrays'][k]['checksum']]
  if bad:
    more = f' and {len(bad) - 1} more arrays' if len(bad) > 1 else ''
    raise _DamagedError(f'{bad[0]}{more} changed since it was written')


def _check_fits(
  path: pathlib.Path, info: dict[str, Any], abstract_state: PyTree
) -> None:
  stored = {
    key: f'{x["dtype"]}{x["shape"]}' for key, x in info['arrays'].items()
  }
  expected = {
    key: f'{jnp.dtype(x.dtype).name}{list(x.shape)}'
    for key, x in _leaves(abstract_state).items()
  }
  differences = [
    f'{key}: stored {stored.get(key, "nothing")},'
    f' expected {expected.get(key, "nothing")}'
    for key in sorted(stored.keys() | expected.keys())
    if stored.get(key) != expected.get(key)
  ]
  if differences:
    raise UserError(
      f'checkpoint {path} does not fit the config: {"; ".join(differences)};'
      ' use the config it was made with, or another work directory'
    )


def _checkpoints(directory: pathlib.Path) -> list[pathlib.Path]:
  """Lists the checkpoints of a directory, the newest first."""
  if not directory.is_dir():
    return []
  paths = [path for path in directory.iterdir() if path.name.isdecimal()]
  return sorted(paths, key=lambda path: int(path.name), reverse=True)


def _all_damaged(damaged: dict[pathlib.Path, str]) -> UserError:
  causes = '; '.join(f'{path}: {cause}' for path, cause in damaged.items())
  return UserError(
    f'all checkpoints are damaged: {causes}; restore one from a backup, or'
    ' start in another work directory'
  )


def _unused(path: pathlib.Path) -> pathlib.Path:
  names = (path.with_name(f'{path.name}{n or ""}') for n in range(1000))
  return next(name for name in names if not name.exists())


def _cause(error: BaseException) -> str:
  """Returns what people need of an error: TensorStore's run to kilobytes."""
  text = str(error).strip() or type(error).__name__
  while error.__cause__ is not None:  # Orbax wraps what TensorStore said
    error = error.__cause__
    text = str(error).strip() or text
  system = re.search(r'\[OS error \d+: (?:E[A-Z0-9]+ )?(.+?)\]', text)
  if system:
    return system[1]
  return text.splitlines()[0].split(' [tensorstore_spec')[0]


def _barrier(name: str) -> None:
  if jax.process_count() > 1:
    multihost_utils.sync_global_devices(name)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
  """Keeps Orbax's own messages off the terminal, except for warnings.

  It logs every detail, and a traceback from each thread in which a failure is
  seen, though it raises that too; and the tasks that a failure abandons in
  asyncio complain when they are collected.
  """
  previous = sys.unraisablehook

  def of_orbax(record: python_logging.LogRecord) -> bool:
    return f'{os.sep}orbax{os.sep}' in record.pathname

  def keep(record: python_logging.LogRecord) -> bool:
    return record.levelno == python_logging.WARNING or not of_orbax(record)

  def retrieved(record: python_logging.LogRecord) -> bool:
    return 'exception was never retrieved' not in str(record.msg)

  def hook(unraisable: Any) -> None:
    abandoned = inspect.iscoroutine(unraisable.object)
    if not abandoned and str(unraisable.exc_value) != 'Event loop is closed':
      previous(unraisable)

  loggers = {'absl': keep, 'asyncio': retrieved}
  for name, function in loggers.items():
    python_logging.getLogger(name).addFilter(function)
  sys.unraisablehook = hook
  try:
    yield
  finally:
    for name, function in loggers.items():
      python_logging.getLogger(name).removeFilter(function)
    if sys.unraisablehook is hook:
      sys.unraisablehook = previous
