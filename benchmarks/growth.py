"""Measures the growth of time and memory of a training step.

  python -m benchmarks.growth --out=growth

One quantity grows at a time (depth, width, tokens, batch), from ViT-Ti/16 with
images of 224 x 224 in batches of 8 (of one for tokens). The time of a step is
expected to grow with the same exponent as the number of its matrix products;
with more devices (CPU devices share the cores of the machine) it should not
grow at all.
"""

import json
import pathlib
import sys

from absl import flags

from vit_jax import cli

_OUT = cli.define_path('out', 'growth', 'Directory of the report.')
_ONLY = flags.DEFINE_list('only', [], 'Quantities to measure. Default: all.')
_BLOCKS = flags.DEFINE_integer(
  'blocks', 5, 'Number of timed blocks.', lower_bound=1
)


def main(argv: list[str]) -> None:
  """Measures, and writes growth.json, growth.md and growth.png."""
  from benchmarks import growth_points  # after the flags
  from vit_jax import config as config_lib

  if argv[1:] or set(_ONLY.value) - set(growth_points.AXES):
    raise config_lib.UserError(
      f'choose --only from {",".join(growth_points.AXES)}'
    )
  out = pathlib.Path(_OUT.value)
  out.mkdir(parents=True, exist_ok=True)
  curves = {
    axis: growth_points.measure(axis, _BLOCKS.value)
    for axis in _ONLY.value or growth_points.AXES
  }
  (out / 'growth.json').write_text(json.dumps(curves, indent=1))
  (out / 'growth.md').write_text(growth_points.table(curves))
  growth_points.plot(curves, out / 'growth.png')
  print(growth_points.table(curves), file=sys.stderr)
  print(out)


if __name__ == '__main__':
  cli.run(main, __doc__)
