"""Reads the tensors in a pickle of torch.save without running its code.

A pickle is a program that can call any Python object by name. Here `find_class`
resolves only the names in `_CALLS` and `_STORAGES`, to functions of this
module. All others, such as the `argparse.Namespace` that training scripts save
beside the weights, become an `Unknown`, and what they make a `Placeholder` that
keeps their name: nothing is imported or called. Some instructions do harm
without a name, such as a memo index that allocates gigabytes or a dict key that
takes forever to hash, so `pickletools.genops` lists the instructions for a
check first. torch's own reader (`weights_only=True`) needs torch, and does not
check that a tensor stays within its storage.
"""

from collections.abc import Callable
from collections.abc import Iterator
import dataclasses
import io
import math
import pickle
import pickletools
import re
from typing import Any

import ml_dtypes
import numpy as np

from vit_jax.weights.files import archives

# Keys of the model in training checkpoints of timm, DeiT, MAE, DINO, I-JEPA,
# Lightning, DeepSpeed and others, the preferred first: averaged weights are.
_NESTED = (
  'state_dict_ema',
  'ema_state_dict',
  'model_ema',
  'model_ema_state_dict',
  'ema_model',
  'ema',
  'state_dict',
  'model_state_dict',
  'model_state',
  'model',
  'net',
  'network',
  'module',
  'weights',
  'params',
  'teacher',
  'target_encoder',
  'student',
  'encoder',
  'backbone',
)
_MOST_ARGUMENTS = 20_000_000  # several for each byte of the longest pickle
_MOST_DEPTH = 4  # dicts within each other that are searched for a state dict
# Ends of the names of arrays without a module, such as 'pos_embed'.
_ARRAY = re.compile(
  r'.*(\.|(_token|_tokens|_embed|_embedding|proj|projection|scale|bias|weight)$)'
)
# State of a layer that is no array, as nn.Module.get_extra_state has it.
_EXTRA_STATE = '_extra_state'

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
  ' GLOBAL STACK_GLOBAL REDUCE BUILD BINPERSID'
  ' NEWOBJ NEWOBJ_EX FROZENSET BYTEARRAY8'.split()
)

