"""`UserError`, for mistakes that a user can correct."""

from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import importlib
import importlib.util
from typing import Any


class UserError(ValueError):
  """A mistake in a config, a command or a file: one line, and no traceback."""


def join_first(names: Sequence[str], most: int = 5) -> str:
  """Joins the first names with commas; '...' stands for the others."""
  return ', '.join([*names[:most], *(['...'] if names[most:] else [])])


def counted(count: int, noun: str) -> str:
  """Returns a number with its noun, as '1 image' or '2 images'."""
  ending = '' if count == 1 else 'es' if noun.endswith(('s', 'ch')) else 's'
  return f'{count} {noun}{ending}'


def number(value: float | str) -> str:
  """Formats a metric for people: '0.9833', '10,000'."""
  if isinstance(value, str):
    return value
  return f'{value:,.0f}' if 1000 <= abs(value) < 1e9 else f'{value:.4g}'


def one_line(error: BaseException) -> str:
  """Returns an exception's message in one line."""
  return ' '.join(str(error).split()) or type(error).__name__


def reason(error: BaseException) -> str:
  """Returns an exception's message in one line; an OSError's without paths."""
  if isinstance(error, UserError):
    return str(error)
  return getattr(error, 'strerror', None) or one_line(error)


def check_package(feature: str, package: str, extra: str) -> None:
  """Raises a UserError if an optional package is missing.

  Args:
    feature: What needs it, as 'the report'.
    package: The name that is imported.
    extra: The extra that installs it.
  """
  spec = importlib.util.find_spec(package)
  # Any folder is found as a package without a file, as the ./wandb of W&B.
  if spec is None or spec.origin is None:
    raise UserError(
      f"{feature} needs {package}: run pip install 'vit_jax[{extra}]'"
    )


def import_package(feature: str, package: str, extra: str) -> Any:
  """Returns an optional package.

  Args:
    feature: As for `check_package`.
    package: As for `check_package`, or a module in it.
    extra: As for `check_package`.

  Raises:
    UserError: It is missing, or cannot be imported.
  """
  check_package(feature, package, extra)
  try:
    return importlib.import_module(package)
  except ImportError as e:
    raise UserError(
      f'{feature} needs {package}, which cannot be imported ({one_line(e)}):'
      f' run pip install --force-reinstall {package.split(".")[0]}'
    ) from None


@contextlib.contextmanager
def explained(subject: str, *kinds: type[Exception]) -> Iterator[None]:
  """Turns errors into a UserError whose message begins with `subject`.

  A UserError that begins with it, as one about a key below, stays as it is.

  Args:
    subject: As 'config.data.split', or the path of a file.
    *kinds: The errors; by default only a UserError.
  """
  expected = kinds or (UserError,)
  try:
    yield
  except expected as e:
    if isinstance(e, UserError) and str(e).startswith(subject):
      raise
    raise UserError(f'{subject}: {reason(e)}') from None
