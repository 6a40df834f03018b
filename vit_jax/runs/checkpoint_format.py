"""The format of a checkpoint on disk: reading it and detecting damage.

A checkpoint is a directory STEP/ with two Orbax items: `state`, a tree of
arrays, and `info`, a JSON object:

    format   2; of format 1, which has no `extra`, only parameters are read
    step     number of completed updates
    metrics  metrics of the evaluations at that step; null: still to be done
    counts   counters of the run at that step; missing in older checkpoints
    arrays   {path: {shape, dtype, checksum}} of all arrays of the state
    crc32    checksum of all of the above

Orbax writes into a temporary directory and renames it, so a directory STEP/ is
always complete. It detects files that are missing or truncated, but not a
flipped bit in an array; the checksums detect that. They are computed on the
device from the bits of the elements and their positions, so they depend neither
on the mesh nor on the number of processes.
"""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
import functools
import inspect
import json
import logging as python_logging
import os
import pathlib
import re
import sys
from typing import Any
import zlib

from absl import logging
import jax
from jax.experimental import multihost_utils
import jax.numpy as jnp
import numpy as np

from vit_jax import config as config_lib
from vit_jax.config import UserError
from vit_jax.parallel import sharding

FORMAT = 2

# Key of an objective's state: its own moving average of all parameters.
AVERAGE = 'average'

PyTree = Any
StateFor = Callable[[Collection[str]], PyTree]

_ORBAX = f'{os.sep}orbax{os.sep}'  # a part of the paths of Orbax's files


class DamagedError(Exception):
  """A checkpoint exists, but differs from what was written."""


def make_info(
  step: int,
  state: PyTree,
  metrics: dict[str, float] | None,
  counts: Mapping[str, int] | None = None,
) -> dict[str, Any]:
  """Returns the `info` of a checkpoint to be written."""
  sums = checksums(state)
  if metrics is not None:
    metrics = {name: float(value) for name, value in metrics.items()}
  info = {
    'format': FORMAT,
    'step': int(step),
    'metrics': metrics,
    'counts': dict(counts or {}),
    'arrays': {
      path: {
        'shape': list(x.shape),
        'dtype': jnp.dtype(x.dtype).name,
        'checksum': sums[path],
      }
      for path, x in sharding.leaves(state).items()
    },
  }
  return {**info, 'crc32': _crc32(info)}


def checksums(tree: PyTree) -> dict[str, int]:
  """Returns a 32-bit checksum of each array by its path, like 'params/kernel'.

  A change to a single element always changes it; any other change goes
  unnoticed with probability 2^-32.
  """
  # This compiles a small function for each shape; one for the whole tree would
  # be as fast, but take ten times as long to compile. The functions run one
  # after the other, since concurrent sums over several CPU devices can
  # deadlock: each holds threads that another one needs.
  return {path: int(_checksum(x)) for path, x in sharding.leaves(tree).items()}


@jax.jit
def _checksum(x: jax.Array) -> jax.Array:
  if x.dtype == jnp.bool_:
    bits = x.astype(jnp.uint32)
  else:
    kind = {1: jnp.uint8, 2: jnp.uint16}.get(x.dtype.itemsize, jnp.uint32)
    bits = jax.lax.bitcast_convert_type(x, kind).astype(jnp.uint32)
  # No reshape, so that each device reads only its own shard.
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


def _crc32(info: dict[str, Any]) -> int:
  return zlib.crc32(json.dumps(info, sort_keys=True).encode())


def read_info(path: pathlib.Path) -> dict[str, Any]:
  """Reads the `info` of a checkpoint, without `crc32`.

  Raises:
    DamagedError: It differs from what was written.
    UserError: It needs a newer version.
  """
  import orbax.checkpoint as ocp

  try:
    info = ocp.JsonCheckpointHandler().restore(path / 'info')
    crc32 = info.pop('crc32')
  except (OSError, ValueError, KeyError, AttributeError, TypeError) as e:
    raise DamagedError(f'info: {cause(e)}') from None
  if _crc32(info) != crc32:
    raise DamagedError('info has changed since it was written')
  if info['format'] > FORMAT:
    raise UserError(
      f'checkpoint {path} has format {info["format"]}, and this version reads'
      f' formats up to {FORMAT}: install the newer vit_jax that wrote it'
    )
  return info


