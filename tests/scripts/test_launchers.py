"""The launchers: on this machine for real, and with stand-ins for clusters."""

import importlib.util
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading

from commands import CPU_ENV
import pytest
import stand_in_clusters
import stand_in_tpu_api
import tiny
import yaml

SCRIPTS = tiny.ROOT / 'scripts'
needs_submitit = pytest.mark.skipif(
  importlib.util.find_spec('submitit') is None, reason='needs submitit'
)


def start(*command, env=CPU_ENV):
  return subprocess.Popen(
    list(map(str, command)),
    cwd=tiny.ROOT,
    env=env,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


def run(*command, env=CPU_ENV):
  process = start(*command, env=env)
  out, err = process.communicate(timeout=300)
  return process.returncode, out, err


def slurm(*args, env=CPU_ENV):
  return run(sys.executable, SCRIPTS / 'slurm.py', *args, env=env)


def until(log, line):
  """Returns once a log, which may not be there yet, has such a line."""
  tail = ['tail', '-F', '-n', '+1', '-s', '0.1', str(log)]
  with subprocess.Popen(
    tail, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
  ) as process:
    assert any(x.startswith(line) for x in process.stdout)
    process.kill()


def children(pid):
  path = pathlib.Path(f'/proc/{pid}/task/{pid}/children')
  return [int(x) for x in path.read_text().split()]


@pytest.mark.slow
@needs_submitit
def test_two_local_tasks_are_one_run_that_is_requeued(tmp_path):
  workdir = tmp_path / 'run'
  flags = tiny.flags(
    train__duration='40 steps',
    checkpoint__every='30 steps',
    evals__val__split='',
    mesh__data=2,
  )
  process = start(
    *(sys.executable, SCRIPTS / 'slurm.py'),
    *('--local', '--tasks_per_node=2', '--timeout_min=3'),
    *('--', *flags, f'--workdir={workdir}'),
  )
  job = re.match(r'job (\d+); its logs: ', process.stdout.readline())[1]
  logs = workdir / 'slurm'
  until(logs / f'{job}_0_log.err', 'step 5/')
  tasks = children(job)
  assert len(tasks) == 2
  # As when a job runs out of time: SLURM sends this to all of its processes.
  for pid in tasks + [y for x in tasks for y in children(x)]:
    os.kill(pid, signal.SIGUSR2)
  err = process.communicate(timeout=300)[1]
  assert process.returncode == 0, err
  log = (logs / f'{job}_0_log.err').read_text()
  stopped = re.search(r'stopped at step (\d+) of 40; saved', log)
  assert f'resuming at step {stopped[1]} of 40' in log
  steps = [x['step'] for x in tiny.metrics(workdir) if 'train/loss' in x]
  assert steps == list(range(1, 41))
  runs = json.loads((workdir / 'run.json').read_text())['runs']
  assert [x['devices']['processes'] for x in runs] == [2, 2]


@needs_submitit
def test_a_local_run_that_fails_is_not_requeued(tmp_path):
  flags = tiny.flags(model__num_heads=5)
  status, _, err = slurm(
    '--local', '--', *flags, f'--workdir={tmp_path / "run"}'
  )
  assert status == 1
  log = re.match(r'error: the run ended before it was done: see (\S+);', err)[1]
  said = pathlib.Path(log).read_text()
  assert said.count('error: config.model: num_heads=5') == 1
  assert 'the run ended with status 1' in said


# What happens to the run, what squeue says then, and how often it starts.
JOBS = {
  'out of time': ('SIGUSR2 done', 'RUNNING', 2),
  'preempted twice': ('SIGTERM SIGTERM done', 'RUNNING', 3),
  'cancelled': ('SIGTERM done', 'COMPLETING', 1),
  'failed': ('fail done', 'RUNNING', 1),
}


@needs_submitit
@pytest.mark.parametrize('job', JOBS)
def test_slurm_jobs_are_requeued_until_they_are_done(job, tmp_path):
  acts, state, starts = JOBS[job]
  cluster = stand_in_clusters.Cluster(tmp_path, acts)
  status, out, err = slurm(
    *('--partition=gpu', '--nodes=2', '--gpus_per_node=8', '--timeout_min=30'),
    *('--cpus_per_task=4', '--grace_s=99', '--sbatch=account=vision'),
    *('--', '--config=configs/digits.py', f'--workdir={cluster.workdir}'),
    env=cluster.env | {'PYTHONPATH': str(tiny.ROOT), 'FAKE_STATE': state},
  )
  assert status == 0, err
  assert out == f'job 4711; its logs: {cluster.workdir}/slurm/4711_*_log.*\n'
  log = cluster.wait()
  for k in range(2):
    # The first node, and a port that follows from the number of the job.
    line = (
      f'--config=configs/digits.py --workdir={cluster.workdir}'
      f' --coordinator=node7:{61440 + 4711 % 4096}'
      f' --process_id={k} --num_processes=2'
    )
    assert cluster.starts(k) == [line] * starts, log
  assert (cluster.workdir / 'DONE').exists() == (starts == len(acts.split()))
  batch = (tmp_path / 'job.sh').read_text().splitlines()
  for option in ('partition=gpu', 'nodes=2', 'gpus-per-node=8', 'time=30'):
    assert f'#SBATCH --{option}' in batch
  for option in ('requeue', 'signal=USR2@99', 'account=vision'):
    assert f'#SBATCH --{option}' in batch
  assert any('srun' in x and '--cpus-per-task=4' in x for x in batch)


FINE = ('--config=configs/digits.py', '--workdir=runs/x')
# Arguments, and what the one line says.
MISTAKES = {
  'no work directory': (['--', '--config=configs/digits.py'], '--workdir is'),
  'no config': (['--', '--workdir=x'], '--config is missing'),
  'no such flag': (['--', '--confg=x'], 'there is no flag --confg'),
  'wrong key': (
    ['--', '--config=configs/digits.py', '--config.optim.lr=1'],
    "config has no key 'optim.lr'",
  ),
  'no SLURM': (['--', *FINE], 'srun is not here'),
  'local nodes': (
    ['--local', '--nodes=2', '--', *FINE],
    '--nodes: --local has one',
  ),
  'option': (
    ['--local', '--sbatch=x', '--', *FINE],
    '--sbatch=x: write KEY=VALUE',
  ),
}


@needs_submitit
@pytest.mark.parametrize('mistake', MISTAKES)
def test_mistakes_are_found_before_a_job_is_queued(mistake):
  args, says = MISTAKES[mistake]
  path = str(
    pathlib.Path(sys.executable).parent
  )  # SLURM's programs may be here
  status, out, err = slurm(*args, env=CPU_ENV | {'PATH': path})
  assert status == 1 and out == ''
  assert err.startswith(f'error: {says}') and err.count('\n') == 1


def tpu_pod(cluster, *flags, training=None):
  if training is None:
    training = ['--config=a b.py', f'--workdir={cluster.workdir}']
  return run(
    *('bash', SCRIPTS / 'tpu_pod.sh', '--name=vit', '--zone=us-central2-b'),
    *('--type=v4-32', '--poll=0', *flags, '--', *training),
    env=cluster.env,
  )


def test_a_tpu_slice_is_asked_for_until_the_run_is_done(tmp_path):
  """The first start fails, and then the slice is gone."""
  cluster = stand_in_clusters.Cluster(tmp_path, 'fail done')
  (tmp_path / 'mortal').write_text('yes')
  status, _, err = tpu_pod(cluster, '--spot', '--setup=touch "is mounted"')
  assert status == 0, err
  assert 'the slice was preempted' in err
  assert (tmp_path / 'worker' / 'is mounted').exists()
  assert (tmp_path / 'worker/vit_jax/vit_jax/main.py').exists()
  line = f'--config=a b.py --workdir={cluster.workdir}'
  assert cluster.starts() == [line] * 2
  assert cluster.changes() == ['create', 'delete', 'create']
  calls = (tmp_path / 'calls').read_text()
  assert (
    'queued-resources create vit --node-id=vit --accelerator-type=v4-32'
    ' --runtime-version=tpu-ubuntu2204-base --spot --zone=us-central2-b'
  ) in calls


def test_what_still_trains_on_a_tpu_is_stopped_before(tmp_path):
  cluster = stand_in_clusters.Cluster(tmp_path, 'done')
  (tmp_path / 'state').write_text('READY')
  wait = 'import signal; signal.pause()'
  old = subprocess.Popen([sys.executable, '-c', wait, 'vit_jax.main'])
  threading.Thread(target=old.wait).start()  # no zombie may remain
  (tmp_path / 'worker' / 'vit_jax.pid').write_text(str(old.pid))
  status, _, err = tpu_pod(cluster)
  assert status == 0, err
  assert old.wait() == -signal.SIGTERM and len(cluster.starts()) == 1
  assert not cluster.changes()


def test_a_run_that_fails_on_a_tpu_is_retried_a_few_times(tmp_path):
  cluster = stand_in_clusters.Cluster(tmp_path, 'fail ' * 9)
  status, _, err = tpu_pod(cluster, '--retries=2')
  assert status == 1 and len(cluster.starts()) == 3
  assert err.splitlines()[-1].startswith('error: the run failed 3 times')


def test_mistakes_with_a_tpu_get_one_line(tmp_path):
  cluster = stand_in_clusters.Cluster(tmp_path, '')
  for flags, training, says in (
    (['--zon=x'], None, '--zon=x: there is no such flag'),
    (['--zone='], None, '--zone is missing'),
    (['--retries=-1'], None, '--retries=-1: write a whole number'),
    ([], ['--workdir=runs/x'], 'after the lone --, give --workdir=/PATH'),
  ):
    status, _, err = tpu_pod(cluster, *flags, training=training)
    assert status == 1 and err.startswith(f'error: {says}'), err
  (tmp_path / 'bin' / 'gcloud').write_text(
    '#!/bin/sh\necho "ERROR: log in first" >&2\nexit 1\n'
  )
  status, _, err = tpu_pod(cluster)
  assert status == 1
  assert err == 'error: gcloud cannot describe vit: ERROR: log in first\n'


# States of the requests, one on a line; what gcloud refuses; how it ends, and
# what was changed.
WAITS = {
  'a queue': (
    'ACCEPTED WAITING_FOR_RESOURCES PROVISIONING ACTIVE\n',
    '',
    'done: ',
    'create',
  ),
  'failed once': ('FAILED\nACTIVE', '', 'done: ', 'create delete create'),
  'failed': (
    'FAILED\n' * 9,
    '',
    'error: Google refused the request: no quota',
    'create delete ' * 2 + 'create',
  ),
  'suspended in the queue': (
    'WAITING_FOR_RESOURCES SUSPENDING SUSPENDED\nACTIVE',
    '',
    'done: ',
    'create delete create',
  ),
  'busy once': (
    'ACTIVE',
    'queued-resources create UNAVAILABLE: later',
    'done: ',
    'create create',
  ),
  'no permission': (
    '',
    'queued-resources create PERMISSION_DENIED: not you\n' * 9,
    'error: gcloud cannot create vit: ERROR: PERMISSION_DENIED: not you',
    'create create create',
  ),
}


@pytest.mark.slow
@pytest.mark.parametrize('wait', WAITS)
def test_a_tpu_slice_is_waited_for(wait, tmp_path):
  requests, refusals, end, changes = WAITS[wait]
  cluster = stand_in_clusters.Cluster(tmp_path, 'done')
  (tmp_path / 'requests').write_text(requests)
  (tmp_path / 'refusals').write_text(refusals)
  status, _, err = tpu_pod(cluster, '--retries=2')
  assert (status == 0) == end.startswith('done'), err
  last = re.sub(r'^\d\d:\d\d:\d\d ', '', err.splitlines()[-1])
  assert last.startswith(end)
  assert cluster.changes() == changes.split()
  for state in requests.partition('\n')[0].split()[:-1]:
    assert f'vit: no slice, {state}\n' in err
  assert len(cluster.starts()) == (status == 0)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('node', 'queued', 'changes'),
  [
    ('STOPPED', '', 'start'),
    ('STOPPED', 'ACTIVE', 'start'),
    ('PREEMPTED', '', 'delete create'),
    ('TERMINATED', 'ACTIVE', 'delete create'),
    ('PREEMPTED', 'SUSPENDED', 'delete create'),
  ],
)
def test_a_tpu_slice_that_is_there_already(tmp_path, node, queued, changes):
  cluster = stand_in_clusters.Cluster(tmp_path, 'done')
  (tmp_path / 'state').write_text(node)
  (tmp_path / 'queued').write_text(queued)
  status, _, err = tpu_pod(cluster)
  assert status == 0, err
  assert cluster.changes() == changes.split()


