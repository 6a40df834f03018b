"""Runs a command as several processes of this machine that are one run."""

import contextlib
import dataclasses
import os
import pathlib
import socket
import subprocess
import sys
import time

import tiny

# To wait for what takes seconds: only a failure takes as long.
PATIENCE_S = 300


@dataclasses.dataclass
class Group:
  """Processes of one run.

  Attributes:
    members: In order of their numbers.
    logs: What each wrote to stdout and stderr.
  """

  members: list[subprocess.Popen]
  logs: list[pathlib.Path]

  def statuses(self):
    """Waits for all, and returns their exit statuses."""
    return [p.wait(timeout=PATIENCE_S) for p in self.members]

  def log(self, i):
    return self.logs[i].read_text(errors='replace')


@contextlib.contextmanager
def start(command, count, folder, devices=1):
  """Starts `python COMMAND... --coordinator=...` as many times; kills the rest.

  Args:
    command: What comes after `python`.
    count: Number of processes.
    folder: For their logs.
    devices: Of each process.
  """
  folder.mkdir(parents=True, exist_ok=True)
  with socket.socket() as s:
    s.bind(('localhost', 0))
    port = s.getsockname()[1]
  env = os.environ | {
    'JAX_NUM_CPU_DEVICES': str(devices),
    'PYTHONPATH': os.pathsep.join([str(tiny.ROOT), str(tiny.ROOT / 'tests')]),
  }
  group = Group([], [folder / f'{i}.log' for i in range(count)])
  try:
    for i, path in enumerate(group.logs):
      flags = [f'--coordinator=localhost:{port}', f'--process_id={i}']
      flags += [f'--num_processes={count}'] if count > 1 else []
      with path.open('w') as log:
        group.members.append(
          subprocess.Popen(
            [sys.executable, *command, *(flags if count > 1 else [])],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=env,
            cwd=folder,
          )
        )
    yield group
  finally:
    for process in group.members:
      process.kill()
      process.wait()


def wait_for_step(group, workdir, step):
  """Waits until a run has reported a step."""
  deadline = time.monotonic() + PATIENCE_S
  while not any(line['step'] >= step for line in metrics(workdir)):
    assert time.monotonic() < deadline, group.log(0)
    assert all(p.poll() is None for p in group.members), group.log(0)
    time.sleep(0.02)


def metrics(workdir):
  return tiny.metrics(workdir) if (workdir / 'metrics.jsonl').exists() else []
