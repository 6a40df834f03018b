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
import itertools
import os
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
from vit_jax.data import features
from vit_jax.data import leftovers
from vit_jax.data import splits
from vit_jax.data import stored as stored_lib
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
SAMPLE = 64  # number of examples that show the bits or sizes of all


@dataclasses.dataclass(frozen=True)
class Kind:
  """What the examples of a folder are."""

  name: str = 'images'  # what they are called
  endings: tuple[str, ...] = ENDINGS  # of the names of their files
  in_folders: bool = False  # whether a folder that holds images is one example


IMAGES = Kind()


class FolderSource(stored_lib.Table):
  """The images of a split of a folder.

  Files are ordered by a hash of their path below the split's folder, so a slice
  holds all classes and does not change when the folder is moved. A folder
  without folders of splits has one split, 'train', with all images.

  Attributes:
    kind: What the examples are.
  """

  kind: ClassVar[Kind] = IMAGES

  def __init__(self, config: ml_collections.ConfigDict, split: str):
    """Lists the files of `split`, as 'train' or 'train[:90%]'.

    A folder or split that is not there raises a UserError, as does a class
    without a file.
    """
    root = stored_lib.data_path(config.data.name)
    self._frames = config_lib.sides(config.data.image_size)[0]
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
    has_train = 'train' in self._folders
    if 'train' in chosen_splits and not has_train:
      names = map(os.path.basename, self._folders.values())
      raise splits.SplitError(_without_train(root, names))
    classes = class_names(self._folders, chosen_splits)
    self.features = {
      'image': self._image(config),
      'label': features.Label(classes),
    }
    self._label_of = {name: i for i, name in enumerate(classes)}
    files = {
      name: _list(folder, classes, self.kind, has_train)
      if name in chosen_splits
      else []
      for name, folder in self._folders.items()
    }
    super().__init__(split, files, root, aliases)

  @classmethod
  def from_config(
    cls, config: ml_collections.ConfigDict, split: str
  ) -> base.Source:
    """Opens a split of images, of images with maps, or of scans with maps."""
    paired = cls._find_paired(stored_lib.data_path(config.data.name))
    return paired.from_config(config, split) if paired else cls(config, split)

  @classmethod
  def check_config(cls, config: ml_collections.ConfigDict) -> None:
    """Checks that there is the folder that `config.data.name` names."""
    _check_exists(stored_lib.data_path(config.data.name))

  @classmethod
  def split_names(cls, name: str) -> list[str]:
    """Returns the splits of a folder, in order."""
    root = stored_lib.data_path(name)
    paired = cls._find_paired(root)
    return paired.split_names(name) if paired else list(split_folders(root))

  def _image(self, config: ml_collections.ConfigDict) -> features.Image:
    return features.Image(stored_lib.source_size(config))

  @classmethod
  def _find_paired(cls, root: str) -> type[base.Source] | None:
    """Returns the class that reads a folder with maps; None: it has none."""
    if cls.kind != IMAGES or not os.path.isdir(root):
      return None
    named = [name for name in subfolders(root) if name.lower() in SPLITS]
    signs = (*MAP_FOLDERS, VOC_IMAGES, DECATHLON)
    paths = itertools.product([root], ['', *named], signs)
    if not any(os.path.exists(os.path.join(*path)) for path in paths):
      return None
    paired: type[base.Source] | None = config_lib.wing(_PAIRED)(root)
    return paired

  def example(self, split: str, row: str, index: int) -> base.Example:
    """Returns the example of a file, as 'class/a.png', not decoded."""
    path = self.path(split, row)
    image = features.image(self.features).open(path, self._frames)
    values = {'image': image, 'label': self._label(row)}
    return base.Example(values, index, path)

  def path(self, split: str, row: str) -> str:
    """Returns the path of a file."""
    return os.path.join(self._folders[split], row)

  def key(self, split: str, row: str) -> str:
    """Returns the path of a file below the folder."""
    return self._prefixes[split] + row

  def _label(self, row: str) -> int:
    return self._label_of[row.split('/')[0]]

  def bits(self) -> int:
    """Returns 16 if a header of the first images says so, else 8."""
    bits = features.image(self.features).bits
    return bits or sample_bits(map(self.file, range(len(self))))

  def column(self, name: str) -> np.ndarray:
    """Returns a target of all examples; reads no file for the labels."""
    if name != 'label':
      return super().column(name)
    return np.array([self._label(row) for _, row in self.selected()], np.int32)

  def fingerprint(self) -> str:
    """Returns a digest of the names of files and classes, not of the images."""
    names = itertools.chain(*self.rows.values())
    ranges = map(str, self.selection.ranges)
    return base.digest([*self.classes, *ranges, *names])


