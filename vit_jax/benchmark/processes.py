"""What is measured of whole processes; each returns one entry of the report."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import ml_collections

from vit_jax import config as config_lib
from vit_jax.benchmark import timing

Entry = dict[str, Any]
Env = dict[str, str]

_STEPS_PER_BLOCK = 2


def startup(flags: Sequence[str], runs: int = 3) -> Entry:
  """Times a command from its start to its first step, and to its end.

  Args:
    flags: Of a run; three steps of it are done.
    runs: How often, without a compile cache; the medians are reported.
  """
  firsts, ends = [], []
  for _ in range(runs):
    with tempfile.TemporaryDirectory() as folder:
      command = _main(flags, folder)
      command += ['--config.train.duration=3 steps']
      command += ['--config.optim.warmup=0 steps']
      start = time.time()
      subprocess.run(
        command, check=True, capture_output=True, env=_own_cache(folder)
      )
      ends.append(time.time() - start)
      line = _first_step(folder, start)
      assert line is not None
      firsts.append(line['time'] - start)
  peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
  return {
    'seconds_to_first_step': statistics.median(firsts),
    'range': [min(firsts), max(firsts)],
    'seconds_to_exit': statistics.median(ends),
    'peak_memory_mb': peak / 1024,
  }


def restart(flags: Sequence[str], runs: int = 3) -> Entry:
  """Times a command from its start to its first step: new, and resumed.

  A new run finds no compile cache; it is stopped after its first step, and the
  same command resumes it with the cache that it left.

  Args:
    flags: Of a run that reports each step.
    runs: How often; the medians are reported.
  """
  lines: dict[str, list[dict[str, float]]] = {'cold': [], 'warm': []}
  for _ in range(runs):
    with tempfile.TemporaryDirectory() as folder:
      for of_kind in lines.values():
        of_kind.append(_run_to_first_step(flags, folder))
  entry: Entry = {}
  for kind, of_kind in lines.items():
    seconds = [line['seconds'] for line in of_kind]
    compiling = [line.get('train/compile_seconds', 0.0) for line in of_kind]
    entry[f'{kind}_seconds'] = statistics.median(seconds)
    entry[f'{kind}_range'] = [min(seconds), max(seconds)]
    entry[f'{kind}_compile_seconds'] = statistics.median(compiling)
  return entry | {'ratio': entry['warm_seconds'] / entry['cold_seconds']}


def parallel(config: ml_collections.ConfigDict, blocks: int) -> Entry:
  """Times data-parallel steps on two CPU devices, in turns with one.

  Args:
    config: Of the run; both have the same global batch, and the same cores.
    blocks: How often each is timed.
  """
  with _worker(config, 1) as one, _worker(config, 2) as two:
    times = timing.in_turns({'one': one, 'two': two}, blocks)
  images = _STEPS_PER_BLOCK * config.train.batch_size
  rates = {k: timing.summarize(v, images) for k, v in times.items()}
  return {
    'images_per_second': rates['two']['median'],
    'baseline': rates['one']['median'],
    'ratio': rates['two']['median'] / rates['one']['median'],
    'range': [rates['two']['min'], rates['two']['max']],
    'baseline_range': [rates['one']['min'], rates['one']['max']],
  }


def _main(flags: Sequence[str], folder: str) -> list[str]:
  command = [sys.executable, '-m', 'vit_jax.main', *flags]
  return [*command, f'--workdir={folder}/run']


def _own_cache(folder: str) -> Env:
  """Returns the environment in which what is compiled is kept in a folder."""
  env = {**os.environ, 'VIT_JAX_CACHE': os.path.join(folder, 'cache')}
  env.pop('JAX_COMPILATION_CACHE_DIR', None)  # which would go before it
  return env


def _run_to_first_step(flags: Sequence[str], folder: str) -> dict[str, float]:
  """Starts or resumes a run, and stops it after a step.

  Returns:
    What it reported of the step, and the seconds to there.
  """
  start = time.time()
  with subprocess.Popen(
    _main(flags, folder),
    env=_own_cache(folder),
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
  ) as process:
    try:
      while (line := _first_step(folder, start)) is None:
        if process.poll() is not None:
          raise RuntimeError(f'{process.args!r} ended before a step')
        time.sleep(0.05)
    finally:
      process.terminate()
  return {**line, 'seconds': line['time'] - start}


def _first_step(folder: str, start: float) -> dict[str, Any] | None:
  """Returns the first step that was reported since a time, if there is one."""
  path = pathlib.Path(folder, 'run', 'metrics.jsonl')
  if not path.exists():
    return None
  whole, _, _ = path.read_text().rpartition('\n')
  for line in map(json.loads, whole.splitlines()):
    if line['time'] >= start and 'train/loss' in line:
      return line
  return None


@contextlib.contextmanager
def _worker(
  config: ml_collections.ConfigDict, devices: int
) -> Iterator[Callable[[], None]]:
  """Yields a function that takes steps in a process with so many devices."""
  config = config.copy_and_resolve_references()
  config.mesh.data = devices
  env = {'JAX_PLATFORMS': 'cpu', 'JAX_NUM_CPU_DEVICES': str(devices)}
  with subprocess.Popen(
    [sys.executable, '-m', 'vit_jax.benchmark.worker'],
    env=os.environ | env,
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
  ) as process:
    requests, answers = process.stdin, process.stdout
    assert requests is not None and answers is not None

    def ask(request: Any) -> None:
      print(json.dumps(request), file=requests, flush=True)
      if not answers.readline():
        raise RuntimeError(f'{process.args!r} ended')

    ask(config_lib.to_dict(config))
    yield lambda: ask(_STEPS_PER_BLOCK)
