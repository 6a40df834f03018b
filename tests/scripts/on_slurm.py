"""The launcher of jobs on a real SLURM of two nodes.

scripts/slurm_test.sh starts one and runs this file, which pytest does not find
by itself.
"""

import json
import re
import subprocess
import sys
import time

from commands import CPU_ENV
import pytest
import tiny

LAUNCHER = (sys.executable, tiny.ROOT / 'scripts' / 'slurm.py')
STEPS = 60
LONG = '1000000 steps'  # of a run that only ends by what a test does
KEYS = {
  'train__duration': f'{STEPS} steps',
  'checkpoint__every': '50 steps',
  'evals__val__split': '',
  'mesh__data': 2,
}
POLL_S = 0.2


def run(*args, timeout=60):
  """Runs a program to its end."""
  return subprocess.run(
    [str(x) for x in args],
    env=CPU_ENV,
    cwd=tiny.ROOT,
    capture_output=True,
    text=True,
    timeout=timeout,
    check=False,
  )


def command(*args, timeout=60):
  """Returns the stdout of a program, which must succeed."""
  done = run(*args, timeout=timeout)
  assert done.returncode == 0, done.stderr
  return done.stdout


def wait_for(condition, seconds=90):
  """Returns what a function returns, once that is true."""
  end = time.monotonic() + seconds
  while not (value := condition()):
    assert time.monotonic() < end, f'not within {seconds} s'
    time.sleep(POLL_S)
  return value


class Job:
  """A run of two nodes that was submitted."""

  def __init__(self, workdir, *flags, **keys):
    self.workdir = workdir
    out = command(
      *LAUNCHER,
      *('--nodes=2', '--cpus_per_task=1', '--grace_s=20', *flags, '--'),
      *tiny.flags(**KEYS | keys),
      f'--workdir={workdir}',
    )
    self.number = re.match(r'job (\d+); ', out)[1]

  def said(self, task=0):
    """What a task has written to its log of errors."""
    path = self.workdir / 'slurm' / f'{self.number}_{task}_log.err'
    return path.read_text() if path.exists() else ''

  def says(self, text):
    """Waits until the first task has said a text."""
    wait_for(lambda: text in self.said())

  def state(self):
    text = command('scontrol', '--oneliner', 'show', 'job', self.number)
    return re.search(r' JobState=(\w+)', text)[1]

  def ends(self):
    """Waits for the end, and returns SLURM's state of the job."""
    running = ('PENDING', 'RUNNING', 'COMPLETING', 'REQUEUED')
    return wait_for(lambda: (x := self.state()) not in running and x)

  def starts_again(self):
    """Waits until the job is queued again, and starts it.

    SLURM itself waits for two minutes, in case that the nodes clean up.
    """
    wait_for(lambda: self.state() == 'PENDING')
    command('scontrol', 'update', f'jobid={self.number}', 'starttime=now')

  def cancel(self):
    command('scancel', self.number)
    return self.ends()

  def saved_step(self):
    """The step at which the job was stopped, as its log says."""
    return int(re.search(r'stopped at step (\d+) of', self.said())[1])


def losses(workdir):
  return [
    (x['step'], x['train/loss'])
    for x in tiny.metrics(workdir)
    if 'train/loss' in x
  ]


@pytest.fixture(scope='module')
def reference(tmp_path_factory):
  """The losses of two processes on this machine, without SLURM."""
  workdir = tmp_path_factory.mktemp('local') / 'run'
  command(
    *LAUNCHER,
    *('--local', '--tasks_per_node=2', '--'),
    *tiny.flags(**KEYS),
    f'--workdir={workdir}',
    timeout=120,
  )
  result = losses(workdir)
  assert [step for step, _ in result] == list(range(1, STEPS + 1))
  return result


@pytest.fixture
def long_job(tmp_path):
  """A job of two nodes that has trained some steps."""
  job = Job(tmp_path / 'run', train__duration=LONG)
  job.says('step 5/')
  yield job
  job.cancel()


def resumes(job):
  """Checks that the job goes on where it was stopped, with no traceback."""
  job.says('resuming at step')
  step = job.saved_step()
  assert f'resuming at step {step} of' in job.said()
  assert 'Traceback' not in job.said()


