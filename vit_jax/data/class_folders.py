"""What is wrong with the folders of the classes of a split, for people."""

from collections.abc import Collection
from collections.abc import Sequence
import os

from vit_jax.config import join_first


def problems(
  folder: str,
  folder_names: Sequence[str],
  filled: Collection[str],
  classes: Sequence[str],
  kind: str,
  endings: Sequence[str],
) -> list[str]:
  """Returns what stops a run.

  Args:
    folder: The folder of the split.
    folder_names: Names of the folders in it.
    filled: Those that hold examples.
    classes: Classes of train.
    kind: What the examples are called.
    endings: Of the names of their files.
  """
  messages = []
  if unknown := [name for name in folder_names if name not in classes]:
    messages.append(_unknown(folder, unknown, classes))
  return messages + [
    f'{os.path.join(folder, name)} has no {kind}: add some'
    f' ({", ".join(endings)}), or remove the folder'
    for name in folder_names
    if name in classes and name not in filled
  ]


def _unknown(folder: str, names: Sequence[str], classes: Sequence[str]) -> str:
  """Returns a line about the folders of classes that train does not have."""
  paths = join_first([os.path.join(folder, name) for name in names])
  are = 'is not a class' if len(names) == 1 else 'are not classes'
  class_name = {name.lower(): name for name in classes}.get(names[0].lower())
  advice = 'add such a folder to train, or move it away'
  if len(names) > 1:
    advice = 'add such folders to train, or move them away'
  if class_name:
    advice = f'rename {names[0]} to {class_name}'
  return (
    f'{paths} {are} of train: the classes are {join_first(classes)}; {advice}'
  )


def lacking(
  folder: str, filled: Collection[str], classes: Sequence[str], kind: str
) -> str:
  """Returns a warning about classes that only train has; '' if it has none.

  Arguments are those of `problems`.
  """
  names = [name for name in classes if name not in filled]
  if not names:
    return ''
  return (
    f'warning: {folder} has no {kind} of {join_first(names)}, which train has:'
    ' add some, or what the model makes of them is not measured'
  )
