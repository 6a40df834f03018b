"""`UserError`, for mistakes that a user can correct, and what raises it."""

from collections.abc import Iterator
from collections.abc import Sequence
import contextlib


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
