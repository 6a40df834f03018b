"""Reads checkpoints of a run for other commands, without changing its files.

Damaged checkpoints are skipped; a warning names them.
"""

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import pathlib
from typing import Any

from flax import traverse_util
import jax
import numpy as np

from vit_jax.config import UserError
from vit_jax.runs import checkpoint
from vit_jax.runs import checkpoint_format
from vit_jax.runs import safe_io
from vit_jax.runs import workdir as workdir_lib

_PART_BYTES = 2**25  # parameters are read in parts of this size
# Where parameters lie in a state, those that are read first at the front.
_PARAMS = (('ema_params',), ('extra', checkpoint_format.AVERAGE), ('params',))

PyTree = Any


def restore_at_most(
  workdir: pathlib.Path | str,
  step: int,
  state_for: checkpoint_format.StateFor,
) -> tuple[PyTree, int] | None:
  """Reads the newest good checkpoint of at most `step` updates.

  Changes nothing, so the run may still be going on.

  Args:
    workdir: The work directory of a run.
    step: The largest number of completed updates.
    state_for: As for `checkpoint.Checkpointer.restore`.

  Returns:
    The train state and its step; None if there is no such checkpoint.

  Raises:
    UserError: As `checkpoint.Checkpointer.restore`.
  """
  checkpoint_format.quiet_orbax()
  directory = pathlib.Path(workdir).resolve() / 'checkpoints'
  newest = checkpoint.newest_good(directory, state_for, step)
  return None if newest is None else (newest[0], newest[1]['step'])


def restore_params(
  workdir: pathlib.Path | str, step: int | str | None = None
) -> tuple[PyTree, int, pathlib.Path]:
  """Reads the parameters for prediction: their moving average if there is one.

  Reads best/ if it exists, else the newest good checkpoint. Changes nothing, so
  the run may still be going on.

  Args:
    workdir: The work directory of a run, or its folder tasks/NAME, of one task.
    step: The checkpoint to read: its step, 'best' or 'newest'; None: the best,
      or else the newest good one.

  Returns:
    The parameters (nested dicts of NumPy arrays), their step, and the path of
    the checkpoint.

  Raises:
    UserError: There is no such checkpoint (the existing ones are listed), it
      needs a newer version, or all are damaged.
  """
  workdir = pathlib.Path(workdir).resolve()
  part = safe_io.read_json(workdir / workdir_lib.PART)
  if part is not None:
    params, at, path = restore_params(workdir_lib.run_folder(workdir), step)
    return extract(params, part['params']), at, path
  checkpoint_format.quiet_orbax()
  paths = candidates(workdir, step)
  newest = checkpoint.first_good(paths, read_params)
  if newest is None:
    raise _none_there(workdir, step)
  (params, at), path, _ = newest
  return params, at, path


def extract(params: PyTree, places: Mapping[str, str]) -> PyTree:
  """Returns the parameters of a task, from those of a run of several.

  `places` has the path in the run of each path in the task's own tree.
  """
  flat = traverse_util.flatten_dict(params, sep='/')
  return traverse_util.unflatten_dict(
    {path: flat[place] for path, place in places.items()}, sep='/'
  )


def restore_extra(path: pathlib.Path | str, task: str | None = None) -> PyTree:
  """Reads the objective's state beside the parameters, as a codebook.

  Args:
    path: Path of a checkpoint, as `restore_params` returns it.
    task: The task whose state is read, in a run of several.

  Returns:
    Nested dicts of NumPy arrays; {} if there is no such state.

  Raises:
    UserError: It is damaged, or needs a newer version.
  """
  checkpoint_format.quiet_orbax()
  try:
    extra = read_extra(pathlib.Path(path).resolve())
  except checkpoint_format.DamagedError as e:
    raise UserError(
      f'checkpoint {path} is damaged: {e}; choose another with --step'
    ) from None
  return extra if task is None else extra.get(task, {})


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


def read_params(path: pathlib.Path) -> tuple[PyTree, int]:
  """Reads only the parameters, or their moving averages where there are any.

  Returns:
    Nested dicts of NumPy arrays, and the step.

  Raises:
    DamagedError: They are not what was written.
    UserError: The checkpoint needs a newer version.
  """
  info = checkpoint_format.read_info(path)
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


def read_extra(path: pathlib.Path) -> PyTree:
  """Reads only the state of the objective beside the parameters.

  Returns:
    Nested dicts of NumPy arrays; {} if there is no such state.

  Raises:
    DamagedError: It is not what was written.
    UserError: The checkpoint needs a newer version.
  """
  info = checkpoint_format.read_info(path)
  keys = [tuple(key.split('/')) for key in info['arrays']]
  arrays = _read_some(path, info, [key for key in keys if key[0] == 'extra'])
  return traverse_util.unflatten_dict(arrays).get('extra', {})


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
    tree = checkpoint_format.read_arrays(path, tree, restore_args)
    checkpoint_format.verify(info, checkpoint_format.checksums(tree))
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


def candidates(
  workdir: pathlib.Path, step: int | str | None
) -> list[pathlib.Path]:
  """Returns the checkpoints to predict with, the first choice first.

  Args:
    workdir: The work directory of a run.
    step: Step of the checkpoint; 'best'; 'newest'; None: first the best, then
      the newest.
  """
  folders = {'best': ['best'], 'newest': ['checkpoints']}.get(
    str(step), ['best', 'checkpoints']
  )
  paths = [
    path
    for folder in folders
    for path in checkpoint_format.newest_first(workdir / folder)
  ]
  if isinstance(step, int):
    return [path for path in paths if int(path.name) == step]
  return paths


def steps(workdir: pathlib.Path | str) -> dict[str, list[int]]:
  """Returns the steps of all checkpoints in `checkpoints` and in `best`."""
  return {
    name: [
      int(path.name)
      for path in checkpoint_format.newest_first(pathlib.Path(workdir) / name)
    ][::-1]
    for name in ('checkpoints', 'best')
  }


def is_averaged(path: pathlib.Path) -> bool:
  """Whether a checkpoint has moving averages; `read_params` then reads them.

  Raises:
    DamagedError: It cannot be read.
  """
  arrays = checkpoint_format.read_info(path)['arrays']
  return any(
    name.startswith(('ema_params/', f'extra/{checkpoint_format.AVERAGE}/'))
    for name in arrays
  )
