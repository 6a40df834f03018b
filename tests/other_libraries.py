"""Libraries whose answers are the reference; without them a test is skipped.

CONTRIBUTING.md says how all of them are installed at once.
"""

from typing import Any

import pytest

from benchmarks.peers import torchvision_operators


def imported(name: str, reason: str = '') -> Any:
  """Returns a module by its name, or skips the test that asks for it."""
  reason = reason or f'needs {name}'
  pytest.importorskip('torch', reason=reason)
  torchvision_operators.define_missing()
  return pytest.importorskip(name, reason=reason)
