"""Scans in files: NIfTI (.nii, .nii.gz) and NumPy's .npy.

A scan is [D, H, W, C]. That of a NIfTI file is turned to the closest axes of
the body (right, anterior, superior), in this order, as nibabel's
`as_closest_canonical` does, and a fourth axis has its modalities. An .npy file
holds [D, H, W] or [D, H, W, C], and has no spacing.
"""

from collections.abc import Sequence
import dataclasses
import gzip
import io
import os
import pathlib
from typing import Any
from typing import cast

import ml_collections
import numpy as np

from vit_jax.config import import_package
from vit_jax.config import one_line
from vit_jax.config import UserError
from vit_jax.data import folder as folder_lib
from vit_jax.data.host import levels
from vit_jax.runs import safe_io

NIFTI = ('.nii', '.nii.gz')
ENDINGS = (*NIFTI, '.npy')
_MOST = 2**31  # limit of places and modalities of a scan

Size = tuple[int, int, int]


@dataclasses.dataclass(frozen=True)
class Header:
  """What a file says of a scan.

  Attributes:
    size: (D, H, W).
    channels: C.
    spacing: Distance of neighbours along each axis, in mm; None: not known.
    dtype: Type of its values.
  """

  size: Size
  channels: int
  spacing: tuple[float, float, float] | None
  dtype: np.dtype


@dataclasses.dataclass(frozen=True)
class How:
  """How scans become the volumes that a model sees.

  Attributes:
    spacing: As `config.data.volume.spacing`.
    window: As `config.data.volume.window`.
  """

  spacing: tuple[float, ...] = ()
  window: Any = 'type'

  def size(self, header: Header) -> Size:
    """Returns the (D, H, W) of a scan after resampling."""
    if not self.spacing or header.spacing is None:
      return header.size
    sides = zip(header.size, header.spacing, self.spacing, strict=True)
    found = tuple(max(round(n * have / want), 1) for n, have, want in sides)
    return cast(Size, found)

  def volume(self, values: np.ndarray, header: Header, where: str) -> Any:
    """Returns a scan as a volume, uint8 or uint16 [d, h, w, C].

    Args:
      values: Its values, [D, H, W, C].
      header: Its header.
      where: Its file, for errors.

    Raises:
      UserError: The values are neither uint8 nor uint16, and no window says
        which of them are 0 and 1.
    """
    size = self.size(header)
    if self.window == 'type':
      if values.dtype not in (np.uint8, np.uint16):
        raise UserError(
          f'{where} holds {values.dtype}, which has no range: set'
          " config.data.volume.window to (low, high), or to 'percentiles("
          "0.5,99.5)' of each scan"
        )
      return _resampled(values, size, order=1)
    wide = _resampled(values.astype(np.float32), size, order=1)
    low, high = self._bounds(wide)
    share = (wide - low) / np.maximum(high - low, 1e-12)
    share = np.nan_to_num(share.clip(0, 1))
    return np.rint(share * 65535).astype(np.uint16)

  def labels(self, values: np.ndarray, header: Header) -> np.ndarray:
    """Returns a map [D, H, W] with the size of its volume."""
    return fitted(values, self.size(header))

  def _bounds(self, values: np.ndarray) -> tuple[Any, Any]:
    """Returns the values that become 0 and 1, numbers or float32 [C]."""
    part = levels.percentiles(self.window)
    if part is None:
      return tuple(self.window)
    flat = values.reshape(-1, values.shape[-1])
    low, high = np.nanpercentile(flat, part, axis=0).astype(np.float32)
    return low, high


def from_config(config: ml_collections.ConfigDict) -> How:
  """Returns how a config prepares scans."""
  given = config.data.volume
  window = given.window
  is_pair = isinstance(window, tuple | list)
  return How(tuple(given.spacing), tuple(window) if is_pair else window)


