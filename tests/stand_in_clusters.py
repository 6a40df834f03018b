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
_GCLOUD = """#!/usr/bin/env bash
shift 2  # compute tpus
echo "$@" >> "$FAKE/calls"
state=$(cat "$FAKE/state" 2>/dev/null)
for arg; do
  case $arg in --command=*) command=${arg#*=} ;; esac
done
case "$1 $2" in
  'tpu-vm describe')
    if [ -z "$state" ]; then
      echo 'ERROR: NOT_FOUND: Resource was not found' >&2
      exit 1
    fi
    echo "$state" ;;
  'queued-resources describe')
    case $state in
      '') echo 'ERROR: NOT_FOUND: Resource was not found' >&2; exit 1 ;;
      PREEMPTED) echo SUSPENDED ;;
      *) echo ACTIVE ;;
    esac ;;
  'queued-resources create') echo READY > "$FAKE/state" ;;
  'queued-resources delete') rm "$FAKE/state" ;;
  'tpu-vm scp') cp "$3" "$FAKE/worker/" ;;
  'tpu-vm ssh')
    cd "$FAKE/worker" || exit 1
    PATH=$FAKE/worker/bin:$PATH bash -c "$command" && exit
    [[ $command == *exec* && -e $FAKE/mortal ]] || exit 1
    rm "$FAKE/mortal"
    echo PREEMPTED > "$FAKE/state"
    exit 255 ;;
  *) echo "ERROR: $*" >&2; exit 2 ;;
esac
"""


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

  def calls(self) -> list[str]:
    """Returns what gcloud was asked for: `tpu-vm ssh` and the like."""
    lines = (self.folder / 'calls').read_text().splitlines()
    kinds = ('tpu-vm ', 'queued-resources ')
    return [' '.join(x.split()[:2]) for x in lines if x.startswith(kinds)]

  def wait(self) -> str:
    """Waits until the SLURM job has ended for good; returns its output."""
    ready, _, _ = select.select([self._over], [], [], 60)
    os.close(self._over)
    log = (self.folder / 'log').read_text()
    assert ready, log
    return log
