"""The schema of metadata of adapters, for pydantic, which is slow to import."""

import reprlib
from typing import Annotated
from typing import Any

import pydantic
from pydantic import Field

from vit_jax import config as config_lib
from vit_jax import models
from vit_jax.data import stored_preprocess
from vit_jax.weights import resize as resize_lib

_KEYS = {*models.KEYS} - {*models.EXECUTION}
_Value = bool | int | float | str | list[Any]
_Side = Annotated[int, Field(gt=0, le=config_lib.MOST_PIXELS)]
_Sums = Annotated[list[pydantic.FiniteFloat], Field(min_length=2, max_length=2)]


class _Stored(pydantic.BaseModel, extra='forbid', strict=True):
  """Fields as `adapters.save` writes them.

  Attributes:
    base: A path that `weights.load` reads.
    model: Values of `config.model`, parts as texts.
    image_size: (height, width) of the images that positions are for; of volumes
      (depth, height, width).
    resize: One of `resize.METHODS`.
    preprocess: As in preprocess.json, whose own schema checks it.
    frozen: Sum and norm of each array of the base, by path.
  """

  base: Annotated[str, Field(min_length=1)]
  model: dict[str, _Value]
  image_size: Annotated[list[_Side], Field(min_length=2, max_length=3)]
  resize: Annotated[str, stored_preprocess.choice(*resize_lib.METHODS)]
  preprocess: dict[str, Any]
  frozen: dict[str, _Sums]

  @pydantic.model_validator(mode='after')
  def _check_model(self) -> '_Stored':
    for key, value in self.model.items():
      if key not in _KEYS:
        raise ValueError(f'model has {key!r:.40}, no key of config.model')
      if key in models.registry.PARTS and not isinstance(value, str):
        raise ValueError(
          f'model.{key} is {reprlib.repr(value)}: it must be a text'
        )
    return self


def check(facts: Any) -> None:
  """Checks the content of the metadata, read from JSON."""
  if not isinstance(facts, dict):
    raise config_lib.UserError('they hold no JSON object')
  stored_preprocess.validate(_Stored, facts)
