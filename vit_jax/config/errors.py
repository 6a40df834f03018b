"""The one kind of error that is a user's to mend."""

from collections.abc import Sequence


class UserError(ValueError):
  """A mistake in a config, a command or a file: one line, and no traceback."""


def some(names: Sequence[str], most: int = 5) -> str:
  """Returns the first names as a list for people."""
  return ', '.join([*names[:most], *(['...'] if names[most:] else [])])


def one_line(error: BaseException) -> str:
  """Returns an exception's message with its white space folded."""
  return ' '.join(str(error).split()) or type(error).__name__
