"""The answer for one image: names with what a model predicts for them."""

from collections.abc import Sequence
import math
from typing import Any
from typing import NamedTuple

from vit_jax.config import UserError


class Prediction(NamedTuple):
  """A class, or a quantity, with the value that is predicted for it."""

  name: str
  number: int  # position in the output
  probability: float


def named(
  image: str,
  names: Sequence[str],
  numbers: Sequence[int],
  probabilities: Sequence[float],
) -> list[Prediction]:
  """Returns predictions in their order.

  Args:
    image: What names the image, for errors.
    names: Names of all outputs.
    numbers: Positions in the output.
    probabilities: The values that are predicted there.
  """
  if not all(map(math.isfinite, probabilities)):
    raise UserError(
      f'the model has no answer for {image}: its output is not finite'
    )
  pairs = zip(numbers, probabilities, strict=True)
  return [Prediction(names[number], number, p) for number, p in pairs]


def as_json(ranked: Sequence[Prediction], are_numbers: bool) -> dict[str, Any]:
  """Returns predictions for JSON; `are_numbers`: they are of quantities."""
  if are_numbers:
    return {'numbers': {x.name: x.probability for x in ranked}}
  return {
    'predictions': [
      {'class': x.name, 'index': x.number, 'probability': x.probability}
      for x in ranked
    ]
  }
