"""ZIP files of arrays: `zipfile` reads them, and this module distrusts them.

`zipfile` verifies each member's checksum. This module refuses what it lets
pass: members that damage hides, that are there twice, that overlap, or that
expand to an implausible size. It reads into memory that JAX need not copy.
"""

import collections
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import dataclasses
import math
import os
import pathlib
import struct
from typing import BinaryIO
import zipfile
import zlib

import numpy as np

from vit_jax.config import one_line
from vit_jax.config import UserError

_END = struct.Struct('<4s4H2IH')  # the record at the end of a ZIP file
_COUNTED_ELSEWHERE = 0xFFFF  # the count is in the ZIP64 record
_ENCRYPTED = 0x2041  # bits of a member's flags
_LOCAL_HEADER_BYTES = 30  # without the name and the extra field
_CHUNK = 1 << 20
_MOST_DIMENSIONS = 32
# What `zipfile` raises for damaged files.
_ERRORS = (
  *(zipfile.BadZipFile, zlib.error, struct.error, ArithmeticError, EOFError),
  *(LookupError, MemoryError, OSError, RuntimeError, ValueError),
)


@dataclasses.dataclass(eq=False)
class Arrays:
  """The arrays of an open file."""

  shapes: dict[str, tuple[int, ...]]  # shapes by name
  # Returns the array of a name, C-contiguous and in the byte order of the
  # machine, or raises a UserError if it is damaged; several threads may call it
  # at once.
  read: Callable[[str], np.ndarray]
  # Key of the state dict that they are, if the file has several things.
  state: str = ''
  other_states: tuple[str, ...] = ()  # keys of other state dicts in the file


class Archive:
  """The files in a ZIP file.

  Attributes:
    path: Path of the archive.
    size: Size of the archive, in bytes.
    members: Entries of the table of contents by name, in its order.
  """

  def __init__(self, path: pathlib.Path, file: BinaryIO):
    """Reads the table of contents; `file` must stay open."""
    self.path = path
    self._file = file.fileno()
    self._verified: set[str] = set()
    self.size = os.fstat(self._file).st_size
    with self._reading('its table of contents'):
      self._zip = zipfile.ZipFile(file)
      self._check_count()
    infos = [x for x in self._zip.infolist() if not x.filename.endswith('/')]
    check_total(path, sum(x.file_size for x in infos), self.size)
    self._check_apart(infos)
    self.members = {x.filename: x for x in infos}
    # torch can leave out checksums, but only of all members.
    has_checksums = any(x.CRC for x in infos)
    for info in infos:
      if not has_checksums:
        del info.CRC  # zipfile then checks none
      self._check_member(info)

  def head(self, name: str, count: int) -> bytes:
    """Returns up to `count` bytes of a member's start, without verification."""
    with self._reading(quoted(name)), self._zip.open(name) as member:
      return member.read(count)

  def read(self, name: str) -> bytes:
    """Returns the contents of a small member."""
    data = bytearray(self.members[name].file_size)
    self.read_into(name, memoryview(data), 0, quoted(name))
    return bytes(data)

  def read_into(
    self, name: str, target: memoryview, begin: int, subject: str
  ) -> None:
    """Fills `target` with the contents of a member from the byte `begin` on.

    The first call verifies the whole member. Messages call the contents
    `subject`.
    """
    info = self.members[name]
    with self._reading(subject):
      if name in self._verified and not is_deflated(info):
        self._read_at(self._start(info) + begin, target)
        return
      done = 0
      with self._zip.open(info) as member:
        while chunk := member.read(_CHUNK):
          low = max(begin - done, 0)
          high = min(begin + len(target) - done, len(chunk))
          if low < high:
            to = done - begin
            target[to + low : to + high] = chunk[low:high]
          done += len(chunk)
      if done != info.file_size:
        raise EOFError
    self._verified.add(name)

  @contextlib.contextmanager
  def _reading(self, subject: str) -> Iterator[None]:
    try:
      yield
    except UserError:
      raise
    except _ERRORS as e:
      problem = f'{subject} cannot be read ({one_line(e)})'
      raise damaged(self.path, problem) from None

  def _start(self, info: zipfile.ZipInfo) -> int:
    """Returns the offset of a member's contents; `zipfile` does not tell."""
    header = bytearray(_LOCAL_HEADER_BYTES)
    self._read_at(info.header_offset, memoryview(header))
    lengths = struct.unpack_from('<2H', header, len(header) - 4)
    return info.header_offset + len(header) + sum(lengths)

  def _read_at(self, offset: int, target: memoryview) -> None:
    while target:
      count = os.preadv(self._file, [target], offset)
      if not count:
        raise EOFError
      target, offset = target[count:], offset + count

  def _check_member(self, info: zipfile.ZipInfo) -> None:
    subject = quoted(info.filename)
    methods = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED
    if info.flag_bits & _ENCRYPTED or info.compress_type not in methods:
      raise UserError(
        f'{self.path}: {subject} is encrypted, or packed by another method than'
        ' deflate; unpack the file, and zip it again'
      )
    with self._reading(subject):
      self._zip.open(info).close()  # compares the names in table and header

  def _check_count(self) -> None:
    """Finds members hidden by damage, which zipfile would leave out."""
    end = bytearray(_END.size)
    at = max(self.size - len(end) - len(self._zip.comment), 0)
    self._read_at(at, memoryview(end))
    signature, *_, count, _, _, _ = _END.unpack(end)
    listed = len(self._zip.infolist())
    if signature != b'PK\x05\x06' or count not in (listed, _COUNTED_ELSEWHERE):
      raise damaged(
        self.path, f'{listed} of the {count} files that it holds can be found'
      )

  def _check_apart(self, infos: list[zipfile.ZipInfo]) -> None:
    counts = collections.Counter(x.filename for x in infos)
    if twice := [name for name, count in counts.items() if count > 1]:
      raise damaged(self.path, f'it holds {quoted(twice[0])} twice')
    end = 0
    for info in sorted(infos, key=lambda x: x.header_offset):
      if info.header_offset < end:
        raise damaged(
          self.path, f'{quoted(info.filename)} overlaps what is before it'
        )
      end = info.header_offset + info.compress_size


