"""Images in folders: `{train,val,test}/<class>/**`, or only `<class>/**`."""

from collections.abc import Iterator
from collections.abc import Sequence
import functools
import hashlib
import os

from absl import logging

from vit_jax.config import some
from vit_jax.config import UserError
from vit_jax.data import base
from vit_jax.data import splits

_ENDINGS = ('.jpg', '.jpeg', '.png', '.webp', '.bmp')


class FolderSource(base.Source):
  """The images of a split of a folder.

  Files are ordered by a hash of their path below the split's folder, so that a
  slice holds all classes, and does not depend on where the folder lies.
  """

  def __init__(
    self, root: str, split: str, image_shape: tuple[int, int] | None = None
  ):
    """Lists the files.

    Args:
      root: The folder.
      split: A split specification. A folder that only has classes has one
        split, 'train', with everything.
      image_shape: (height, width) where all images are known to have one size.

    Raises:
      UserError: There is no such folder or split, or a class is empty or
        unknown.
    """
    self._folders = _split_folders(root)
    self.classes = tuple(_subfolders(self._folders['train']))
    self.image_shape = image_shape
    self._label_of = {name: i for i, name in enumerate(self.classes)}
    self._files: dict[str, list[str]] = {}
    wanted = {part.name for part in splits.parse(split)}
    for name, folder in self._folders.items():
      if name in wanted or split == 'all':
        self._files[name] = _list_images(folder, self.classes)
    sizes = {name: len(self._files.get(name, ())) for name in self._folders}
    self._selection = splits.Selection(split, sizes, root)

  def __len__(self) -> int:
    return len(self._selection)

  def read(self, position: int) -> base.Example:
    """Returns an example, not decoded.

    Raises:
      UserError: The file cannot be read.
    """
    split, row, index = self._selection.locate(position)
    name = self._files[split][row]
    path = os.path.join(self._folders[split], name)
    label = self._label_of[name.split('/')[0]]
    return base.Example(_read(path), label, index, path)

  def file(self, position: int) -> str:
    """Returns the path of an example's file."""
    split, row, _ = self._selection.locate(position)
    return os.path.join(self._folders[split], self._files[split][row])

  def fingerprint(self) -> str:
    """Returns a digest of the names of files and classes, not of the images."""
    names = [name for files in self._files.values() for name in files]
    ranges = [str(term) for term in self._selection.ranges]
    return base.digest([*self.classes, *ranges, *names])


class FilesSource(base.Source):
  """Image files by their names, without labels: each is -1."""

  def __init__(self, paths: Sequence[str]):
    """Reads nothing yet.

    Args:
      paths: Of the files, in order.
    """
    self.classes = ()
    self.image_shape = None
    self._paths = tuple(paths)

  def __len__(self) -> int:
    return len(self._paths)

  def read(self, position: int) -> base.Example:
    """Returns an example, not decoded.

    Raises:
      UserError: The file cannot be read.
    """
    path = self._paths[position]
    return base.Example(_read(path), -1, position, path)

  def file(self, position: int) -> str:
    """Returns the path of an example's file."""
    return self._paths[position]

  def fingerprint(self) -> str:
    """Returns a digest of the names of the files."""
    return base.digest(self._paths)


def _read(path: str) -> bytes:
  try:
    with open(path, 'rb', buffering=0) as f:  # read at once
      return f.read()
  except OSError as e:
    raise UserError(f'{path} cannot be read: {e.strerror}') from None


def images_below(folder: str) -> list[str]:
  """Returns the paths of all images below a folder, sorted."""
  return sorted(
    os.path.join(folder, name) for name, is_image in _walk(folder) if is_image
  )


def _split_folders(root: str) -> dict[str, str]:
  """Returns the folder of each split.

  'train', 'val' and 'test' may also be names of classes: they are splits if
  they have folders, one for each class, and no images of their own.
  """
  if not os.path.isdir(root):
    raise UserError(f'there is no folder {root}: change config.data.name')
  folders = {name: os.path.join(root, name) for name in _subfolders(root)}
  if not folders:
    raise UserError(f'{root} has no folders: it needs one for each class')
  if not any(
    name in folders and _holds_classes(folders[name])
    for name in ('train', 'val', 'test')
  ):
    return {'train': root}
  if 'train' not in folders or not _holds_classes(folders['train']):
    raise UserError(
      f'{root} has no folder train/<class>: the classes are those of train'
    )
  return folders


def _holds_classes(folder: str) -> bool:
  with os.scandir(folder) as entries:
    return bool(_subfolders(folder)) and not any(map(_is_image, entries))


def _subfolders(folder: str) -> list[str]:
  """Returns the sorted names of the folders in a folder, but hidden ones."""
  with os.scandir(folder) as entries:
    return sorted(e.name for e in entries if not _is_hidden(e) and e.is_dir())


def _list_images(folder: str, classes: tuple[str, ...]) -> list[str]:
  """Returns the paths of all images below `folder/<class>`, ordered by hash.

  Raises:
    UserError: A class has no images, or is none of `classes`.
  """
  images: list[str] = []
  others: list[str] = []
  for name, is_image in _walk(folder):
    (images if is_image and '/' in name else others).append(name)
  if others:
    _log_once(
      f'{folder}: {len(others)} files are not images of a class, and are'
      f' ignored: {min(others)}, for example'
    )
  filled = {name.split('/')[0] for name in images}
  for name in _subfolders(folder):
    path = os.path.join(folder, name)
    if name not in classes:
      raise UserError(
        f'{path} is not a class of train: the classes are {some(classes)}'
      )
    if name not in filled:
      raise UserError(
        f'{path} has no images: add some ({", ".join(_ENDINGS)}), or remove'
        ' the folder'
      )
  return sorted(images, key=_hash_order)


def _hash_order(name: str) -> tuple[bytes, str]:
  data = base.encode_name(name)
  return hashlib.blake2b(data, digest_size=8).digest(), name


def _walk(
  folder: str,
  prefix: str = '',
  ancestors: frozenset[tuple[int, int]] = frozenset(),
) -> Iterator[tuple[str, bool]]:
  """Yields the files below a folder as ('class/a.png', whether an image).

  Links are followed, but not to a folder that holds the link.
  """
  status = os.stat(folder)
  here = (status.st_dev, status.st_ino)
  if here in ancestors:
    return
  with os.scandir(folder) as entries:
    for entry in entries:
      if _is_hidden(entry):
        continue
      if entry.is_dir():
        yield from _walk(
          entry.path, f'{prefix}{entry.name}/', ancestors | {here}
        )
      else:
        yield prefix + entry.name, _is_image(entry)


def _is_hidden(entry: os.DirEntry[str]) -> bool:
  return entry.name.startswith('.')


def _is_image(entry: os.DirEntry[str]) -> bool:
  is_named_so = entry.name.lower().endswith(_ENDINGS)
  return is_named_so and not _is_hidden(entry) and entry.is_file()


@functools.cache  # a folder is often listed for several slices
def _log_once(message: str) -> None:
  logging.warning('%s', message)