def check(config: ml_collections.ConfigDict) -> None:
  """Checks `config.data.volume`.

  Raises:
    UserError: A value cannot be used.
  """
  how = from_config(config)
  if not is_spacing(how.spacing):
    raise UserError(
      f'config.data.volume.spacing is {how.spacing}: write three distances in'
      ' mm, or () for that of the files'
    )
  if not is_window(how.window):
    raise UserError(
      f"config.data.volume.window is {how.window!r}: write 'type' (the range of"
      ' uint8 or uint16), (low, high) in the unit of the files, or'
      " 'percentiles(0.5,99.5)' of each scan and modality"
    )


def is_spacing(value: Any) -> bool:
  """Whether a value can be `How.spacing`."""
  good = isinstance(value, tuple) and len(value) in (0, 3)
  return good and all(type(x) in (int, float) and 0 < x < 1e6 for x in value)


def is_window(value: Any) -> bool:
  """Whether a value can be `How.window`."""
  if value == 'type':
    return True
  if isinstance(value, str):
    part = levels.percentiles(value)
    return part is not None and 0 <= part[0] < part[1] <= 100
  pair = isinstance(value, tuple) and len(value) == 2
  numbers = pair and all(type(x) in (int, float) for x in value)
  return bool(numbers) and -1e30 < value[0] < value[1] < 1e30


def is_scan(path: str | os.PathLike[str]) -> bool:
  """Whether a path ends like a scan."""
  return os.fspath(path).lower().endswith(ENDINGS)


def stem(path: str) -> str:
  """Returns a path without the ending of a scan."""
  lower = path.lower()
  found = [x for x in sorted(ENDINGS, key=len) if lower.endswith(x)]
  return path[: -len(found[-1])] if found else os.path.splitext(path)[0]


def below(folder: str) -> list[str]:
  """Returns the paths of all scans below a folder, sorted.

  Hidden files and folders are left out, and links are followed.

  Raises:
    UserError: A folder cannot be read.
  """
  return folder_lib.below(folder, ENDINGS)


def header(path: str) -> Header:
  """Reads what a file says of a scan, and not its values.

  Raises:
    UserError: It cannot be read, or holds no scan.
  """
  stored = _open(path)
  if isinstance(stored, np.ndarray):
    return _header(path, stored.shape, stored.dtype, None)
  kept = stored.header
  spacing = tuple(float(x) for x in kept.get_zooms()[:3])
  if len(spacing) < 3 or not all(0 < x < 1e6 for x in spacing):
    raise UserError(
      f'{path} has the spacing {spacing}: three are needed, in mm'
    )
  scaled = kept.get_slope_inter() not in ((None, None), (1.0, 0.0))
  dtype = np.dtype(np.float32) if scaled else kept.get_data_dtype()
  return _header(path, stored.shape, dtype, cast(Any, spacing))


def read(path: str) -> tuple[np.ndarray, Header]:
  """Returns the values of a scan [D, H, W, C] and its header.

  Raises:
    UserError: It cannot be read, or holds no scan.
  """
  found, stored = header(path), _open(path, whole=True)
  try:
    if isinstance(stored, np.ndarray):
      values = np.array(stored)
    else:
      values = np.asanyarray(stored.dataobj)
  except (OSError, ValueError, EOFError, OverflowError) as e:
    raise _damaged(path, e) from None
  values = values.reshape(*found.size, found.channels)
  return values.astype(found.dtype.newbyteorder('='), copy=False), found


def read_labels(path: str) -> tuple[np.ndarray, Header]:
  """Returns the labels of a map, int32 [D, H, W], and its header.

  Raises:
    UserError: It cannot be read, or its values are no labels.
  """
  values, found = read(path)
  if found.channels != 1:
    raise UserError(
      f'{path} has {found.channels} values at each place: a map has one label'
    )
  labels = np.rint(values[..., 0]).astype(np.int32)
  if (labels != values[..., 0]).any() or labels.min() < 0:
    raise UserError(
      f'{path} holds numbers that are no labels: write whole ones, from 0'
    )
  return labels, found


def write(path: pathlib.Path, labels: np.ndarray, like: str) -> None:
  """Writes a map for a scan; that of NIfTI has its axes and its affine.

  Args:
    path: The file, which is replaced; its ending is that of `like`.
    labels: uint8 or uint16 [D, H, W], from `fitted`.
    like: The scan's file.
  """
  content = io.BytesIO()
  if like.lower().endswith(NIFTI):
    content.write(_as_nifti(labels, like))
  else:
    np.save(content, labels)
  with safe_io.replacing_path(path) as temporary:
    temporary.write_bytes(content.getvalue())


