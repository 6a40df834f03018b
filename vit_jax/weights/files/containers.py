"""Opens arrays in files of other programs: npz, safetensors, and torch's pth.

The first bytes determine the format; the name of the file does not matter.
Opening a file reads names and shapes; each array is read on request. No code in
a file is run. Each length is checked before memory is allocated for it, and so
are checksums if the format has them (npz, pth).
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import io
import json
import math
import os
import pathlib
import re
import tokenize
from typing import Any
from typing import BinaryIO
from typing import NamedTuple
import zipfile

from absl import logging
import ml_dtypes
import numpy as np
import safetensors

from vit_jax.config import explained
from vit_jax.config import join_first
from vit_jax.config import one_line
from vit_jax.config import reason
from vit_jax.config import UserError
from vit_jax.runs import safe_io
from vit_jax.weights.files import archives
from vit_jax.weights.files import prefixes
from vit_jax.weights.files import torch_files
from vit_jax.weights.files.archives import Arrays

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
# Types whose names in safetensors files are not as F32 for float32.
_TYPES = {'bfloat16': 'BF16', 'bool': 'BOOL', 'complex64': 'C64'}
_LONGEST_HEADER = 100_000_000  # the safetensors package has the same limit
_LONGEST_INDEX = 4 << 20
_SHARD = re.compile(r'[^/\\\0.][^/\\\0]*\.(safetensors|bin)')
_LONGEST_NPY_HEADER = 10_000  # numpy has the same limit
# What numpy raises for headers that are none.
_HEADER_ERRORS = (
  *(ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError),
  *(SyntaxError, TypeError, ValueError, tokenize.TokenError),
)
# First bytes of other files that users mistake for checkpoints.
_MISTAKEN = (
  (b'version https://git-lfs', 'a Git LFS pointer: fetch it by `git lfs pull`'),
  (b'<', 'a web page or an error message: download the file itself'),
  (b'\x93NUMPY', 'a single array: save it with its name, by np.savez'),
  (b'\x89HDF', 'an HDF5 file (of Keras?): convert it to npz first'),
  (b'\x1f\x8b', 'packed by gzip: unpack it first'),
  (b'\x80', 'a bare pickle, which could run any code: convert it to npz first'),
)


@contextlib.contextmanager
def open_arrays(
  path: pathlib.Path, state: str | None = None
) -> Iterator[Arrays]:
  """Opens the arrays of a checkpoint, without the prefixes of training.

  Args:
    path: An npz, safetensors or pth file, or the index (`*.index.json`) of a
      checkpoint in several files.
    state: Which of the states in a training checkpoint is read, by its key or
      by the attribute that holds the model, such as 'model_ema' or 'student';
      None: averaged weights and a teacher before others, which a line says.
  """
  with contextlib.ExitStack() as stack:
    stored = _one_file(path, stack, state=state)
    with explained(str(path)):
      names = prefixes.plain_names(stored.shapes, state)
    _check_state(path, stored, names, state)
    plain = names.stored
    shapes = {name: stored.shapes[x] for name, x in plain.items()}
    yield Arrays(shapes, lambda name: stored.read(plain[name]))


def _check_state(
  path: pathlib.Path, stored: Arrays, names: prefixes.Names, state: str | None
) -> None:
  """Says which of several states is read."""
  read = [x for x in (stored.state, *names.holders) if x]
  alternatives = (*stored.other_states, *names.other_holders)
  last = stored.state.rpartition('.')[2]
  if state is not None and state not in (last, *read):
    raise UserError(
      f'{path} holds no state {archives.quoted(state)}: those that it has are'
      f' {join_first([*read, *alternatives]) or "without a name"}'
    )
  left = len(stored.shapes) - len(names.stored)
  if alternatives:
    logging.info(
      'read the state %s of %s; to read another (%s), name it: --state=%s',
      *(' / '.join(read), path, join_first(alternatives), alternatives[0]),
    )
  if left:
    left_out = [x for x in stored.shapes if x not in {*names.stored.values()}]
    logging.info(
      'left out of %s, as beside the model: %s', path, join_first(left_out)
    )


def _one_file(
  path: pathlib.Path,
  stack: contextlib.ExitStack,
  is_shard: bool = False,
  state: str | None = None,
) -> Arrays:
  """Opens one file with the reader that its first bytes call for."""
  try:
    file = stack.enter_context(safe_io.open_regular(path))
    head = file.read(1024)
  except FileNotFoundError:
    raise UserError(f'there is no file {path}') from None
  except OSError as e:
    raise UserError(f'cannot read {path}: {reason(e)}') from None
  # Safetensors first: its header's length can begin with any other magic bytes.
  header = int.from_bytes(head[:8], 'little')
  if head[8:9] == b'{' and header <= _LONGEST_HEADER:
    return _safetensors(path, stack)
  if head.startswith((b'PK\x03\x04', b'PK\x05\x06')):
    archive = archives.Archive(path, file)
    if torch_files.is_torch(archive):
      return torch_files.read(archive, state)
    return _npz(archive)
  if head.lstrip().startswith(b'{') and not is_shard:
    return _shards(path, stack)
  raise _refusal(path, head)


def _refusal(path: pathlib.Path, head: bytes) -> UserError:
  if not head:
    return UserError(f'{path} is empty: download or copy it again')
  if head.startswith(torch_files.LEGACY):
    return torch_files.legacy_error(path)
  start = head.lstrip(b'\xef\xbb\xbf \t\r\n')
  for magic, subject in _MISTAKEN:
    if start.startswith(magic):
      return UserError(f'{path} is {subject}')
  return UserError(
    f'{path} is neither npz, safetensors nor pth: its first bytes are'
    f' {head[:8]!r}; if it should be, download or copy it again'
  )


class _Entry(NamedTuple):
  """An array in an npz file."""

  member: str  # of the archive
  start: int  # offset of the numbers in the member, in bytes
  shape: tuple[int, ...]
  is_fortran: bool  # whether the first axis varies fastest
  dtype: np.dtype  # in the byte order of the file


def _npz(archive: archives.Archive) -> Arrays:
  entries = {
    name.removesuffix('.npy'): _entry(archive, name)
    for name in archive.members
    if name.endswith('.npy')
  }
  if not entries:
    raise UserError(
      f'{archive.path} is a ZIP file without arrays'
      f' ({join_first([archives.quoted(x) for x in archive.members])}): if a'
      ' checkpoint is in it, unpack that'
    )

  def read(name: str) -> np.ndarray:
    member, start, shape, is_fortran, dtype = entries[name]
    array = archives.empty(shape[::-1] if is_fortran else shape, dtype)
    memory, subject = archives.as_bytes(array), archives.array_named(name)
    archive.read_into(member, memory, start, subject)
    if not dtype.isnative:
      array = array.byteswap(inplace=True).view(dtype.newbyteorder('='))
    return archives.in_c_order(array.T) if is_fortran else array

  return Arrays({name: x.shape for name, x in entries.items()}, read)


def _entry(archive: archives.Archive, member: str) -> _Entry:
  """Reads the header of an array, and checks it against the member's length."""
  subject = archives.array_named(member.removesuffix('.npy'))
  header = io.BytesIO(archive.head(member, _LONGEST_NPY_HEADER))
  try:
    is_short = np.lib.format.read_magic(header) == (1, 0)
    read = np.lib.format.read_array_header_2_0
    if is_short:
      read = np.lib.format.read_array_header_1_0
    shape, is_fortran, dtype = read(header)
  except _HEADER_ERRORS as e:
    raise archives.damaged(
      archive.path, f'{subject} has no header that can be read ({one_line(e)})'
    ) from None
  if dtype.hasobject:
    raise UserError(
      f'{archive.path} holds pickled objects ({subject}), which could run any'
      ' code: leave them out, and save it again'
    )
  if dtype.kind == 'V' and dtype.itemsize == 2:  # as numpy describes bfloat16
    dtype = _BFLOAT16
  if dtype.names or dtype.subdtype or not dtype.itemsize:
    raise UserError(
      f'{archive.path}: {subject} is of a type that is not read: {dtype}'
    )
  start, size = header.tell(), archive.members[member].file_size
  if (
    not archives.is_shape(shape, dtype.itemsize)
    or start + math.prod(shape) * dtype.itemsize != size
  ):
    raise archives.damaged(
      archive.path, f'{subject} has another length than its shape says'
    )
  return _Entry(member, start, shape, is_fortran, dtype)


