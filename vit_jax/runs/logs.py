"""The messages of a run: on stderr, and in its log file."""

from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import logging as python_logging
import os
import pathlib
import sys

from absl import logging

from vit_jax import config as config_lib
from vit_jax.config import UserError
from vit_jax.runs import safe_io

# Logs only to the file: a terminal shows these messages in another form.
FILE_ONLY = python_logging.getLogger('vit_jax.file_only')
FILE_ONLY.setLevel(python_logging.INFO)
FILE_ONLY.propagate = False


def can_draw() -> bool:
  """Whether stderr is a terminal that can redraw lines."""
  return sys.stderr.isatty() and os.environ.get('TERM') != 'dumb'


@contextlib.contextmanager
def on_stderr() -> Iterator[None]:
  """Shows log messages on stderr, unless a command or the caller does so.

  Commands and callers set absl's verbosity: to INFO, or to ERROR in all
  processes but the first. In a notebook it usually has its default.
  """
  logger = logging.get_absl_logger()
  is_set = logging.get_verbosity() != logging.WARNING  # absl's default
  if is_set or logger.isEnabledFor(python_logging.INFO):
    yield
    return
  root = python_logging.getLogger()
  verbosity, level = logging.get_verbosity(), logger.level
  handlers = list(root.handlers)
  if all(map(_is_absls, handlers)):  # else the caller's handlers show messages
    handler = python_logging.StreamHandler()
    handler.setFormatter(python_logging.Formatter('%(message)s'))
    root.handlers[:] = [handler]
  logging.set_verbosity(logging.INFO)
  try:
    yield
  finally:
    root.handlers[:] = handlers
    logging.set_verbosity(verbosity)
    logger.setLevel(level)  # set_verbosity changes it, too


def _is_absls(handler: python_logging.Handler) -> bool:
  """Whether a handler of the root logger may be absl's, not the caller's.

  absl calls `logging.basicConfig()` at the first message, such as one of Orbax
  when it is imported. Lines of that handler begin with 'INFO:absl:'.
  """
  if type(handler) is not python_logging.StreamHandler:
    return False
  record = python_logging.makeLogRecord({'msg': 'text'})
  basic = python_logging.Formatter(python_logging.BASIC_FORMAT)
  untouched = python_logging.getLogger().level == python_logging.WARNING
  return untouched and handler.format(record) == basic.format(record)


def show_facts(title: str, facts: Sequence[tuple[str, str]]) -> None:
  """Shows named facts: in a frame on a terminal, else as lines of the log.

  The log file has the lines in both cases.
  """
  lines = '\n'.join(f'{name}: {value}' for name, value in facts)
  shows = logging.get_absl_logger().isEnabledFor(python_logging.INFO)
  if shows and can_draw():
    FILE_ONLY.info('%s', lines)
    config_lib.wing('vit_jax.runs.terminal:panel')(title, facts)
  else:
    logging.info('%s', lines)


def show_details(text: str, verbose: bool) -> None:
  """Writes a text to the log file, and where `verbose` also to stderr."""
  (logging if verbose else FILE_ONLY).info('%s', text)


@contextlib.contextmanager
def log_to(path: pathlib.Path) -> Iterator[None]:
  """Appends log messages to a file as well, and the error that ends the run."""
  with safe_io.writing(path):
    handler = _LogFile(path, encoding='utf-8', errors='backslashreplace')
  handler.setFormatter(logging.PythonFormatter())
  loggers = (python_logging.getLogger(), FILE_ONLY)
  for logger in loggers:
    logger.addHandler(handler)
  try:
    yield
  except UserError as e:
    FILE_ONLY.error('error: %s', e)
    raise
  finally:
    for logger in loggers:
      logger.removeHandler(handler)
    handler.close()


class _LogFile(python_logging.FileHandler):
  """A log file that ignores write errors.

  If the disk is full, metrics and checkpoints report that in one line; logging
  would print a traceback for every message.
  """

  def handleError(self, record: python_logging.LogRecord) -> None:
    del record

  def close(self) -> None:
    with contextlib.suppress(OSError):
      super().close()
