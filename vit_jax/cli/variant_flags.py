"""The flags of a command that measures a model at several sizes."""

import itertools
import pathlib
from typing import Any

from absl import flags

from vit_jax import cli
from vit_jax.cli import columns
from vit_jax.config import UserError

_MOST = 100  # variants


def define(flag_values: flags.FlagValues) -> None:
  """Defines the flags of variants but --image_size, which is there."""
  cli.define_texts(
    flag_values,
    {
      'patch_size': 'Patch sizes to resize the model to, such as 4,2x4.',
      'merge': 'Numbers of tokens that each layer merges, such as 0,2,4.',
      'quantize': 'int8 stores the kernels in a quarter of the bytes; none,int8'
      ' measures the model without and with it.',
      'plot': 'FILE.png to draw accuracy over images per second.',
    },
  )


def parse(flag_values: flags.FlagValues) -> list[dict[str, Any]]:
  """Returns the changes of each variant, for `weights.Loaded.adapted`.

  These are all combinations of the values. The list is empty if no flag asks
  for variants: one image size or one --quantize is an ordinary evaluation.
  """
  flag_choices = _values(flag_values)
  of_one = {name for name, values in flag_choices.items() if len(values) == 1}
  if set(flag_choices) <= of_one & {'image_size', 'quantize'}:
    if flag_values['plot'].value:
      raise UserError(
        '--plot is of several variants: add --merge=0,2,4, or several sizes'
      )
    return []
  variants = [
    dict(zip(flag_choices, values, strict=True))
    for values in itertools.product(*flag_choices.values())
  ]
  if len(variants) > _MOST:
    raise UserError(f'these are {len(variants)} variants: at most {_MOST}')
  for name in ('predictions', 'hausdorff'):
    if flag_values[name].value:
      raise UserError(f'--{name} is for one size: leave it out')
  return variants


def _values(flag_values: flags.FlagValues) -> dict[str, list[Any]]:
  choices: dict[str, list[Any]] = {}
  for name in ('image_size', 'patch_size'):
    if text := flag_values[name].value:
      choices[name] = [cli.parse_size(x, f'--{name}') for x in text.split(',')]
  if text := flag_values['merge'].value:
    parts = text.split(',')
    if not all(part.isdecimal() for part in parts):
      raise UserError(f'--merge={text}: write numbers of tokens, as 0,2,4')
    choices['merge'] = [int(part) for part in parts]
  if text := flag_values['quantize'].value:
    choices['quantize'] = text.split(',')
  for name, values in choices.items():
    if len(set(values)) < len(values):
      raise UserError(f'--{name}: write each value once')
  return choices


def plot(flag_values: flags.FlagValues) -> pathlib.Path | None:
  """Returns the path of --plot without its suffix; None: none is asked for."""
  text = flag_values['plot'].value
  if not text:
    return None
  path = columns.check_path('--plot', text, ('.png',))
  from vit_jax.plots import canvas

  canvas.check()
  return path.with_suffix('')
