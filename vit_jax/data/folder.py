"""Images in folders: `{train,val,test}/<class>/**`, or only `<class>/**`.

The folders of splits may have other usual names, such as training, valid or
Testing. Without val, test is used in its place. What `leftovers.py` knows is no
data.
"""

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import functools
import os
from typing import Any
from typing import ClassVar

from absl import logging
import ml_collections
import numpy as np

from vit_jax import config as config_lib
from vit_jax.config import explained
from vit_jax.config import join_first
from vit_jax.config import nearby
from vit_jax.config import UserError
from vit_jax.data import base
from vit_jax.data import class_folders
from vit_jax.data import features
from vit_jax.data import leftovers
from vit_jax.data import splits
from vit_jax.data.host import decode
from vit_jax.runs import safe_io

ENDINGS = tuple('.jpg .jpeg .png .webp .bmp .tif .tiff .gif'.split())
# Folder name in lower case -> split.
SPLITS = {
  **dict.fromkeys(('train', 'training'), 'train'),
  **dict.fromkeys(('val', 'valid', 'validation', 'dev', 'eval'), 'val'),
  **dict.fromkeys(('test', 'testing'), 'test'),
}
PREFIX = 'folder:'  # of `config.data.name`
# Finds the class that reads a folder with a map for each image.
_PAIRED = 'vit_jax.data.scan_folder:find_source'
# Names that such a folder, or each split in it, has: a folder of images, with
# names of that of the maps beside it; Pascal VOC's folder of images; and the
# list of the Medical Segmentation Decathlon.
MAP_FOLDERS = {'images': ('masks', 'annotations'), 'leftImg8bit': ('gtFine',)}
VOC_IMAGES, DECATHLON = 'JPEGImages', 'dataset.json'
SAMPLE = 64  # number of files whose headers are read to find the bits


@dataclasses.dataclass(frozen=True)
class Kind:
  """What the examples of a folder are.

  Attributes:
    name: What they are called.
    endings: Of the names of their files.
    in_folders: Whether a folder that holds images is one example.
  """

  name: str = 'images'
  endings: tuple[str, ...] = ENDINGS
  in_folders: bool = False


IMAGES = Kind()


class FolderSource(base.SelectedSource):
  """The images of a split of a folder.

  Files are ordered by a hash of their path below the split's folder, so a slice
  holds all classes and does not change when the folder is moved.

  Attributes:
    kind: What the examples are.
  """

  kind: ClassVar[Kind] = IMAGES

  def __init__(
    self, root: str, split: str, image_shape: tuple[int, int] | None = None
  ):
    """Lists the files.

    Args:
      root: The folder.
      split: A split specification. A folder without folders of splits has one
        split, 'train', with all images.
      image_shape: (height, width) where all images are known to have one size.

    Raises:
      UserError: There is no such folder or split, or a class is empty or
        unknown.
    """
    self._folders = split_folders(root)
    self._prefixes = {
      name: '' if path == root else f'{os.path.basename(path)}/'
      for name, path in self._folders.items()
    }
    aliases = {
      os.path.basename(path): name
      for name, path in self._folders.items()
      if path != root
    }
    aliases |= other_names(root, split, self._folders)
    chosen_splits = splits.chosen(split, self._folders, aliases)
    if 'train' in chosen_splits and 'train' not in self._folders:
      names = map(os.path.basename, self._folders.values())
      raise splits.SplitError(_without_train(root, names))
    classes = class_names(self._folders, chosen_splits)
    self.features = {
      'image': features.Image(image_shape),
      'label': features.Label(classes),
    }
    self._label_of = {name: i for i, name in enumerate(classes)}
    self._files: dict[str, list[str]] = {}
    has_train = 'train' in self._folders
    for name, folder in self._folders.items():
      if name in chosen_splits:
        self._files[name] = _list(folder, classes, self.kind, has_train)
    sizes = {name: len(self._files.get(name, ())) for name in self._folders}
    self._selection = splits.Selection(split, sizes, root, aliases)

  @classmethod
  def from_config(
    cls, config: ml_collections.ConfigDict, split: str
  ) -> base.Source:
    """Opens a split of images, of images with maps, or of scans with maps."""
    root = base.data_path(config.data.name)
    paired = _find_paired(root)
    if paired is not None:
      return paired.from_config(config, split)
    return cls(root, split, base.source_size(config))

  @classmethod
  def check_config(cls, config: ml_collections.ConfigDict) -> None:
    """Checks that there is the folder that `config.data.name` names."""
    root = base.data_path(config.data.name)
    if not os.path.isdir(root):
      hint = nearby(root, os.path.isdir)
      raise UserError(f'config.data.name: there is no folder {root!r}{hint}')

  @classmethod
  def split_names(cls, name: str) -> list[str]:
    """Returns the splits of a folder, in order."""
    root = base.data_path(name)
    paired = _find_paired(root)
    return (
      list(split_folders(root)) if paired is None else paired.split_names(name)
    )

  def read(self, position: int) -> base.Example:
    """Returns an example, not decoded.

    Raises:
      UserError: The file cannot be read.
    """
    split, row, index = self._selection.locate(position)
    name = self._files[split][row]
    path = os.path.join(self._folders[split], name)
    label = self._label_of[name.split('/')[0]]
    values = {'image': self.open(path), 'label': label}
    return base.Example(values, index, path)

  def open(self, path: str) -> Any:
    """Returns the image of a file as an example has it.

    Raises:
      UserError: The file cannot be read.
    """
    return read_image(path)

  def file(self, position: int) -> str:
    """Returns the path of an example's file."""
    split, row, _ = self._selection.locate(position)
    return os.path.join(self._folders[split], self._files[split][row])

  def id(self, position: int) -> str:
    """Returns the path of an example's file below the folder."""
    split, row, _ = self._selection.locate(position)
    return self._prefixes[split] + self._files[split][row]

  def bits(self) -> int:
    """Returns 16 if a header of the first 64 files says so, else 8."""
    sample = range(min(len(self), SAMPLE))  # files are ordered by a hash
    return max(map(decode.file_bits, map(self.file, sample)))

  def column(self, name: str) -> np.ndarray:
    """Returns the labels of all examples, int32 [N]; reads no file."""
    assert name == 'label'
    names = [
      name
      for split, start, stop in self._selection.ranges
      for name in self._files[split][start:stop]
    ]
    labels = [self._label_of[name.split('/')[0]] for name in names]
    return np.asarray(labels, np.int32)

  def fingerprint(self) -> str:
    """Returns a digest of the names of files and classes, not of the images."""
    names = [name for files in self._files.values() for name in files]
    ranges = [str(term) for term in self._selection.ranges]
    return base.digest([*self.classes, *ranges, *names])


