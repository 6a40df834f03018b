"""Reads the checkpoints of a run, and detects damage.

A run reads with its `checkpoint.Checkpointer`. The functions for other commands
change nothing, so the run may still be going on; they skip damaged checkpoints,
which a warning names. `checkpoint` describes the files.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import pathlib
from typing import Any

from absl import logging
from flax import traverse_util
import jax
from jax.experimental import multihost_utils
import jax.numpy as jnp
import numpy as np

from vit_jax.config import UserError
from vit_jax.parallel import sharding
from vit_jax.runs import checkpoint
from vit_jax.runs import safe_io
from vit_jax.runs import workdir as workdir_lib

_PART_BYTES = 2**25  # parameters are read in parts of this size
# Where parameters lie in a state, those that are read first at the front.
_PARAMS = (('ema_params',), ('extra', checkpoint.AVERAGE), ('params',))

PyTree = Any


class DamagedError(Exception):
  """A checkpoint exists, but differs from what was written."""


def newest_good(
  directory: pathlib.Path,
  state_for: checkpoint.StateFor,
  at_most: int | None = None,
) -> tuple[PyTree, dict[str, Any], pathlib.Path, list[pathlib.Path]] | None:
  """Reads the newest good checkpoint, of at most a given step.

  Returns the train state, its info, its path, and the paths of newer
  checkpoints that are damaged; None if there is no checkpoint.
  """
  paths = checkpoint.step_folders(directory)
  if at_most is not None:
    paths = [path for path in paths if int(path.name) <= at_most]
  newest = first_good(paths, lambda path: restore(path, state_for))
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
    except DamagedError as e:
      logging.warning('Checkpoint %s is damaged: %s', path, e)
      damaged[path] = str(e)
  if not damaged:
    return None
  causes = '; '.join(f'{path}: {cause}' for path, cause in damaged.items())
  raise UserError(
    f'all checkpoints are damaged: {causes}; restore one from a backup, or'
    ' start in another work directory'
  )


def restore(
  path: pathlib.Path, state_for: checkpoint.StateFor
) -> tuple[PyTree, dict[str, Any]]:
  """Reads the train state and `info` of a checkpoint.

  All processes agree on the outcome. Raises a DamagedError if it is not what
  was written, and a UserError if it does not fit the state, or needs a newer
  version.
  """
  import orbax.checkpoint as ocp

  problem, state, info = '', None, {}
  try:
    info = read_info(path)
    if info['format'] < checkpoint.FORMAT:
      raise UserError(
        f'checkpoint {path} has format {info["format"]}, of an older vit_jax,'
        f' and runs go on from format {checkpoint.FORMAT} alone: start a new'
        ' run from its parameters, with --config.init_from.path=THIS_WORKDIR,'
        ' or install that version'
      )
    abstract_state = state_for(info['arrays'].keys())
    _check_fits(path, info, abstract_state)
    restore_args = ocp.checkpoint_utils.construct_restore_args(abstract_state)
    state = _read_arrays(path, abstract_state, restore_args)
  except DamagedError as e:
    problem = str(e)
  if jax.process_count() > 1:
    bad = multihost_utils.process_allgather(np.array(bool(problem)))
    if np.any(bad) and not problem:
      problem = f'process {int(np.argmax(bad))} could not read it'
  if problem:
    raise DamagedError(problem)
  _verify(info, state)
  return state, info


def read_info(path: pathlib.Path) -> dict[str, Any]:
  """Reads the `info` of a checkpoint, without `crc32`.

  Raises a DamagedError if it differs from what was written.
  """
  import orbax.checkpoint as ocp

  try:
    files = sorted(path.rglob('*'))
  except OSError as e:  # the run has just removed it
    raise DamagedError(checkpoint.cause(e)) from None
  # Orbax reads a device or a pipe without end.
  for file in files:
    if file.exists() and not (file.is_file() or file.is_dir()):
      raise DamagedError(f'{file.relative_to(path)} is no file')
  try:
    info = ocp.JsonCheckpointHandler().restore(path / 'info')
    crc32 = info.pop('crc32')
  except (OSError, ValueError, KeyError, AttributeError, TypeError) as e:
    raise DamagedError(f'info: {checkpoint.cause(e)}') from None
  if checkpoint.crc32(info) != crc32:
    raise DamagedError('info has changed since it was written')
  if info['format'] > checkpoint.FORMAT:
    raise UserError(
      f'checkpoint {path} has format {info["format"]}, and this version reads'
      f' formats up to {checkpoint.FORMAT}: install the newer vit_jax that'
      ' wrote it'
    )
  return info


def _read_arrays(
  path: pathlib.Path, abstract_arrays: PyTree, restore_args: PyTree
) -> PyTree:
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
    raise DamagedError(checkpoint.cause(e)) from e
  finally:
    handler.close()


def _verify(info: dict[str, Any], arrays: PyTree) -> None:
  """Raises a DamagedError if checksums differ from those in `info`."""
  sums = checkpoint.checksums(arrays)
  bad = [k for k, x in sums.items() if x != info['arrays'][k]['checksum']]
  if bad:
    more = f' and {len(bad) - 1} others' if len(bad) > 1 else ''
    raise DamagedError(f'{bad[0]}{more} changed since it was written')


def _check_fits(
  path: pathlib.Path, info: Mapping[str, Any], abstract_state: PyTree
) -> None:
  stored = {
    key: f'{x["dtype"]}{x["shape"]}' for key, x in info['arrays'].items()
  }
  expected = {
    key: f'{jnp.dtype(x.dtype).name}{list(x.shape)}'
    for key, x in sharding.leaves(abstract_state).items()
  }
  differences = []
  for key in sorted(stored.keys() | expected.keys()):
    before, now = (arrays.get(key, 'nothing') for arrays in (stored, expected))
    if before != now:
      differences.append(f'{key}: stored {before}, expected {now}')
  if differences:
    raise UserError(
      f'checkpoint {path} does not fit the config: {"; ".join(differences)};'
      ' use the config it was made with, or another work directory'
    )


def restore_at_most(
  workdir: pathlib.Path | str, step: int, state_for: checkpoint.StateFor
) -> tuple[PyTree, int] | None:
  """Reads the newest good checkpoint of at most `step` updates.

  Returns the train state and its step; None if there is no such checkpoint.
  """
  checkpoint.quiet_orbax()
  directory = pathlib.Path(workdir).resolve() / 'checkpoints'
  newest = newest_good(directory, state_for, step)
  return None if newest is None else (newest[0], newest[1]['step'])


def restore_params(
  workdir: pathlib.Path | str, step: int | str | None = None
) -> tuple[PyTree, int, pathlib.Path]:
  """Reads the parameters for prediction: their moving average if there is one.

  Args:
    workdir: The work directory of a run, or its folder tasks/NAME, of one task.
    step: The checkpoint to read: its step, 'best' or 'newest'; None: the best,
      or else the newest good one.

  Returns:
    The parameters (nested dicts of NumPy arrays), their step, and the path of
    the checkpoint.
  """
  workdir = pathlib.Path(workdir).resolve()
  part = safe_io.read_json(workdir / workdir_lib.PART)
  if part is not None:
    params, at, path = restore_params(workdir_lib.run_folder(workdir), step)
    return extract(params, part['params']), at, path
  checkpoint.quiet_orbax()
  folders = {'best': ['best'], 'newest': ['checkpoints']}.get(
    str(step), ['best', 'checkpoints']
  )
  paths = [
    path
    for folder in folders
    for path in workdir_lib.newest_first(workdir / folder)
    if not isinstance(step, int) or int(path.name) == step
  ]
  newest = first_good(paths, read_params)
  if newest is None:
    raise _none_there(workdir, step)
  (params, at), path, _ = newest
  return params, at, path


def extract(params: PyTree, places: Mapping[str, str]) -> PyTree:
  """Returns the parameters of a task, out of a run's of several tasks.

  `places` has the path in the run of each path in the task's own tree.
  """
  flat = traverse_util.flatten_dict(params, sep='/')
  return traverse_util.unflatten_dict(
    {path: flat[place] for path, place in places.items()}, sep='/'
  )


def _none_there(workdir: pathlib.Path, step: int | str | None) -> UserError:
  existing = steps(workdir)
  if not any(existing.values()):
    return UserError(
      f'there is no checkpoint in {workdir}: neither best/ nor checkpoints/ has'
      ' one; give the work directory of a run that has saved'
    )
  names = [str(n) for n in existing['checkpoints']]
  names += [f'{n} (the best)' for n in existing['best']]
  label = f'{step} checkpoint' if step == 'best' else f'checkpoint {step}'
  return UserError(
    f'there is no {label} in {workdir}: choose one of the steps'
    f' {", ".join(names)}'
  )


def restore_extra(path: pathlib.Path | str, task: str | None = None) -> PyTree:
  """Reads the objective's state beside the parameters, as a codebook.

  Args:
    path: Path of a checkpoint, as `restore_params` returns it.
    task: The task whose state is read, in a run of several.

  Returns:
    Nested dicts of NumPy arrays; {} if there is no such state.
  """
  checkpoint.quiet_orbax()
  path = pathlib.Path(path).resolve()
  try:
    info = read_info(path)
    keys = [tuple(key.split('/')) for key in info['arrays']]
    arrays = _read_some(path, info, [key for key in keys if key[0] == 'extra'])
  except DamagedError as e:
    raise UserError(
      f'checkpoint {path} is damaged: {e}; choose another with --step'
    ) from None
  extra = traverse_util.unflatten_dict(arrays).get('extra', {})
  return extra if task is None else extra.get(task, {})


def read_params(path: pathlib.Path) -> tuple[PyTree, int]:
  """Reads only the parameters, or their moving averages where there are any.

  Returns nested dicts of NumPy arrays, and the step. A DamagedError: they are
  not what was written.
  """
  info = read_info(path)
  keys = [tuple(key.split('/')) for key in info['arrays']]
  names = [key[1:] for key in keys if key[0] == 'params']
  stored = set(keys)
  # Frozen parameters have no average.
  read = [
    next(key for part in _PARAMS if (key := (*part, *name)) in stored)
    for name in names
  ]
  arrays = _read_some(path, info, read)
  params = {name: arrays[key] for name, key in zip(names, read, strict=True)}
  return traverse_util.unflatten_dict(params), info['step']


def _read_some(
  path: pathlib.Path, info: dict[str, Any], keys: Sequence[tuple[str, ...]]
) -> dict[tuple[str, ...], np.ndarray]:
  """Reads and verifies the arrays with these paths, as NumPy arrays."""
  import orbax.checkpoint as ocp

  arrays = {key: info['arrays']['/'.join(key)] for key in keys}
  shapes = {
    key: jax.ShapeDtypeStruct(x['shape'], x['dtype'])
    for key, x in arrays.items()
  }
  values: dict[tuple[str, ...], np.ndarray] = {}
  for part in _parts(shapes):
    tree = traverse_util.unflatten_dict(part)
    restore_args = jax.tree.map(
      lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree
    )
    tree = _read_arrays(path, tree, restore_args)
    _verify(info, tree)
    values |= traverse_util.flatten_dict(tree)
  return values


def _parts(
  shapes: dict[tuple[str, ...], jax.ShapeDtypeStruct],
) -> Iterator[dict[tuple[str, ...], jax.ShapeDtypeStruct]]:
  """Yields arrays in parts, since a read by Orbax needs twice its memory."""
  part: dict[tuple[str, ...], jax.ShapeDtypeStruct] = {}
  size = 0
  for key, x in shapes.items():
    part[key] = x
    size += x.size * x.dtype.itemsize
    if size >= _PART_BYTES:
      yield part
      part, size = {}, 0
  if part:
    yield part


def steps(workdir: pathlib.Path | str) -> dict[str, list[int]]:
  """Returns the steps of all checkpoints in `checkpoints` and in `best`."""
  return {
    name: [
      int(path.name)
      for path in workdir_lib.newest_first(pathlib.Path(workdir) / name)
    ][::-1]
    for name in ('checkpoints', 'best')
  }


def is_averaged(path: pathlib.Path) -> bool:
  """Whether a checkpoint has moving averages; `read_params` then reads them."""
  averages = ('ema_params/', f'extra/{checkpoint.AVERAGE}/')
  return any(name.startswith(averages) for name in read_info(path)['arrays'])
