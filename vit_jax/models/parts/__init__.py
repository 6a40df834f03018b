"""Further parts of a ViT: a class each, which nothing else pays for."""

import dataclasses
from typing import Any

from flax import linen as nn


def as_class(part: nn.Module, kind: Any, **values: Any) -> Any:
  """Returns a part of another class with a part's values of its fields.

  Args:
    part: A part.
    kind: The class.
    **values: Values of other fields.
  """
  shared = {
    field.name: getattr(part, field.name)
    for field in dataclasses.fields(kind)
    if field.name not in ('parent', 'name') and hasattr(part, field.name)
  }
  return kind(**shared | {'parent': None} | values)
