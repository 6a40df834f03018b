"""Takes training steps on request, for `processes.parallel`.

It reads lines of JSON from stdin: a config, then numbers of steps. After each
line it writes one to stdout.
"""

import json
import sys

from vit_jax import cli


def main(argv: list[str]) -> None:
  """Takes steps until stdin ends."""
  del argv
  import jax
  import numpy as np

  from vit_jax import config as config_lib
  from vit_jax.train import experiment as experiment_lib

  config = config_lib.from_dict(json.loads(sys.stdin.readline()))
  experiment_lib.check(config)
  e = experiment_lib.build(config)
  state, step = e.init(), 0
  with e.train_batches(0) as batches:
    batch = next(batches)
  print('ready', flush=True)
  for line in sys.stdin:
    for _ in range(int(line)):
      state, metrics = e.program.train_step(state, batch, np.int32(step))
      step += 1
    jax.block_until_ready(metrics)
    print('done', flush=True)


if __name__ == '__main__':
  cli.run(main, __doc__)
