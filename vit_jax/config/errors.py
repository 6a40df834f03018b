"""`UserError`, for mistakes that a user can correct."""

from collections.abc import Sequence


class UserError(ValueError):
  """A mistake in a config, a command or a file: one line, and no traceback."""


def some(names: Sequence[str], most: int = 5) -> str:
  """Joins the first names with commas; '...' stands for the others."""
  return ', '.join([*names[:most], *(['...'] if names[most:] else [])])


def counted(count: int, noun: str) -> str:
  """Returns a number with its noun, as '1 image' or '2 images'."""
  ending = '' if count == 1 else 'es' if noun.endswith(('s', 'ch')) else 's'
  return f'{count} {noun}{ending}'


def one_line(error: BaseException) -> str:
  """Returns an exception's message in one line."""
  return ' '.join(str(error).split()) or type(error).__name__
