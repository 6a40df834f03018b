"""Reads the tensors in a pickle of torch.save without running its code.

A pickle is a program that can call any Python object by name. Here `find_class`
resolves only the names in `_CALLS` and `_STORAGES`, to functions of this
module, and refuses all others. Some instructions do harm without a name, such
as a memo index that allocates gigabytes or a dict key that takes forever to
hash, so `pickletools.genops` lists the instructions for a check first. torch's
own reader (`weights_only=True`) needs torch, and does not check that a tensor
stays within its storage.
"""

from collections.abc import Callable
import dataclasses
import io
import math
import pickle
import pickletools
from typing import Any

import ml_dtypes
import numpy as np

from vit_jax.weights.files import archives

# Keys of the model in training checkpoints of timm, DeiT, MAE, DINO and others,
# the preferred first.
_NESTED = (
  'state_dict_ema',
  'model_ema',
  'state_dict',
  'model',
  'teacher',
  'student',
)

_STORAGES = {
  'torch.DoubleStorage': np.dtype(np.float64),
  'torch.FloatStorage': np.dtype(np.float32),
  'torch.HalfStorage': np.dtype(np.float16),
  'torch.BFloat16Storage': np.dtype(ml_dtypes.bfloat16),
  'torch.LongStorage': np.dtype(np.int64),
  'torch.IntStorage': np.dtype(np.int32),
  'torch.ShortStorage': np.dtype(np.int16),
  'torch.CharStorage': np.dtype(np.int8),
  'torch.ByteStorage': np.dtype(np.uint8),
  'torch.BoolStorage': np.dtype(np.bool_),
  'torch.ComplexFloatStorage': np.dtype(np.complex64),
  'torch.ComplexDoubleStorage': np.dtype(np.complex128),
}

# The instructions that torch.save writes; all others are refused.
_INSTRUCTIONS = frozenset(
  'PROTO FRAME STOP NONE NEWTRUE NEWFALSE MARK POP POP_MARK'
  ' BININT BININT1 BININT2 LONG1 LONG4 BINFLOAT'
  ' BINUNICODE SHORT_BINUNICODE BINUNICODE8 BINSTRING SHORT_BINSTRING'
  ' BINBYTES SHORT_BINBYTES BINBYTES8'
  ' BINPUT LONG_BINPUT MEMOIZE BINGET LONG_BINGET'
  ' EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_LIST APPEND APPENDS'
  ' EMPTY_DICT SETITEM SETITEMS EMPTY_SET ADDITEMS'
  ' GLOBAL STACK_GLOBAL REDUCE BUILD BINPERSID'.split()
)

# Replacements of instructions: dicts that check their keys; lists instead of
# sets, which would hash any element; no frames, since their lengths change.
_REPLACED = {
  'EMPTY_DICT': b'ccollections\nOrderedDict\n)R',
  'EMPTY_SET': b']',
  'ADDITEMS': b'e',
  'FRAME': b'',
}
_FRAME_BYTES = 9  # the instruction and its length


class PickleError(ValueError):
  """A pickle is damaged, or asks for more than tensors; text of one line."""


class _Fixed:
  """A value that the instruction BUILD cannot change after its checks."""

  def __setstate__(self, state: object) -> None:
    raise TypeError


@dataclasses.dataclass(frozen=True)
class Storage(_Fixed):
  """A sequence of numbers in the file.

  Attributes:
    key: Its name in the file.
    dtype: Type of its elements.
    size: Number of elements.
  """

  key: str
  dtype: np.dtype
  size: int


@dataclasses.dataclass(frozen=True)
class Tensor(_Fixed):
  """A view of a storage; offset and strides count elements and stay within."""

  storage: Storage
  offset: int
  shape: tuple[int, ...]
  strides: tuple[int, ...]

  @property
  def span(self) -> int:
    """Number of storage elements from the tensor's first to its last."""
    if 0 in self.shape:
      return 0
    steps = zip(self.shape, self.strides, strict=True)
    return 1 + sum((length - 1) * stride for length, stride in steps)


def load(data: bytes) -> Any:
  """Reads a pickle of torch.save.

  Args:
    data: The pickle, of protocol 2 or newer.

  Returns:
    The described value, made of dicts (of which only string and integer keys
    are kept), lists, tuples, scalars and `Tensor`.

  Raises:
    PickleError: It is damaged, or names an object that no state dict has.
  """
  try:
    return _Unpickler(io.BytesIO(_checked(data)), encoding='latin1').load()
  except PickleError:
    raise
  except (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    TypeError,
    ValueError,
    pickle.UnpicklingError,
  ) as e:
    raise PickleError(f'its pickle is damaged ({type(e).__name__})') from None


