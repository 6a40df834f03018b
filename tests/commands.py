"""Runs commands in this process, as `python -m vit_jax.COMMAND` would."""

from types import ModuleType
from typing import Any

from vit_jax import cli


def run(command: ModuleType, *args: Any) -> int:
  """Returns the exit status of a command; its mistakes are raised.

  Args:
    command: Its module, with FLAGS of its own.
    *args: Of the command line.
  """
  for name in list(command.FLAGS):  # what an earlier call has set
    if name.startswith('config.'):  # keys, which each config defines anew
      delattr(command.FLAGS, name)
    else:
      command.FLAGS[name].unparse()
  argv = cli.parse_flags(['command', *map(str, args)], command.FLAGS)
  return command.main(argv) or 0
