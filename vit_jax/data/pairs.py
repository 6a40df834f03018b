"""Images with maps of classes, in folders beside each other.

    images/[{train,val,...}/]**   masks/ or annotations/, the same below it
    {train,val,...}/images/**     {train,val,...}/masks/ or annotations/

A map has its image's name with another ending, in the same folder below masks/.
`classes.txt`, beside these folders, names the classes, one a line; the first is
that of label 0. Label 255 (65535 of more than 255 classes) does not count.
ADE20K's scene parsing is laid out like this, as images/training and
annotations/training.
"""

import os

from absl import logging

from vit_jax.config import one_line
from vit_jax.config import UserError
from vit_jax.data import base
from vit_jax.data import features
from vit_jax.data import folder
from vit_jax.data import splits
from vit_jax.runs import safe_io

_IMAGES = 'images'
_MAPS = ('masks', 'annotations')
_CLASSES = 'classes.txt'
_IGNORE, _WIDE_IGNORE = 2**8 - 1, 2**16 - 1  # labels that do not count

Pair = tuple[str, str]  # the paths of an image and its map


class PairsSource(base.Source):
  """The images and maps of a split of a folder.

  They are ordered by a hash of the image's path below the split's folder.
  """

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
      UserError: There is no such split, no list of classes, or an image or a
        map without the other.
    """
    self._root = root
    classes = read_classes(root)
    ignore = _IGNORE if len(classes) <= _IGNORE else _WIDE_IGNORE
    self.features = {
      'image': features.Image(image_shape),
      'map': features.SegmentationMap(classes, ignore),
    }
    folders = split_folders(root)
    aliases = folder.other_names(root, split, folders)
    wanted = {aliases.get(x.name, x.name) for x in splits.parse(split)}
    self._pairs = {
      name: match(*each) if name in wanted or split == 'all' else []
      for name, each in folders.items()
    }
    sizes = {name: len(found) for name, found in self._pairs.items()}
    self._selection = splits.Selection(split, sizes, root, aliases)

  def __len__(self) -> int:
    return len(self._selection)

  def read(self, position: int) -> base.Example:
    """Returns an example, not decoded.

    Raises:
      UserError: A file cannot be read.
    """
    split, row, index = self._selection.locate(position)
    image, labels = self._pairs[split][row]
    values = {
      'image': folder.read_image(image),
      'map': folder.read_image(labels),
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
    return max(map(folder.file_bits, map(self.file, sample)))

  def fingerprint(self) -> str:
    """Returns a digest of the names of files and classes, not of the images."""
    names = [
      os.path.relpath(path, self._root)
      for found in self._pairs.values()
      for pair in found
      for path in pair
    ]
    ranges = [str(term) for term in self._selection.ranges]
    return base.digest([*self.classes, *ranges, *names])


def holds_pairs(root: str) -> bool:
  """Whether a folder, or each split in it, has images/ and maps beside it."""
  return bool(_pair_of(root) or _splits_with_pairs(root))


def read_classes(root: str) -> tuple[str, ...]:
  """Returns the names in classes.txt.

  Raises:
    UserError: It cannot be read, is empty, or names a class twice.
  """
  path = os.path.join(root, _CLASSES)
  advice = 'write the name of a class on each line, the first of label 0'
  try:
    with safe_io.open_regular(path) as file:
      text = file.read().decode('utf-8')
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
    return _by_split(root, outer)
  both = _pair_of(root)
  assert both is not None  # the caller asked `holds_pairs`
  images, maps = both
  inner = {}
  for name in folder.classes_in(images):
    if name.lower() in folder.SPLITS:
      inner[name] = os.path.join(images, name), os.path.join(maps, name)
  if not inner:
    return {'train': both}
  there = {name: x for name, x in inner.items() if os.path.isdir(x[1])}
  if not there:
    raise UserError(
      f'{images} has folders of splits ({", ".join(inner)}), but {maps} has'
      ' none of them: lay out the maps as the images'
    )
  for name in inner.keys() - there.keys():
    logging.info('%s has no maps: it is left out', inner[name][0])
  return _by_split(root, there)


def match(images: str, maps: str) -> list[Pair]:
  """Returns the pairs of a split, ordered by a hash.

  Args:
    images: Folder of the images.
    maps: Folder of the maps.

  Raises:
    UserError: An image or a map has no counterpart, or two have one name.
  """
  image_of, map_of = _by_name(images), _by_name(maps)
  _check_counterparts(image_of, map_of, maps, 'map')
  _check_counterparts(map_of, image_of, images, 'image')
  names = sorted(image_of, key=base.hash_order)
  return [(image_of[name], map_of[name]) for name in names]


def _check_counterparts(
  there: dict[str, str], others: dict[str, str], where: str, what: str
) -> None:
  """Raises a UserError if a file has no counterpart in another folder."""
  alone = sorted(there.keys() - others.keys())
  if alone:
    wanted = os.path.join(where, alone[0])
    more = f' ({len(alone)} files have none)' if len(alone) > 1 else ''
    raise UserError(
      f'{there[alone[0]]} has no {what} {wanted}.*{more}: add it, or remove the'
      ' file'
    )


def _by_name(root: str) -> dict[str, str]:
  """Returns the paths of the images below a folder by name, without ending."""
  found: dict[str, str] = {}
  for path in folder.images_below(root):
    name = os.path.splitext(os.path.relpath(path, root))[0]
    if name in found:
      raise UserError(
        f'{found[name]} and {path} differ only in their endings: remove one'
      )
    found[name] = path
  return found


def _by_split(root: str, folders: dict[str, Pair]) -> dict[str, Pair]:
  """Returns folders by split, from folders by their own names."""
  result: dict[str, Pair] = {}
  for name, both in folders.items():
    split = folder.split_name(name)
    if split in result:
      raise UserError(
        f'{both[0]} and {result[split][0]} are both the split {split!r}: rename'
        ' one, or move it away'
      )
    result[split] = both
  return result


def _splits_with_pairs(root: str) -> dict[str, Pair]:
  """Returns the folders of images and maps in folders of splits, by name."""
  names = folder.classes_in(root) if os.path.isdir(root) else ()
  found = {
    name: _pair_of(os.path.join(root, name))
    for name in names
    if name.lower() in folder.SPLITS
  }
  return {name: both for name, both in found.items() if both}


def _pair_of(root: str) -> Pair | None:
  """Returns images/ and masks/ or annotations/ in a folder, if both exist."""
  images = os.path.join(root, _IMAGES)
  maps = (os.path.join(root, name) for name in _MAPS)
  found = next(filter(os.path.isdir, maps), None)
  return (images, found) if os.path.isdir(images) and found else None