def test_two_nodes_train_as_two_local_processes(reference, tmp_path):
  job = Job(tmp_path / 'run')
  assert job.ends() == 'COMPLETED'
  assert losses(job.workdir) == reference
  record = json.loads((job.workdir / 'run.json').read_text())
  assert [x['devices']['processes'] for x in record['runs']] == [2]


def test_a_requeued_run_ends_with_the_same_losses(reference, tmp_path):
  job = Job(tmp_path / 'run')
  job.says('step 5/')
  command('scontrol', 'requeue', job.number)
  job.starts_again()
  assert job.ends() == 'COMPLETED'
  resumes(job)
  assert losses(job.workdir) == reference


def test_a_job_is_requeued_before_its_time_is_over(tmp_path):
  job = Job(tmp_path / 'run', '--timeout_min=1', train__duration=LONG)
  job.says('stopped at step')
  job.starts_again()
  resumes(job)
  assert job.cancel() == 'CANCELLED'


def test_a_preempted_job_goes_on_afterwards(long_job):
  urgent = ('srun', '--partition=urgent', '--nodes=2', '--exclusive', 'true')
  command(*urgent, timeout=120)
  long_job.starts_again()
  resumes(long_job)


def test_a_cancelled_job_saves_and_is_not_requeued(long_job):
  assert long_job.cancel() == 'CANCELLED'
  step = long_job.saved_step()
  assert (long_job.workdir / 'checkpoints' / str(step)).is_dir()
  assert 'Traceback' not in long_job.said()


def test_a_job_whose_node_is_down_goes_on_once_it_is_back(long_job):
  node = ('scontrol', 'update', 'nodename=n2')
  command(*node, 'state=down', 'reason=test')
  wait_for(lambda: long_job.state() == 'PENDING')
  run(*node, 'state=resume')  # SLURM itself may have done so
  long_job.starts_again()
  long_job.says('resuming at step')


def test_a_job_whose_daemon_is_killed_goes_on_once_it_is_back(long_job):
  pids = command('pgrep', '-f', 'slurmd -N n2').split()
  for pid in pids:
    run('kill', '-KILL', pid)
  wait_for(lambda: long_job.state() == 'PENDING')
  command('slurmd', '-N', 'n2')
  long_job.starts_again()
  long_job.says('resuming at step')


def test_a_wrong_partition_is_one_line(tmp_path):
  done = run(
    *(*LAUNCHER, '--partition=gpus', '--'),
    *tiny.flags(),
    f'--workdir={tmp_path}/run',
  )
  assert done.returncode == 1
  *sbatch_lines, line = done.stderr.splitlines()
  assert line.startswith('error: SLURM refuses the job: ') and 'gpus' in line
  assert all(x.startswith('sbatch: ') for x in sbatch_lines)


def test_a_run_that_fails_ends_with_one_clear_line(tmp_path):
  job = Job(tmp_path / 'run', model__num_heads=5)
  assert job.ends() == 'FAILED'
  assert job.said().count('error: config.model: num_heads=5 does not') == 1
  assert 'Traceback' not in job.said()


def test_trials_of_a_sweep_are_jobs(tmp_path):
  """Two points of a search, each a job of one node."""
  sweep = tmp_path / 'grid.py'
  sweep.write_text(
    'from vit_jax import sweep\n'
    "def get_sweep(arg=''):\n"
    '  return sweep.Sweep(\n'
    "    space={'optim.learning_rate': sweep.choice(0.1, 0.01)},\n"
    "    sampler='grid', metric='train/loss', direction='minimize')\n"
  )
  out = command(
    *(sys.executable, '-m', 'vit_jax.sweep', f'--sweep={sweep}'),
    *(f'--workdir={tmp_path}/sweep', '--slurm', '--jobs=2'),
    *('--cpus_per_task=1', '--format=json'),
    *tiny.flags(evals__val__split=''),
    timeout=180,
  )
  trials = json.loads(out)
  assert [x['state'] for x in trials] == ['complete', 'complete']
  assert len(list((tmp_path / 'sweep').rglob('*_submitted.pkl'))) == 2
