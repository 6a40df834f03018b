"""Takes training steps on request, for `processes`.

It reads lines of JSON from stdin: a config, then numbers of steps. After each
line it writes one to stdout: what the process has used up to then.
"""

import json
import resource
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
  _report()
  for line in sys.stdin:
    for _ in range(int(line)):
      state, metrics = e.program.train_step(state, batch, np.int32(step))
      step += 1
    jax.block_until_ready(metrics)
    _report()


def _report() -> None:
  used = resource.getrusage(resource.RUSAGE_SELF)
  report = {
    'cpu_seconds': used.ru_utime + used.ru_stime,
    'peak_memory_mb': used.ru_maxrss / 1024,
  }
  print(json.dumps(report), flush=True)


if __name__ == '__main__':
  cli.run(main, __doc__)
