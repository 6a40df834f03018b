"""Commands of SLURM and Google Cloud that do as little as tests need.

What they run is a stand-in for the training command, too: it notes its flags in
WORKDIR/starts-PROCESS, and does what WORKDIR/script says for this start, a line
each: `done`, `fail`, or the name of a signal that it sends to who started it,
to be told by SIGTERM to save and stop.
"""

import os
import pathlib
import select
import sys

import tiny

_TRAIN = """
import os, pathlib, signal, sys
flags = dict(arg[2:].split('=', 1) for arg in sys.argv[1:])
workdir = pathlib.Path(flags['workdir'])
process = flags.get('process_id', '0')
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
with (workdir / f'starts-{process}').open('a+') as file:
  file.write(' '.join(sys.argv[1:]) + '\\n')
  file.seek(0)
  number = len(file.readlines()) - 1
act = (workdir / 'script').read_text().split()[number]
if act == 'done':
  (workdir / 'DONE').touch()
elif act == 'fail':
  sys.exit(1)
else:
  os.kill(os.getppid(), signal.Signals[act])
  signal.sigwait([signal.SIGTERM])
  sys.exit(143)
"""

# A job of two nodes with a task each; it tells the FIFO `over` when it ends.
_SBATCH = """#!/usr/bin/env bash
cp "$1" "$FAKE/job.sh"
export SLURM_JOB_ID=4711 SLURM_JOB_NODELIST='node[7-8]' SLURM_NTASKS=2
export SLURM_JOB_NUM_NODES=2
(
  while rm -f "$FAKE/requeued"; bash "$FAKE/job.sh"; [ -e "$FAKE/requeued" ]; do
    true
  done
  echo over > "$FAKE/over"
) > "$FAKE/log" 2>&1 &
echo 'Submitted batch job 4711'
"""
_SRUN = """#!/usr/bin/env bash
while [[ $1 != */python* ]]; do shift; done
export PYTHONPATH=$FAKE PYTHONSAFEPATH=1 SLURM_LOCALID=0
for k in 0 1; do
  SLURM_PROCID=$k SLURM_NODEID=$k "$@" &
done
wait
"""
_SCONTROL = """#!/usr/bin/env bash
[ "$*" = 'requeue 4711' ] && touch "$FAKE/requeued"
"""
_SQUEUE = """#!/usr/bin/env bash
echo "$FAKE_STATE"
"""

# One worker, which is this machine; what it is told to install, it ignores. Its
# slice is preempted when the training command fails and $FAKE/mortal is there.
# A line of $FAKE/requests has the states of a request, one at each look at it.
_GCLOUD = """#!PYTHON -IS
import os, pathlib, subprocess, sys
FAKE = pathlib.Path(os.environ['FAKE'])
# Flags that a command must have, and that it may have, as gcloud 528 has them.
FLAGS = {
  'tpu-vm describe': (['zone'], ['format']),
  'tpu-vm start': (['zone'], ['async']),
  'tpu-vm delete': (['zone'], ['async']),
  'tpu-vm ssh': (['zone', 'worker', 'command'], []),
  'tpu-vm scp': (['zone', 'worker'], ['recurse']),
  'queued-resources describe': (['zone'], ['format']),
  'queued-resources create': (
    ['zone', 'node-id', 'accelerator-type', 'runtime-version'],
    ['spot', 'async'],
  ),
  'queued-resources delete': (['zone'], ['force', 'async']),
}


def read(name):
  path = FAKE / name
  return path.read_text() if path.exists() else ''


def fail(line, status=1):
  print(line, file=sys.stderr)
  sys.exit(status)


assert sys.argv[1:3] == ['compute', 'tpus']
kind = ' '.join(sys.argv[3:5])
flags = dict(x[2:].partition('=')[::2] for x in sys.argv[5:] if x[:2] == '--')
names = [x for x in sys.argv[5:] if x[:2] != '--']
with (FAKE / 'calls').open('a') as file:
  print(' '.join(sys.argv[3:]).replace('\\n', ' '), file=file)
needed, possible = FLAGS[kind]
if not set(needed) <= set(flags) <= {*needed, *possible, 'quiet', 'project'}:
  fail(f'ERROR: (gcloud.compute.tpus) unrecognized arguments: {flags}', 2)
refusals = read('refusals').splitlines()
if refusals and refusals[0].startswith(kind):
  (FAKE / 'refusals').write_text('\\n'.join(refusals[1:]))
  fail(f'ERROR: {refusals[0].removeprefix(kind).strip()}\\n- details: 1')
node, queued = read('state'), read('queued').split()
if kind.endswith('describe') and names != ['vit']:
  fail(f'ERROR: INVALID_ARGUMENT: {names}')
elif kind == 'tpu-vm describe':
  if not node:
    fail('ERROR: (gcloud) NOT_FOUND: Resource was not found')
  print(node)
elif kind == 'queued-resources describe':
  if not queued:
    fail('ERROR: (gcloud) NOT_FOUND: Resource was not found')
  if len(queued) > 1:
    (FAKE / 'queued').write_text(' '.join(queued[1:]))
  if queued[0] == 'ACTIVE' and not node:
    (FAKE / 'state').write_text('READY')
  reason = 'no quota' if queued[0] == 'FAILED' else ''
  fields = flags['format'].removeprefix('value(').rstrip(')').split(',')
  print(*[queued[0], reason][: len(fields)], sep='\\t')
elif kind == 'queued-resources create':
  if queued:
    fail('ERROR: (gcloud) ALREADY_EXISTS: it is there')
  request, *others = read('requests').splitlines() or ['ACCEPTED ACTIVE']
  (FAKE / 'queued').write_text(request)
  (FAKE / 'requests').write_text('\\n'.join(others))
elif kind == 'queued-resources delete':
  if queued[0] in ('SUSPENDING', 'DELETING'):
    fail('ERROR: (gcloud) FAILED_PRECONDITION: it is being suspended')
  (FAKE / 'state').unlink(missing_ok=True)
  (FAKE / 'queued').unlink()
elif kind == 'tpu-vm start':
  (FAKE / 'state').write_text('READY')
elif kind == 'tpu-vm delete':
  (FAKE / 'state').unlink()
elif kind == 'tpu-vm scp':
  assert names[1] == 'vit:'
  subprocess.run(['cp', names[0], FAKE / 'worker'], check=True)
elif kind == 'tpu-vm ssh':
  env = {**os.environ, 'PATH': f'{FAKE}/worker/bin:{os.environ["PATH"]}'}
  done = subprocess.run(
    ['bash', '-c', flags['command']], cwd=FAKE / 'worker', env=env, check=False
  )
  if done.returncode and 'exec' in flags['command'] and read('mortal'):
    (FAKE / 'mortal').unlink()
    (FAKE / 'state').write_text('PREEMPTED')
    (FAKE / 'queued').write_text('ACTIVE SUSPENDING SUSPENDED')
  sys.exit(done.returncode)
""".replace('PYTHON', sys.executable)


