"""Optional packages, which extras install."""

import importlib
import importlib.util
from typing import Any

from vit_jax.config.errors import one_line
from vit_jax.config.errors import UserError


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
  """Returns an optional package, or a module in it; see `check_package`."""
  check_package(feature, package, extra)
  try:
    return importlib.import_module(package)
  except ImportError as e:
    raise UserError(
      f'{feature} needs {package}, which cannot be imported ({one_line(e)}):'
      f' run pip install --force-reinstall {package.split(".")[0]}'
    ) from None
