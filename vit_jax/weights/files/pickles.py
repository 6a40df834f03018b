"""Tensors in a pickle of torch.save, found without running it.

A pickle is a program. Here its instructions build containers, strings, numbers
and descriptions of tensors; the few names of `_CALLS` and `_STORAGES` stand for
what this module does itself, and any other name ends the reading. Nothing that
a pickle names is looked up, called, or given attributes.
"""

from collections.abc import Callable
import dataclasses
import math
import pickletools
from typing import Any

import ml_dtypes
import numpy as np

from vit_jax.weights.files import archives

# Of the training checkpoints of timm, DeiT, MAE and others, the best first.
_NESTED = ('state_dict_ema', 'model_ema', 'state_dict', 'model')

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


class PickleError(ValueError):
  """A pickle that is damaged, or asks for more than tensors: one line."""


@dataclasses.dataclass(frozen=True)
class Storage:
  """A run of numbers in the file.

  Attributes:
    key: Its name there.
    dtype: Of its elements.
    size: Number of elements.
  """

  key: str
  dtype: np.dtype
  size: int


@dataclasses.dataclass(frozen=True)
class Tensor:
  """A view of a storage; offset and strides count elements and stay within."""

  storage: Storage
  offset: int
  shape: tuple[int, ...]
  strides: tuple[int, ...]

  @property
  def span(self) -> int:
    """Elements from its first in the storage to its last, both included."""
    if 0 in self.shape:
      return 0
    steps = zip(self.shape, self.strides, strict=True)
    return 1 + sum((length - 1) * stride for length, stride in steps)


@dataclasses.dataclass(frozen=True)
class _Name:
  """Of something in a Python module; only that."""

  name: str


def load(data: bytes) -> Any:
  """Reads a pickle of torch.save.

  Args:
    data: The pickle, of protocol 2 or newer.

  Returns:
    What it describes: dicts (with the keys that are strings and integers),
    lists, tuples, scalars, `Tensor`.

  Raises:
    PickleError: It is damaged, or names what is not in a state dict.
  """
  machine = _Machine()
  try:
    for opcode, argument, _ in pickletools.genops(data):
      machine.step(opcode.name, argument)
    return machine.stack.pop()
  except PickleError:
    raise
  except (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    TypeError,
    ValueError,
  ) as e:
    raise PickleError(f'its pickle is damaged ({type(e).__name__})') from None