def sample_bits(images: Iterable[str | bytes | None]) -> int:
  """Returns 16 if a header of the first images says so, else 8."""
  bits = [8]
  for image in itertools.islice(images, SAMPLE):
    if isinstance(image, bytes):
      bits.append(decode.stored_bits(image))
    elif image is not None:
      bits.append(decode.file_bits(image))
  return max(bits)


def class_names(
  folders: Mapping[str, str], chosen: Collection[str]
) -> tuple[str, ...]:
  """Returns the names of the classes, sorted, from the folder of each split.

  They are train's. Without train, as where a model is only measured, they are
  the classes of the chosen splits.
  """
  if 'train' in folders:
    return subfolders(folders['train'])
  names = {
    x for name in chosen if name in folders for x in subfolders(folders[name])
  }
  return tuple(sorted(names))


def read_image(path: str) -> bytes:
  """Returns an encoded image."""
  with explained(f'{path} cannot be read', OSError):
    with safe_io.open_regular(path) as file:
      return file.read()


def below(folder: str, endings: tuple[str, ...] = ENDINGS) -> list[str]:
  """Returns the paths of the files below a folder with some endings, sorted."""
  return sorted(
    os.path.join(folder, name)
    for name, is_file in walk(folder)
    if is_file and name.lower().endswith(endings)
  )


def _check_exists(root: str) -> None:
  if not os.path.isdir(root):
    hint = nearby(root, os.path.isdir)
    raise UserError(f'config.data.name: there is no folder {root!r}{hint}')


def split_folders(root: str) -> dict[str, str]:
  """Returns the folder of each split.

  'train', 'val', 'test' and their usual synonyms may also be names of classes.
  Such a folder is a split if most of its images lie in subfolders, one for each
  class. A folder with another name next to a split is a split of that name.
  """
  _check_exists(root)
  folders = {name: os.path.join(root, name) for name in subfolders(root)}
  if not folders:
    raise UserError(f'{root} has no folders: it needs one for each class')
  candidates = [name for name in folders if name.lower() in SPLITS]
  holding = [name for name in candidates if _holds_classes(folders[name])]
  if not holding:
    if candidates == [*folders] and len(candidates) > 1:
      raise UserError(
        f'{root} has no classes, only {", ".join(candidates)}, which are named'
        f' as splits: put images into {root}/{candidates[0]}/<class>, and so'
        ' on, or rename the folders if they are classes'
      )
    return {'train': root}
  result: dict[str, str] = {}
  for name, path in folders.items():
    if name not in holding and _holds_images(path):
      _tell_of_images(root, name, holding)
    if name in candidates and name not in holding:
      continue
    split = split_name(name)
    if split in result:
      raise UserError(
        f'{root} has both {os.path.basename(result[split])} and {name}: which'
        f' is the split {split!r}? Rename one, or move it away'
      )
    result[split] = path
  if 'train' not in result and len(result) > len(holding):
    raise UserError(_without_train(root, holding))
  with os.scandir(root) as entries:
    _tell_left_out(root, [x.path for x in entries if not _may_hold_data(x)])
  names = {split: os.path.basename(path) for split, path in result.items()}
  if any(split != name for split, name in names.items()):
    phrases = [f'{name} as {split}' for split, name in names.items()]
    inform_once(f'{root}: taking {", ".join(phrases)}')
  return result


def _tell_of_images(root: str, name: str, splits_there: list[str]) -> None:
  """Warns of images beside splits; it is an error if they may be a class."""
  if name.lower() not in SPLITS:
    raise UserError(
      f'{root} has splits ({", ".join(splits_there)}) and beside them {name},'
      f' with images of its own: if it is a class, move it into'
      f' {root}/{splits_there[0]}, or else out of {root}'
    )
  folder = os.path.join(root, name)
  warn_once(f'{folder} has images, but no folders of classes, and is not read')


def _without_train(root: str, names: Iterable[str]) -> str:
  """Returns a line about folders that have names of splits, but not train."""
  return (
    f'{root} has no folder train/<class>: the classes are those of train. If'
    f' {", ".join(names)} are classes, put all classes into {root}/train'
  )


def other_names(
  data_name: str, spec: str, names: Collection[str]
) -> dict[str, str]:
  """Returns aliases of splits: their usual names, and val for test."""
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
  files = (name for name, is_file in walk(folder) if is_file)
  in_folders = ['/' in name for name in files if _is_image(name)]
  return 2 * sum(in_folders) > len(in_folders)


