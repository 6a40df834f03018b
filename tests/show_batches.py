"""A command: which examples the batches hold, and which ones it reads itself.

Prints {"global": ids of each batch, "read": indices that this process read}.
"""

import json

from absl import flags
from jax.experimental import multihost_utils

from vit_jax import cli
import vit_jax.main  # noqa: F401  it defines the flags
from vit_jax.parallel import peers
from vit_jax.train import experiment as experiment_lib


def main(argv):
  del argv
  peers.initialize()
  config = flags.FLAGS.config
  experiment_lib.check(config)
  e = experiment_lib.build(config)
  read, sources = set(), (e.source, *e.eval_sources.values())
  for source in sources:
    # Its class is frozen; the instance is not.
    source.read = _recording(source.read, read)
  batches = []
  for feed in (e.train_batches(2), e.eval_batches('val')):
    with feed:
      for batch in feed:
        ids = multihost_utils.process_allgather(batch['index'], tiled=True)
        batches.append(ids.tolist())
  print(json.dumps({'global': batches, 'read': sorted(read)}))


def _recording(read, indices):
  def reads(position):
    example = read(position)
    indices.add(example.index)
    return example

  return reads


if __name__ == '__main__':
  cli.run(main, __doc__)
