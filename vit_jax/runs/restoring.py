"""Reads the newest good checkpoint of a run, without changing its files.

Damaged checkpoints are skipped; a warning names them.
"""

from collections.abc import Callable
from collections.abc import Sequence
import pathlib
from typing import Any

from absl import logging

from vit_jax.config import UserError
from vit_jax.parallel import processes
from vit_jax.runs import checkpoint_format
from vit_jax.runs import parts

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
  found = newest_good(directory, state_for, step)
  return None if found is None else (found[0], found[1]['step'])


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
  found = _first_good(
    paths, lambda path: checkpoint_format.restore(path, state_for)
  )
  if found is None:
    return None
  (state, info), path, damaged = found
  return state, info, path, damaged


def _first_good(
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
  part = parts.read(workdir)
  if part is not None:
    params, at, path = restore_params(parts.run_of(workdir), step)
    return part.extract(params), at, path
  checkpoint_format.quiet_orbax()
  paths = checkpoint_format.candidates(workdir, step)
  found = _first_good(paths, checkpoint_format.read_params)
  if found is None:
    raise _none_there(workdir, step)
  (params, at), path, _ = found
  return params, at, path


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
    extra = checkpoint_format.read_extra(pathlib.Path(path).resolve())
  except checkpoint_format.DamagedError as e:
    raise UserError(
      f'checkpoint {path} is damaged: {e}; choose another with --step'
    ) from None
  return extra if task is None else extra.get(task, {})


def _none_there(workdir: pathlib.Path, step: int | str | None) -> UserError:
  there = checkpoint_format.steps(workdir)
  if not any(there.values()):
    return UserError(
      f'there is no checkpoint in {workdir}: neither best/ nor checkpoints/ has'
      ' one; give the work directory of a run that has saved'
    )
  shown = [str(n) for n in there['checkpoints']]
  shown += [f'{n} (the best)' for n in there['best']]
  wanted = f'{step} checkpoint' if step == 'best' else f'checkpoint {step}'
  return UserError(
    f'there is no {wanted} in {workdir}: choose one of the steps'
    f' {", ".join(shown)}'
  )
