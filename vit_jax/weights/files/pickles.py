"""Reads the tensors that a pickle of torch.save describes; it runs no code.

A pickle is a program for a machine with a stack, which can call any Python
object by name. `load` is such a machine without that ability. It makes dicts,
lists, tuples, scalars and `Tensor`. A name becomes a `Name`, and what a call of
it would return a `Placeholder`, but for the functions in `_CALLS`, which are of
this module. So the `argparse.Namespace` that training scripts save beside the
weights does no harm. It hashes no key but short strings and integers, and takes
no memory that the file does not have.

torch's own reader (`weights_only=True`) needs torch, refuses all other objects,
and does not check that a tensor stays within its storage.
"""

from collections.abc import Callable
from collections.abc import Iterator
import dataclasses
import math
import pickletools
import re
from typing import Any

import ml_dtypes
import numpy as np

from vit_jax.weights.files import archives

# Keys of the model in training checkpoints of timm, DeiT, MAE, DINO, I-JEPA,
# Lightning, DeepSpeed and others, the preferred first: averaged weights are.
_NESTED = (
  *('state_dict_ema', 'ema_state_dict', 'model_ema', 'model_ema_state_dict'),
  *('ema_model', 'ema', 'state_dict', 'model_state_dict', 'model_state'),
  *('model', 'net', 'network', 'module', 'weights', 'params', 'teacher'),
  *('target_encoder', 'student', 'encoder', 'backbone'),
)
_MOST_ARGUMENTS = 16  # of a function in `_CALLS`
_LONGEST_TEXT = 1000  # of a key, and of a part of a name
_MOST_DEPTH = 4  # dicts within each other that are searched for a state dict
# Ends of the names of arrays without a module, such as 'pos_embed'.
_ARRAY = re.compile(
  r'.*(\.|(_token|_tokens|_embed|_embedding|proj|projection|scale|bias|weight)$)'
)
# State of a layer that is no array, as nn.Module.get_extra_state has it.
_EXTRA_STATE = '_extra_state'

_STORAGES = {
  f'torch.{name}Storage': np.dtype(dtype)
  for name, dtype in {
    'Double': np.float64,
    'Float': np.float32,
    'Half': np.float16,
    'BFloat16': ml_dtypes.bfloat16,
    'Long': np.int64,
    'Int': np.int32,
    'Short': np.int16,
    'Char': np.int8,
    'Byte': np.uint8,
    'Bool': np.bool_,
    'ComplexFloat': np.complex64,
    'ComplexDouble': np.complex128,
  }.items()
}
# Classes of tensors that are nothing more.
_TENSORS = (
  'torch.Tensor',
  'torch._tensor.Tensor',
  'torch.nn.parameter.Parameter',
)
# Functions that make an instance of the class that is their first argument.
_MAKERS = ('copyreg._reconstructor', 'copy_reg._reconstructor')
# Instructions that push their own argument.
_SCALARS = frozenset(
  'BININT BININT1 BININT2 LONG1 LONG4 BINFLOAT BINUNICODE SHORT_BINUNICODE'
  ' BINUNICODE8 BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES BINBYTES8'
  ' BYTEARRAY8'.split()
)
_CONSTANTS = {'NONE': None, 'NEWTRUE': True, 'NEWFALSE': False}
# A set becomes a list, since it would hash its elements.
_EMPTY = {'EMPTY_DICT': dict, 'EMPTY_LIST': list, 'EMPTY_SET': list}


class PickleError(ValueError):
  """A pickle is damaged, or asks for more than tensors; text of one line."""


@dataclasses.dataclass(frozen=True)
class Storage:
  """A sequence of numbers in the file, by the name that it has there."""

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
    """Number of storage elements from the tensor's first to its last."""
    if 0 in self.shape:
      return 0
    steps = zip(self.shape, self.strides, strict=True)
    return 1 + sum((length - 1) * stride for length, stride in steps)


@dataclasses.dataclass(frozen=True)
class Name:
  """A Python object that a pickle names, with its module."""

  name: str


class Placeholder(dict[Any, Any]):
  """Stands for what a Python object that is not run would have made.

  It is a dict, since subclasses of dict are pickled as such, with their items.
  The name is that of the object, with its module.
  """

  __slots__ = ('name',)

  def __init__(self, name: str) -> None:
    super().__init__()
    self.name = name


