"""The flags of commands that apply a model of segmentation to large inputs."""

from typing import Any

from absl import flags

from vit_jax.config import UserError

_NAMES = ('scales', 'flip', 'overlap', 'gaussian')
_MOST_SCALE = 100.0


def define(flag_values: flags.FlagValues) -> None:
  """Defines --scales, --flip, --overlap and --gaussian."""
  flags.DEFINE_list(
    'scales',
    ['1'],
    'Factors of the image size to average predictions over, such as'
    ' 0.75,1,1.25.',
    flag_values=flag_values,
  )
  flags.DEFINE_bool(
    'flip',
    False,
    'Average the predictions for the image and for its mirror image.',
    flag_values=flag_values,
  )
  flags.DEFINE_float(
    'overlap',
    None,
    'Fraction of a window that the next window covers. Default: a third for'
    " images, the run's value for volumes.",
    lower_bound=0.0,
    upper_bound=0.99,
    flag_values=flag_values,
  )
  flags.DEFINE_bool(
    'gaussian',
    None,
    'Weight predictions less towards the edges of a window. Default: not for'
    " images, the run's value for volumes.",
    flag_values=flag_values,
  )


def read(flag_values: flags.FlagValues) -> dict[str, Any]:
  """Returns the fields of `objectives.segmenter.WindowSettings`."""
  values = {name: flag_values[name].value for name in _NAMES}
  texts = values['scales'] or []
  try:
    scales = [float(x) for x in texts]
  except ValueError:
    scales = []
  if not scales or not all(0 < x < _MOST_SCALE for x in scales):
    raise UserError(
      f'--scales={",".join(texts)}: write positive numbers, as 0.75,1,1.25'
    )
  return values | {'scales': tuple(scales)}


def set_flags(flag_values: flags.FlagValues) -> list[str]:
  """Returns the flags that are set, as '--flip'."""
  return [f'--{name}' for name in _NAMES if flag_values[name].present]
