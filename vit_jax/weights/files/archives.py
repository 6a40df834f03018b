"""Reads arrays from ZIP files, with all lengths and checksums verified.

`zipfile` reads the table of contents. This module reads the contents directly
into arrays, at the speed of the disk, and checks each length before it
allocates memory. `np.load` allocates what a header asks for without checking
that the file has as much, and copies each part.
"""

import collections
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
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

_LOCAL_HEADER = struct.Struct('<4s5H3I2H')
_END = struct.Struct('<4s4H2IH')
_COUNTED_ELSEWHERE = 0xFFFF  # the count is in the ZIP64 record
_ENCRYPTED = 0x2041  # bits of a member's flags
_UTF8_NAME = 0x800
_CHUNK = 1 << 20
_MOST_DEFLATED = 1032  # maximum compression ratio of deflate
_MOST_DIMENSIONS = 32


@dataclasses.dataclass(eq=False)
class Arrays:
  """The arrays of an open file.

  Attributes:
    shapes: Shapes by name.
    read: Returns the array of a name, C-contiguous and in the byte order of the
      machine, or raises a UserError if it is damaged; several threads may call
      it at once.
    state: Key of the state dict that they are, if the file has several things.
    others: Keys of other state dicts in the file.
  """

  shapes: dict[str, tuple[int, ...]]
  read: Callable[[str], np.ndarray]
  state: str = ''
  others: tuple[str, ...] = ()


