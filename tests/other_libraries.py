"""Libraries whose answers are the reference; without them a test is skipped.

CONTRIBUTING.md says how all of them are installed at once.
"""

import importlib
from typing import Any

import pytest

from vit_jax.benchmark.peers import torchvision_operators


def modules(*names: str) -> tuple[Any, ...]:
  """Returns modules by name, or skips the test that asks for them."""
  try:
    if {'timm', 'open_clip'} & {name.split('.')[0] for name in names}:
      torchvision_operators.import_torchvision()
    return tuple(importlib.import_module(name) for name in names)
  except ImportError as e:
    pytest.skip(f'needs {", ".join(names)}: {e}')