def _safetensors(path: pathlib.Path, stack: contextlib.ExitStack) -> Arrays:
  # Not memory-mapped: mapped pages would count as this process's memory, and if
  # the file shrank, an access would kill the process.
  try:
    file = stack.enter_context(
      safetensors.safe_open(path, framework='np', backend='pread')
    )
    slices = {name: file.get_slice(name) for name in file.offset_keys()}
    shapes = {name: tuple(x.get_shape()) for name, x in slices.items()}
  except (safetensors.SafetensorError, OSError, ValueError) as e:
    raise archives.damaged(path, one_line(e)) from None

  def read(name: str) -> np.ndarray:
    try:
      return file.get_tensor(name)
    except (safetensors.SafetensorError, AttributeError, OSError) as e:
      # An AttributeError: of a type that numpy lacks, as float8.
      raise UserError(
        f'cannot read {archives.array_named(name)} of {path}: {one_line(e)}'
      ) from None

  return Arrays(shapes, read)


def _shards(path: pathlib.Path, stack: contextlib.ExitStack) -> Arrays:
  files = weight_map(path)
  shards = {
    name: _one_file(path.with_name(name), stack, is_shard=True)
    for name in dict.fromkeys(files.values())
  }
  for name, file in files.items():
    if name not in shards[file].shapes:
      raise UserError(
        f'{path} names {archives.array_named(name)}, which {file} does not'
        ' hold: download all files of the checkpoint again'
      )
  shapes = {name: shards[file].shapes[name] for name, file in files.items()}
  return Arrays(shapes, lambda name: shards[files[name]].read(name))


