r"""Kills a run of several processes repeatedly, and checks that it recovers.

  python scripts/soak.py
  python scripts/soak.py --kills=100 --seed=1 --folder=/tmp/soak -- \
      --config.mesh.fsdp=2
  python scripts/soak.py --processes=1 --configs=digits_mae,digits_dino

First a small run of each config is made twice without interruption. Then one or
all processes of runs with the same config are killed at random times, from the
first millisecond on, by SIGKILL or SIGTERM. After each kill the same command is
run again until the run is done; then the next run begins, until there were
enough kills. The script checks that

  the final state and the metrics are bit-identical to those of the
  uninterrupted run, with each step logged once;
  after each kill the other processes end within 120 seconds and say why.

It prints a line for each kill, and exits with status 1 if a check failed. Flags
after a lone -- are for the training command. On 2 CPU cores a kill takes about
half a minute.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import dataclasses
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import Any

from absl import flags

from vit_jax import cli
from vit_jax.config import counted
from vit_jax.config import UserError
from vit_jax.runs import reporting
from vit_jax.runs import restoring
from vit_jax.runs import workdir as workdir_lib

FLAGS = flags.FlagValues()  # separate from the training command's
_KILLS = flags.DEFINE_integer(
  'kills', 30, 'Kills of each config.', lower_bound=1, flag_values=FLAGS
)
_CONFIGS = flags.DEFINE_list(
  'configs', ['digits'], 'Names of files in configs/.', flag_values=FLAGS
)
_SEED = flags.DEFINE_integer(
  'seed', 0, 'Seed of moments, signals and victims.', flag_values=FLAGS
)
_PROCESSES = flags.DEFINE_integer(
  'processes', 2, 'Processes of each run.', lower_bound=1, flag_values=FLAGS
)
_FOLDER = flags.DEFINE_string(
  'folder',
  None,
  'New or empty folder for runs and logs. Default: a temporary one.',
  flag_values=FLAGS,
)

_ROOT = pathlib.Path(__file__).absolute().parents[1]
_SMALL = {
  'model.hidden_size': 16,
  'model.mlp_dim': 32,
  'model.num_heads': 2,
  'model.depth': 1,
  'train.duration': '120 steps',
  'train.batch_size': 16,
  'optim.warmup': '10 steps',
  'train.log_every': '1 steps',
  'checkpoint.every': '3 steps',  # so that most kills interrupt a save
}
_LIMIT = 120.0  # seconds for the other processes to end
_STOPPED = 128 + signal.SIGTERM


@dataclasses.dataclass
class Run:
  """The processes of one start of a run.

  Attributes:
    workdir: Work directory of the run.
    processes: The processes, running or ended.
    logs: Output of each process.
    started: Time of the start by `time.monotonic`.
    found: Names of checkpoints, including unfinished ones, at the start.
  """

  workdir: pathlib.Path
  processes: list[subprocess.Popen[bytes]]
  logs: list[pathlib.Path]
  started: float
  found: set[str]

  def age(self) -> float:
    """Returns the seconds since the start."""
    return time.monotonic() - self.started

  def running(self) -> list[int]:
    """Returns the indices of the processes that have not ended."""
    return [i for i, p in enumerate(self.processes) if p.poll() is None]

  def wait(self, until: Callable[[], bool]) -> None:
    """Returns once all processes have ended, or `until` is true."""
    while self.running() and not until():
      time.sleep(0.01)

  def statuses(self) -> list[int]:
    """Returns the exit status of each process, all of which have ended."""
    return [p.wait() for p in self.processes]

  def phase(self) -> str:
    """Returns the phase of the run: `starting`, `saving` or `training`."""
    new = names(self.workdir / 'checkpoints') - self.found
    if any('tmp' in name for name in new):
      return 'saving'
    said = self.logs[0].read_text(errors='replace')
    return 'training' if '\nstep ' in said else 'starting'

  def last_words(self, process: int) -> str:
    """Returns the line in which a process says why it ended, or ''."""
    said = self.logs[process].read_text(errors='replace').splitlines()
    reasons = ('error: ', 'stopped at step', 'done in', 'finished already')
    return next((x for x in reversed(said) if x.startswith(reasons)), '')


def names(folder: pathlib.Path) -> set[str]:
  """Returns the names of the files in a folder, if it exists."""
  with contextlib.suppress(FileNotFoundError):
    return set(os.listdir(folder))
  return set()


@contextlib.contextmanager
def start(
  folder: pathlib.Path, name: str, training_flags: Sequence[str]
) -> Iterator[Run]:
  """Starts or resumes the run `folder/name`, which ends with the context.

  Args:
    folder: Named as the config.
    name: Of the run.
    training_flags: Flags of the training command.
  """
  workdir = folder / name
  with socket.socket() as s:
    s.bind(('localhost', 0))
    port = s.getsockname()[1]
  env = os.environ | {
    'PYTHONPATH': str(_ROOT),
    'JAX_PLATFORMS': 'cpu',
    'JAX_NUM_CPU_DEVICES': '1',
    'XLA_FLAGS': '--xla_backend_optimization_level=0',  # compiles sooner
  }
  number = len(list(folder.glob(f'{name}-*-0.log')))
  logs = [folder / f'{name}-{number}-{i}.log' for i in range(_PROCESSES.value)]
  run = Run(workdir, [], logs, time.monotonic(), names(workdir / 'checkpoints'))
  try:
    for i, log in enumerate(logs):
      command = [
        *(sys.executable, '-m', 'vit_jax.main'),
        f'--config={_ROOT}/configs/{folder.name}.py',
        *(f'--config.{key}={value}' for key, value in _SMALL.items()),
        *training_flags,
        f'--workdir={workdir}',
        f'--coordinator=localhost:{port}',
        f'--process_id={i}',
        f'--num_processes={len(logs)}',
      ]
      with log.open('wb') as file:
        process = subprocess.Popen(command, env=env, stdout=file, stderr=file)
        run.processes.append(process)
    yield run
  finally:
    for process in run.processes:
      process.kill()
      process.wait()


def undisturbed(run: Run) -> None:
  """Waits for an uninterrupted run to end.

  Raises:
    UserError: The run failed.
  """
  run.wait(until=lambda: False)
  if any(run.statuses()):
    raise UserError(
      f'a run that was left alone ended with {run.statuses()}: see'
      f' {run.logs[0]}'
    )


def strike(
  run: Run, moment: float, number: signal.Signals, victims: Sequence[int]
) -> list[str] | None:
  """Kills processes of a run, waits for the others, and prints a line.

  Args:
    run: A run that was just started.
    moment: Seconds after the start.
    number: The signal.
    victims: Indices of the processes to kill.

  Returns:
    Problems that were found; None if all processes had ended before.
  """
  run.wait(until=lambda: run.age() >= moment)
  if not run.running():
    return None
  phase = run.phase()
  for i in victims:
    run.processes[i].send_signal(number)
  struck = run.age()
  run.wait(until=lambda: run.age() - struck > _LIMIT)
  took, late = run.age() - struck, run.running()
  for i in late:
    run.processes[i].kill()
  statuses = run.statuses()
  others = [i for i in range(len(statuses)) if i not in victims]
  words = [run.last_words(i) for i in (*others, *victims)]
  line = next(filter(None, words), '-')
  who = 'all' if not others else f'process {", ".join(map(str, victims))}'
  print(
    f'{struck:6.2f}  {phase:8}  {number.name}  {who:9}  {took:5.1f}'
    f'  {", ".join(map(str, statuses)):9}  {line[:100]}',
    flush=True,
  )
  problems = [f'process {i} did not end in {_LIMIT:.0f} s' for i in late]
  for i, status in enumerate(statuses):
    if i in late:
      continue
    killed = i in victims and status == -number  # before it handled the signal
    silent = status == 1 and not run.last_words(i).startswith('error: ')
    if not killed and (silent or status not in (0, 1, _STOPPED)):
      problems.append(f'process {i} ended with {status} without saying why')
    if 'Traceback' in run.logs[i].read_text(errors='replace'):
      problems.append(f'process {i} ended with a traceback')
  return [f'{problem}: see {run.logs[0]} and after' for problem in problems]


def outcome(workdir: pathlib.Path) -> dict[str, Any]:
  """Returns the values that must be equal in all runs, by name."""
  newest = workdir_lib.newest_first(workdir / 'checkpoints')[0]
  info = restoring.read_info(newest)
  with (workdir / 'metrics.jsonl').open() as file:
    lines = [json.loads(line) for line in file]
  lines = [
    {k: x for k, x in line.items() if k != 'time' and not reporting.is_timed(k)}
    for line in lines
  ]
  # Others only had times, which depend on the interruptions.
  lines = [x for x in lines if x.keys() - {'step', 'epoch'}]
  return {
    'DONE': json.loads((workdir / 'DONE').read_text()),
    'the step of the newest checkpoint': info['step'],
    **{f'the bits of {path}': x for path, x in info['arrays'].items()},
    'the steps of metrics.jsonl': [x['step'] for x in lines],
    'metrics.jsonl': lines,
  }


def compare(expected: dict[str, Any], workdir: pathlib.Path) -> list[str]:
  """Returns differences between a run and the uninterrupted one."""
  found = outcome(workdir)
  different = [
    f'{workdir}: {name} differs'
    for name in expected.keys() | found.keys()
    if expected.get(name) != found.get(name)
  ]
  logged = [x['step'] for x in found['metrics.jsonl'] if 'train/loss' in x]
  if logged != list(range(1, found['the step of the newest checkpoint'] + 1)):
    different.append(f'{workdir}: metrics.jsonl does not have each step once')
  print(f'{workdir.name}: {len(different)} differences', flush=True)
  return different


def soak(folder: pathlib.Path, training_flags: Sequence[str]) -> list[str]:
  """Kills runs of one config, and returns the problems that were found.

  Args:
    folder: An empty one, named as the config.
    training_flags: Flags of the training command.
  """
  print(f'\n{folder.name}, {counted(_PROCESSES.value, "process")}', flush=True)
  with start(folder, 'alone', training_flags) as run:
    undisturbed(run)
  expected = outcome(folder / 'alone')
  with start(folder, 'again', training_flags) as run:
    undisturbed(run)
    life = run.age()
  problems = compare(expected, folder / 'again')
  print(f'a run that is left alone takes {life:.1f} s\n')
  print('second  phase     signal   who        took   statuses   said')
  rng, kills, round_ = random.Random(_SEED.value), 0, 0
  while kills < _KILLS.value:
    name, round_ = f'round{round_}', round_ + 1
    while not (folder / name / 'DONE').exists():
      with start(folder, name, training_flags) as run:
        if kills == _KILLS.value:
          undisturbed(run)
          break
        count = rng.choice((1, _PROCESSES.value))
        struck = strike(
          run,
          moment=rng.uniform(0, life),
          number=rng.choice((signal.SIGKILL, signal.SIGTERM)),
          victims=sorted(rng.sample(range(_PROCESSES.value), count)),
        )
        if struck is None:
          undisturbed(run)  # it was done before
        else:
          kills += 1
          problems += struck
    problems += compare(expected, folder / name)
  print(f'\n{kills} kills in {round_} runs: {len(problems)} problems')
  return problems


def main(argv: list[str]) -> int:
  """Returns the exit status: 1 if there were problems."""
  folder = pathlib.Path(_FOLDER.value or tempfile.mkdtemp(prefix='soak-'))
  folder = folder.absolute()
  if names(folder):
    raise UserError(f'--folder={folder} is not empty: give another')
  unknown = [
    x for x in _CONFIGS.value if not (_ROOT / f'configs/{x}.py').exists()
  ]
  if unknown:
    raise UserError(f'--configs={",".join(unknown)}: not in {_ROOT}/configs')
  folder.mkdir(parents=True, exist_ok=True)
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(_STOPPED))  # ends runs, too
  print(f'runs and logs are in {folder}')
  problems = []
  for name in _CONFIGS.value:
    (folder / name).mkdir()
    problems += soak(folder / name, argv[1:])
  for problem in problems:
    print(f'error: {problem}', file=sys.stderr)
  return int(bool(problems))


if __name__ == '__main__':
  os.environ['JAX_PLATFORMS'] = 'cpu'  # for the comparison
  cli.run(main, __doc__, FLAGS)
