"""The embeddings of the images of a folder, kept in a file beside it.

A search compares a query with all of them, so it is exact. Files that were
changed, added or removed since the last time are seen by their names, sizes and
times.

In comments: N images, Q queries, E the size of an embedding.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
import dataclasses
import os
import pathlib
from typing import Self
import zipfile

from absl import logging
import numpy as np

from vit_jax.config import UserError
from vit_jax.data import folder as folder_lib
from vit_jax.runs import safe_io

# Paths -> the paths that could be read, in parts, with embeddings [B, E] each.
Embed = Callable[[Sequence[str]], Iterable[tuple[Sequence[str], np.ndarray]]]
# Arrays of the file.
_NAMES = ('model', 'files', 'size', 'modified', 'features')


@dataclasses.dataclass(frozen=True)
class Gallery:
  """Embedded images."""

  model: str  # its digest
  files: tuple[str, ...]  # paths relative to the folder, sorted
  size: np.ndarray  # int64 [N], bytes of the files
  modified: np.ndarray  # int64 [N], when they were written, in nanoseconds
  features: np.ndarray  # float32 [N, E], of unit length

  def __len__(self) -> int:
    return len(self.files)

  @classmethod
  def empty(cls) -> Self:
    """Returns a gallery without images."""
    none = np.zeros(0, np.int64)
    return cls('', (), none, none, np.zeros((0, 0), np.float32))

  @classmethod
  def read(cls, path: pathlib.Path) -> Self:
    """Returns the gallery of a file; an empty one if it cannot be used.

    It raises a UserError if the file is an archive of other arrays.
    """
    if not path.exists():
      return cls.empty()
    try:
      with safe_io.open_regular(path) as file:
        stored = np.load(file, allow_pickle=False)
        model, files, *arrays = (stored[name] for name in _NAMES)
        gallery = cls(str(model), tuple(files.tolist()), *arrays)
      if len({len(gallery), *map(len, arrays)}) > 1:
        raise ValueError('its arrays have different lengths')
      return gallery
    except KeyError:
      raise UserError(
        f'{path} holds other arrays than the embeddings of a folder, and is not'
        ' overwritten: name another --cache'
      ) from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as e:
      logging.warning('%s is damaged and made anew: %s', path, e)
      return cls.empty()

  def write(self, path: pathlib.Path) -> None:
    """Writes the file."""
    arrays = {name: getattr(self, name) for name in _NAMES}
    with safe_io.replacing_path(path) as temporary:
      with temporary.open('wb') as file:
        np.savez(file, **arrays | {'files': np.array(self.files, np.str_)})


def embed_folder(
  folder: str, cache: pathlib.Path, model: str, embed: Embed
) -> Gallery:
  """Returns the gallery of a folder; embeds only what the cache has not.

  The cache is a file of the embeddings of this folder. It is written if
  something has changed, also the digest of the model. `embed` reports which
  images cannot be read.
  """
  paths = folder_lib.below(folder)
  if not paths:
    raise UserError(f'{folder} has no images')
  cached = Gallery.read(cache)
  if cached.model != model:
    if len(cached):
      logging.warning('%s is of another model and made anew', cache)
    cached = Gallery.empty()
  rows = {
    (name, int(size), int(modified)): i
    for i, (name, size, modified) in enumerate(
      zip(cached.files, cached.size, cached.modified, strict=True)
    )
  }
  state = {path: _state(folder, path) for path in paths}
  missing = [path for path in paths if state[path] not in rows]
  if not missing and len(cached) == len(paths):
    return cached
  new: dict[str, np.ndarray] = {}
  for done, features in embed(missing):
    new |= dict(zip(done, features, strict=True))
  features_by_path = {
    path: new[path] if path in new else cached.features[rows[state[path]]]
    for path in paths
    if path in new or state[path] in rows
  }
  if not features_by_path:
    raise UserError(f'{folder} has no image that can be read')
  files, size, modified = zip(
    *(state[path] for path in features_by_path), strict=True
  )
  gallery = Gallery(
    model,
    files,
    np.array(size, np.int64),
    np.array(modified, np.int64),
    np.stack(list(features_by_path.values())).astype(np.float32),
  )
  gallery.write(cache)
  return gallery


def _state(folder: str, path: str) -> tuple[str, int, int]:
  """Returns a file's path in the folder, its size and its time."""
  name = os.path.relpath(path, folder)
  try:
    status = os.stat(path)
  except OSError:  # removed meanwhile: reading it says so
    return name, -1, -1
  return name, status.st_size, status.st_mtime_ns
