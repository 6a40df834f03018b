"""The image files that a command line names: found, decoded, in batches."""

import codecs
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import glob
import os
import sys
from typing import TYPE_CHECKING

from vit_jax.config import check_data
from vit_jax.config import nearby
from vit_jax.config import UserError

if TYPE_CHECKING:
  import numpy as np

_AHEAD = 3  # batches that are decoded in advance


def find(arguments: Sequence[str]) -> list[str]:
  """Returns the paths of images named on the command line.

  The arguments are files, folders and patterns; '-' reads more of them from
  stdin.
  """
  paths: list[str] = []
  problems: list[str] = []
  for argument in arguments:
    for name in _listed_on_stdin() if argument == '-' else [argument]:
      check_data(name, '')
      matches = _expand(name)
      paths.extend(matches)
      if not matches and os.path.isdir(name):
        problems.append(f'{name} has no images')
      elif not matches:
        problems.append(f'no file matches the pattern {name}')
  if not any(map(os.path.lexists, paths)):
    problems += [f'there is no {name}{nearby(name)}' for name in paths[:1]]
    problem_text = f' ({"; ".join(problems)})' if problems else ''
    raise UserError(
      f'there are no images{problem_text}: name files, folders or patterns, or'
      ' - for a list on standard input'
    )
  for problem in problems:
    print(problem, file=sys.stderr)
  return paths


def as_examples(paths: Sequence[str], takes_videos: bool) -> list[str]:
  """Returns the paths of a model's inputs, from the results of `find`.

  If the model takes videos, images are frames, and the folder of some of them
  is one input.
  """
  from vit_jax.data import folder  # after the flags: slow to import

  if not takes_videos:
    return [*paths]
  examples = [
    os.path.dirname(path) or '.'
    if path.lower().endswith(folder.ENDINGS)
    else path
    for path in paths
  ]
  return list(dict.fromkeys(examples))


def reporter(
  failed: list[UserError], write: Callable[..., object] = print
) -> Callable[[UserError], None]:
  """Returns a function that prints an error, and adds it to `failed`.

  `write` prints a line, as `print` or the `write` of a progress bar.
  """

  def report(error: UserError) -> None:
    failed.append(error)
    write(f'error: {error}. The image is skipped.', file=sys.stderr)

  return report


def decoded_batches(
  paths: Sequence[str],
  pixels: 'Callable[[str], np.ndarray]',
  size: int,
  report: Callable[[UserError], None],
  progress: Callable[[int], object] = lambda _: None,
) -> 'Iterator[tuple[list[str], dict[str, np.ndarray]]]':
  """Yields paths with batches of their images, which threads decode in advance.

  The last batch is padded, so that only one shape is compiled.

  Args:
    paths: Paths of images.
    pixels: Path -> uint8 [1, H, W, C].
    size: Number of images in each batch.
    report: Called with the error of each image that is skipped.
    progress: Called with the number of images that were taken.
  """
  import numpy as np

  from vit_jax.data.host import threads

  def read(path: str) -> 'tuple[str, np.ndarray | UserError]':
    try:
      return path, pixels(path)[0]
    except UserError as e:
      return path, e

  names: list[str] = []
  images: list[np.ndarray] = []
  for path, image in threads.in_threads(read, paths, _AHEAD * size):
    progress(1)
    if isinstance(image, UserError):
      report(image)
      continue
    names.append(path)
    images.append(image)
    if len(images) == size:
      yield names, {'image': np.stack(images)}
      names, images = [], []
  if images:
    padding = [np.zeros_like(images[0])] * (size - len(images))
    yield names, {'image': np.stack(images + padding)}


def _listed_on_stdin() -> list[str]:
  text = os.fsdecode(sys.stdin.buffer.read().removeprefix(codecs.BOM_UTF8))
  if '\0' in text:  # from find -print0
    return [name for name in text.split('\0') if name]
  names = [line.removesuffix('\r') for line in text.split('\n')]
  return [name for name in names if name]


def _expand(name: str) -> list[str]:
  """Returns images in a folder, images that match a pattern, or the file."""
  from vit_jax.data import folder  # after the flags: slow to import
  from vit_jax.data import leftovers
  from vit_jax.data import scans
  from vit_jax.data.host import sound_files
  from vit_jax.data.host import video_files

  if os.path.isdir(name):
    media = video_files.ENDINGS + sound_files.ENDINGS
    return folder.below(name) or scans.below(name) or folder.below(name, media)
  if os.path.lexists(name) or not glob.has_magic(name):
    return [name]
  # Names with a dot are matched only where the pattern has it, too.
  matches = sorted(
    path
    for path in glob.glob(name, recursive=True)
    if not any(leftovers.is_hidden(x.lstrip('.')) for x in path.split('/'))
  )
  if '**' in name:  # also matches the files in the folders
    return [path for path in matches if not os.path.isdir(path)]
  return [image for path in matches for image in _expand(path)]
