"""Images with maps of classes, in folders beside each other.

    images/[{train,val,...}/]**   masks/ or annotations/, the same below it
    {train,val,...}/images/**     {train,val,...}/masks/ or annotations/
    leftImg8bit/{train,val}/**    gtFine/{train,val}/**, as Cityscapes
    JPEGImages/NAME.jpg  SegmentationClass/NAME.png, as Pascal VOC

A map has its image's name with another ending, in the same folder below masks/.
`classes.txt`, beside these folders, names the classes, one a line; the first is
that of label 0. Label 255 (65535 of more than 255 classes) does not count.
`codes.py` knows maps that are stored otherwise, and other names of files.
ADE20K's scene parsing is laid out like this, as images/training and
annotations/training.

Pascal VOC lists the pairs: ImageSets/Segmentation/train.txt, and val and test,
have one NAME a line. The lists may also be in ImageSets itself. Without
classes.txt, the classes are Pascal VOC's.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
import itertools
import os

from absl import logging
import ml_collections

from vit_jax.config import explained
from vit_jax.config import one_line
from vit_jax.config import UserError
from vit_jax.data import base
from vit_jax.data import codes as codes_lib
from vit_jax.data import features
from vit_jax.data import folder
from vit_jax.data import splits
from vit_jax.data import stored as stored_lib
from vit_jax.runs import safe_io

_CLASSES = 'classes.txt'
_VOC_MAPS = 'SegmentationClass'
_VOC_LISTS = (os.path.join('ImageSets', 'Segmentation'), 'ImageSets')
_VOC_SPLITS = ('train', 'val', 'test')  # trainval is 'train+val'
# Of Pascal VOC (Everingham et al., 2010).
VOC_CLASSES = tuple(
  """
  background aeroplane bicycle bird boat bottle bus car cat chair cow
  diningtable dog horse motorbike person pottedplant sheep sofa train tvmonitor
  """.split()
)

Pair = tuple[str, str]  # the paths of an image and its map


class PairedSource(stored_lib.Table):
  """Examples of two files: an image or a scan, and its map."""

  _root: str

  def _names(self, pairs: Iterable[Pair]) -> list[str]:
    return [os.path.relpath(x, self._root) for pair in pairs for x in pair]

  def path(self, split: str, row: Pair) -> str:
    """Returns the path of an example's image."""
    del split
    return row[0]

  def key(self, split: str, row: Pair) -> str:
    """Returns the path of an example's image below the folder."""
    del split
    return os.path.relpath(row[0], self._root)


class PairsSource(PairedSource):
  """The images and maps of a split of a folder.

  They are ordered by a hash of the image's path below the split's folder.
  """

  def __init__(self, config: ml_collections.ConfigDict, split: str):
    """Lists the files of the folder that `config.data.name` names."""
    self._root = root = stored_lib.data_path(config.data.name)
    self._codes = codes_lib.from_config(config)
    lists = voc_lists(root)
    names = os.path.join(root, _CLASSES)
    classes = self._codes.classes
    if not classes:
      is_voc = lists and not os.path.exists(names)
      classes = VOC_CLASSES if is_voc else read_classes(root)
    feature = self._codes.feature(classes, names)
    image = features.Image(stored_lib.source_size(config))
    self.features = {'image': image, 'map': feature}
    self._ignore = feature.ignore
    folders = {} if lists else split_folders(root)
    splits_there = lists or folders
    aliases = folder.other_names(root, split, splits_there)
    chosen_splits = splits.chosen(split, splits_there, aliases)
    suffixes = self._codes.image_suffix, self._codes.suffix

    def list_pairs(name: str) -> list[Pair]:
      if name not in chosen_splits:
        return []
      if lists:
        return _listed_pairs(root, lists[name])
      return match(*folders[name], suffixes=suffixes)

    path_pairs = {name: list_pairs(name) for name in splits_there}
    super().__init__(split, path_pairs, root, aliases)

  @classmethod
  def split_names(cls, name: str) -> list[str]:
    """Returns the splits of a folder, in order."""
    root = stored_lib.data_path(name)
    return list(voc_lists(root) or split_folders(root))

  def example(self, split: str, row: Pair, index: int) -> base.Example:
    """Returns the example of two files, not decoded."""
    image, labels = row
    data = folder.read_image(labels)
    values = {
      'image': folder.read_image(image),
      'map': self._codes.decoded(data, self._ignore, labels),
    }
    return base.Example(values, index, image, {'map': labels})

  def bits(self) -> int:
    """Returns 16 if a header of the first images says so, else 8."""
    return folder.sample_bits(map(self.file, range(len(self))))

  def fingerprint(self) -> str:
    """Returns a digest of the names of files and classes, not of the images."""
    names = self._names(itertools.chain(*self.rows.values()))
    ranges = map(str, self.selection.ranges)
    codes = [str(self._codes)] * (self._codes != codes_lib.Codes())
    return base.digest([*self.classes, *ranges, *names, *codes])


