import contextlib
import os
import signal
import socket
import subprocess
import sys

from absl import flags
import pytest
import tiny

from vit_jax.parallel import clusters
from vit_jax.parallel import peers as peers_lib
from vit_jax.parallel import processes


def _flags(*args: str) -> flags.FlagValues:
  flag_values = flags.FlagValues()
  clusters.define_flags(flag_values)
  flag_values(['main', *args])
  return flag_values


@pytest.mark.parametrize(
  'args', [[], ['--coordinator=localhost:1', '--process_id=0']]
)
def test_one_process(monkeypatch, args):
  for name in os.environ:
    if name.startswith(('SLURM', 'OMPI', 'KUBERNETES', 'JOB', 'TPU')):
      monkeypatch.delenv(name)
  monkeypatch.setattr(socket.socket, 'connect', None)  # asks nobody
  flag_values = _flags(*args, *(['--num_processes=1'] if args else []))
  assert peers_lib.initialize(flag_values) is None
  assert processes.first()
  assert processes.call_on_first(lambda: (1, 2)) == (1, 2)
  with pytest.raises(OSError, match='missing'):
    processes.call_on_first(lambda: open('missing'))
  error = RuntimeError('UNKNOWN: Gloo AllGather failed: connection closed')
  assert not processes.is_up()
  with (
    pytest.raises(RuntimeError, match='Gloo'),
    processes.lost_peers_explained(),
  ):
    raise error
  with pytest.raises(SystemExit) as e:
    processes.exit_process(3)
  assert e.value.code == 3


def _free_port() -> int:
  with socket.create_server(('', 0)) as server:
    return server.getsockname()[1]


class Peers:
  """Runs peers.py in several processes."""

  def __init__(self, do: str):
    self._args = [f'--do={do}']
    self.processes: list[subprocess.Popen[str]] = []

  def start(self, *args: str, **environ: str) -> None:
    program = tiny.TESTS.joinpath('peers.py')
    environ['PYTHONPATH'] = str(program.parents[1])
    self.processes.append(
      subprocess.Popen(
        [sys.executable, str(program), *self._args, *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environ,
      )
    )

  def start_two(self) -> 'Peers':
    port = _free_port()
    for i in range(2):
      self.start(
        f'--coordinator=localhost:{port}',
        f'--process_id={i}',
        '--num_processes=2',
      )
    return self

  def start_two_as_slurm(self) -> 'Peers':
    port = _free_port()
    for i in range(2):
      self.start(
        JAX_COORDINATOR_PORT=str(port),
        SLURM_JOB_ID='4711',
        SLURM_LOCALID=str(i),
        SLURM_NTASKS='2',
        SLURM_PROCID=str(i),
        SLURM_STEP_NODELIST='localhost',
        SLURM_STEP_NUM_TASKS='2',
        SLURM_STEP_TASKS_PER_NODE='2',
      )
    return self

  def wait_for(self, line: str, process: int) -> None:
    stdout = self.processes[process].stdout
    assert any(text == f'{line}\n' for text in stdout), line

  def ends(self) -> list[tuple[int, str, str]]:
    """Returns their statuses, what they printed, and their errors' lines."""
    ends = []
    for process in self.processes:
      out, err = process.communicate(timeout=120)
      errors = [x for x in err.splitlines() if x.startswith('error:')]
      ends.append((process.returncode, out, '\n'.join(errors)))
    return ends

  def __enter__(self) -> 'Peers':
    return self

  def __exit__(self, *_: object) -> None:
    for process in self.processes:
      process.kill()
      process.communicate()


def test_processes_that_slurm_started_agree():
  with Peers('agree').start_two_as_slurm() as peers:
    ends = peers.ends()
    first = peers.processes[0].pid
  for i, (status, out, err) in enumerate(ends):
    assert (status, err) == (0, '')
    assert out.endswith(
      f"process {i} of 2 (SLURM)\n{{'pid': {first}, 'shape': [1, 2]}}\nTrue\n"
    )


@pytest.mark.parametrize(
  ('do', 'errors'),
  [
    ('fail', ['error: no such thing'] * 2),
    ('fail_later', ['error: process 1: no such thing'] * 2),
    (
      'bug',
      ['', 'error: process 0 failed: ZeroDivisionError: division by zero'],
    ),
  ],
)
def test_an_error_of_one_is_one_of_all(do, errors):
  with Peers(do).start_two() as peers:
    ends = peers.ends()
  assert [(status, err) for status, _, err in ends] == [(1, x) for x in errors]


@pytest.mark.slow
def test_a_lost_process_ends_the_other():
  losses = [(0, signal.SIGKILL), (1, signal.SIGKILL), (0, signal.SIGSTOP)]
  with contextlib.ExitStack() as stack:
    runs = [stack.enter_context(Peers('wait').start_two()) for _ in losses]
    for peers, (victim, by) in zip(runs, losses, strict=True):
      peers.wait_for('waiting', 0)  # for its stdin
      peers.wait_for('up', 1)  # and for process 0
      peers.processes[victim].send_signal(by)
    for peers, (victim, _) in zip(runs, losses, strict=True):
      survivor = peers.processes[1 - victim]
      assert survivor.wait(timeout=120) == 1
      errors = [x for x in survivor.stderr if x.startswith('error:')]
      assert len(errors) == 1
      assert 'another process of this run was lost' in errors[0]
      assert f'this is process {1 - victim} of 2' in errors[0]
      assert 'run the same command again to resume' in errors[0]


def test_a_process_that_hangs_ends():
  with Peers('stall') as peers:
    peers.start()
    process = peers.processes[0]
    assert process.wait(timeout=60) == 1
    err = process.stderr.read()
  assert err.endswith(
    'error: no progress for 0.2 s after step 3: the run hangs; run the same'
    ' command again to resume\n'
  )
  assert 'peers.py", line' in err  # where it hangs


def test_progress_keeps_the_watch_calm(tmp_path):
  with processes.Watch(3600, tmp_path / 'log') as watch:
    watch.alive(1)
    watch.alive()
  with processes.Watch(0) as watch:
    watch.alive(1)