# Replacements of instructions: dicts that check their keys; lists and tuples
# instead of sets, which would hash any element; calls instead of `__new__`,
# since what stands for a class is none; no frames, since their lengths change.
_REPLACED = {
  'EMPTY_DICT': b'ccollections\nOrderedDict\n)R',
  'EMPTY_SET': b']',
  'ADDITEMS': b'e',
  'FROZENSET': b't',
  'NEWOBJ': b'R',
  'NEWOBJ_EX': b'0R',  # without the arguments by name
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
    are kept), lists, tuples, scalars, `Tensor`, `Unknown` and `Placeholder`.

  Raises:
    PickleError: It is damaged.
  """
  try:
    return _Unpickler(io.BytesIO(_checked(data))).load()
  except PickleError:
    raise
  except (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    TypeError,
    RecursionError,
    ValueError,
    pickle.UnpicklingError,
  ) as e:
    raise PickleError(f'its pickle is damaged ({type(e).__name__})') from None


@dataclasses.dataclass(frozen=True)
class State:
  """A state dict in a checkpoint.

  Attributes:
    name: Its keys, joined by '.'; '': it is the whole file.
    tensors: Its tensors by name.
    others: Names of the other state dicts in the file.
  """

  name: str
  tensors: dict[str, Tensor]
  others: tuple[str, ...] = ()


def state_dict(value: Any, name: str | None = None) -> State:
  """Returns the state dict of a model in the content of a checkpoint.

  Args:
    value: Result of `load`: a state dict, or a dict in which it is nested.
    name: Which one, by `State.name` or its last key. None, or if there is none
      of that name: the first by `_NESTED` of those that have at least half as
      many tensors as the largest.

  Raises:
    PickleError: There is none, or one of its arrays would be made by a Python
      object that is not run.
  """
  nested = dict(_nested(value, (), set()))
  if not nested:
    raise _no_tensors(value)
  counts = {keys: len(_tensors(x)) for keys, x in nested.items()}
  enough = max(counts.values()) / 2
  ranked = sorted(
    (keys for keys in nested if counts[keys] >= enough), key=_rank
  )
  names = {'.'.join(keys): keys for keys in ranked}
  chosen = ranked[0]
  if name is not None:
    fits = [keys for text, keys in names.items() if name in (text, *keys[-1:])]
    chosen = (*fits, chosen)[0]
  if not any(key in _NESTED for key in chosen):
    for key in filter(value.__contains__, _NESTED):
      if isinstance(value[key], _NOT_RUN):  # and not the little beside it
        raise PickleError(f'its {key!r} is {_not_run(value[key])}')
  tensors = nested[chosen]
  for key, x in tensors.items():
    if isinstance(x, _NOT_RUN) and _is_array(key, chosen):
      raise PickleError(f'{archives.array_named(str(key))} is {_not_run(x)}')
  others = [text for text, keys in names.items() if keys != chosen and text]
  return State('.'.join(chosen), _tensors(tensors), tuple(others))


def _no_tensors(value: Any) -> PickleError:
  if isinstance(value, _NOT_RUN):
    return PickleError(f'it holds {_not_run(value)}')
  if not isinstance(value, dict):
    return PickleError('it holds no dict of tensors, but something else')
  keys = ', '.join(archives.quoted(str(key)) for key in list(value)[:5])
  objects = [x for x in value.values() if isinstance(x, _NOT_RUN)]
  reason = f'; there is {_not_run(objects[0])}' if objects else ''
  return PickleError(
    f'it holds no tensors under the names it has ({keys}){reason}'
  )


def _nested(
  value: Any, keys: tuple[str, ...], visited: set[int]
) -> Iterator[tuple[tuple[str, ...], dict[Any, Any]]]:
  """Yields the dicts with tensors, by their keys; no states of optimizers.

  A dict that stands in several places is visited once, since a pickle can make
  a few dicts into a tree of billions.
  """
  is_dict = isinstance(value, dict) and 'param_groups' not in value
  if not is_dict or id(value) in visited:
    return
  visited.add(id(value))
  if _tensors(value):
    yield keys, value
  if len(keys) < _MOST_DEPTH:
    for key, x in value.items():
      if isinstance(key, str):
        yield from _nested(x, (*keys, key), visited)


def _rank(keys: tuple[str, ...]) -> tuple[int, ...]:
  """Returns the place of a state dict: known keys before the whole file."""
  places = [_NESTED.index(x) if x in _NESTED else len(_NESTED) for x in keys]
  return tuple(places) or (len(_NESTED) + 1,)


def _is_array(key: Any, keys: tuple[str, ...]) -> bool:
  """Whether what stands in a state dict under a key should be an array.

  A file that is a state dict itself may hold other things without being nested.
  """
  if not isinstance(key, str) or key.endswith(_EXTRA_STATE):
    return False
  return bool(keys) or bool(_ARRAY.match(key))


def _not_run(value: 'Placeholder | Unknown') -> str:
  return (
    f'the Python object {archives.quoted(value.name)}, which is no tensor, and'
    ' is not run; if you trust who made the file, save its state dict alone,'
    ' with torch'
  )


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

  def __init__(self, file: io.BytesIO) -> None:
    super().__init__(file, encoding='latin1')
    self._budget = _Budget()

  def find_class(self, module: str, name: str) -> '_Name | Unknown':
    full = f'{module}.{name}'
    is_known = full in _CALLS or full in _STORAGES
    return (_Name if is_known else Unknown)(full, self._budget)

  def persistent_load(self, pid: Any) -> 'Storage | Placeholder':
    kind, storage, key, _, size = pid
    if kind != 'storage' or not isinstance(key, str) or not _is_count(size):
      raise TypeError
    if storage.name not in _STORAGES:
      return Placeholder(storage.name, self._budget)
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


class _Budget:
  """Limits the arguments of all calls, which Python copies at each."""

  def __init__(self) -> None:
    self._left = _MOST_ARGUMENTS

  def spend(self, arguments: int) -> None:
    self._left -= arguments
    if self._left < 0:
      raise PickleError('its pickle passes more arguments than it can have')


class Placeholder(_Dict):
  """Stands for what a Python object that is not run would have made.

  It is a dict, since subclasses of dict are pickled as such, with their items.

  Attributes:
    name: Name of the object, with its module.
  """

  __slots__ = ('budget', 'name')

  def __init__(self, name: str, budget: '_Budget') -> None:
    """Makes one without items."""
    super().__init__()
    self.name, self.budget = name, budget

  def __call__(self, *arguments: Any) -> 'Placeholder':
    """Returns what stands for the result, as of a functools.partial."""
    self.budget.spend(len(arguments))
    return self

  def append(self, item: object) -> None:
    """Ignores what subclasses of list are filled with."""

  extend = append


@dataclasses.dataclass(frozen=True)
class Unknown(_Fixed):
  """Stands for a Python object that a pickle names, and that is not run.

  Attributes:
    name: Its name, with its module.
  """

  name: str
  budget: '_Budget'

  def __call__(self, *arguments: Any) -> Placeholder:
    """Returns what stands for the result."""
    self.budget.spend(len(arguments))
    if self.name in _MAKERS and arguments and isinstance(arguments[0], Unknown):
      return Placeholder(arguments[0].name, self.budget)
    return Placeholder(self.name, self.budget)


@dataclasses.dataclass(frozen=True)
class _Name(_Fixed):
  """Stands for an object of a Python module that is known here."""

  name: str
  budget: '_Budget'

  def __call__(self, *arguments: Any) -> Any:
    self.budget.spend(len(arguments))
    return _CALLS[self.name](*arguments)


_NOT_RUN = (Placeholder, Unknown)


def _is_count(x: Any) -> bool:
  return isinstance(x, int) and 0 <= x < 2**48


def _tensor(
  storage: Any, offset: Any, shape: Any, strides: Any, *_: Any
) -> Tensor | Placeholder:
  if isinstance(storage, Placeholder):  # of a type that is not read
    return storage
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


def _of_type(function: Any, kind: Any, arguments: Any, *_: Any) -> Any:
  """Returns a tensor with attributes; a subclass may mean something else."""
  if isinstance(kind, Unknown) and kind.name not in _TENSORS:
    return Placeholder(kind.name, kind.budget)
  return function(*arguments)


# Classes of tensors that are nothing more.
_TENSORS = (
  'torch.Tensor',
  'torch._tensor.Tensor',
  'torch.nn.parameter.Parameter',
)
# Functions that make an instance of the class that is their first argument.
_MAKERS = ('copyreg._reconstructor', 'copy_reg._reconstructor')

# These must not copy their arguments, since a pickle can call them many times.
_CALLS: dict[str, Callable[..., Any]] = {
  'collections.OrderedDict': _Dict,
  'torch._utils._rebuild_tensor': _tensor,
  'torch._utils._rebuild_tensor_v2': _tensor,
  'torch._utils._rebuild_parameter': _first,
  'torch._utils._rebuild_parameter_with_state': _first,
  'torch._tensor._rebuild_from_type_v2': _of_type,
  'torch.Size': _first,
  '__builtin__.set': _first,
  'builtins.set': _first,
}