_NOT_RUN = (Placeholder, Name)


def load(data: bytes) -> Any:
  """Returns what a pickle of protocol 2 or newer describes.

  Dicts have only those items whose keys are strings or integers.
  """
  try:
    return _run(data)
  except PickleError:
    raise
  except (
    *(ArithmeticError, AttributeError, LookupError, MemoryError),
    *(RecursionError, TypeError, ValueError),
  ) as e:
    raise PickleError(f'its pickle is damaged ({type(e).__name__})') from None


def _run(data: bytes) -> Any:
  stack: list[Any] = []
  below: list[list[Any]] = []  # the stacks under each mark
  memo: dict[int, Any] = {}

  def take(count: int) -> list[Any]:
    return [stack.pop() for _ in range(count)][::-1]

  def take_to_mark() -> list[Any]:
    nonlocal stack
    items, stack = stack, below.pop()
    return items

  argument: Any  # an instruction's own
  for opcode, argument, _ in pickletools.genops(data):
    match opcode.name:
      case 'PROTO' | 'FRAME':
        pass
      case name if name in _SCALARS:
        stack.append(argument)
      case name if name in _CONSTANTS:
        stack.append(_CONSTANTS[name])
      case name if name in _EMPTY:
        stack.append(_EMPTY[name]())
      case 'BINPUT' | 'LONG_BINPUT':
        memo[argument] = stack[-1]
      case 'MEMOIZE':
        memo[len(memo)] = stack[-1]
      case 'BINGET' | 'LONG_BINGET':
        stack.append(memo[argument])
      case 'MARK':
        below.append(stack)
        stack = []
      case 'POP' if stack:
        stack.pop()
      case 'POP' | 'POP_MARK':
        take_to_mark()
      case 'TUPLE' | 'FROZENSET':
        items = take_to_mark()
        stack.append(tuple(items))
      case 'EMPTY_TUPLE':
        stack.append(())
      case 'TUPLE1' | 'TUPLE2' | 'TUPLE3':
        stack.append(tuple(take(int(opcode.name[-1]))))
      case 'APPEND':
        items = take(1)
        _extend(stack[-1], items)
      case 'APPENDS' | 'ADDITEMS':
        items = take_to_mark()
        _extend(stack[-1], items)
      case 'SETITEM':
        items = take(2)
        _set_items(stack[-1], items)
      case 'SETITEMS':
        items = take_to_mark()
        _set_items(stack[-1], items)
      case 'GLOBAL':
        stack.append(Name(argument.replace(' ', '.', 1)))
      case 'STACK_GLOBAL':
        stack.append(_name(*take(2)))
      case 'REDUCE' | 'NEWOBJ':
        stack.append(_call(*take(2)))
      case 'NEWOBJ_EX':  # the last are arguments by name
        stack.append(_call(*take(3)[:2]))
      case 'BUILD':  # state, as the `_metadata` of state dicts
        take(1)
        if not isinstance(stack[-1], dict):
          raise TypeError
      case 'BINPERSID':
        stack.append(_storage(*stack.pop()))
      case 'STOP':
        return stack.pop()
      case name:
        raise PickleError(f'its pickle has the instruction {name}')
  raise EOFError


def _name(module: Any, name: Any) -> Name:
  """Returns a name; nested tuples would take forever to become a text."""
  for text in (module, name):
    if not isinstance(text, str) or len(text) > _LONGEST_TEXT:
      raise TypeError
  return Name(f'{module}.{name}')


def _extend(target: Any, items: list[Any]) -> None:
  """Appends to a list; what subclasses of list are filled with is left out."""
  if isinstance(target, list):
    target.extend(items)
  elif not isinstance(target, Placeholder):
    raise TypeError


def _set_items(target: Any, items: list[Any]) -> None:
  """Sets keys and values in turn, of keys that are quickly hashed."""
  if not isinstance(target, dict):
    raise TypeError
  for key, value in zip(items[::2], items[1::2], strict=True):
    is_int = isinstance(key, int) and key.bit_length() < 64
    if is_int or (isinstance(key, str) and len(key) < _LONGEST_TEXT):
      target[key] = value


