"""Stands in for `vit_jax.main` in sweeps: quick, with results by a formula.

  python stand_in_trials.py train FLAGS     what a sweep starts for each run
  python stand_in_trials.py sweep FLAGS     a sweep whose runs are these

A run has 12 steps and a value at every second; it saves each step, and resumes.
How it fares is said by keys of the config that are of no use here. `starts` in
its work directory has a line for each start, `config` the value of --config.
"""

import fcntl
import json
import os
import pathlib
import signal
import sys
import time

STEPS = 12
PROGRAM = (sys.executable, __file__, 'train')


def value(rate, decay, seed, step=STEPS):
  """Returns the metric: the better, the less both are; it grows with steps."""
  return step / STEPS * (1 - 10 * rate - decay + 0.01 * seed**2)


def train(argv):
  flags = dict(arg.removeprefix('--').split('=', 1) for arg in argv)
  workdir = pathlib.Path(flags['workdir'])
  if flags.get('config.optim.decay_pattern') == 'refused':
    sys.exit('error: config.optim.warmup is too long')
  workdir.mkdir(parents=True, exist_ok=True)
  lock = (workdir / 'lock').open('w')
  fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # or fail
  with (workdir / 'starts').open('a') as file:
    file.write(f'{os.getpid()}\n')
  (workdir / 'config').write_text(flags['config'])
  stopped = []
  signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
  sys.exit(steps(flags, workdir, stopped))


def steps(flags, workdir, stopped):
  saved = workdir / 'saved'
  step = int(saved.read_text()) if saved.exists() else 0
  decay_pattern = flags.get('config.optim.decay_pattern', '')
  with (workdir / 'metrics.jsonl').open('a') as file:
    while step < STEPS:
      if stopped:
        return 143
      step += 1
      if step % 2 == 0:
        x = value(
          float(flags.get('config.optim.learning_rate', 0)),
          float(flags.get('config.optim.weight_decay', 0)),
          int(flags['config.seed']),
          step,
        )
        file.write(json.dumps({'step': step, 'val/accuracy': x}) + '\n')
        file.flush()
      saved.write_text(str(step))
      if step == 4:
        hold(workdir.parents[2], stopped)
      if step == 6 and decay_pattern == 'fails':
        print('error: the loss of step 6 is not finite', file=sys.stderr)
        return 1
      if step == 6 and decay_pattern == 'dies':
        os.kill(os.getpid(), signal.SIGKILL)
  (workdir / 'DONE').write_text('{}')
  return 0


def hold(sweep, stopped):
  """Waits while the sweep's directory has a file of this name."""
  while (sweep / 'hold').exists() and not stopped:
    time.sleep(0.01)


def sweep(argv):
  from vit_jax import cli
  from vit_jax.sweep import __main__ as command

  sys.argv = ['sweep', *argv]
  cli.run(
    lambda arguments: command.main(arguments, PROGRAM, poll_s=0.02),
    command.__doc__,
    command.FLAGS,
  )


if __name__ == '__main__':
  {'train': train, 'sweep': sweep}[sys.argv[1]](sys.argv[2:])