@pytest.mark.parametrize('queued', ['', 'ACTIVE'])
def test_a_tpu_slice_is_deleted_at_the_end(tmp_path, queued):
  cluster = stand_in_clusters.Cluster(tmp_path, 'done')
  (tmp_path / 'state').write_text('READY')
  (tmp_path / 'queued').write_text(queued)
  status, _, err = tpu_pod(cluster, '--delete')
  assert status == 0 and err.endswith('The slice is deleted\n')
  assert cluster.changes() == ['delete']
  assert not (tmp_path / 'state').exists()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which('gcloud') is None, reason='gcloud is not here')
def test_gcloud_itself_takes_what_the_tpu_launcher_asks_for(tmp_path):
  """With an API of this process; ssh and scp are stand-ins all the same."""
  cluster = stand_in_clusters.Cluster(tmp_path, 'done')
  stand_in = tmp_path / 'stand-in'
  command = tmp_path / 'bin' / 'gcloud'
  command.rename(stand_in)
  command.write_text(
    '#!/bin/sh\ncase $4 in\n'
    f'  ssh | scp) exec {stand_in} "$@" ;;\n'
    f'  *) exec {shutil.which("gcloud")} "$@" ;;\nesac\n'
  )
  command.chmod(0o755)
  requests = [['WAITING_FOR_RESOURCES', 'FAILED'], ['PROVISIONING', 'ACTIVE']]
  with stand_in_tpu_api.serving(requests) as api:
    cluster.env |= {
      'CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU': api.url,
      'CLOUDSDK_AUTH_DISABLE_CREDENTIALS': 'true',
      'CLOUDSDK_CONFIG': str(tmp_path / 'gcloud'),
      'CLOUDSDK_CORE_DISABLE_USAGE_REPORTING': 'true',
      'NO_PROXY': '*',
    }
    status, _, err = tpu_pod(cluster, '--project=project', '--spot', '--delete')
    assert status == 0, err
    assert not api.states and not api.has_node and not api.requests
  reason = 'Google refused the request: there is no more capacity in the zone;'
  assert reason in err and err.endswith('The slice is deleted\n')
  assert len(cluster.starts()) == 1
  for body in api.bodies:
    ((node,), is_spot) = body['tpu']['nodeSpec'], 'spot' in body
    assert node['nodeId'] == 'vit' and is_spot
    assert node['node']['acceleratorType'] == 'v4-32'


