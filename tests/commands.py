"""Runs commands: in this process, or as `python -m vit_jax.COMMAND`."""

from collections.abc import Mapping
import os
import subprocess
import sys
from types import ModuleType
from typing import Any

from absl import flags
from absl.testing import flagsaver
import pytest
import tiny

from vit_jax import cli
from vit_jax.config import UserError

# Of processes that find this package, and have one device if that is a CPU.
ENV = os.environ | {
  'PYTHONPATH': str(tiny.ROOT),
  'JAX_NUM_CPU_DEVICES': '1',
}
CPU_ENV = ENV | {'JAX_PLATFORMS': 'cpu'}


def python(
  *args: Any, env: Mapping[str, str] = ENV, **kwargs: Any
) -> subprocess.CompletedProcess[str]:
  """Runs `python ARGS` to its end, as a process of its own."""
  return subprocess.run(
    [sys.executable, *map(str, args)],
    env=env,
    capture_output=True,
    text=True,
    check=False,
    **kwargs,
  )


def run(command: ModuleType, *args: Any) -> int:
  """Returns the exit status of a command; its mistakes are raised.

  Args:
    command: Its module, with FLAGS of its own or the global ones.
    *args: Of the command line.
  """
  values = getattr(command, 'FLAGS', flags.FLAGS)
  before = flagsaver.save_flag_values(values)
  argv, sys.argv = sys.argv, ['command', *map(str, args)]
  try:
    return command.main(cli.parse_flags(sys.argv, values)) or 0
  finally:
    sys.argv = argv
    flagsaver.restore_flag_values(before, values)


def mistake(command: ModuleType, *args: Any, has_config: bool = True) -> str:
  """Returns the error of a command, which is one line.

  Args:
    command: As for `run`.
    *args: Of the command line.
    has_config: Whether it may name a key of a config; False: there is none to
      change.
  """
  with pytest.raises(UserError) as e:
    run(command, *args)
  text = str(e.value)
  assert '\n' not in text and (has_config or 'config.' not in text)
  return text
