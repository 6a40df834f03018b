"""Makes models of a user's words, which another library may have, too."""

from collections.abc import Iterator
import contextlib
from typing import Any

from vit_jax import config as config_lib
from vit_jax import models
from vit_jax.models import refusals


def create_model(
  name: str, num_classes: int = 1000, **overrides: Any
) -> models.Model:
  """Returns the Linen module of a name; see `vit_jax.models.create_model`."""
  with explained():
    return models.create_model(name, num_classes, **overrides)


@contextlib.contextmanager
def explained() -> Iterator[None]:
  """Says in one line what is wrong with keys of `config.model`."""
  try:
    yield
  except ValueError as e:
    reason = config_lib.one_line(e)
    if isinstance(e, refusals.UnknownFieldError):
      field_meant = config_lib.wing('vit_jax.config.synonyms:field_meant')
      hint = field_meant(e.name, e.field_names)
      reason = f'{e.problem}: {hint}' if hint else reason
    raise config_lib.UserError(reason) from None
