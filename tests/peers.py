"""One of several processes that do something together: python peers.py ...

Whoever started it holds it by its stdin: `wait` lasts until that is closed.
"""

import os
import sys
import traceback

from absl import flags

from vit_jax import config as config_lib
from vit_jax.parallel import clusters
from vit_jax.parallel import peers
from vit_jax.parallel import processes

_DO = flags.DEFINE_string('do', 'nothing', 'What: see below.')
clusters.define_flags()


def wait() -> None:
  print('waiting', flush=True)
  sys.stdin.read()


def fail() -> None:
  raise config_lib.UserError('no such thing')


def main() -> int:
  if _DO.value == 'stall':
    with processes.Watch(0.2) as watch:
      watch.alive(3)
      wait()
  soon = {'heartbeat_s': 5} if _DO.value == 'wait' else {}
  print(peers.initialize(**soon))
  if _DO.value == 'agree':
    print(
      processes.call_on_first(lambda: {'pid': os.getpid(), 'shape': (1, 2)})
    )
    print(processes.call_on_all(os.getpid) == os.getpid())
  if _DO.value == 'fail':
    processes.call_on_first(fail)
  if _DO.value == 'fail_later':
    processes.call_on_all(lambda: None if processes.first() else fail())
  if _DO.value == 'bug':
    processes.call_on_first(lambda: 1 / 0)
  if _DO.value == 'wait':
    print('up', flush=True)
    with processes.lost_peers_explained():
      processes.call_on_first(wait)
  return 0


if __name__ == '__main__':
  flags.FLAGS(sys.argv)
  assert 'jax' not in sys.modules, 'the flags are to be parsed before'
  try:
    status = main()
  except config_lib.UserError as e:
    print(f'error: {e}', file=sys.stderr)
    status = 1
  except ZeroDivisionError:  # a bug
    traceback.print_exc()
    status = 1
  processes.exit_process(status)
