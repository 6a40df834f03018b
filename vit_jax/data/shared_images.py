"""Finds splits that share images."""

import contextlib

from absl import logging
import ml_collections

from vit_jax.config import UserError
from vit_jax.data import splits

_MANY = 10**15  # images; larger than any bound of a split


def warn(config: ml_collections.ConfigDict) -> None:
  """Warns of evaluations on images that train."""
  for name, spec in config.evals.items():
    parts = None
    # A source of the user's own may read splits of another grammar.
    with contextlib.suppress(UserError):
      parts = spec.split and shared(spec.split, config.data.split)
    if parts:
      logging.warning(
        "warning: config.evals.%s.split: images of '%s' are in '%s' as well,"
        ' which trains',
        *(name, *parts),
      )


def shared(
  spec: str, second_spec: str
) -> tuple[splits.Part, splits.Part] | None:
  """Returns terms of two specifications that share images; None: none do.

  Terms of which the number of images must be known are taken to share none.
  """
  for part in splits.parse(spec):
    for second in splits.parse(second_spec):
      if _overlap(part, second):
        return part, second
  return None


def _overlap(part: splits.Part, second: splits.Part) -> bool:
  if 'all' in (part.name, second.name):
    return True
  wholes = sum(x.start is None and x.stop is None for x in (part, second))
  if part.name != second.name or (
    part.percent != second.percent and not wholes
  ):
    return False
  bounds = [x.bounds(_MANY) for x in (part, second)]
  return max(start for start, _ in bounds) < min(stop for _, stop in bounds)