def state_dict(value: Any) -> dict[str, Tensor]:
  """Returns the tensors of a model from the content of a checkpoint.

  Args:
    value: Result of `load`: a state dict, or a dict that holds one as
      'state_dict_ema', 'model_ema', 'state_dict', 'model', 'teacher' or
      'student'.

  Returns:
    The tensors by name, without the prefix 'module.' of parallel training.

  Raises:
    PickleError: It has no tensor, or two with the same name.
  """
  if not isinstance(value, dict):
    raise PickleError('it holds no dict of tensors, but something else')
  for key in _NESTED:
    nested = value.get(key)
    if isinstance(nested, dict) and _tensors(nested):
      value = nested
      break
  tensors = _tensors(value)
  if not tensors:
    keys = ', '.join(archives.quoted(str(key)) for key in list(value)[:5])
    raise PickleError(f'it holds no tensors under the names it has ({keys})')
  result: dict[str, Tensor] = {}
  for name, tensor in tensors.items():
    name = name.removeprefix('module.')
    if name in result:
      raise PickleError(f'it holds {archives.quoted(name)} twice')
    result[name] = tensor
  return result


def _tensors(value: dict[Any, Any]) -> dict[str, Tensor]:
  return {
    name: x
    for name, x in value.items()
    if isinstance(name, str) and isinstance(x, Tensor)
  }


def _checked(data: bytes) -> bytes:
  """Returns a pickle of harmless instructions that builds the same value."""
  result = bytearray()
  begin = 0
  for i, (opcode, argument, at) in enumerate(pickletools.genops(data)):
    result += data[begin:at]  # the instruction before, unless replaced
    begin = at or 0
    if opcode.name not in _INSTRUCTIONS:
      raise PickleError(f'its pickle has the instruction {opcode.name}')
    # The memo is an array: an index allocates all entries below it.
    if opcode.name == 'LONG_BINPUT' and (argument or 0) > i:
      raise IndexError
    if opcode.name in _REPLACED:
      result += _REPLACED[opcode.name]
      begin += _FRAME_BYTES if opcode.name == 'FRAME' else 1
  return bytes(result + data[begin : begin + 1])  # STOP


class _Unpickler(pickle.Unpickler):
  """Builds only containers, scalars and descriptions of tensors."""

  def find_class(self, module: str, name: str) -> '_Name':
    full = f'{module}.{name}'
    if full not in _NAMES:
      raise PickleError(
        f'its pickle asks for the Python object {archives.quoted(full)}, which'
        ' is not part of a state dict and is not run; if you trust who made'
        ' the file, save its state dict alone, with torch'
      )
    return _NAMES[full]

  def persistent_load(self, pid: Any) -> Storage:
    kind, storage, key, _, size = pid
    if kind != 'storage' or not isinstance(key, str) or not _is_count(size):
      raise TypeError
    return Storage(key, _STORAGES[storage.name], size)


class _Dict(dict[Any, Any]):
  """A dict that drops keys other than short strings and integers.

  A pickle can nest tuples so deeply that hashing one takes forever.
  """

  def __init__(self) -> None:
    """Makes an empty dict; items passed here would not be checked."""

  def __setitem__(self, key: Any, value: Any) -> None:
    is_int = isinstance(key, int) and key.bit_length() < 64
    if is_int or (isinstance(key, str) and len(key) < 1000):
      super().__setitem__(key, value)

  def __setstate__(self, state: object) -> None:
    """Ignores the `_metadata` of state dicts."""


@dataclasses.dataclass(frozen=True)
class _Name(_Fixed):
  """Stands for an object of a Python module that a pickle names."""

  name: str

  def __call__(self, *arguments: Any) -> Any:
    return _CALLS[self.name](*arguments)


def _is_count(x: Any) -> bool:
  return isinstance(x, int) and 0 <= x < 2**48


def _tensor(
  storage: Any, offset: Any, shape: Any, strides: Any, *_: Any
) -> Tensor:
  if not isinstance(storage, Storage) or not _is_count(offset):
    raise TypeError
  if not archives.is_shape(shape, storage.dtype.itemsize):
    raise TypeError
  if len(strides) != len(shape) or not all(map(_is_count, strides)):
    raise TypeError
  tensor = Tensor(storage, offset, shape, strides)
  if math.prod(shape) and offset + tensor.span > storage.size:
    raise IndexError
  return tensor


def _first(x: Any, *_: Any) -> Any:
  return x


# These must not copy their arguments, since a pickle can call them many times.
_CALLS: dict[str, Callable[..., Any]] = {
  'collections.OrderedDict': _Dict,
  'torch._utils._rebuild_tensor_v2': _tensor,
  'torch._utils._rebuild_parameter': _first,
  'torch.Size': _first,
  '__builtin__.set': _first,
  'builtins.set': _first,
}
_NAMES = {name: _Name(name) for name in (*_CALLS, *_STORAGES)}