def _as_nifti(labels: np.ndarray, like: str) -> bytes:
  """Returns a map's file, compressed if that of the scan is."""
  nibabel = _nibabel(like)
  original = nibabel.load(like)
  orientations = nibabel.orientations
  own = orientations.io_orientation(original.affine)
  back = orientations.ornt_transform(orientations.axcodes2ornt('RAS'), own)
  turned = orientations.apply_orientation(labels, back)
  image = nibabel.Nifti1Image(turned, original.affine)
  for name in ('qform', 'sform'):
    affine, code = getattr(original, f'get_{name}')(coded=True)
    if affine is not None:
      getattr(image, f'set_{name}')(affine, int(code))
  image.header.set_xyzt_units(*original.header.get_xyzt_units())
  content: bytes = image.to_bytes()
  # Without the time, so that equal maps are equal files.
  return gzip.compress(content, mtime=0) if like.endswith('z') else content


def fitted(labels: np.ndarray, size: Sequence[int]) -> np.ndarray:
  """Returns a map [d, h, w] with the size of its scan; nearest places."""
  return _resampled(labels[..., None], size, order=0)[..., 0]


def _open(path: str, whole: bool = False) -> Any:
  """Returns an array in a file, [D, H, W] or [D, H, W, C], or NIfTI's image.

  Args:
    path: The file.
    whole: Whether its values are read, so that their checksum is checked.
  """
  try:
    if path.lower().endswith(NIFTI):
      nibabel = _nibabel(path)
      image = nibabel.load(path)
      if whole and path.lower().endswith('.gz'):
        # nibabel stops before the checksum, at the end of a compressed file.
        with gzip.open(path) as file:
          image = type(image).from_bytes(file.read())
      return nibabel.as_closest_canonical(image)
    return np.lib.format.open_memmap(path, mode='r')
  except UserError:
    raise
  except Exception as e:  # nibabel raises errors of its own kinds
    raise _damaged(path, e) from None


def _damaged(path: str, error: Exception) -> UserError:
  return UserError(
    f'{path} is damaged, or no scan, and cannot be read: {one_line(error)}'
  )


def _header(
  path: str, shape: tuple[int, ...], dtype: np.dtype, spacing: Any
) -> Header:
  if len(shape) == 5 and shape[3] == 1:  # NIfTI's axes of vectors
    shape = (*shape[:3], shape[4])
  if len(shape) not in (3, 4) or not all(shape) or np.prod(shape) > _MOST:
    raise UserError(
      f'{path} has the shape {shape}: a scan is [D, H, W] or [D, H, W, C]'
    )
  if dtype.kind not in 'buif':
    raise UserError(f'{path} holds {dtype}: values must be single numbers')
  channels = shape[3] if len(shape) == 4 else 1
  return Header(cast(Size, tuple(shape[:3])), channels, spacing, dtype)


def _resampled(
  values: np.ndarray, size: Sequence[int], order: int
) -> np.ndarray:
  """Resizes [D, H, W, C], linearly (order 1) or to nearest places (0).

  Places are boxes, so that both grids have the same borders.
  """
  if values.shape[:3] == tuple(size):
    return values
  from scipy import ndimage  # rarely needed

  factors = [n / m for n, m in zip(size, values.shape, strict=False)]
  channels = [
    ndimage.zoom(
      values[..., i], factors, order=order, mode='nearest', grid_mode=True
    )
    for i in range(values.shape[-1])
  ]
  return np.stack(channels, axis=-1)


def _nibabel(path: str) -> Any:
  """Returns the module; raises a UserError where it cannot be imported."""
  nibabel = import_package(f'{path}: NIfTI', 'nibabel', 'medical')
  # It would log that it mends small mistakes of headers.
  nibabel.imageglobals.logger.setLevel('ERROR')
  return nibabel