def restore(
  path: pathlib.Path, state_for: StateFor
) -> tuple[PyTree, dict[str, Any]]:
  """Reads a whole checkpoint; all processes agree on the outcome.

  Args:
    path: Path of the checkpoint.
    state_for: Returns the train state to fill, of `jax.ShapeDtypeStruct` leaves
      with shardings, for the paths of the stored arrays.

  Returns:
    The train state, and `info`.

  Raises:
    DamagedError: It is not what was written.
    UserError: It does not fit the state, or needs a newer version.
  """
  import orbax.checkpoint as ocp

  problem, state, info = '', None, {}
  try:
    info = read_info(path)
    _check_is_current(path, info)
    abstract_state = state_for(info['arrays'].keys())
    _check_fits(path, info, abstract_state)
    restore_args = ocp.checkpoint_utils.construct_restore_args(abstract_state)
    state = read_arrays(path, abstract_state, restore_args)
  except DamagedError as e:
    problem = str(e)
  if jax.process_count() > 1:
    bad = multihost_utils.process_allgather(np.array(bool(problem)))
    if np.any(bad) and not problem:
      problem = f'process {int(np.argmax(bad))} could not read it'
  if problem:
    raise DamagedError(problem)
  verify(info, checksums(state))
  return state, info


def _check_is_current(path: pathlib.Path, info: Mapping[str, Any]) -> None:
  """Raises a UserError if an older version wrote the train state."""
  if info['format'] < FORMAT:
    raise UserError(
      f'checkpoint {path} has format {info["format"]}, of an older vit_jax,'
      f' and runs go on from format {FORMAT} alone: start a new run from its'
      ' parameters, with --config.init_from.path=THIS_WORKDIR, or install'
      ' that version'
    )


def read_arrays(
  path: pathlib.Path, abstract_arrays: PyTree, restore_args: PyTree
) -> PyTree:
  """Reads some arrays of a checkpoint with Orbax.

  Raises:
    DamagedError: They cannot be read.
  """
  import orbax.checkpoint as ocp

  args = ocp.args.PyTreeRestore(
    item=abstract_arrays, restore_args=restore_args, partial_restore=True
  )
  # Not with a CheckpointManager, whose restore waits for all processes: if one
  # cannot read its part, the others would wait for ever.
  handler = ocp.PyTreeCheckpointHandler()
  try:
    return handler.restore(path / 'state', args=args)
  except Exception as e:  # Orbax raises many types, even bare Exception
    raise DamagedError(cause(e)) from e
  finally:
    handler.close()


def verify(info: dict[str, Any], sums: dict[str, int]) -> None:
  """Raises a DamagedError if checksums differ from those in `info`."""
  bad = [k for k, x in sums.items() if x != info['arrays'][k]['checksum']]
  if bad:
    more = f' and {len(bad) - 1} others' if len(bad) > 1 else ''
    raise DamagedError(f'{bad[0]}{more} changed since it was written')


def _check_fits(
  path: pathlib.Path, info: dict[str, Any], abstract_state: PyTree
) -> None:
  """Raises a UserError if a checkpoint has other arrays than the state."""
  stored = {key: (x['dtype'], x['shape']) for key, x in info['arrays'].items()}
  expected = {
    key: (jnp.dtype(x.dtype).name, list(x.shape))
    for key, x in sharding.leaves(abstract_state).items()
  }
  if stored != expected:
    refusal = config_lib.wing('vit_jax.runs.refusals:other_arrays')
    raise refusal(path, stored, expected)


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


def newest_first(directory: pathlib.Path) -> list[pathlib.Path]:
  """Lists the checkpoints of a directory, the newest first."""
  if not directory.is_dir():
    return []
  paths = [path for path in directory.iterdir() if path.name.isdecimal()]
  return sorted(paths, key=lambda path: int(path.name), reverse=True)