def test_help_of_the_tpu_launcher():
  status, out, _ = run('bash', SCRIPTS / 'tpu_pod.sh', '--help')
  assert status == 0 and 'bash scripts/tpu_pod.sh --name=' in out


def test_the_jobset_is_one_run():
  text = (SCRIPTS / 'kubernetes' / 'jobset.yaml').read_text()
  jobset = yaml.safe_load(text)
  assert jobset['apiVersion'] == 'jobset.x-k8s.io/v1alpha2'
  (workers,) = jobset['spec']['replicatedJobs']
  job = workers['template']['spec']
  pod = job['template']['spec']
  (container,) = pod['containers']
  *command, coordinator, process, processes = container['command']
  # The names that JobSet gives to pods: NAME-WORKERS-JOB-INDEX.NAME.
  name = jobset['metadata']['name']
  (port,) = container['ports']
  assert coordinator == (
    f'--coordinator={name}-{workers["name"]}-0-0.{name}:{port["containerPort"]}'
  )
  assert process == '--process_id=$(JOB_COMPLETION_INDEX)'
  assert processes == f'--num_processes={job["completions"]}'
  assert job['completionMode'] == 'Indexed' and workers['replicas'] == 1
  assert job['parallelism'] == job['completions']
  # Whatever ends, all start again; it is the work directory that lasts.
  assert pod['restartPolicy'] == 'Never' and job['backoffLimit'] == 0
  assert jobset['spec']['failurePolicy']['maxRestarts'] > 0
  mounts = {x['mountPath'] for x in container['volumeMounts']}
  assert '--workdir=/runs/digits' in command and '/runs' in mounts
  assert {x['name'] for x in container['volumeMounts']} == {
    x['name'] for x in pod['volumes']
  }


def test_the_jobset_runs_the_training_command():
  """Its flags parse: all that is wrong with this run is its process id."""
  text = (SCRIPTS / 'kubernetes' / 'jobset.yaml').read_text()
  job = yaml.safe_load(text)['spec']['replicatedJobs'][0]['template']['spec']
  command = job['template']['spec']['containers'][0]['command']
  assert command[:3] == ['python', '-m', 'vit_jax.main']
  args = [x.replace('$(JOB_COMPLETION_INDEX)', '99') for x in command[3:]]
  status, _, err = run(sys.executable, '-m', 'vit_jax.main', *args)
  assert status == 1 and '--process_id' in err and 'Traceback' not in err
  assert 'Unknown' not in err
