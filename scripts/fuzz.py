r"""Looks for inputs that end in a traceback, with more cases than the tests.

  python scripts/fuzz.py --count=2000
  python scripts/fuzz.py --seconds=600 --seed=100000 --target=configs

Configs, texts of parts, checkpoints, directories, images, data sets and
requests of both servers are damaged at random; each must be accepted, or
refused with a one-line error. A failed case is printed with its seed;
--target=NAME --seed=SEED --count=1 repeats it. The cases come from
tests/hostile.py and tests/hostile_data.py, and need the extra [test]. The exit
status is 1 if any failed.
"""

import collections
import importlib
import pathlib
import sys
import tempfile
import time
import traceback

from absl import flags
from absl import logging

from vit_jax import cli
from vit_jax.config import UserError

_COUNT = flags.DEFINE_integer(
  'count', 100, 'Number of cases for each target.', lower_bound=1
)
_SECONDS = flags.DEFINE_float(
  'seconds', None, 'Time limit instead of --count.', lower_bound=0
)
_SEED = flags.DEFINE_integer('seed', 0, 'First seed.', lower_bound=0)
_TARGET = flags.DEFINE_multi_string(
  'target', [], 'Target: configs, npz, pth, images, ... Default: all.'
)


def main(argv: list[str]) -> int:
  """Runs the cases, and prints how they ended."""
  if argv[1:]:
    raise UserError(f'unexpected argument {argv[1]!r}')
  tests = pathlib.Path(__file__).resolve().parents[1] / 'tests'
  sys.path.insert(0, str(tests))
  hostile = importlib.import_module('hostile')  # after the flags: imports jax
  more = importlib.import_module('hostile_data')
  all_targets = (*hostile.TARGETS, *more.TARGETS)
  targets = {target.__name__: target for target in all_targets}
  for name in _TARGET.value:
    if name not in targets:
      raise UserError(
        f'--target={name}: there is none; choose of {", ".join(targets)}'
      )
  names = _TARGET.value or list(targets)
  counts: dict[str, collections.Counter[str]] = {
    name: collections.Counter() for name in names
  }
  start = time.monotonic()
  with tempfile.TemporaryDirectory() as folder:
    logging.set_verbosity(logging.FATAL)  # the error says what is wrong
    hostile.make(pathlib.Path(folder))
    seed = _SEED.value
    while not _is_over(seed, start):
      for name in names:
        how = _one(hostile, targets[name], seed, pathlib.Path(folder))
        counts[name][how] += 1
      seed += 1
  for name in names:
    found = counts[name]
    print(
      f'{name}: {found["accepted"]} accepted, {found["refused"]} refused,'
      f' {found["failed"]} failed'
    )
  return int(any(found['failed'] for found in counts.values()))


def _is_over(seed: int, start: float) -> bool:
  if _SECONDS.value is not None:
    return time.monotonic() - start > _SECONDS.value
  return seed >= _SEED.value + _COUNT.value


def _one(hostile: object, target: object, seed: int, folder: object) -> str:
  """Runs one case; returns the outcome."""
  try:
    accepted = hostile.case(target, seed, folder)  # type: ignore[attr-defined]
  except hostile.FailureError as e:  # type: ignore[attr-defined]
    name = target.__name__  # type: ignore[attr-defined]
    print(f'--target={name} --seed={seed} --count=1: {e}', flush=True)
    traceback.print_exception(e.__cause__, limit=-4)
    return 'failed'
  return 'accepted' if accepted else 'refused'


if __name__ == '__main__':
  cli.run(main, __doc__)