def _find_paired(root: str) -> type[base.Source] | None:
  """Returns the class that reads a folder with maps; None: it has none."""
  if not os.path.isdir(root):
    return None
  named = [name for name in subfolders(root) if name.lower() in SPLITS]
  signs = (*MAP_FOLDERS, VOC_IMAGES, DECATHLON)
  paths = (
    os.path.join(root, split, sign) for split in ('', *named) for sign in signs
  )
  if not any(map(os.path.exists, paths)):
    return None
  paired: type[base.Source] | None = config_lib.wing(_PAIRED)(root)
  return paired


def class_names(
  folders: Mapping[str, str], chosen: Collection[str]
) -> tuple[str, ...]:
  """Returns the names of the classes: those of train, sorted.

  Without train, as where a model is only measured, they are those of the chosen
  splits.

  Args:
    folders: Folder of each split.
    chosen: Names of splits.
  """
  if 'train' in folders:
    return subfolders(folders['train'])
  names = {
    x for name in chosen if name in folders for x in subfolders(folders[name])
  }
  return tuple(sorted(names))


def read_image(path: str) -> bytes:
  """Returns an encoded image.

  Raises:
    UserError: The file cannot be read.
  """
  with explained(f'{path} cannot be read', OSError):
    with safe_io.open_regular(path) as file:
      return file.read()


def below(folder: str, endings: tuple[str, ...]) -> list[str]:
  """Returns the paths of the files below a folder with some endings, sorted."""
  return sorted(
    os.path.join(folder, name)
    for name, _ in walk(folder)
    if name.lower().endswith(endings)
  )


def images_below(folder: str) -> list[str]:
  """Returns the paths of all images below a folder, sorted."""
  return sorted(
    os.path.join(folder, name) for name, is_image in walk(folder) if is_image
  )


def split_folders(root: str) -> dict[str, str]:
  """Returns the folder of each split.

  'train', 'val', 'test' and their usual synonyms may also be names of classes.
  Such a folder is a split if most of its images lie in subfolders, one for each
  class. A folder with another name next to a split is a split of that name.

  Raises:
    UserError: There is no such folder, or its folders may be splits or classes.
  """
  if not os.path.isdir(root):
    hint = nearby(root, os.path.isdir)
    raise UserError(f'config.data.name: there is no folder {root!r}{hint}')
  folders = {name: os.path.join(root, name) for name in subfolders(root)}
  if not folders:
    raise UserError(f'{root} has no folders: it needs one for each class')
  named = {name: SPLITS.get(name.lower()) for name in folders}
  candidates = [name for name in folders if named[name]]
  holding = [name for name in candidates if _holds_classes(folders[name])]
  if not holding:
    if candidates == [*folders] and len(candidates) > 1:
      raise UserError(
        f'{root} has no classes, only {", ".join(candidates)}, which are named'
        f' as splits: put images into {root}/{candidates[0]}/<class>, and so'
        ' on, or rename the folders if they are classes'
      )
    return {'train': root}
  result = _named_splits(root, named, holding)
  if 'train' not in result and len(result) > len(holding):
    raise UserError(_without_train(root, holding))
  _tell_left_out(root, _left_out(root))
  _tell_splits(root, result)
  return result


