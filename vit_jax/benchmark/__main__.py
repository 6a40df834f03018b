"""Measures speed, and prints one JSON object on stdout.

  python -m vit_jax.benchmark
  python -m vit_jax.benchmark --parts=train,infer --blocks=20

The model is the ViT of configs/cifar10_tutorial.py in float32, on JPEG files
that are made for it (or your own: --data=folder:PATH). `baseline` is a plain
formulation of the same (a Linen model as a tutorial writes it; a loop over
cv2.imread; for end_to_end, the bare train step), timed in turns with ours.
Nothing is timed before both models were seen to give the same logits.
"""

import json
import pathlib
import sys
import tempfile
from typing import Any

from absl import flags
from absl import logging

from vit_jax import cli

PARTS = ('train', 'infer', 'input', 'end_to_end', 'startup')

_PARTS = flags.DEFINE_list('parts', list(PARTS), 'What to measure.')
_BATCH_SIZE = flags.DEFINE_integer('batch_size', 128, 'Images in a step.')
_BLOCKS = flags.DEFINE_integer('blocks', 10, 'How often each is timed.')
_DATA = flags.DEFINE_string('data', '', 'folder:PATH of 32x32 images.')


def main(argv: list[str]) -> None:
  """Prints the report."""
  from vit_jax import config as config_lib
  from vit_jax.benchmark import measures  # after the flags: it imports jax

  if argv[1:] or set(_PARTS.value) - set(PARTS):
    raise config_lib.UserError(f'choose --parts from {",".join(PARTS)}')
  if _BLOCKS.value < 1 or _BATCH_SIZE.value < 1:
    raise config_lib.UserError('--blocks and --batch_size must be at least 1')
  configs = pathlib.Path(__file__).parents[2] / 'configs'
  report: dict[str, Any] = {}
  if 'startup' in _PARTS.value:  # first: its memory must not count what is ours
    report['startup'] = measures.startup(
      configs / 'digits.py', min(_BLOCKS.value, 3)
    )
  with tempfile.TemporaryDirectory() as folder:
    if not _DATA.value:
      measures.write_images(pathlib.Path(folder), 12 * _BATCH_SIZE.value)
    config = cli.load_config(str(configs / 'cifar10_tutorial.py'))
    config.data.name = _DATA.value or f'folder:{folder}'
    config.data.split = 'train'
    config.train.batch_size = _BATCH_SIZE.value
    config.train.log_every = '1 steps'
    config.checkpoint.every = ''
    config.checkpoint.best = ''
    for spec in config.evals.values():
      spec.split = ''
    bench = measures.Bench(config, _BLOCKS.value)
    bench.check()
    for part in ('train', 'infer', 'input', 'end_to_end'):
      if part in _PARTS.value:
        report[part] = getattr(bench, part)()
        logging.info('%s: %s', part, report[part])
  report['matmul_gflops'] = bench.matmul_flops / 1e9
  print(json.dumps(report))
  sys.stdout.flush()


if __name__ == '__main__':
  cli.run(main, __doc__)
