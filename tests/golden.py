"""Compares this code with the answers of other implementations.

  python tests/golden.py ../shared/golden/ssl

Each directory has a cases.json, with the dimensions, files and tolerance of its
cases, and the files. A line is printed for each case; the exit status is 1
where a case fails, or where nothing here can compute it.
"""

import argparse
from collections.abc import Iterator
import json
import os
import pathlib
import re
import sys
import traceback

from absl import logging
import quick_compiler

# Before jax starts: what is expected was computed on the CPU.
os.environ.setdefault('JAX_PLATFORMS', 'cpu')
os.environ['XLA_FLAGS'] = quick_compiler.flags(
  os.environ['JAX_PLATFORMS'], os.environ.get('XLA_FLAGS')
)
os.environ.update(quick_compiler.cache_variables(os.environ['JAX_PLATFORMS']))

import golden_cases
import jax


def find_check(
  checks: dict[str, golden_cases.Check], name: str
) -> golden_cases.Check | None:
  """Returns the check of a case: of its name, or without a number behind."""
  return checks.get(name) or checks.get(re.sub(r'_\d+$', '', name))


def cases(directory: pathlib.Path) -> Iterator[golden_cases.Case]:
  """Yields the cases of a directory.

  Raises:
    ValueError: Its cases.json is missing or damaged.
  """
  file = directory / 'cases.json'
  try:
    entries = json.loads(file.read_text())
  except (OSError, ValueError) as e:
    raise ValueError(f'{file} cannot be read: {e}') from None
  if not isinstance(entries, list) or not all(
    isinstance(x, dict) and isinstance(x.get('name'), str) for x in entries
  ):
    raise ValueError(f'{file} is no list of cases with names')
  for fields in entries:
    yield golden_cases.Case(directory, fields)


def run(case: golden_cases.Case, check: golden_cases.Check) -> tuple[bool, str]:
  """Returns whether a case agrees, and the rest of its line.

  Raises:
    Exception: The case cannot be computed.
  """
  judged = case.judged(check(case))
  wrong = [k for k, x in judged.items() if not x.is_good]
  worst = max(judged.values(), key=lambda x: (not x.is_good, x.share))
  text = f'{worst.difference:.3g} of {worst.allowed:.3g}'
  return not wrong, f'{text} ({", ".join(wrong)})' if wrong else text


def main(directories: list[str], is_verbose: bool = False) -> int:
  """Runs all cases of some directories; returns the exit status."""
  logging.set_verbosity(logging.ERROR)  # files do not say how images are made
  checks, verdicts, is_whole = golden_cases.checks(), [], True
  for directory in map(pathlib.Path, directories):
    try:
      case_list = list(cases(directory))
    except ValueError as e:
      print(f'error: {e}', file=sys.stderr)
      case_list, is_whole = [], False
    for case in case_list:
      good, text = False, 'no function'
      if check := find_check(checks, case.name):
        try:
          good, text = run(case, check)
        except Exception as e:  # the other cases shall still run
          text = ' '.join(f'{type(e).__name__}: {e}'.split())
          if is_verbose:
            traceback.print_exc()
      print(f'{case.name:28} {text:32} {"ok" if good else "FAILED"}')
      sys.stdout.flush()
      verdicts.append(good)
      jax.clear_caches()  # other cases have other shapes
  print(f'{sum(verdicts)} of {len(verdicts)} cases agree')
  return int(not (is_whole and verdicts and all(verdicts)))


if __name__ == '__main__':
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('directories', nargs='+', metavar='DIRECTORY')
  parser.add_argument(
    '--verbose', action='store_true', help='also print where errors arise'
  )
  args = parser.parse_args()
  sys.exit(main(args.directories, args.verbose))