def weight_map(path: pathlib.Path) -> dict[str, str]:
  """Reads an index: array -> name of a file in the same directory."""
  try:
    content = safe_io.parse_json(safe_io.read_bytes(path, _LONGEST_INDEX))
    files = content['weight_map']
    names = {*files.values()}
  except (OSError, ValueError, LookupError, TypeError, AttributeError):
    names = set()
  if not names:
    raise UserError(
      f'{path} is neither a checkpoint nor the index of one: download it'
      ' again, or give the file with the weights'
    )
  for name in names:
    if not isinstance(name, str) or not _SHARD.fullmatch(name):
      raise UserError(
        f'{path} names the file {archives.quoted(name)}, which is not one of'
        ' safetensors or bin in its directory; repair the index'
      )
  return files


def write_npz(
  path: pathlib.Path, arrays: Iterable[tuple[str, np.ndarray]]
) -> None:
  """Writes an uncompressed npz file, holding one array at a time."""
  with _replacing(path) as file, zipfile.ZipFile(file, 'w') as archive:
    for name, array in arrays:
      if array.dtype == _BFLOAT16:
        array = array.view('V2')
      info = zipfile.ZipInfo(f'{name}.npy')  # without date: reproducible bytes
      with archive.open(info, 'w', force_zip64=True) as member:
        np.lib.format.write_array(
          member, np.asarray(array, order='C'), allow_pickle=False
        )


def write_safetensors(
  path: pathlib.Path,
  arrays: Mapping[str, np.ndarray],
  metadata: Mapping[str, str],
) -> None:
  """Writes a safetensors file; each array is copied only to write it.

  `safetensors.numpy.save_file` (0.8) is not used, since it writes a transposed
  array as if its memory were in C order, and holds all arrays at once.
  """
  # Wide types first, so that each array is aligned to its element size.
  names = sorted(arrays, key=lambda name: -arrays[name].dtype.itemsize)
  header: dict[str, Any] = {'__metadata__': dict(metadata)} if metadata else {}
  end = 0
  for name in names:
    begin, end = end, end + arrays[name].nbytes
    dtype = arrays[name].dtype
    number = f'{dtype.kind.upper()}{8 * dtype.itemsize}'
    header[name] = {
      'dtype': _TYPES.get(dtype.name, number),
      'shape': list(arrays[name].shape),
      'data_offsets': [begin, end],
    }
  text = json.dumps(header, separators=(',', ':')).encode()
  text += b' ' * (-len(text) % 8)
  with _replacing(path) as file:
    file.write(len(text).to_bytes(8, 'little') + text)
    for name in names:
      little = arrays[name].dtype.newbyteorder('<')
      array = np.asarray(arrays[name], little, order='C')
      file.write(archives.as_bytes(array))


@contextlib.contextmanager
def _replacing(path: pathlib.Path) -> Iterator[BinaryIO]:
  """Opens a file that replaces `path` once complete, and is synchronized."""
  with safe_io.replacing_path(path) as temporary, temporary.open('wb') as file:
    yield file
    file.flush()
    os.fsync(file.fileno())