def is_deflated(member: zipfile.ZipInfo) -> bool:
  """Whether the contents of a member are compressed."""
  return member.compress_type == zipfile.ZIP_DEFLATED


def empty(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
  """Returns an uninitialised array, aligned so that JAX need not copy it."""
  count = math.prod(shape) * dtype.itemsize
  buffer = np.empty(count + 64, np.uint8)
  begin = -buffer.ctypes.data % 64
  return buffer[begin : begin + count].view(dtype).reshape(shape)


def in_c_order(view: np.ndarray) -> np.ndarray:
  """Returns a copy of an array, aligned as of `empty`."""
  copy = empty(view.shape, view.dtype)
  copy[...] = view
  return copy


def as_bytes(array: np.ndarray) -> memoryview:
  """Returns the memory of a C-contiguous array."""
  return array.reshape(-1).view(np.uint8).data


def is_shape(shape: object, itemsize: int) -> bool:
  """Whether this is a valid shape of an array."""
  return (
    isinstance(shape, tuple)
    and len(shape) <= _MOST_DIMENSIONS
    and all(isinstance(x, int) and 0 <= x < 2**48 for x in shape)
    and math.prod(max(x, 1) for x in shape) * itemsize < 2**62
  )


def check_total(path: pathlib.Path, total: int, size: int) -> None:
  """Refuses `size` bytes that say that they expand too much (a ZIP bomb).

  Deflate compresses weights by a tenth. It compresses a head of zeros by a
  factor of a thousand, but the head is a small part.
  """
  if total > max(1 << 30, 16 * size):
    raise UserError(
      f'{path} is refused: its {size:,} bytes say that they expand to'
      f' {total:,}, which is damage or an attack'
    )


def damaged(path: pathlib.Path, problem: str) -> UserError:
  """Returns the error for a damaged file."""
  return UserError(
    f'{path} is damaged or incomplete: {problem}; download or copy it again'
  )


def quoted(name: str) -> str:
  """Returns a name from a file as one short line."""
  text = repr(name)
  return text if len(text) <= 160 else f'{text[:150]}...'


def array_named(name: str) -> str:
  """Returns the name of an array in messages."""
  return f'array {quoted(name)}'
