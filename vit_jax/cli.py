"""What all commands share: flags, one-line errors and exit statuses."""

from collections.abc import Callable
from collections.abc import Sequence
import importlib.util
import logging as python_logging
import os
import re
import signal
import sys
import traceback

from absl import flags
from absl import logging
import ml_collections
from ml_collections import config_flags

from vit_jax import config as config_lib

# `--help` shows the flags that are defined here as the command's own.
flags.disclaim_key_flags()


def run(main: Callable[[list[str]], int | None], doc: str) -> None:
  """Parses the flags, calls `main` with what is left of argv, and exits.

  The status is what main returns (0 for None), or 1 after `error: ...` on
  stderr for a user's mistake and for what the environment does not permit.
  Other exceptions are bugs, and keep their traceback.

  Args:
    main: The command.
    doc: Its documentation, for `--help`.
  """
  argv = sys.argv
  if {'--help', '-h', '-help', '--helpfull'} & set(argv[1:]):
    print(doc.strip(), flags.FLAGS.main_module_help(), sep='\n')
    sys.exit(0)
  _log_plainly()
  try:
    status = main(parse_flags(argv)) or 0
  except (config_lib.UserError, OSError) as e:
    print(f'error: {config_lib.one_line(e)}', file=sys.stderr)
    status = 1
  except KeyboardInterrupt:  # before there is anything to save
    status = 128 + signal.SIGINT
  sys.stdout.flush()
  sys.exit(status)


def _log_plainly() -> None:
  """Shows our own messages as plain lines, and other packages' warnings."""
  logging.use_absl_handler()
  logging.set_verbosity(logging.INFO)
  logging.set_stderrthreshold(logging.INFO)
  handler = logging.get_absl_handler()
  handler.setFormatter(python_logging.Formatter('%(message)s'))
  python_logging.getLogger('jax').setLevel(python_logging.WARNING)


def define_config() -> flags.FlagHolder:
  """Defines `--config=FILE.py[:ARG]` and `--config.KEY=VALUE`."""
  return config_flags.DEFINE_config_file(
    'config',
    None,
    'Config file; what follows a colon is the argument of its get_config().'
    ' --config.KEY=VALUE sets a key.',
  )


def parse_flags(argv: Sequence[str]) -> list[str]:
  """Parses absl's flags and returns what is left of argv.

  Raises:
    UserError: A flag, a config file or a key does not exist or does not parse.
  """
  _check_config(argv)
  try:
    return flags.FLAGS(argv)
  except (flags.Error, TypeError, ValueError) as e:
    raise config_lib.UserError(config_lib.one_line(e)) from None


def config_path(argv: Sequence[str]) -> str | None:
  """Returns the value of the last `--config` in argv, or None."""
  path = None
  for i, arg in enumerate(argv):
    if match := re.fullmatch(r'--?config(?:=(.*))?', arg, re.DOTALL):
      following = argv[i + 1] if i + 1 < len(argv) else ''
      path = following if match[1] is None else match[1]
  return path


def load_config(path: str) -> ml_collections.ConfigDict:
  """Returns the config of `FILE.py` or `FILE.py:ARG`.

  Raises:
    UserError: There is no such file, or it fails; names the line that did.
  """
  path, *args = path.split(':', 1)
  if not os.path.isfile(path):
    raise config_lib.UserError(
      f'--config={path}: there is no such file; the configs that come with'
      ' vit_jax are in configs/'
    )
  spec = importlib.util.spec_from_file_location('vit_jax_config_file', path)
  if spec is None or spec.loader is None:
    raise config_lib.UserError(f'--config={path}: it must be a Python file')
  module = importlib.util.module_from_spec(spec)
  try:
    spec.loader.exec_module(module)
    config = module.get_config(*args)
  except config_lib.UserError as e:
    raise config_lib.UserError(f'{path}: {e}') from None
  except Exception as e:  # whatever the user's file does
    raise config_lib.UserError(_where(path, e)) from None
  if not isinstance(config, ml_collections.ConfigDict):
    raise config_lib.UserError(f'{path}: get_config() must return a ConfigDict')
  return config


def _check_config(argv: Sequence[str]) -> None:
  """Finds the mistakes that ml_collections would answer with a traceback."""
  overrides = [
    match[1]
    for arg in argv
    if (match := re.match(r'--?(?:no)?config\.([^=]+)', arg))
  ]
  path = config_path(argv)
  if path is None and overrides:
    raise config_lib.UserError(
      f'--config.{overrides[0]} needs --config=FILE before it'
    )
  if path is not None:
    config = load_config(path)
    known = dict(config_lib.flatten(config))
    for key in overrides:
      if key not in known:
        raise config_lib.unknown_key(config, key)


def _where(path: str, error: Exception) -> str:
  """Names the line of the config file that an exception comes from."""
  lines = [
    frame.lineno
    for frame in traceback.extract_tb(error.__traceback__)
    if os.path.realpath(frame.filename) == os.path.realpath(path)
  ]
  if isinstance(error, SyntaxError):
    lines = [error.lineno]
  where = f'{path}, line {lines[-1]}' if lines else path
  if match := re.search(r'Key "(\w+)" does not exist', str(error)):
    return f'{where}: {config_lib.unknown_key(config_lib.default(), match[1])}'
  return f'{where}: {type(error).__name__}: {config_lib.one_line(error)}'