def _call(function: Any, arguments: Any) -> Any:
  """Returns the result of a function in `_CALLS`, else what stands for it."""
  if isinstance(function, Placeholder):  # as of a functools.partial
    return function
  if not isinstance(function, Name) or not isinstance(arguments, tuple):
    raise TypeError
  if function.name in _CALLS:
    # A pickle can pass the same long tuple many times.
    if len(arguments) > _MOST_ARGUMENTS:
      raise TypeError
    return _CALLS[function.name](*arguments)
  if function.name in _MAKERS and isinstance(arguments[0], Name):
    return Placeholder(arguments[0].name)
  return Placeholder(function.name)


def _storage(
  kind: Any, storage: Any, key: Any, _: Any, size: Any
) -> Storage | Placeholder:
  if kind != 'storage' or not isinstance(key, str) or not _is_count(size):
    raise TypeError
  if storage.name not in _STORAGES:
    return Placeholder(storage.name)
  return Storage(key, _STORAGES[storage.name], size)


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


def _tensor_of_class(function: Any, kind: Any, arguments: Any, *_: Any) -> Any:
  """Returns a tensor with attributes; a subclass may mean something else."""
  if isinstance(kind, Name) and kind.name not in _TENSORS:
    return Placeholder(kind.name)
  return _call(function, arguments)


def _first(argument: Any, *_: Any) -> Any:
  return argument


_CALLS: dict[str, Callable[..., Any]] = {
  'collections.OrderedDict': lambda: {},  # items would not be checked
  'torch._utils._rebuild_tensor': _tensor,
  'torch._utils._rebuild_tensor_v2': _tensor,
  'torch._tensor._rebuild_from_type_v2': _tensor_of_class,
  'torch._utils._rebuild_parameter': _first,
  'torch._utils._rebuild_parameter_with_state': _first,
  'torch.Size': _first,
  '__builtin__.set': _first,
  'builtins.set': _first,
}


@dataclasses.dataclass(frozen=True)
class State:
  """A state dict in a checkpoint.

  Attributes:
    name: Its keys, joined by '.'; '': it is the whole file.
    tensors: Its tensors by name.
    other_states: Names of the other state dicts in the file.
  """

  name: str
  tensors: dict[str, Tensor]
  other_states: tuple[str, ...] = ()


def state_dict(value: Any, name: str | None = None) -> State:
  """Returns the state dict of a model in the content of a checkpoint.

  `value` is a result of `load`: a state dict, or a dict in which it is nested.
  `name` says which one, by `State.name` or its last key; None, or if there is
  none of that name: the first by `_NESTED` of those that have at least half as
  many tensors as the largest. A PickleError says that there is none, or that a
  Python object that is not run would make one of its arrays.
  """
  nested = dict(_nested(value, (), set()))
  if not nested:
    raise _no_tensors(value)

  def rank(keys: tuple[str, ...]) -> tuple[int, ...]:
    """Returns the place of a state dict: known keys before the whole file."""
    places = [_NESTED.index(x) if x in _NESTED else len(_NESTED) for x in keys]
    return tuple(places) or (len(_NESTED) + 1,)

  least = max(len(_tensors(x)) for x in nested.values()) / 2
  large = [keys for keys, x in nested.items() if len(_tensors(x)) >= least]
  ranked = sorted(large, key=rank)
  fits = [x for x in ranked if name and name in ('.'.join(x), *x[-1:])]
  chosen = (*fits, *ranked)[0]
  if not any(key in _NESTED for key in chosen):
    for key in filter(value.__contains__, _NESTED):
      if isinstance(value[key], _NOT_RUN):  # and not the little beside it
        raise PickleError(f'its {key!r} is {_not_run(value[key])}')
  for key, x in nested[chosen].items():
    # A file that is a state dict itself may hold other things without being
    # nested.
    is_array = isinstance(key, str) and not key.endswith(_EXTRA_STATE)
    if is_array and isinstance(x, _NOT_RUN) and (chosen or _ARRAY.match(key)):
      raise PickleError(f'{archives.array_named(key)} is {_not_run(x)}')
  other_states = ['.'.join(keys) for keys in ranked if keys and keys != chosen]
  return State('.'.join(chosen), _tensors(nested[chosen]), tuple(other_states))


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


def _not_run(value: Placeholder | Name) -> str:
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
