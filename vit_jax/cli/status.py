"""Runs a command: one-line errors and exit statuses."""

import codecs
from collections.abc import Callable
import io
import logging as python_logging
import os
import pathlib
import signal
import sys
import sysconfig
import traceback

from absl import flags
from absl import logging

from vit_jax import config as config_lib
from vit_jax.cli import help as help_lib
from vit_jax.cli.definitions import parse_flags
from vit_jax.downloads import places
from vit_jax.parallel import accelerators
from vit_jax.parallel import allocator
from vit_jax.parallel import memory
from vit_jax.parallel import processes

_HELPS = {'--help', '-h', '-help', '--helpfull'}
_ESCAPED = 'vit_jax.escaped'  # name of `_escaped`


def run(
  main: Callable[[list[str]], int | None],
  doc: str,
  flag_values: flags.FlagValues = flags.FLAGS,
  usage: str = '',
  computes: bool = True,
) -> None:
  """Parses the flags, calls `main` with the other arguments, and exits.

  The exit status is that of `main` (0 for None). After a user's mistake or a
  failure of the environment it is 1, with a line `error: ...` on stderr. Other
  exceptions are bugs and show their traceback.

  jax is not imported here: a command imports it in `main`, after the flags.

  Args:
    main: The command.
    doc: Its documentation, for `--help`.
    flag_values: Its flags, if they are separate from other commands'.
    usage: Its usage, as in `help.text`.
    computes: Whether it runs models, for which the process starts once more
      with another allocator (`allocator.start_again`).
  """
  _use_utf_8()
  argv = sys.argv
  if _HELPS & set(argv[1:]):
    text = help_lib.text(doc, flag_values, usage, '--helpfull' in argv)
    argv, main, computes = argv[:1], lambda _: print(text), False
  # Our own messages are plain lines; of other packages there are warnings.
  logging.use_absl_handler()
  logging.set_verbosity(logging.INFO)
  logging.set_stderrthreshold(logging.INFO)
  handler = logging.get_absl_handler()
  handler.setFormatter(python_logging.Formatter('%(message)s'))
  python_logging.getLogger('jax').setLevel(python_logging.WARNING)
  processes.exit_process(_status(main, argv, flag_values, computes))


def _use_utf_8() -> None:
  """Makes names the same in all locales, and lets any name be printed.

  Where Python reads the names of files in another encoding, as of LC_ALL=en_US,
  it starts anew: names would differ from those that other files have, and with
  them the order of the data.
  """
  if sys.getfilesystemencoding() != 'utf-8':
    os.environ['PYTHONUTF8'] = '1'  # also of processes that this one starts
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, '-X', 'utf8', *sys.orig_argv[1:]])
  codecs.register_error(_ESCAPED, _escaped)
  if isinstance(sys.stdout, io.TextIOWrapper):
    sys.stdout.reconfigure(errors=_ESCAPED)


def _escaped(error: UnicodeError) -> tuple[str | bytes, int]:
  """Encodes what an output cannot: bytes of names as they are, else escaped."""
  try:
    return codecs.lookup_error('surrogateescape')(error)
  except UnicodeError:
    return codecs.lookup_error('backslashreplace')(error)


def _status(
  main: Callable[[list[str]], int | None],
  argv: list[str],
  flag_values: flags.FlagValues,
  computes: bool,
) -> int:
  """Runs a command, reports its errors, and returns the exit status."""
  try:
    if computes:
      allocator.start_again()  # before a config, which is code, is read
      accelerators.use_cpu_without_tpu()
    with memory.explained(memory.ANYTHING), accelerators.explained():
      arguments = parse_flags(argv, flag_values)
      if 'compile_cache' in flag_values:
        _keep_compiled(flag_values['compile_cache'].value)
      status = main(arguments) or 0
    sys.stdout.flush()
    return status
  except BrokenPipeError:  # the reader, such as `head`, has ended
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 128 + signal.SIGPIPE
  except (config_lib.UserError, OSError) as e:
    error = help_lib.as_started(config_lib.one_line(e))
    print(f'error: {error}', file=sys.stderr)
    return 1
  except KeyboardInterrupt:  # before there is anything to save
    return 128 + signal.SIGINT
  except Exception as e:  # a bug, here or in a class of the user's
    traceback.print_exc()
    print(_last_line_of_users(e), end='', file=sys.stderr)
    return 1


def _last_line_of_users(error: Exception) -> str:
  """Returns where an error left code of the user's; '' if there is none.

  In a long traceback, such as JAX gives, that line is hard to find.
  """
  places = sysconfig.get_paths()
  library_folders = [
    places[x] for x in ('stdlib', 'platstdlib', 'purelib', 'platlib')
  ]
  library_folders.append(str(pathlib.Path(__file__).parents[1]))
  not_own = ('<', *(f'{x}{os.sep}' for x in library_folders))
  # Also below ~/.local, and where Debian puts its packages.
  installed = {'site-packages', 'dist-packages'}
  user_frames = [
    at
    for at in traceback.extract_tb(error.__traceback__)
    if not at.filename.startswith(not_own)
    and not installed & {*pathlib.Path(at.filename).parts}
  ]
  if not user_frames:
    return ''
  at = user_frames[-1]
  return f'in your file {at.filename}, line {at.lineno}: {at.line}\n'


def _keep_compiled(folder_flag: str | None) -> None:
  """Sets up JAX's compilation cache; call this before jax is imported.

  Without `--compile_cache`, the folder is the default, or there is no cache if
  it cannot be written.
  """
  if folder_flag == '':
    os.environ['JAX_ENABLE_COMPILATION_CACHE'] = 'false'
    return
  # Cache quick compilations, too: many of them together take long.
  os.environ.setdefault('JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS', '0')
  if folder_flag is not None:
    if '://' not in folder_flag:  # else a bucket, which JAX accesses itself
      folder = pathlib.Path(os.path.expanduser(folder_flag)).absolute()
      folder.mkdir(parents=True, exist_ok=True)
      folder_flag = str(folder)
    os.environ['JAX_COMPILATION_CACHE_DIR'] = folder_flag
  elif 'JAX_COMPILATION_CACHE_DIR' not in os.environ:
    try:
      folder = places.cache() / 'xla'
      folder.mkdir(parents=True, exist_ok=True)
    except (OSError, config_lib.UserError):
      return  # it is not writable, or the home directory is not known
    if os.access(folder, os.W_OK | os.X_OK):
      os.environ['JAX_COMPILATION_CACHE_DIR'] = str(folder)