class Cluster:
  """A folder of commands, and a work directory.

  Attributes:
    env: The environment in which these commands are found.
    workdir: Of the run.
  """

  def __init__(self, folder: pathlib.Path, acts: str):
    """Makes them.

    Args:
      folder: Empty.
      acts: What the training command does at each start.
    """
    self.folder = folder
    self.workdir = folder / 'run'
    self.workdir.mkdir()
    (self.workdir / 'script').write_text(acts)
    (folder / 'vit_jax').mkdir()
    # Or else the one that is installed comes first.
    (folder / 'vit_jax' / '__init__.py').write_text(
      f'__path__.append({str(tiny.ROOT / "vit_jax")!r})\n'  # for all but main
    )
    (folder / 'vit_jax' / 'main.py').write_text(_TRAIN)
    for name, text in {
      'sbatch': _SBATCH,
      'srun': _SRUN,
      'scontrol': _SCONTROL,
      'squeue': _SQUEUE,
      'gcloud': _GCLOUD,
    }.items():
      self._command(folder / 'bin' / name, text)
    os.mkfifo(folder / 'over')
    self._over = os.open(folder / 'over', os.O_RDONLY | os.O_NONBLOCK)
    self.env = os.environ | {
      'PATH': f'{folder}/bin:{os.environ["PATH"]}',
      'FAKE': str(folder),
      'FAKE_STATE': 'RUNNING',
    }
    self._make_worker()

  def _command(self, path: pathlib.Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)

  def _make_worker(self) -> None:
    """Makes the home directory of a TPU's worker."""
    worker = self.folder / 'worker'
    self._command(worker / 'bin' / 'python3', '#!/bin/sh\n')
    self._command(
      worker / 'venv' / 'bin' / 'python',
      '#!/bin/sh\nexport PYTHONSAFEPATH=1\n'
      f'PYTHONPATH={self.folder} exec {sys.executable} "$@"\n',
    )

  def starts(self, process: int = 0) -> list[str]:
    """Returns the flags of each start of the training command."""
    path = self.workdir / f'starts-{process}'
    return path.read_text().splitlines() if path.exists() else []

  def changes(self) -> list[str]:
    """Returns how gcloud was told to change slices and requests."""
    lines = (self.folder / 'calls').read_text().splitlines()
    verbs = [line.split()[1] for line in lines]
    return [x for x in verbs if x not in ('describe', 'ssh', 'scp')]

  def wait(self) -> str:
    """Waits until the SLURM job has ended for good; returns its output."""
    ready, _, _ = select.select([self._over], [], [], 60)
    os.close(self._over)
    log = (self.folder / 'log').read_text()
    assert ready, log
    return log