class Archive:
  """The files in a ZIP file.

  Attributes:
    path: Path of the archive.
    size: Size of the archive, in bytes.
    members: Entries of the table of contents by name, in its order.
  """

  def __init__(self, path: pathlib.Path, file: BinaryIO):
    """Reads the table of contents.

    Args:
      path: Path of the archive, for messages.
      file: The archive; it must stay open while members are read.

    Raises:
      UserError: It is damaged, or expands to an implausible size.
    """
    self.path = path
    self._file = file.fileno()
    self._verified: set[str] = set()
    self.size = os.fstat(self._file).st_size
    try:
      table = zipfile.ZipFile(file)
    except (
      zipfile.BadZipFile,
      ArithmeticError,
      LookupError,
      MemoryError,
      NotImplementedError,
      OSError,
      ValueError,
      struct.error,
    ) as e:
      raise damaged(
        path, f'its table of contents cannot be read ({one_line(e)})'
      ) from None
    self._check_count(table)
    infos = [x for x in table.infolist() if not x.filename.endswith('/')]
    check_total(path, sum(x.file_size for x in infos), self.size)
    # torch can leave out checksums, but only of all members.
    self._has_checksums = any(x.CRC for x in infos)
    self.members = {x.filename: x for x in infos}
    self._start = {x.filename: self._contents(x) for x in infos}  # offsets
    self._check_apart(infos)

  def head(self, member: zipfile.ZipInfo, count: int) -> bytes:
    """Returns up to `count` bytes of a member's start, without verification."""
    data = bytearray(min(count, member.compress_size))
    name = member.filename
    self._read_at(self._start[name], memoryview(data), quoted(name))
    if not is_deflated(member):
      return bytes(data)
    try:
      return zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, count)
    except zlib.error:
      return b''

  def read(self, member: zipfile.ZipInfo) -> bytes:
    """Returns the contents of a small member.

    Raises:
      UserError: The member is damaged.
    """
    data = bytearray(member.file_size)
    self.read_into(member, memoryview(data), 0, quoted(member.filename))
    return bytes(data)

  def read_into(
    self, member: zipfile.ZipInfo, target: memoryview, begin: int, what: str
  ) -> None:
    """Reads a part of a member; the first call verifies the whole member.

    Args:
      member: Member to read.
      target: Bytes to fill.
      begin: First byte of the contents to copy.
      what: Name of the contents, for messages.

    Raises:
      UserError: The member is damaged.
    """
    if member.filename in self._verified and not is_deflated(member):
      self._read_at(self._start[member.filename] + begin, target, what)
      return
    done = crc32 = 0
    for chunk in self._chunks(member, what):
      low = max(begin - done, 0)
      high = min(begin + len(target) - done, len(chunk))
      if low < high:
        to = done - begin
        target[to + low : to + high] = chunk[low:high]
      crc32 = zlib.crc32(chunk, crc32)
      done += len(chunk)
    if self._has_checksums and member.CRC != crc32:
      raise damaged(self.path, f'the checksum of {what} does not match')
    self._verified.add(member.filename)

  def _chunks(self, member: zipfile.ZipInfo, what: str) -> Iterator[memoryview]:
    """Yields the decompressed contents in chunks; the buffer is reused."""
    if is_deflated(member):
      yield from self._inflated(member, what)
      return
    size, start = member.file_size, self._start[member.filename]
    buffer = memoryview(bytearray(min(_CHUNK, size)))
    for at in range(0, size, _CHUNK):
      chunk = buffer[: size - at]
      self._read_at(start + at, chunk, what)
      yield chunk

  def _inflated(
    self, member: zipfile.ZipInfo, what: str
  ) -> Iterator[memoryview]:
    inflate = zlib.decompressobj(-zlib.MAX_WBITS)
    left, start = member.file_size, self._start[member.filename]
    at = 0
    while not inflate.eof:
      data: bytes | bytearray = inflate.unconsumed_tail
      if not data:
        data = bytearray(min(_CHUNK, member.compress_size - at))
        self._read_at(start + at, memoryview(data), what)
        at += len(data)
      try:
        chunk = inflate.decompress(data, _CHUNK)
      except zlib.error:
        raise damaged(self.path, f'{what} cannot be unpacked') from None
      left -= len(chunk)
      if left < 0 or not (data or chunk):
        break
      yield memoryview(chunk)
    if left or not inflate.eof:
      raise damaged(self.path, f'{what} is not as long as it should be')

  def _read_at(self, offset: int, target: memoryview, what: str) -> None:
    done = 0
    while done < len(target):
      try:
        count = os.preadv(self._file, [target[done:]], offset + done)
      except OSError as e:
        raise UserError(
          f'cannot read {what} of {self.path}: {e.strerror}'
        ) from None
      if not count:
        raise damaged(self.path, f'it ends in the midst of {what}')
      done += count

  def _contents(self, info: zipfile.ZipInfo) -> int:
    """Returns the offset of a member's contents, after checks of its entry."""
    what = quoted(info.filename)
    methods = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED
    if info.flag_bits & _ENCRYPTED or info.compress_type not in methods:
      raise UserError(
        f'{self.path}: {what} is encrypted, or packed by another method than'
        ' deflate; unpack the file, and zip it again'
      )
    if is_deflated(info):
      possible = info.file_size <= _MOST_DEFLATED * (info.compress_size + 1)
    else:
      possible = info.file_size == info.compress_size
    start = self._after_header(info)
    if not possible or start is None or start + info.compress_size > self.size:
      raise damaged(self.path, f'{what} is not where it should be')
    return start

  def _after_header(self, info: zipfile.ZipInfo) -> int | None:
    """Returns the contents' offset; None if the header is another member's."""
    encoding = 'utf-8' if info.flag_bits & _UTF8_NAME else 'cp437'
    name = info.orig_filename.encode(encoding)
    length = _LOCAL_HEADER.size + len(name)
    if not 0 <= info.header_offset <= self.size - length:
      return None
    data = bytearray(length)
    self._read_at(info.header_offset, memoryview(data), quoted(info.filename))
    signature, *_, name_length, extra_length = _LOCAL_HEADER.unpack_from(data)
    if signature != b'PK\x03\x04' or name_length != len(name):
      return None
    if data[_LOCAL_HEADER.size :] != name:
      return None
    return info.header_offset + length + extra_length

  def _check_count(self, table: zipfile.ZipFile) -> None:
    """Finds members hidden by damage, which zipfile would leave out."""
    end = bytearray(_END.size)
    at = max(self.size - len(end) - len(table.comment), 0)
    self._read_at(at, memoryview(end), 'its table of contents')
    signature, *_, count, _, _, _ = _END.unpack(end)
    found = len(table.infolist())
    if signature != b'PK\x05\x06' or count not in (found, _COUNTED_ELSEWHERE):
      raise damaged(
        self.path, f'{found} of the {count} files that it holds can be found'
      )

  def _check_apart(self, members: list[zipfile.ZipInfo]) -> None:
    if len(self.members) < len(members):
      counts = collections.Counter(x.filename for x in members)
      twice = quoted(counts.most_common(1)[0][0])
      raise damaged(self.path, f'it holds {twice} twice')
    end = 0
    for member in sorted(members, key=lambda x: x.header_offset):
      if member.header_offset < end:
        raise damaged(
          self.path, f'{quoted(member.filename)} overlaps what is before it'
        )
      end = self._start[member.filename] + member.compress_size


def is_deflated(member: zipfile.ZipInfo) -> bool:
  """Whether the contents of a member are compressed."""
  return member.compress_type == zipfile.ZIP_DEFLATED


def empty(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
  """Returns an uninitialised array, aligned so that JAX need not copy it."""
  count = math.prod(shape) * dtype.itemsize
  buffer = np.empty(count + 64, np.uint8)
  begin = -buffer.ctypes.data % 64
  return buffer[begin : begin + count].view(dtype).reshape(shape)


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
  """Refuses a file that expands to an implausible size (a ZIP bomb).

  Deflate compresses weights by a tenth. It compresses a head of zeros by a
  factor of a thousand, but the head is a small part.

  Args:
    path: Path of the file.
    total: Bytes of its contents, according to the file.
    size: Bytes of the file.

  Raises:
    UserError: `total` is too large for `size`.
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
