"""Measures speed, and prints one JSON object on stdout.

  python -m vit_jax.benchmark
  python -m vit_jax.benchmark --parts=train,infer --blocks=20

The model is the ViT of configs/cifar10_tutorial.py in float32, on JPEG files
that are made for it (or your own: --data=folder:PATH). `baseline` is a plain
formulation of the same (a Linen model as a tutorial writes it; a loop over
cv2.imread; for end_to_end, the bare train step; for parallel, one device in
place of two), timed in turns with ours. Nothing of a model is timed before both
were seen to give the same logits.

  train, infer    steps and forward passes on a batch that is on the device
  augment         what RandAugment(2,10) and mixup add to a step
  input           reading and decoding
  end_to_end      the whole loop
  checkpoint      steps with a save among them, against steps alone
  parallel        data-parallel steps on two CPU devices, against one
  startup         a command, to its first step and to its end
  restart         to the first step: resumed with a compile cache, against new
"""

from collections.abc import Callable
import json
import pathlib
import sys
import tempfile
from typing import Any

from absl import flags
from absl import logging

from vit_jax import cli

PROCESS_PARTS = ('startup', 'restart', 'parallel')
MODEL_PARTS = (
  'train',
  'infer',
  'augment',
  'input',
  'end_to_end',
  'checkpoint',
)
PARTS = MODEL_PARTS + PROCESS_PARTS

_PARTS = flags.DEFINE_list('parts', list(PARTS), 'What to measure.')
_BATCH_SIZE = flags.DEFINE_integer('batch_size', 128, 'Images in a step.')
_BLOCKS = flags.DEFINE_integer('blocks', 10, 'How often each is timed.')
_DATA = flags.DEFINE_string('data', '', 'folder:PATH of 32x32 images.')


def main(argv: list[str]) -> None:
  """Prints the report."""
  from vit_jax import config as config_lib
  from vit_jax.benchmark import measures  # after the flags: it imports jax
  from vit_jax.benchmark import processes
  from vit_jax.benchmark import timing

  if argv[1:] or set(_PARTS.value) - set(PARTS):
    raise config_lib.UserError(f'choose --parts from {",".join(PARTS)}')
  if _BLOCKS.value < 1 or _BATCH_SIZE.value < 1:
    raise config_lib.UserError('--blocks and --batch_size must be at least 1')
  configs = pathlib.Path(__file__).parents[2] / 'configs'
  tutorial, runs = str(configs / 'cifar10_tutorial.py'), min(_BLOCKS.value, 3)
  report: dict[str, Any] = {}

  def measure(part: str, function: Callable[..., Any], *args: Any) -> None:
    if part in _PARTS.value:
      report[part] = function(*args)
      logging.info('%s: %s', part, report[part])

  # First: its memory must not count what is ours.
  digits = [f'--config={configs / "digits.py"}']
  measure('startup', processes.startup, digits, runs)
  with tempfile.TemporaryDirectory() as folder:
    if not _DATA.value:
      measures.write_images(pathlib.Path(folder), 12 * _BATCH_SIZE.value)
    changes = _changes(_DATA.value or f'folder:{folder}')
    flags_ = [f'--config.{key}={value}' for key, value in changes.items()]
    measure(
      'restart', processes.restart, [f'--config={tutorial}', *flags_], runs
    )
    config = cli.load_config(tutorial)
    for key, value in changes.items():
      config_lib.set_value(config, key, value)
    measure('parallel', processes.parallel, config, _BLOCKS.value)
    matmul_flops = timing.matmul_flops()
    if set(_PARTS.value) & set(MODEL_PARTS):
      bench = measures.Bench(config, _BLOCKS.value, matmul_flops)
      bench.check()
      for part in MODEL_PARTS:
        measure(part, getattr(bench, part))
  report['matmul_gflops'] = matmul_flops / 1e9
  print(json.dumps(report))
  sys.stdout.flush()


def _changes(data: str) -> dict[str, Any]:
  """Returns what differs from the tutorial's config, by its keys."""
  return {
    'data.name': data,
    'data.split': 'train',
    'train.batch_size': _BATCH_SIZE.value,
    'train.log_every': '1 steps',
    'checkpoint.every': '',
    'checkpoint.best': '',
    'evals.val.split': '',
    'evals.test.split': '',
  }


if __name__ == '__main__':
  cli.run(main, __doc__)
