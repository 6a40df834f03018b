"""Makes models of a user's words, which may be those of another library."""

from collections.abc import Iterator
import contextlib
from typing import Any

from vit_jax import models
from vit_jax.config import synonyms
from vit_jax.models import fields


def create_model(
  name: str, num_classes: int = 1000, **overrides: Any
) -> models.Model:
  """Returns the Linen module of a name; see `vit_jax.models.create_model`.

  Raises:
    ValueError: The name or a field is unknown, or the fields do not fit. For a
      field of timm's or Hugging Face's models it names ours.
  """
  with explained():
    return models.create_model(name, num_classes, **overrides)


@contextlib.contextmanager
def explained() -> Iterator[None]:
  """Says what was meant by an unknown field of a model.

  Raises:
    ValueError: There is no such field.
  """
  try:
    yield
  except fields.UnknownFieldError as e:
    hint = synonyms.field_meant(e.name, e.known)
    raise ValueError(f'{e.what}: {hint}' if hint else str(e)) from None
