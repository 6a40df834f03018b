"""Describes which checkpoint a model was read from."""

import dataclasses
import pathlib
from typing import Any

from vit_jax import config as config_lib

# Values of `step=` other than a number.
CHOICES = ('best', 'newest')


@dataclasses.dataclass(frozen=True)
class Origin:
  """The source of parameters; fields that a foreign file lacks are None."""

  path: str  # path of the checkpoint, or of the file
  format: str  # one of `export.FORMATS`
  step: int | None = None  # number of completed updates
  # 'best' (by `checkpoint.best`), 'newest' or 'earlier'.
  kind: str | None = None
  # Whether these are the moving averages of the parameters.
  averaged: bool | None = None
  newest: int | None = None  # step of the newest checkpoint of the run
  # The task whose parameters these are, in a run of several.
  task: str | None = None

  def to_dict(self) -> dict[str, Any]:
    """Returns the value of `checkpoint` in the JSON that commands write."""
    fields = dataclasses.asdict(self)
    if self.task is None:
      del fields['task']
    return fields

  def __str__(self) -> str:
    """Returns one line of text."""
    if self.step is None:
      return f'{self.path}, a file of the format {self.format}'
    parameters = 'averaged parameters' if self.averaged else 'not averaged'
    text = f'{self.path}: step {self.step}, the {self.kind} checkpoint'
    if self.kind == 'earlier':
      text = f'{self.path}: step {self.step}, an earlier checkpoint'
    text = f'{text}, {parameters}'
    if self.newest in (None, self.step):
      return text
    return f'{text}; the newest is of step {self.newest}'


MEMORY = Origin('memory', 'vit_jax')  # for a model that is from no file


def parse_step(step: Any) -> int | str | None:
  """Returns the value of `step=`: a number, 'best', 'newest' or None."""
  if isinstance(step, str) and step.isascii() and step.isdecimal():
    return int(step)
  is_number = isinstance(step, int) and not isinstance(step, bool) and step >= 0
  if step is None or step in CHOICES or is_number:
    return step
  raise config_lib.UserError(
    f"step is {step!r}: write the step of a checkpoint, 'best' or 'newest'"
  )


def read(workdir: pathlib.Path, path: pathlib.Path) -> Origin:
  """Returns the origin of parameters read from a work directory.

  Of one task of a run, `workdir` is its folder tasks/NAME; `path` is that of
  the checkpoint.
  """
  from vit_jax.runs import restoring
  from vit_jax.runs import safe_io
  from vit_jax.runs import workdir as workdir_lib

  part = safe_io.read_json(workdir / workdir_lib.PART)
  if part is not None:
    workdir = workdir_lib.run_folder(workdir)
  steps = restoring.steps(workdir)['checkpoints']
  step, newest = int(path.name), max(steps, default=None)
  if path.parent.name == 'best':
    kind = 'best'
  else:
    kind = 'newest' if step == newest else 'earlier'
  return Origin(
    str(workdir / path.parent.name / path.name),
    'vit_jax',
    step,
    kind,
    restoring.is_averaged(path),
    newest,
    part['task'] if part else None,
  )
