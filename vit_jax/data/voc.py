"""Lists of images and maps, as Pascal VOC's: names of files by split.

    JPEGImages/NAME.jpg    SegmentationClass/NAME.png
    ImageSets/Segmentation/train.txt    one NAME a line; also val and test

Without ImageSets/Segmentation, the lists are in ImageSets. Without classes.txt,
the classes are those of Pascal VOC (Everingham et al., 2010).
"""

import os

from vit_jax.config import explained
from vit_jax.config import UserError
from vit_jax.data import base
from vit_jax.data import folder as folder_lib
from vit_jax.runs import safe_io

_MAPS = 'SegmentationClass'
_LISTS = (os.path.join('ImageSets', 'Segmentation'), 'ImageSets')
_SPLITS = ('train', 'val', 'test')  # trainval is 'train+val'
CLASSES = tuple(
  """
  background aeroplane bicycle bird boat bottle bus car cat chair cow
  diningtable dog horse motorbike person pottedplant sheep sofa train tvmonitor
  """.split()
)


def lists(root: str) -> dict[str, str]:
  """Returns the files with the names of each split; {} if there are none."""
  if not all(
    os.path.isdir(os.path.join(root, x)) for x in (folder_lib.VOC_IMAGES, _MAPS)
  ):
    return {}
  for folder in _LISTS:
    paths = {x: os.path.join(root, folder, f'{x}.txt') for x in _SPLITS}
    split_lists = {name: x for name, x in paths.items() if os.path.isfile(x)}
    if split_lists:
      return split_lists
  return {}


def pairs(root: str, path: str) -> list[tuple[str, str]]:
  """Returns the images and maps of a list, ordered by a hash of their names."""
  with explained(f'{path} cannot be read', OSError, UnicodeDecodeError):
    names = sorted(set(safe_io.read_text(path).split()))
  path_pairs = []
  for name in sorted(names, key=base.hash_order):
    image_and_map = (
      os.path.join(root, folder_lib.VOC_IMAGES, f'{name}.jpg'),
      os.path.join(root, _MAPS, f'{name}.png'),
    )
    for file_path in image_and_map:
      if not os.path.isfile(file_path):
        raise UserError(
          f'{path} names {name}, but there is no {file_path}: add it, or take'
          ' the name out'
        )
    path_pairs.append(image_and_map)
  return path_pairs
