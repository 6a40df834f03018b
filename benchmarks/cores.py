"""Measures how many cores the input of a fast accelerator needs.

  python -m benchmarks.cores
  python -m benchmarks.cores --images_per_second=8000 --threads=1,2,4,8

Makes batches of 224x224 images, randomly cropped and flipped, from photographs
of 500x375 pixels: JPEG files in a folder and in ArrayRecord, the same as WebP
and AVIF, and JPEG files with a short side of 256. A row has the processor time
of an image, which other programs on the machine hardly change, the images/s of
some threads, and the cores that a rate of the accelerator needs.
"""

import contextlib
import json
import pathlib
import sys
import tempfile

from absl import flags

from vit_jax import cli
from vit_jax.config import UserError

FLAGS = flags.FlagValues()  # its own: other commands have flags of these names
_RATE = flags.DEFINE_float(
  'images_per_second', 3800, 'Rate of the accelerator.', 1, flag_values=FLAGS
)
_THREADS = flags.DEFINE_list(
  'threads', ['1', '2'], 'Numbers of threads.', flag_values=FLAGS
)
_IMAGES = flags.DEFINE_integer(
  'images', 256, 'Number of files.', 32, flag_values=FLAGS
)
_BLOCKS = flags.DEFINE_integer(
  'blocks', 5, 'Number of timed blocks.', 1, flag_values=FLAGS
)


def main(argv: list[str]) -> None:
  """Prints JSON on stdout, and a table on stderr."""
  from benchmarks import core_rates  # after the flags

  cli.refuse_arguments(argv)
  threads = [int(x) for x in _THREADS.value if x.isdecimal() and int(x) > 0]
  if len(threads) != len(_THREADS.value):
    raise UserError(f'--threads={_THREADS.value}: numbers like 1,2')
  with (
    tempfile.TemporaryDirectory() as folder,
    contextlib.redirect_stdout(sys.stderr),  # TFDS prints what it does
  ):
    rows = core_rates.measure(
      pathlib.Path(folder), _IMAGES.value, threads, _BLOCKS.value, _RATE.value
    )
  print(json.dumps({'rows': rows}, indent=1))
  print(core_rates.table(rows), file=sys.stderr)


if __name__ == '__main__':
  cli.run(main, __doc__, FLAGS)
