"""Writes files as torch.save does, by hand: tests do not need torch for it.

`save` takes nested dicts, lists, tuples and scalars, with `Name`, `Call` and
what `tensor` returns among them.
"""

from collections.abc import Mapping
import dataclasses
import pathlib
import pickle
import struct
from typing import Any
import zipfile

import numpy as np

LEGACY = pickle.dumps(0x1950A86A20F9469CFC6C, 2)

_STORAGES = {
  'float32': 'FloatStorage',
  'float16': 'HalfStorage',
  'bfloat16': 'BFloat16Storage',
  'int64': 'LongStorage',
  'bool': 'BoolStorage',
}


@dataclasses.dataclass(frozen=True)
class Name:
  module: str
  name: str


@dataclasses.dataclass(frozen=True)
class Call:
  function: Any
  arguments: Any


@dataclasses.dataclass(frozen=True)
class Storage:
  array: np.ndarray


@dataclasses.dataclass(frozen=True)
class WithState:
  value: Any
  state: Any


@dataclasses.dataclass(frozen=True)
class Pickled:
  """What Python pickles by itself, with a protocol of its own."""

  value: Any
  protocol: int


def tensor(
  base: np.ndarray,
  shape: tuple[int, ...],
  strides: tuple[int, ...],
  offset: int = 0,
) -> Call:
  """Describes a view of `base`; strides and offset in bytes, as in NumPy."""
  size = base.dtype.itemsize
  arguments = (
    *(Storage(base), offset // size, shape),
    *(tuple(x // size for x in strides), False, ordered_dict()),
  )
  return Call(Name('torch._utils', '_rebuild_tensor_v2'), arguments)


def ordered_dict() -> Call:
  return Call(Name('collections', 'OrderedDict'), ())


def state_dict(arrays: Mapping[str, np.ndarray]) -> WithState:
  """Describes arrays as `Module.state_dict()` does, every other a parameter."""
  tensors: dict[str, Any] = {}
  for i, (name, x) in enumerate(arrays.items()):
    x = np.asarray(x, order='C')
    tensors[name] = tensor(x, x.shape, x.strides)
    if i % 2:
      arguments = (tensors[name], True, ordered_dict())
      parameter = Name('torch._utils', '_rebuild_parameter')
      tensors[name] = Call(parameter, arguments)
  return WithState(tensors, {'_metadata': ordered_dict()})


def save(
  path: pathlib.Path,
  value: Any,
  members: Mapping[str, bytes] | None = None,
  *,
  pickled: bytes | None = None,
  byteorder: str = 'little',
  compression: int = zipfile.ZIP_STORED,
) -> None:
  """Writes a file; `members` and `pickled` take the place of what it holds."""
  storages: dict[int, tuple[str, np.ndarray]] = {}
  contents = {
    'archive/data.pkl': b'\x80\x02' + _dumps(value, storages) + b'.',
    'archive/byteorder': byteorder.encode(),
    **{f'archive/data/{key}': x.tobytes() for key, x in storages.values()},
    'archive/version': b'3\n',
    **(members or {}),
  }
  if pickled is not None:
    contents['archive/data.pkl'] = pickled
  with zipfile.ZipFile(path, 'w', compression) as archive:
    for name, data in contents.items():
      archive.writestr(name, data)


def _dumps(value: Any, storages: dict[int, tuple[str, np.ndarray]]) -> bytes:
  def dumps(*values: Any) -> bytes:
    return b''.join(_dumps(x, storages) for x in values)

  match value:
    case dict():
      items = b''.join(dumps(key, x) for key, x in value.items())
      return b'}(' + items + b'u'
    case list():
      return b'](' + dumps(*value) + b'e'
    case tuple():
      return b'(' + dumps(*value) + b't'
    case Name():
      return f'c{value.module}\n{value.name}\n'.encode()
    case Call():
      return dumps(value.function, value.arguments) + b'R'
    case WithState():
      return dumps(value.value, value.state) + b'b'
    case Pickled():
      pickled = pickle.dumps(value.value, value.protocol)
      begin = 11 if value.protocol >= 4 and pickled[2:3] == b'\x95' else 2
      return pickled[begin:-1]  # without its header, frame and end
    case Storage():
      x = value.array
      key, _ = storages.setdefault(id(x), (str(len(storages)), x))
      storage = Name('torch', _STORAGES[x.dtype.name])
      return dumps(('storage', storage, key, 'cpu', x.size)) + b'Q'
    case str():
      data = value.encode()
      return b'X' + struct.pack('<I', len(data)) + data
    case float():
      return b'G' + struct.pack('>d', value)
    case _:  # pickle knows how, with a header and an end of its own
      return pickle.dumps(value, 2)[2:-1]
