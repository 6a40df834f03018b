"""Compares this code with the answers of other implementations.

  python tests/golden.py ../shared/golden/ssl

Each directory has a cases.json, with the dimensions, files and tolerance of its
cases, and the files. A line is printed for each case; the exit status is 1
where a case fails, or where nothing here can compute it.
"""

import argparse
import json
import pathlib
import re
import sys
import traceback

from absl import logging
import golden_cases


def check_of(
  checks: dict[str, golden_cases.Check], name: str
) -> golden_cases.Check | None:
  """Returns the check of a case: of its name, or without a number behind."""
  return checks.get(name) or checks.get(re.sub(r'_\d+$', '', name))


def run(case: golden_cases.Case, check: golden_cases.Check) -> tuple[bool, str]:
  """Returns whether a case agrees, and the rest of its line."""
  try:
    judged = case.judged(check(case))
  except Exception as e:  # the other cases shall still run
    traceback.print_exc()
    return False, f'{type(e).__name__}: {e}'.splitlines()[0]
  wrong = [k for k, x in judged.items() if not x.is_good]
  worst = max(judged.values(), key=lambda x: (not x.is_good, x.share))
  text = f'{worst.difference:.3g} of {worst.allowed:.3g}'
  return not wrong, f'{text} ({", ".join(wrong)})' if wrong else text


def main(directories: list[str]) -> int:
  """Runs all cases of some directories; returns the exit status."""
  logging.set_verbosity(logging.ERROR)  # files do not say how images are made
  checks, failed, count = golden_cases.checks(), 0, 0
  for directory in map(pathlib.Path, directories):
    file = directory / 'cases.json'
    if not file.is_file():
      print(f'error: there is no {file}', file=sys.stderr)
      return 1
    for fields in json.loads(file.read_text()):
      case = golden_cases.Case(directory, fields)
      check = check_of(checks, case.name)
      good, text = False, 'no function'
      if check is not None:
        good, text = run(case, check)
      print(f'{case.name:28} {text:32} {"ok" if good else "FAILED"}')
      sys.stdout.flush()
      failed, count = failed + (not good), count + 1
  print(f'{count - failed} of {count} cases agree')
  return int(failed > 0 or not count)


if __name__ == '__main__':
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('directories', nargs='+', metavar='DIRECTORY')
  sys.exit(main(parser.parse_args().directories))