def _holds_images(folder: str) -> bool:
  with os.scandir(folder) as entries:
    return any(
      _is_image(x.name) and not leftovers.is_hidden(x.name) and x.is_file()
      for x in entries
    )


def subfolders(folder: str) -> tuple[str, ...]:
  """Returns the sorted names of the folders in a folder that may hold data."""
  with os.scandir(folder) as entries:
    names = [x.name for x in entries if x.is_dir() and _may_hold_data(x)]
  return tuple(sorted(names))


def _may_hold_data(entry: os.DirEntry[str]) -> bool:
  if leftovers.is_hidden(entry.name):
    return False
  return not (entry.is_dir() and leftovers.holds_runs(entry.path))


def _tell_left_out(folder: str, paths: Sequence[str]) -> None:
  if paths:
    names = sorted(os.path.relpath(x, folder) for x in paths)
    inform_once(
      f'{folder}: skipped hidden files, system files and work directories'
      f' ({len(names)}): {join_first(names)}'
    )


@dataclasses.dataclass(frozen=True)
class Listing:
  """Content of the folder of a split."""

  images: list[str]  # images of classes, 'class/a.png', ordered by a hash
  ignored: list[str]  # files that are ignored, sorted
  problems: list[str]  # problems of its classes; a run stops at the first


def look_into(
  folder: str, classes: tuple[str, ...], kind: Kind = IMAGES
) -> Listing:
  """Lists the folder of a split, which has folders for the classes of train."""
  images: list[str] = []
  ignored: list[str] = []
  frames: set[str] = set()  # folders that hold images
  for name, is_file in walk(folder):
    if kind.in_folders and is_file and _is_image(name) and name.count('/') > 1:
      frames.add(os.path.dirname(name))
    elif is_file and name.lower().endswith(kind.endings) and '/' in name:
      images.append(name)
    else:
      ignored.append(name)
  images += frames
  filled = {name.split('/')[0] for name in images}
  names = subfolders(folder)
  problems = []
  if unknown := [name for name in names if name not in classes]:
    paths = join_first([os.path.join(folder, name) for name in unknown])
    are = 'are not classes'
    advice = 'add such folders to train, or move them away'
    if len(unknown) == 1:
      are = 'is not a class'
      advice = 'add such a folder to train, or move it away'
    by_lower = {name.lower(): name for name in classes}
    if class_name := by_lower.get(unknown[0].lower()):
      advice = f'rename {unknown[0]} to {class_name}'
    problems.append(
      f'{paths} {are} of train: the classes are {join_first(classes)}; {advice}'
    )
  problems += [
    f'{os.path.join(folder, name)} has no {kind.name}: add some'
    f' ({", ".join(kind.endings)}), or remove the folder'
    for name in names
    if name in classes and name not in filled
  ]
  return Listing(sorted(images, key=base.hash_order), sorted(ignored), problems)


def _list(
  folder: str, classes: tuple[str, ...], kind: Kind, tells_lacking: bool
) -> list[str]:
  """Returns all examples of a split as 'class/a.png', ordered by a hash."""
  listing = look_into(folder, classes, kind)
  if listing.ignored:
    warn_once(
      f'{folder}: ignored files that are not {kind.name} of a class'
      f' ({len(listing.ignored)}): {join_first(listing.ignored)}'
    )
  if listing.problems:
    raise UserError(listing.problems[0])
  filled = {name.split('/')[0] for name in listing.images}
  lacking = [name for name in classes if name not in filled]
  if lacking and tells_lacking:
    warn_once(
      f'warning: {folder} has no {kind.name} of {join_first(lacking)}, which'
      ' train has: add some, or what the model makes of them is not measured'
    )
  return listing.images


def split_name(name: str) -> str:
  """Returns the split that a name is an alias of, or the name itself."""
  return SPLITS.get(name.lower(), name)


def walk(folder: str) -> Iterator[tuple[str, bool]]:
  """Yields the files below a folder as ('class/a.png', whether a file).

  Links are followed, but not to a folder that holds the link. What is left out,
  as hidden files and work directories of runs, is logged at the end.
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
        yield prefix + entry.name, entry.is_file()


def _is_image(name: str) -> bool:
  return name.lower().endswith(ENDINGS)


@functools.cache  # data is often opened for several slices
def warn_once(message: str) -> None:
  """Logs a warning the first time that it is given."""
  logging.warning('%s', message)


@functools.cache
def inform_once(message: str) -> None:
  """Logs a line the first time that it is given."""
  logging.info('%s', message)
