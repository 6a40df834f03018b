"""Times whole processes; each function returns an entry of the report."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any
from typing import NamedTuple

import ml_collections

from benchmarks import setting
from benchmarks import timing
from benchmarks.peers import baseline
from vit_jax import config as config_lib
from vit_jax import models
from vit_jax.models import vit
from vit_jax.parallel import allocator as allocator_lib

Entry = dict[str, Any]

_STEPS_PER_BLOCK = 2
_CACHE_VARIABLE = 'JAX_COMPILATION_CACHE_DIR'


def startup(
  config: ml_collections.ConfigDict, flags: Sequence[str], runs: int = 3
) -> Entry:
  """Times a run up to its first step, in turns with a plain script.

  The script is like a tutorial's (`plain_start`): the same model and batch on
  random images in memory. Neither has a compile cache; ours reads and decodes
  its images. Their losses are not compared: parameters and images differ.

  Args:
    config: The config of a ViT with a class token and square patches.
    flags: Flags of `vit_jax.main` for the same config.
    runs: How often each is started.
  """
  plain = [sys.executable, '-m', 'benchmarks.plain_start']
  plain += [json.dumps(_plain_arguments(config))]
  ours: list[_Start] = []
  theirs: list[float] = []
  for _ in range(runs):
    ours.append(_start(flags))
    start = time.time()
    out, _ = _run(plain)
    theirs.append(json.loads(out)['time'] - start)
  seconds = [x.seconds_to_first_step for x in ours]
  return {
    **timing.against(seconds, theirs, 'seconds_to_first_step'),
    'seconds_to_exit': statistics.median(x.seconds_to_exit for x in ours),
    'peak_memory_mb': max(x.peak_memory_mb for x in ours),
  }


class _Start(NamedTuple):
  """Measurements of a run of one step."""

  seconds_to_first_step: float
  seconds_to_exit: float
  peak_memory_mb: float


def _start(flags: Sequence[str]) -> _Start:
  """Runs one step in a new process.

  Raises:
    RuntimeError: The run failed, or took no step.
  """
  one_step = [
    '--config.train.duration=1 steps',
    '--config.optim.warmup=0 steps',
    '--compile_cache=',
  ]
  with tempfile.TemporaryDirectory() as folder:
    start = time.time()
    _, peak = _run([*_main(flags, folder), *one_step])
    end = time.time()
    line = _first_step(folder, start)
  if line is None:
    raise RuntimeError(f'{flags!r} took no step')
  return _Start(line['time'] - start, end - start, peak)


def restart(flags: Sequence[str], runs: int = 3) -> Entry:
  """Times a command up to its first step: a new run, and its resumption.

  A new run finds no compile cache. It is stopped after its first step, and the
  same command resumes it with the cache that it has filled.

  Args:
    flags: Flags of a run that reports each step.
    runs: Number of new runs; medians are reported.
  """
  reports: dict[str, list[dict[str, float]]] = {'cold': [], 'warm': []}
  for _ in range(runs):
    with tempfile.TemporaryDirectory() as folder:
      for lines in reports.values():
        lines.append(_run_to_first_step(flags, folder))
  entry: Entry = {}
  for kind, lines in reports.items():
    seconds = [line['seconds'] for line in lines]
    compiling = [line.get('train/compile_seconds', 0.0) for line in lines]
    entry |= timing.spread(seconds, f'{kind}_seconds', f'{kind}_range')
    entry[f'{kind}_compile_seconds'] = statistics.median(compiling)
  return entry | {'ratio': entry['warm_seconds'] / entry['cold_seconds']}


def parallel(config: ml_collections.ConfigDict, blocks: int) -> Entry:
  """Times data-parallel steps on two CPU devices, in turns with one.

  Args:
    config: The config of the run; both have the same global batch and cores.
    blocks: Number of timed blocks.
  """
  with _worker(config, 1) as one, _worker(config, 2) as two:
    times = timing.in_turns({'one': one, 'two': two}, blocks)
  images = _STEPS_PER_BLOCK * config.train.batch_size
  return timing.compare(times['two'], times['one'], images)


def allocator(config: ml_collections.ConfigDict, blocks: int) -> Entry:
  """Times steps with mimalloc, in turns with glibc's malloc.

  Args:
    config: The config of the run.
    blocks: Number of timed blocks.
  """
  names = {'': 'mimalloc', 'baseline_': 'none'}
  used: dict[str, list[dict[str, float]]] = {name: [] for name in names}
  with contextlib.ExitStack() as stack:

    def steps(name: str) -> Callable[[], None]:
      variables = {allocator_lib.VARIABLE: names[name]}
      take = stack.enter_context(_worker(config, 1, variables))
      return lambda: used[name].append(take())

    times = timing.in_turns({name: steps(name) for name in names}, blocks)
  images = _STEPS_PER_BLOCK * config.train.batch_size
  entry = timing.compare(times[''], times['baseline_'], images)
  for name, reports in used.items():
    # The first one comes after the warm-up.
    seconds = reports[-1]['cpu_seconds'] - reports[0]['cpu_seconds']
    entry |= {
      f'{name}cpu_seconds_per_step': seconds / blocks / _STEPS_PER_BLOCK,
      f'{name}peak_memory_mb': reports[-1]['peak_memory_mb'],
    }
  return entry | {'against': 'glibc'}


def _plain_arguments(config: ml_collections.ConfigDict) -> dict[str, Any]:
  """Returns the argument of `plain_start` for the same model and batch."""
  classes = config.model.num_classes or setting.NUM_CLASSES
  model = models.from_config(config.model, classes, config.train.dtype)
  assert isinstance(model, vit.ViT)
  sizes = baseline.fields(model) | {'dtype': config.train.dtype}
  size = config_lib.pair(config.data.image_size, 'data.image_size')
  return {
    'model': sizes,
    'image_shape': [*size, config.data.channels],
    'batch_size': config.train.batch_size,
    'optim': baseline.adamw_values(config.optim),
  }


def _run(command: Sequence[str]) -> tuple[str, float]:
  """Runs a command to its end, without a compile cache.

  Returns:
    Its stdout, and its peak memory in MiB.

  Raises:
    RuntimeError: The command failed.
  """
  env = {k: x for k, x in os.environ.items() if k != _CACHE_VARIABLE}
  with (
    tempfile.TemporaryFile('w+') as errors,
    subprocess.Popen(
      command, env=env, stdout=subprocess.PIPE, stderr=errors, text=True
    ) as process,
  ):
    assert process.stdout is not None
    out = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
      errors.seek(0)
      raise RuntimeError(f'{command!r} failed: {errors.read()[-1000:]}')
  return out, usage.ru_maxrss / 1024


def _main(flags: Sequence[str], folder: str) -> list[str]:
  command = [sys.executable, '-m', 'vit_jax.main', *flags]
  return [*command, f'--workdir={folder}/run']


def _own_cache(folder: str) -> dict[str, str]:
  """Returns an environment with the compile cache in a folder."""
  env = {**os.environ, 'VIT_JAX_CACHE': os.path.join(folder, 'cache')}
  env.pop(_CACHE_VARIABLE, None)  # would take precedence
  return env


def _run_to_first_step(flags: Sequence[str], folder: str) -> dict[str, float]:
  """Starts or resumes a run, and stops it after a step.

  Returns:
    Its report of the step, with the seconds up to then.
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
  """Returns the first step that was reported since `start`, if any."""
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
  config: ml_collections.ConfigDict,
  devices: int,
  variables: Mapping[str, str] | None = None,
) -> Iterator[Callable[[], dict[str, float]]]:
  """Yields a function that takes steps in a process with CPU devices.

  It returns what the process has used; `variables` are of its environment.
  """
  config = config.copy_and_resolve_references()
  config.mesh.data = devices
  env = {'JAX_PLATFORMS': 'cpu', 'JAX_NUM_CPU_DEVICES': str(devices)}
  with subprocess.Popen(
    [sys.executable, '-m', 'benchmarks.worker'],
    env=os.environ | env | dict(variables or {}),
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
  ) as process:
    requests, answers = process.stdin, process.stdout
    assert requests is not None and answers is not None

    def ask(request: Any) -> dict[str, float]:
      print(json.dumps(request), file=requests, flush=True)
      if not (answer := answers.readline()):
        raise RuntimeError(f'{process.args!r} ended')
      return json.loads(answer)

    ask(config_lib.to_dict(config))
    yield lambda: ask(_STEPS_PER_BLOCK)
