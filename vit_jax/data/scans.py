"""Scans in files: NIfTI (.nii, .nii.gz) and NumPy's .npy.

A scan is [D, H, W, C]. That of a NIfTI file is turned to the closest axes of
the body (right, anterior, superior), in this order, as nibabel's
`as_closest_canonical` does, and a fourth axis has its modalities. Its values
are the stored ones times the file's slope, plus its intercept. An .npy file
holds [D, H, W] or [D, H, W, C], and has neither spacing nor affine.
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
from vit_jax.data import preprocess as preprocess_lib
from vit_jax.data import value_window
from vit_jax.runs import safe_io

NIFTI = ('.nii', '.nii.gz')
ENDINGS = (*NIFTI, '.npy')
_MOST = 2**31  # limit of places and modalities of a scan
# Largest distance of places that are the same, as a share of the spacing: files
# round their affines.
_SAME_PLACE = 0.05
# Distance of a label from a whole number, after a slope.
_LABEL_TOLERANCE = 1e-3
_MOST_LABEL = 2**24  # beyond any label, and exact in float32

Size = tuple[int, int, int]


@dataclasses.dataclass(frozen=True)
class Header:
  """What a file says of a scan."""

  size: Size  # (D, H, W)
  channels: int  # C
  # Distance of neighbours along each axis, in mm; None: not known.
  spacing: tuple[float, float, float] | None
  # Type of its values; floating-point where the file scales them.
  dtype: np.dtype
  # Place in mm (right, anterior, superior) of a position in the scan, float64
  # [4, 4]; None: not known.
  affine: np.ndarray | None = dataclasses.field(default=None, compare=False)


@dataclasses.dataclass(frozen=True)
class Preparation:
  """How scans become the volumes that a model sees."""

  spacing: tuple[float, ...] = ()  # as `config.data.volume.spacing`
  window: Any = 'type'  # as `config.data.volume.window`

  def size(self, header: Header) -> Size:
    """Returns the (D, H, W) of a scan after resampling."""
    if not self.spacing or header.spacing is None:
      return header.size
    sides = zip(header.size, header.spacing, self.spacing, strict=True)
    return cast(Size, tuple(max(round(n * a / b), 1) for n, a, b in sides))

  def volume(self, values: np.ndarray, header: Header, file_name: str) -> Any:
    """Returns a scan [D, H, W, C] as a volume, uint8 or uint16 [d, h, w, C].

    Values of other types need a window, which says which of them are 0 and 1.
    """
    size = self.size(header)
    if self.window == 'type':
      if values.dtype not in (np.uint8, np.uint16):
        raise UserError(
          f'{file_name} holds {values.dtype}, which has no range: set'
          " config.data.volume.window to (low, high), or to 'percentiles("
          "0.5, 99.5)' of each scan"
        )
      return _resampled(values, size, order=1)
    wide = _resampled(values.astype(np.float32), size, order=1)
    bounds: Any = self.window
    part = value_window.VOLUME.percentiles(self.window)
    if part is not None:  # of each of the C modalities
      flat = wide.reshape(-1, wide.shape[-1])
      bounds = np.nanpercentile(flat, part, axis=0).astype(np.float32)
    low, high = bounds
    share = (wide - low) / np.maximum(high - low, 1e-12)
    share = np.nan_to_num(share.clip(0, 1))
    return np.rint(share * 65535).astype(np.uint16)


def from_config(config: ml_collections.ConfigDict) -> Preparation:
  """Returns how a config prepares scans."""
  spacing, window = config.data.volume.spacing, config.data.volume.window
  is_pair = isinstance(window, tuple | list)
  return Preparation(tuple(spacing), tuple(window) if is_pair else window)


def check(config: ml_collections.ConfigDict) -> None:
  """Checks `config.data.volume`."""
  preparation = from_config(config)
  if not is_spacing(preparation.spacing):
    raise UserError(
      f'config.data.volume.spacing is {preparation.spacing}: write three'
      ' distances in mm, or () for that of the files'
    )
  value_window.VOLUME.check(preparation.window)


def is_spacing(value: Any) -> bool:
  """Whether a value can be `Preparation.spacing`."""
  good = isinstance(value, tuple) and len(value) in (0, 3)
  return good and all(type(x) in (int, float) and 0 < x < 1e6 for x in value)


def is_window(value: Any) -> bool:
  """Whether a value can be `Preparation.window`."""
  try:
    value_window.VOLUME.check(value)
  except UserError:
    return False
  return True


def stem(path: str) -> str:
  """Returns a path without the ending of a scan, or of another file."""
  endings = [x for x in sorted(ENDINGS, key=len) if path.lower().endswith(x)]
  return path[: -len(endings[-1])] if endings else os.path.splitext(path)[0]


def below(folder: str) -> list[str]:
  """Returns the paths of all scans below a folder, sorted."""
  return folder_lib.below(folder, ENDINGS)


def header(path: str, frame: Header | None = None) -> Header:
  """Reads what a file says of a scan, and not its values.

  The scan is turned to the axes of `frame`; None: to the body's axes.
  """
  return _described(path, _open(path), frame)[0]


def read(path: str, frame: Header | None = None) -> tuple[np.ndarray, Header]:
  """Returns the values of a scan [D, H, W, C] and its header, as `header`."""
  stored = _open(path)
  described, axes = _described(path, stored, frame)
  try:
    if isinstance(stored, np.ndarray):
      values = np.array(stored)
    else:
      if path.lower().endswith('.gz'):
        # nibabel stops before the checksum, at the end of a compressed file.
        with gzip.open(path) as file:
          stored = type(stored).from_bytes(file.read())
      values = np.asanyarray(stored.dataobj)  # float64 where the file scales
      values = _nibabel(path).orientations.apply_orientation(values, axes)
  except Exception as e:  # nibabel and zlib raise errors of their own kinds
    raise _damaged(path, e) from None
  values = values.reshape(*described.size, described.channels)
  return values.astype(described.dtype, copy=False), described


def read_volume(
  path: str, preprocess: preprocess_lib.Preprocess
) -> tuple[np.ndarray, Header]:
  """Reads a scan whole, for a model that takes volumes.

  Returns it with the spacing and bits that the model was trained with, uint8 or
  uint16 [D, H, W, C]; and the header of the file.
  """
  if not path.lower().endswith(ENDINGS):
    raise UserError(
      f'{path} is no scan: this model takes volumes, files that end with'
      f' {", ".join(ENDINGS)}'
    )
  values, file_header = read(path)
  if file_header.channels != preprocess.channels:
    raise UserError(
      f'{path} has {file_header.channels} channels, but the model takes'
      f' {preprocess.channels}'
    )
  preparation = Preparation(preprocess.spacing, preprocess.window)
  volume = preparation.volume(values, file_header, path)
  return preprocess.levels.keep(volume, path), file_header


def read_labels(
  path: str, frame: Header | None = None
) -> tuple[np.ndarray, Header]:
  """Returns the labels of a map, int32 [D, H, W], and its header."""
  values, described = read(path, frame)
  if described.channels != 1:
    raise UserError(
      f'{path} has {described.channels} values at each place: a map has one'
      ' label'
    )
  numbers = values[..., 0]
  if numbers.dtype.kind == 'f':
    with np.errstate(invalid='ignore'):  # of infinite ones
      rounded = np.rint(numbers)
      is_whole = np.abs(rounded - numbers) <= _LABEL_TOLERANCE
    numbers = np.where(is_whole, rounded, -1)
  if numbers.min() < 0 or numbers.max() > _MOST_LABEL:
    raise UserError(
      f'{path} holds numbers that are no labels: write whole ones, from 0'
    )
  return numbers.astype(np.int32), described


def distance(scan: Header, labels: Header) -> str:
  """Returns how far a map's places are from its scan's.

  The map has the scan's size, and was read with its axes. The phrase says how
  the affines differ; '' if they are the same but for rounding, or not known.
  """
  if scan.affine is None or labels.affine is None:
    return ''
  corners = np.ones((4, 8))  # of the grid, whose places are boxes
  corners[:3] = np.indices((2, 2, 2)).reshape(3, 8)
  corners[:3] = corners[:3] * np.array(scan.size)[:, None] - 0.5
  offsets = ((scan.affine - labels.affine) @ corners)[:3]
  furthest = float(np.linalg.norm(offsets, axis=0).max())
  axes = scan.affine[:3, :3], labels.affine[:3, :3]
  steps = [np.linalg.norm(x, axis=0) for x in axes]
  if furthest <= _SAME_PLACE * steps[0].min():
    return ''
  differences = [f'they lie up to {furthest:.3g} mm apart']
  for name, first, second in (
    ('spacings', *steps),
    ('origins', scan.affine[:3, 3], labels.affine[:3, 3]),
  ):
    if not np.allclose(first, second, rtol=1e-3, atol=1e-3):
      differences.append(f'{name} {_numbers(first)} and {_numbers(second)} mm')
  products = (axes[0] * axes[1]).sum(axis=0)
  cosines = (products / steps[0] / steps[1]).clip(-1, 1)
  angle = np.degrees(np.arccos(cosines)).max()
  if angle > 0.05:
    differences.append(f'axes turned by {angle:.3g} degrees')
  return ', '.join(differences)


def _numbers(values: np.ndarray) -> str:
  return f'({", ".join(f"{x:.5g}" for x in values)})'


def write(path: pathlib.Path, labels: np.ndarray, like: str) -> None:
  """Writes a map for the scan in the file `like`.

  The map, uint8 or uint16 [D, H, W], comes from `fitted`. That of NIfTI has the
  scan's axes and affine. Both files have one ending.
  """
  if not like.lower().endswith(NIFTI):
    stream = io.BytesIO()
    np.save(stream, labels)
    content = stream.getvalue()
  else:
    nibabel = _nibabel(like)
    original, orientations = nibabel.load(like), nibabel.orientations
    body_axes = orientations.axcodes2ornt('RAS')
    file_axes = orientations.io_orientation(original.affine)
    back = orientations.ornt_transform(body_axes, file_axes)
    turned = orientations.apply_orientation(labels, back)
    image = nibabel.Nifti1Image(turned, original.affine)
    for name in ('qform', 'sform'):
      affine, code = getattr(original, f'get_{name}')(coded=True)
      if affine is not None:
        getattr(image, f'set_{name}')(affine, int(code))
    image.header.set_xyzt_units(*original.header.get_xyzt_units())
    content = image.to_bytes()
    if like.lower().endswith('.gz'):
      # Without the time, so that equal maps are equal files.
      content = gzip.compress(content, mtime=0)
  with safe_io.replacing_path(path) as temporary:
    temporary.write_bytes(content)


def fitted(labels: np.ndarray, size: Sequence[int]) -> np.ndarray:
  """Returns a map [d, h, w] with the size of its scan; nearest places."""
  return _resampled(labels[..., None], size, order=0)[..., 0]


def _open(path: str) -> Any:
  """Returns a mapped array or a NIfTI image, without values in memory."""
  try:
    if path.lower().endswith(NIFTI):
      return _nibabel(path).load(path)
    return np.lib.format.open_memmap(path, mode='r')
  except UserError:
    raise
  except Exception as e:  # nibabel raises errors of its own kinds
    raise _damaged(path, e) from None


def _damaged(path: str, error: Exception) -> UserError:
  return UserError(
    f'{path} is damaged, or no scan, and cannot be read: {one_line(error)}'
  )


def _described(
  path: str, stored: Any, frame: Header | None
) -> tuple[Header, Any]:
  """Returns the header of what `_open` returns, and how its axes are turned.

  The second is as `nibabel.orientations` has it; None for an array.
  """
  shape = stored.shape
  if len(shape) == 5 and shape[3] == 1:  # NIfTI's axes of vectors
    shape = (*shape[:3], shape[4])
  if len(shape) not in (3, 4) or not all(shape) or np.prod(shape) > _MOST:
    raise UserError(
      f'{path} has the shape {shape}: a scan is [D, H, W] or [D, H, W, C]'
    )
  size, channels = cast(Size, shape[:3]), shape[3] if len(shape) == 4 else 1
  if isinstance(stored, np.ndarray):
    return Header(size, channels, None, _dtype(path, stored.dtype)), None
  dtype = _dtype(path, stored.get_data_dtype())
  # The header has neither after it was read: the values' proxy keeps them.
  if (stored.dataobj.slope, stored.dataobj.inter) != (1, 0):
    dtype = np.result_type(dtype, np.float32)
  affine, axes = _turned(path, stored.affine, size, frame)
  size = cast(Size, tuple(size[i] for i in np.argsort(axes[:, 0])))
  spacing = cast(Any, tuple(np.linalg.norm(affine[:3, :3], axis=0).tolist()))
  return Header(size, channels, spacing, dtype, affine), axes


def _dtype(path: str, dtype: np.dtype) -> np.dtype:
  if dtype.kind not in 'buif':
    raise UserError(f'{path} holds {dtype}: values must be single numbers')
  return dtype.newbyteorder('=')


def _turned(
  path: str, affine: np.ndarray, size: Size, frame: Header | None
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the affine after its axes are turned, and how they were."""
  orientations = _nibabel(path).orientations
  spacing = tuple(np.linalg.norm(affine[:3, :3], axis=0).tolist())
  if not np.isfinite(affine).all() or not all(0 < x < 1e6 for x in spacing):
    raise UserError(
      f'{path} has the spacing {spacing}: three are needed, in mm'
    )
  relative = affine
  if frame is not None and frame.affine is not None:
    relative = np.linalg.inv(frame.affine) @ affine
  axes = orientations.io_orientation(relative)
  if np.isnan(axes).any():
    raise UserError(
      f'{path} has an affine whose three axes lie in one plane: mend its sform'
      ' or qform'
    )
  turn = orientations.inv_ornt_aff(axes, size)
  return affine @ turn, axes.astype(int)


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
  settings: Any = {'order': order, 'mode': 'nearest', 'grid_mode': True}
  channels = np.moveaxis(values, -1, 0)
  resized = [ndimage.zoom(x, factors, **settings) for x in channels]
  return np.stack(resized, axis=-1)


def _nibabel(path: str) -> Any:
  nibabel = import_package(f'{path}: NIfTI', 'nibabel', 'medical')
  # It would log that it mends small mistakes of headers.
  nibabel.imageglobals.logger.setLevel('ERROR')
  return nibabel