def _without_train(root: str, names: Iterable[str]) -> str:
  """Returns a line about folders that have names of splits, but not train."""
  return (
    f'{root} has no folder train/<class>: the classes are those of train. If'
    f' {", ".join(names)} are classes, put all classes into {root}/train'
  )


def _named_splits(
  root: str, named: dict[str, str | None], holding: list[str]
) -> dict[str, str]:
  """Returns the folder of each split.

  Args:
    root: The folder.
    named: Name of each of its folders -> split that this is a usual name of, or
      None.
    holding: Names of the folders that have a split's name and hold classes.
  """
  result: dict[str, str] = {}
  for name, split in named.items():
    if split is None or name not in holding:
      _check_beside(root, name, split, holding)
    if split is not None and name not in holding:
      continue
    if (split or name) in result:
      first_folder = os.path.basename(result[split or name])
      raise UserError(
        f'{root} has both {first_folder} and {name}: which is the split'
        f' {split or name!r}? Rename one, or move it away'
      )
    result[split or name] = os.path.join(root, name)
  return result


def _check_beside(
  root: str, name: str, split: str | None, splits_there: list[str]
) -> None:
  """Checks a folder next to splits that is not known to be one of them.

  Raises:
    UserError: It may be a class itself.
  """
  folder = os.path.join(root, name)
  if not _holds_images(folder):
    return
  if split is None:
    raise UserError(
      f'{root} has splits ({", ".join(splits_there)}) and beside them {name},'
      f' with images of its own: if it is a class, move it into'
      f' {root}/{splits_there[0]}, or else out of {root}'
    )
  warn_once(f'{folder} has images, but no folders of classes, and is not read')


def _tell_splits(root: str, folders: dict[str, str]) -> None:
  """Logs which folder is which split, if their names differ."""
  names = {name: os.path.basename(path) for name, path in folders.items()}
  phrases = [f'{folder} as {name}' for name, folder in names.items()]
  if any(name != folder for name, folder in names.items()):
    inform_once(f'{root}: taking {", ".join(phrases)}')


def other_names(
  data_name: str, spec: str, names: Collection[str]
) -> dict[str, str]:
  """Returns aliases of splits: their usual names, and val for test.

  Args:
    data_name: Name of the data, for the line that is logged when `spec` asks
      for val and gets test.
    spec: A split specification.
    names: All splits of the data.
  """
  by_usual_name: dict[str, list[str]] = {}
  for name in names:
    by_usual_name.setdefault(split_name(name), []).append(name)
  aliases = {
    name: synonyms[0]
    for name, synonyms in by_usual_name.items()
    if name not in names and len(synonyms) == 1
  }
  if 'val' not in by_usual_name and 'test' in by_usual_name:
    aliases['val'] = aliases.get('test', 'test')
    if any(part.name == 'val' for part in splits.parse(spec)):
      inform_once(f'{data_name} has no val: test is taken for it')
  return aliases


def _holds_classes(folder: str) -> bool:
  """Whether a folder is a split: most of its images lie in its subfolders.

  The few images directly in it are taken for strays, and ignored.
  """
  if not subfolders(folder):
    return False
  if not _holds_images(folder):
    return True
  in_folders = ['/' in name for name, is_image in walk(folder) if is_image]
  return 2 * sum(in_folders) > len(in_folders)


def _holds_images(folder: str) -> bool:
  with os.scandir(folder) as entries:
    return any(map(_is_image, entries))


def subfolders(folder: str) -> tuple[str, ...]:
  """Returns the sorted names of the folders in a folder that may hold data."""
  with os.scandir(folder) as entries:
    return tuple(
      sorted(
        x.name
        for x in entries
        if not leftovers.is_hidden(x.name)
        and x.is_dir()
        and not leftovers.holds_runs(x.path)
      )
    )


def _left_out(folder: str) -> list[str]:
  """Returns the paths in a folder that cannot hold data."""
  with os.scandir(folder) as entries:
    return [
      x.path
      for x in entries
      if leftovers.is_hidden(x.name)
      or (x.is_dir() and leftovers.holds_runs(x.path))
    ]