def state_dict(value: Any) -> dict[str, Tensor]:
  """Returns the tensors of a model from what a checkpoint holds.

  Args:
    value: What `load` returned: a state dict, or a dict that holds one as
      'state_dict_ema', 'model_ema', 'state_dict' or 'model'.

  Returns:
    The tensors by name, without the prefix 'module.' of parallel training.

  Raises:
    PickleError: There is no tensor in it, or two have one name.
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


class _Machine:
  """The machine that a pickle is a program for, less what could do harm."""

  def __init__(self) -> None:
    self.stack: list[Any] = []
    self._below: list[list[Any]] = []  # what the marks hide
    self._memo: dict[int, Any] = {}

  def step(self, name: str, argument: Any) -> None:
    if name in _CONSTANTS:
      self.push(_CONSTANTS[name]())
    elif name in _LITERALS:
      self.push(argument)
    elif name in _ACTIONS:
      _ACTIONS[name](self, argument)
    elif name not in ('PROTO', 'FRAME', 'STOP'):
      raise PickleError(f'its pickle has the instruction {name}')

  def put(self, index: int) -> None:
    self._memo[index] = self.stack[-1]

  def memoize(self, _: None) -> None:
    self._memo[len(self._memo)] = self.stack[-1]

  def get(self, index: int) -> None:
    self.push(self._memo[index])

  def mark(self, _: None) -> None:
    self._below.append(self.stack)
    self.stack = []

  def unmark(self, _: None = None) -> list[Any]:
    items = self.stack
    self.stack = self._below.pop()
    return items

  def push(self, value: Any) -> None:
    self.stack.append(value)

  def pop(self, count: int) -> tuple[Any, ...]:
    if len(self.stack) < count:
      raise IndexError
    items = self.stack[len(self.stack) - count :]
    del self.stack[len(self.stack) - count :]
    return tuple(items)

  def extend(self, items: list[Any]) -> None:
    if not isinstance(self.stack[-1], list):
      raise TypeError
    self.stack[-1].extend(items)

  def set_items(self, items: list[Any]) -> None:
    target = self.stack[-1]
    if not isinstance(target, dict):
      raise TypeError
    for key, value in zip(items[::2], items[1::2], strict=True):
      if _is_key(key):
        target[key] = value

  def name(self, name: str) -> None:
    if name not in _CALLS and name not in _STORAGES:
      raise PickleError(
        f'its pickle asks for the Python object {archives.quoted(name)}, which'
        ' is not part of a state dict and is not run; if you trust who made'
        ' the file, save its state dict alone, with torch'
      )
    self.push(_Name(name))

  def stack_name(self, _: None) -> None:
    module, name = self.pop(2)
    self.name(f'{module}.{name}')

  def call(self, _: None) -> None:
    function, arguments = self.pop(2)
    if not isinstance(function, _Name) or not isinstance(arguments, tuple):
      raise TypeError
    self.push(_CALLS[function.name](*arguments))

  def set_state(self, _: None) -> None:
    target, _ = self.pop(2)
    if not isinstance(target, dict):  # state dicts carry a `_metadata`
      raise TypeError
    self.push(target)

  def persistent(self, _: None) -> None:
    ((kind, storage, key, _, size),) = self.pop(1)
    if kind != 'storage' or not isinstance(key, str) or not _is_count(size):
      raise TypeError
    self.push(Storage(key, _STORAGES[storage.name], size))


def _is_count(x: Any) -> bool:
  return isinstance(x, int) and 0 <= x < 2**48


def _is_key(x: Any) -> bool:
  """Whether it is hashed at once, which a nested tuple need not be."""
  if isinstance(x, int):
    return x.bit_length() < 64
  return isinstance(x, str) and len(x) < 1000


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


# None of these copies: a pickle can ask for it many times.
_CALLS: dict[str, Callable[..., Any]] = {
  'collections.OrderedDict': lambda: {},
  'torch._utils._rebuild_tensor_v2': _tensor,
  'torch._utils._rebuild_parameter': _first,
  'torch.Size': _first,
  '__builtin__.set': _first,
  'builtins.set': _first,
}

_CONSTANTS: dict[str, Callable[[], Any]] = {
  'NONE': lambda: None,
  'NEWTRUE': lambda: True,
  'NEWFALSE': lambda: False,
  'EMPTY_TUPLE': tuple,
  'EMPTY_LIST': list,
  'EMPTY_DICT': dict,
  'EMPTY_SET': list,
}

_LITERALS = frozenset(
  (
    *('BININT', 'BININT1', 'BININT2', 'LONG1', 'LONG4', 'BINFLOAT'),
    *('BINUNICODE', 'SHORT_BINUNICODE', 'BINUNICODE8'),
    *('BINSTRING', 'SHORT_BINSTRING'),
    *('BINBYTES', 'SHORT_BINBYTES', 'BINBYTES8'),
  )
)

_ACTIONS: dict[str, Callable[[_Machine, Any], Any]] = {
  'BINPUT': _Machine.put,
  'LONG_BINPUT': _Machine.put,
  'MEMOIZE': _Machine.memoize,
  'BINGET': _Machine.get,
  'LONG_BINGET': _Machine.get,
  'MARK': _Machine.mark,
  'POP': lambda self, _: self.pop(1),
  'POP_MARK': _Machine.unmark,
  'TUPLE': lambda self, _: self.push(tuple(self.unmark())),
  'TUPLE1': lambda self, _: self.push(self.pop(1)),
  'TUPLE2': lambda self, _: self.push(self.pop(2)),
  'TUPLE3': lambda self, _: self.push(self.pop(3)),
  'APPEND': lambda self, _: self.extend(list(self.pop(1))),
  'APPENDS': lambda self, _: self.extend(self.unmark()),
  'ADDITEMS': lambda self, _: self.extend(self.unmark()),
  'SETITEM': lambda self, _: self.set_items(list(self.pop(2))),
  'SETITEMS': lambda self, _: self.set_items(self.unmark()),
  'GLOBAL': lambda self, argument: self.name(argument.replace(' ', '.', 1)),
  'STACK_GLOBAL': _Machine.stack_name,
  'REDUCE': _Machine.call,
  'BUILD': _Machine.set_state,
  'BINPERSID': _Machine.persistent,
}
