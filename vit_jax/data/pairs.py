"""Images with maps of classes, in folders beside each other.

    images/[{train,val,...}/]**   masks/ or annotations/, the same below it
    {train,val,...}/images/**     {train,val,...}/masks/ or annotations/
    leftImg8bit/{train,val}/**    gtFine/{train,val}/**, as Cityscapes
    JPEGImages/  SegmentationClass/  ImageSets/, as Pascal VOC: see `voc.py`

A map has its image's name with another ending, in the same folder below masks/.
`classes.txt`, beside these folders, names the classes, one a line; the first is
that of label 0. Label 255 (65535 of more than 255 classes) does not count.
`codes.py` knows maps that are stored otherwise, and other names of files.
ADE20K's scene parsing is laid out like this, as images/training and
annotations/training.
"""

from collections.abc import Callable
import os

from absl import logging
import ml_collections

from vit_jax.config import one_line
from vit_jax.config import UserError
from vit_jax.data import base
from vit_jax.data import codes as codes_lib
from vit_jax.data import features
from vit_jax.data import folder
from vit_jax.data import splits
from vit_jax.data import voc
from vit_jax.data.host import decode
from vit_jax.runs import safe_io

_CLASSES = 'classes.txt'

Pair = tuple[str, str]  # the paths of an image and its map


class PairsSource(base.SelectedSource):
  """The images and maps of a split of a folder.

  They are ordered by a hash of the image's path below the split's folder.
  """

  def __init__(
    self,
    root: str,
    split: str,
    image_shape: tuple[int, int] | None = None,
    codes: codes_lib.Codes | None = None,
  ):
    """Lists the files; arguments are those of `folder.FolderSource`.

    `codes` says how maps are stored, and names of files; None: numbers from 0,
    and the names of the images.

    Raises:
      UserError: There is no such split, no list of classes, or an image or a
        map without the other.
    """
    self._root, self._codes = root, codes or codes_lib.Codes()
    lists = voc.lists(root)
    names = os.path.join(root, _CLASSES)
    classes = self._codes.classes
    if not classes:
      is_voc = lists and not os.path.exists(names)
      classes = voc.CLASSES if is_voc else read_classes(root)
    feature = self._codes.feature(classes, names)
    self.features = {'image': features.Image(image_shape), 'map': feature}
    self._ignore = feature.ignore
    folders = {} if lists else split_folders(root)
    splits_there = lists or folders
    aliases = folder.other_names(root, split, splits_there)
    chosen_splits = splits.chosen(split, splits_there, aliases)
    self._pairs: dict[str, list[Pair]] = {name: [] for name in splits_there}
    for name in splits_there:
      if name in chosen_splits:
        if lists:
          self._pairs[name] = voc.pairs(root, lists[name])
        else:
          endings = self._codes.image_suffix, self._codes.suffix
          self._pairs[name] = match(*folders[name], suffixes=endings)
    sizes = {
      name: len(split_pairs) for name, split_pairs in self._pairs.items()
    }
    self._selection = splits.Selection(split, sizes, root, aliases)

  @classmethod
  def from_config(
    cls, config: ml_collections.ConfigDict, split: str
  ) -> base.Source:
    """Opens a split of the folder that `config.data.name` names."""
    root, size = base.data_path(config.data.name), base.source_size(config)
    return cls(root, split, size, codes_lib.from_config(config))

  @classmethod
  def split_names(cls, name: str) -> list[str]:
    """Returns the splits of a folder, in order."""
    root = base.data_path(name)
    return list(voc.lists(root) or split_folders(root))

  def read(self, position: int) -> base.Example:
    """Returns an example, not decoded.

    Raises:
      UserError: A file cannot be read.
    """
    split, row, index = self._selection.locate(position)
    image, labels = self._pairs[split][row]
    values = {
      'image': folder.read_image(image),
      'map': self._codes.decoded(
        folder.read_image(labels), self._ignore, labels
      ),
    }
    return base.Example(values, index, image, {'map': labels})

  def file(self, position: int) -> str:
    """Returns the path of an example's image."""
    split, row, _ = self._selection.locate(position)
    return self._pairs[split][row][0]

  def id(self, position: int) -> str:
    """Returns the path of an example's image below the folder."""
    return os.path.relpath(self.file(position), self._root)

  def bits(self) -> int:
    """Returns 16 if a header of some images says so, else 8."""
    sample = range(min(len(self), folder.SAMPLE))  # ordered by a hash
    return max(map(decode.file_bits, map(self.file, sample)))

  def fingerprint(self) -> str:
    """Returns a digest of the names of files and classes, not of the images."""
    names = [
      os.path.relpath(path, self._root)
      for split_pairs in self._pairs.values()
      for pair in split_pairs
      for path in pair
    ]
    ranges = [str(term) for term in self._selection.ranges]
    codes = [str(self._codes)] * (self._codes != codes_lib.Codes())
    return base.digest([*self.classes, *ranges, *names, *codes])


def holds_pairs(root: str) -> bool:
  """Whether a folder, or each split in it, has images/ and maps beside it."""
  return bool(_image_and_map_folders(root) or _splits_with_pairs(root))


def holds_maps(root: str) -> bool:
  """Whether `PairsSource` reads a folder: pairs, or lists of them."""
  return holds_pairs(root) or bool(voc.lists(root))