def _tell_left_out(folder: str, paths: Sequence[str]) -> None:
  """Logs which files and folders are no data, if there are any."""
  if paths:
    names = sorted(os.path.relpath(x, folder) for x in paths)
    inform_once(
      f'{folder}: skipped hidden files, system files and work directories'
      f' ({len(names)}): {join_first(names)}'
    )


@dataclasses.dataclass(frozen=True)
class Listing:
  """Content of the folder of a split.

  Attributes:
    images: Images of classes, 'class/a.png', ordered by a hash.
    ignored: Files that are ignored, sorted.
    problems: Problems of its classes; a run stops at the first.
  """

  images: list[str]
  ignored: list[str]
  problems: list[str]


def look_into(
  folder: str, classes: tuple[str, ...], kind: Kind = IMAGES
) -> Listing:
  """Lists the folder of a split.

  Args:
    folder: Folder of the split, with a folder for each class.
    classes: Classes of train.
    kind: What the examples are.
  """
  images: list[str] = []
  ignored: list[str] = []
  frames: set[str] = set()  # folders that hold images
  for name, is_image in walk(folder):
    is_one = is_image
    if kind != IMAGES:
      is_one = name.lower().endswith(kind.endings)
    if kind.in_folders and is_image and name.count('/') > 1:
      frames.add(os.path.dirname(name))
    elif is_one and '/' in name:
      images.append(name)
    else:
      ignored.append(name)
  images += frames
  filled = {name.split('/')[0] for name in images}
  problems = class_folders.problems(
    folder, subfolders(folder), filled, classes, kind.name, kind.endings
  )
  return Listing(sorted(images, key=base.hash_order), sorted(ignored), problems)


def _list(
  folder: str, classes: tuple[str, ...], kind: Kind, tells_lacking: bool
) -> list[str]:
  """Returns the paths of all examples below `folder/<class>`, ordered by hash.

  Args:
    folder: Folder of the split.
    classes: The classes.
    kind: What the examples are.
    tells_lacking: Whether to warn of classes without examples.

  Raises:
    UserError: A class has no examples, or is not in `classes`.
  """
  listing = look_into(folder, classes, kind)
  if listing.ignored:
    warn_once(
      f'{folder}: ignored files that are not {kind.name} of a class'
      f' ({len(listing.ignored)}): {join_first(listing.ignored)}'
    )
  if listing.problems:
    raise UserError(listing.problems[0])
  filled = {name.split('/')[0] for name in listing.images}
  warning = class_folders.lacking(folder, filled, classes, kind.name)
  if warning and tells_lacking:
    warn_once(warning)
  return listing.images


def split_name(name: str) -> str:
  """Returns the split that a name is an alias of, or the name itself."""
  return SPLITS.get(name.lower(), name)


def walk(folder: str) -> Iterator[tuple[str, bool]]:
  """Yields the files below a folder as ('class/a.png', whether an image).

  Links are followed, but not to a folder that holds the link. What is left out,
  as hidden files and work directories of runs, is logged at the end.

  Raises:
    UserError: A folder cannot be read.
  """
  left_out: list[str] = []
  yield from _walk(folder, '', frozenset(), left_out)
  _tell_left_out(folder, left_out)


def _walk(
  folder: str,
  prefix: str,
  ancestors: frozenset[tuple[int, int]],
  left_out: list[str],
) -> Iterator[tuple[str, bool]]:
  """Yields files as `walk`, and adds the paths that it leaves out to a list."""
  status = os.stat(folder)
  folder_id = (status.st_dev, status.st_ino)
  if folder_id in ancestors:
    return
  advice = f'{folder} must be readable, or be moved away'
  with explained(advice, OSError), os.scandir(folder) as entries:
    for entry in entries:
      is_folder = entry.is_dir()
      if leftovers.is_hidden(entry.name) or (
        is_folder and leftovers.is_workdir(entry.path)
      ):
        left_out.append(entry.path)
      elif is_folder:
        inner, outer = f'{prefix}{entry.name}/', ancestors | {folder_id}
        yield from _walk(entry.path, inner, outer, left_out)
      else:
        yield prefix + entry.name, _is_image(entry)


def _is_image(entry: os.DirEntry[str]) -> bool:
  is_named_so = entry.name.lower().endswith(ENDINGS)
  is_hidden = leftovers.is_hidden(entry.name)
  return is_named_so and not is_hidden and entry.is_file()


@functools.cache  # data is often opened for several slices
def warn_once(message: str) -> None:
  """Logs a warning the first time that it is given."""
  logging.warning('%s', message)


@functools.cache
def inform_once(message: str) -> None:
  """Logs a line the first time that it is given."""
  logging.info('%s', message)