def read_classes(root: str) -> tuple[str, ...]:
  """Returns the names in classes.txt."""
  path = os.path.join(root, _CLASSES)
  advice = 'write the name of a class on each line, the first of label 0'
  try:
    text = safe_io.read_text(path)
  except (OSError, UnicodeDecodeError) as e:
    problem = f'{path} cannot be read ({one_line(e)}): {advice}'
    raise UserError(problem) from None
  names = tuple(line.strip() for line in text.splitlines() if line.strip())
  if not names:
    raise UserError(f'{path} is empty: {advice}')
  twice = [name for name in names if names.count(name) > 1]
  if twice:
    raise UserError(f'{path} names {twice[0]!r} twice: {advice}')
  return names


def split_folders(root: str) -> dict[str, Pair]:
  """Returns the folders of images and of maps of each split that has maps.

  {}: no folder of images has one of maps beside it.
  """
  outer = _splits_with_pairs(root)
  if outer:
    return _by_split(outer)
  folder_pair = _image_and_map_folders(root)
  if folder_pair is None:
    return {}
  images, maps = folder_pair
  inner = {
    name: (os.path.join(images, name), os.path.join(maps, name))
    for name in folder.subfolders(images)
    if name.lower() in folder.SPLITS
  }
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
  below: Callable[[str], list[str]] = folder.below,
  stem: Callable[[str], str] = lambda path: os.path.splitext(path)[0],
  suffixes: tuple[str, str] = ('', ''),
) -> list[Pair]:
  """Returns the pairs of a folder of images and one of maps, ordered by a hash.

  `below` lists the files of a folder, and `stem` removes a path's ending.
  `suffixes` are ends of the stems of images and of maps that are no part of
  their common name; other files are left out.
  """
  image_of, map_of = (
    _by_name(root, below, stem, suffix)
    for root, suffix in zip((images, maps), suffixes, strict=True)
  )
  for paths, counterparts, counterpart_folder, kind in (
    (image_of, map_of, maps, 'map'),
    (map_of, image_of, images, 'image'),
  ):
    if alone := sorted(paths.keys() - counterparts.keys()):
      expected_path = os.path.join(counterpart_folder, alone[0])
      more = f' ({len(alone)} files have none)' if len(alone) > 1 else ''
      raise UserError(
        f'{paths[alone[0]]} has no {kind} {expected_path}.*{more}: add it, or'
        ' remove the file'
      )
  names = sorted(image_of, key=base.hash_order)
  return [(image_of[name], map_of[name]) for name in names]


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
  return {
    name: folder_pair
    for name in names
    if name.lower() in folder.SPLITS
    and (folder_pair := _image_and_map_folders(os.path.join(root, name)))
  }


def _image_and_map_folders(root: str) -> Pair | None:
  for images, map_names in folder.MAP_FOLDERS.items():
    for maps in map_names:
      folder_pair = os.path.join(root, images), os.path.join(root, maps)
      if all(map(os.path.isdir, folder_pair)):
        return folder_pair
  return None


def voc_lists(root: str) -> dict[str, str]:
  """Returns the files with the names of each split; {} if there are none."""
  if not all(
    os.path.isdir(os.path.join(root, x)) for x in (folder.VOC_IMAGES, _VOC_MAPS)
  ):
    return {}
  for place in _VOC_LISTS:
    paths = {x: os.path.join(root, place, f'{x}.txt') for x in _VOC_SPLITS}
    split_lists = {name: x for name, x in paths.items() if os.path.isfile(x)}
    if split_lists:
      return split_lists
  return {}


def _listed_pairs(root: str, path: str) -> list[Pair]:
  """Returns the images and maps of a list, ordered by a hash of their names."""
  with explained(f'{path} cannot be read', OSError, UnicodeDecodeError):
    names = set(safe_io.read_text(path).split())
  images, maps = folder.VOC_IMAGES, _VOC_MAPS
  listed = {x: (f'{images}/{x}.jpg', f'{maps}/{x}.png') for x in names}
  return existing(root, path, listed)


def existing(
  root: str, list_path: str, listed: Mapping[str, Pair]
) -> list[Pair]:
  """Returns the pairs of a list by their names, ordered by a hash of these.

  The paths of `listed` are below `root`. Each must be that of a file.
  """
  path_pairs = []
  for name in sorted(listed, key=base.hash_order):
    image, labels = (
      os.path.join(root, os.path.normpath(x)) for x in listed[name]
    )
    for path in (image, labels):
      if not os.path.isfile(path):
        raise UserError(
          f'{list_path} names {name}, but there is no {path}: add it, or take'
          ' the name out'
        )
    path_pairs.append((image, labels))
  return path_pairs