def read_classes(root: str) -> tuple[str, ...]:
  """Returns the names in classes.txt.

  Raises:
    UserError: It cannot be read, is empty, or names a class twice.
  """
  path = os.path.join(root, _CLASSES)
  advice = 'write the name of a class on each line, the first of label 0'
  try:
    text = safe_io.read_text(path)
  except (OSError, UnicodeDecodeError) as e:
    raise UserError(
      f'{path} cannot be read ({one_line(e)}): {advice}'
    ) from None
  names = tuple(line.strip() for line in text.splitlines() if line.strip())
  if not names:
    raise UserError(f'{path} is empty: {advice}')
  twice = [name for name in names if names.count(name) > 1]
  if twice:
    raise UserError(f'{path} names {twice[0]!r} twice: {advice}')
  return names


def split_folders(root: str) -> dict[str, Pair]:
  """Returns the folders of images and of maps of each split.

  A split whose images have no folder of maps is left out.

  Raises:
    UserError: Two folders are the same split, or no split has maps.
  """
  outer = _splits_with_pairs(root)
  if outer:
    return _by_split(outer)
  folder_pair = _image_and_map_folders(root)
  assert folder_pair is not None  # the caller asked `holds_pairs`
  images, maps = folder_pair
  inner = {}
  for name in folder.subfolders(images):
    if name.lower() in folder.SPLITS:
      inner[name] = os.path.join(images, name), os.path.join(maps, name)
  if not inner:
    return {'train': folder_pair}
  folders_with_maps = {
    name: x for name, x in inner.items() if os.path.isdir(x[1])
  }
  if not folders_with_maps:
    raise UserError(
      f'{images} has folders of splits ({", ".join(inner)}), but {maps} has'
      ' none of them: lay out the maps as the images'
    )
  for name in inner.keys() - folders_with_maps.keys():
    logging.info('%s has no maps, and is not read', inner[name][0])
  return _by_split(folders_with_maps)


def match(
  images: str,
  maps: str,
  below: Callable[[str], list[str]] = folder.images_below,
  stem: Callable[[str], str] | None = None,
  suffixes: tuple[str, str] = ('', ''),
) -> list[Pair]:
  """Returns the pairs of a split, ordered by a hash.

  Args:
    images: Folder of the images.
    maps: Folder of the maps.
    below: Lists the files below a folder.
    stem: Removes the ending of a path; None: from its last point on.
    suffixes: Ends of the stems of images and of maps, which are no part of
      their common name; other files are left out.

  Raises:
    UserError: An image or a map has no counterpart, or two have one name.
  """
  image_of, map_of = (
    _by_name(root, below, stem or _without_ending, suffix)
    for root, suffix in zip((images, maps), suffixes, strict=True)
  )
  _check_counterparts(image_of, map_of, maps, 'map')
  _check_counterparts(map_of, image_of, images, 'image')
  names = sorted(image_of, key=base.hash_order)
  return [(image_of[name], map_of[name]) for name in names]


def _without_ending(path: str) -> str:
  return os.path.splitext(path)[0]


def _check_counterparts(
  paths: dict[str, str],
  counterparts: dict[str, str],
  counterpart_folder: str,
  kind: str,
) -> None:
  """Raises a UserError if a file has no counterpart in another folder."""
  alone = sorted(paths.keys() - counterparts.keys())
  if alone:
    expected_path = os.path.join(counterpart_folder, alone[0])
    more = f' ({len(alone)} files have none)' if len(alone) > 1 else ''
    raise UserError(
      f'{paths[alone[0]]} has no {kind} {expected_path}.*{more}: add it, or'
      ' remove the file'
    )


def _by_name(
  root: str,
  below: Callable[[str], list[str]],
  stem: Callable[[str], str],
  suffix: str,
) -> dict[str, str]:
  """Returns the files whose stems end in a suffix, by the rest of the stem."""
  paths: dict[str, str] = {}
  for path in below(root):
    name = stem(os.path.relpath(path, root))
    if name in paths:
      raise UserError(
        f'{paths[name]} and {path} differ only in their endings: remove one'
      )
    paths[name] = path
  return {
    name.removesuffix(suffix): path
    for name, path in paths.items()
    if name.endswith(suffix)
  }


def _by_split(folders: dict[str, Pair]) -> dict[str, Pair]:
  """Returns folders by split, from folders by their own names."""
  result: dict[str, Pair] = {}
  for name, folder_pair in folders.items():
    split = folder.split_name(name)
    if split in result:
      raise UserError(
        f'{folder_pair[0]} and {result[split][0]} are both the split {split!r}:'
        ' rename one, or move it away'
      )
    result[split] = folder_pair
  return result


def _splits_with_pairs(root: str) -> dict[str, Pair]:
  """Returns the folders of images and maps in folders of splits, by name."""
  names = folder.subfolders(root) if os.path.isdir(root) else ()
  folder_pairs = {
    name: _image_and_map_folders(os.path.join(root, name))
    for name in names
    if name.lower() in folder.SPLITS
  }
  return {
    name: folder_pair
    for name, folder_pair in folder_pairs.items()
    if folder_pair
  }


def _image_and_map_folders(root: str) -> Pair | None:
  """Returns the folders of images and of maps in a folder, if both exist."""
  for images, map_names in folder.MAP_FOLDERS.items():
    for maps in map_names:
      folder_pair = os.path.join(root, images), os.path.join(root, maps)
      if all(map(os.path.isdir, folder_pair)):
        return folder_pair
  return None
