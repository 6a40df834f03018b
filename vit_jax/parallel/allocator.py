"""mimalloc for CPUs: memory that XLA frees stays with the process.

XLA allocates its large buffers anew in each step. glibc returns them to the
kernel when they are freed, which maps and clears them again, page by page, in
the next step. mimalloc, from the wheel cmeel-mimalloc, keeps them.

Only the start of a process can replace its malloc, by LD_PRELOAD. So a command
starts itself once more (`start_again`), before it does anything; other programs
are told how to start (`hint`). With VIT_JAX_ALLOCATOR=none in the environment,
nothing of this happens.

This module does not import jax, since that would then be imported twice.
"""

import ctypes
import functools
import json
import logging as python_logging
import os
import re
import resource
import sys

from absl import logging
import psutil

from vit_jax.config import UserError
from vit_jax.parallel import accelerators
from vit_jax.parallel import memory

VARIABLE = 'VIT_JAX_ALLOCATOR'
# The environment as it was before, between the two starts of a command.
_BEFORE = '_VIT_JAX_ENVIRONMENT_BEFORE'
_LIBRARY = os.path.join('cmeel.prefix', 'lib', 'libmimalloc.so')
_PRELOAD = 'LD_PRELOAD'
# Nothing is returned to the kernel after some time, and buffers of up to 16 GiB
# are kept, too, not of 2.
_OPTIONS = {
  'MIMALLOC_PURGE_DELAY': '-1',
  'MIMALLOC_ARENA_MAX_OBJECT_SIZE': '16GiB',
}
# Options of Python, as -X or -um. The last letter of some takes a value, which
# may be the next argument.
_OPTION = re.compile(r'-(?!-|$)[^cmWX]*(?:([cmWX])(.*))?', re.DOTALL)
_COMMAND = re.compile(r'-m vit_jax(\..*)?|(.*/)?vit-jax')


class _Symbol(ctypes.Structure):
  """Where a symbol is: Dl_info of dlfcn.h."""

  _fields_ = (
    ('file', ctypes.c_char_p),
    ('base', ctypes.c_void_p),
    ('name', ctypes.c_char_p),
    ('address', ctypes.c_void_p),
  )


def start_again() -> None:
  """Starts this command once more, with mimalloc, if it computes on a CPU.

  It stays the same process, with the same arguments, streams and signals; in
  the new start, this function restores the environment. Call it before anything
  is done that must not be done twice.

  It returns at once if the library is not used (`_library`) or cannot be
  loaded, and in a process that was not started for the command alone: under a
  debugger, a profiler or pytest, in a notebook or in a script.
  """
  before = os.environ.pop(_BEFORE, None)
  if before is not None:
    for name, value in json.loads(before).items():
      os.environ.pop(name, None)
      if value is not None:
        os.environ[name] = value
    _limit_memory()
    return
  library = _library()
  if library is None or not _is_command():
    return
  preloaded = os.environ.get(_PRELOAD)
  changes = {_PRELOAD: f'{library}:{preloaded}' if preloaded else library}
  changes |= {k: x for k, x in _OPTIONS.items() if k not in os.environ}
  old = json.dumps({name: os.environ.get(name) for name in changes})
  try:
    ctypes.CDLL(library)
    os.execve(
      sys.executable, sys.orig_argv, os.environ | changes | {_BEFORE: old}
    )
  except OSError as e:  # for example, another architecture or a sandbox
    print(
      f'mimalloc cannot be loaded, so that training is slower ({VARIABLE}=none'
      f' hides this line): {e}',
      file=sys.stderr,  # absl warns of what is logged before flags are parsed
    )


def _limit_memory() -> None:
  """Makes allocations fail that are larger than the machine's memory.

  mimalloc tells the kernel not to ask whether there is memory (MAP_NORESERVE),
  as it does for glibc. Without a limit, it would kill programs in the end.
  """
  limits = resource.getrlimit(resource.RLIMIT_DATA)
  most = psutil.virtual_memory().total + psutil.swap_memory().total
  least = min([most, *(x for x in limits if x != resource.RLIM_INFINITY)])
  resource.setrlimit(resource.RLIMIT_DATA, (least, limits[1]))


def hint() -> None:
  """Logs, once, how to start a program with mimalloc if that is faster."""
  if logging.get_absl_logger().isEnabledFor(python_logging.INFO):
    _log_hint()


@functools.cache
def _log_hint() -> None:
  if library := _library():
    variables = {_PRELOAD: library, **_OPTIONS}
    logging.info(
      'models train faster on a CPU if their program starts with mimalloc: %s'
      ' python my.py (%s=none hides this line)',
      ' '.join(f'{name}={value}' for name, value in variables.items()),
      VARIABLE,
    )


def _library() -> str | None:
  """Returns the path of mimalloc's library; None if it is not to be used.

  It is not used on accelerators, beside another allocator or a tool that
  replaces malloc, and with a limited address space, of which it reserves more
  than it needs.
  """
  choice = os.environ.get(VARIABLE, '')
  if choice not in ('', 'mimalloc', 'none'):
    raise UserError(
      f'{VARIABLE}={choice} is unknown: choose mimalloc, the default, or none'
    )
  if (
    choice == 'none'
    or sys.platform != 'linux'
    or 'malloc' in os.environ.get(_PRELOAD, '')
    or memory.has_address_limit()
    or not _has_malloc_of_glibc()
    or accelerators.present()
  ):
    return None
  paths = (os.path.abspath(os.path.join(x, _LIBRARY)) for x in sys.path)
  # ld.so separates paths at spaces and colons, and replaces $ORIGIN.
  return next(
    (x for x in paths if os.path.isfile(x) and not re.search('[ :$]', x)), None
  )


def _has_malloc_of_glibc() -> bool:
  program, symbol = ctypes.CDLL(None), _Symbol()
  address = ctypes.cast(program.malloc, ctypes.c_void_p)
  program.dladdr(address, ctypes.byref(symbol))
  # An executable that is not relocatable may have an entry for malloc itself.
  file = os.path.basename(os.fsdecode(symbol.file or b''))
  return re.match(r'libc[.-]|python', file) is not None


def _is_command() -> bool:
  if sys.gettrace() or sys.getprofile():
    return False
  try:  # otherwise the loader of programs was named, or Python is embedded
    is_python = os.path.samefile(sys.executable, '/proc/self/exe')
  except OSError:
    return False
  return is_python and _COMMAND.fullmatch(program()) is not None


def program() -> str:
  """Returns what Python was started for: '-m MODULE', or a path."""
  arguments = iter(sys.orig_argv[1:])
  for argument in arguments:
    if argument == '--check-hash-based-pycs':
      next(arguments, None)
      continue
    option = _OPTION.fullmatch(argument)
    if option is None:
      return argument
    letter, value = option.groups()
    if letter and not value:
      value = next(arguments, '')
    if letter in ('c', 'm'):
      return f'-{letter} {value}'
  return ''
